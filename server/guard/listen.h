// The addresses that a listener takes, and how it ends: the same for HTTP and gRPC.
#ifndef MILLRACE_SERVER_GUARD_LISTEN_H_
#define MILLRACE_SERVER_GUARD_LISTEN_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace millrace {

struct ListenAt {
  std::string host;   // an IPv4 or IPv6 address, or localhost
  uint16_t port = 0;  // 0: any free one
  // The settings that an error blames.
  std::string_view host_setting = "host";
  std::string_view port_setting;
};

// Returns acceptors that listen, all on one port:
//
//   ::         every address of both families; those of IPv4 where IPv6 is missing
//   localhost  127.0.0.1 and, where IPv6 is there, ::1
//   else       the address alone; 0.0.0.0: every one of IPv4
//
// InvalidArgument: the host is none of these; Unavailable: the port is taken, or the address is
// none of this machine.
absl::StatusOr<std::vector<boost::asio::ip::tcp::acceptor>> ListenOn(
    boost::asio::io_context& context, const ListenAt& at);

// Has the kernel drop the SYN of each new connection to `acceptor`, while handshakes that have
// begun end and can be accepted. Closing a listener resets what waits in its queue, and a client
// may have sent its request there by then: after this call, and kHandshakeTime in which the queue
// is accepted, the queue is empty. A client whose SYN was dropped sends another one a second later,
// and is refused by then. Where the kernel cannot do it, nothing changes.
void DropNewHandshakes(boost::asio::ip::tcp::acceptor& acceptor);

constexpr Duration kHandshakeTime = std::chrono::milliseconds(100);

// "127.0.0.1:80", "[::1]:80".
std::string HostAndPort(std::string_view host, int port);

// "ipv4:1.2.3.4:56" or "ipv6:[::1]:56"; an IPv4 address in IPv6's form is shown as what it is.
std::string PeerText(const boost::asio::ip::tcp::endpoint& peer);

// Returns what counts as one client's address: of IPv6 the network, for a host has 2^64 addresses.
std::string AddressKey(const boost::asio::ip::address& address);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_LISTEN_H_
