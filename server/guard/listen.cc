#include "server/guard/listen.h"

#include <linux/filter.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/ip/v6_only.hpp>
#include <utility>

#include "absl/status/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

namespace net = boost::asio;
using boost::system::error_code;
using Tcp = net::ip::tcp;

// A port that is free on IPv4 may be taken on IPv6.
constexpr int kPortTries = 16;

enum class Families { kOne, kBoth };

bool IsWithoutIpv6(const error_code& error) {
  return error == net::error::address_family_not_supported ||
         error == boost::system::errc::address_not_available;
}

error_code Open(Tcp::acceptor& acceptor, const Tcp::endpoint& endpoint, Families families) {
  error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(net::socket_base::reuse_address(true), error);
  if (!error && endpoint.address().is_v6()) {
    acceptor.set_option(net::ip::v6_only(families == Families::kOne), error);
  }
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(net::socket_base::max_listen_connections, error);
  return error;
}

absl::Status Refusal(const ListenAt& at, const Tcp::endpoint& endpoint, const error_code& error) {
  const bool taken = error == net::error::address_in_use || error == net::error::access_denied;
  return absl::UnavailableError(
      StrCat(taken ? at.port_setting : at.host_setting, ": cannot listen on ",
             HostAndPort(endpoint.address().to_string(), endpoint.port()), ": ", error.message()));
}

absl::StatusOr<std::vector<Tcp::acceptor>> ListenOnLocalhost(net::io_context& context,
                                                             const ListenAt& at) {
  for (int tries = 1;; ++tries) {
    std::vector<Tcp::acceptor> acceptors;
    const Tcp::endpoint v4(net::ip::address_v4::loopback(), at.port);
    const error_code error = Open(acceptors.emplace_back(context), v4, Families::kOne);
    if (error) return Refusal(at, v4, error);
    const Tcp::endpoint v6(net::ip::address_v6::loopback(),
                           acceptors.front().local_endpoint().port());
    const error_code error_v6 = Open(acceptors.emplace_back(context), v6, Families::kOne);
    if (!error_v6) return acceptors;
    if (IsWithoutIpv6(error_v6)) {
      acceptors.pop_back();
      return acceptors;
    }
    // A client that asks for localhost must not meet another program.
    const bool again = at.port == 0 && error_v6 == net::error::address_in_use;
    if (!again || tries == kPortTries) return Refusal(at, v6, error_v6);
  }
}

}  // namespace

absl::StatusOr<std::vector<Tcp::acceptor>> ListenOn(net::io_context& context, const ListenAt& at) {
  if (at.host == "localhost") return ListenOnLocalhost(context, at);
  error_code error;
  net::ip::address address = net::ip::make_address(at.host, error);
  if (error) {
    return absl::InvalidArgumentError(StrCat(at.host_setting, " is \"", Printable(at.host),
                                             "\"; allowed: an IPv4 or IPv6 address, or localhost"));
  }
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    address = net::ip::make_address_v4(net::ip::v4_mapped, address.to_v6());
  }
  std::vector<Tcp::acceptor> acceptors;
  if (address == net::ip::address_v6::any()) {
    const Tcp::endpoint all(address, at.port);
    error = Open(acceptors.emplace_back(context), all, Families::kBoth);
    if (!error) return acceptors;
    if (!IsWithoutIpv6(error)) return Refusal(at, all, error);
    acceptors.clear();
    address = net::ip::address_v4::any();
  }
  const Tcp::endpoint endpoint(address, at.port);
  error = Open(acceptors.emplace_back(context), endpoint, Families::kOne);
  if (error) return Refusal(at, endpoint, error);
  return acceptors;
}

void DropNewHandshakes(Tcp::acceptor& acceptor) {
  constexpr uint32_t kFlagsOffset = 13;  // a filter of a TCP socket sees packets from TCP's header
  constexpr uint32_t kSyn = 0x02;
  constexpr uint32_t kSynAndAck = 0x12;
  std::array<sock_filter, 5> code = {{
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, kFlagsOffset),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, kSynAndAck),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kSyn, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, 0),            // drops the packet
      BPF_STMT(BPF_RET | BPF_K, 0xffff'ffff),  // takes all of it
  }};
  const sock_fprog program{.len = code.size(), .filter = code.data()};
  setsockopt(acceptor.native_handle(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
}

std::string HostAndPort(std::string_view host, int port) {
  const bool v6 = host.find(':') != host.npos;
  return StrCat(v6 ? "[" : "", host, v6 ? "]:" : ":", port);
}

std::string PeerText(const net::ip::tcp::endpoint& peer) {
  const net::ip::address& address = peer.address();
  if (address.is_v4()) return StrCat("ipv4:", address.to_string(), ":", int{peer.port()});
  const net::ip::address_v6 v6 = address.to_v6();
  if (v6.is_v4_mapped()) {
    return StrCat("ipv4:", net::ip::make_address_v4(net::ip::v4_mapped, v6).to_string(), ":",
                  int{peer.port()});
  }
  return StrCat("ipv6:[", v6.to_string(), "]:", int{peer.port()});
}

std::string AddressKey(const net::ip::address& address) {
  if (address.is_v4()) return address.to_string();
  const net::ip::address_v6 v6 = address.to_v6();
  if (v6.is_v4_mapped()) return net::ip::make_address_v4(net::ip::v4_mapped, v6).to_string();
  const auto bytes = v6.to_bytes();
  return {reinterpret_cast<const char*>(bytes.data()), 8};
}

}  // namespace millrace
