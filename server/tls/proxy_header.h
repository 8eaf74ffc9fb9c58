// The header by which a proxy says for whom it has connected: version 2 of the PROXY protocol.
#ifndef MILLRACE_SERVER_TLS_PROXY_HEADER_H_
#define MILLRACE_SERVER_TLS_PROXY_HEADER_H_

#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace millrace {

// https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt, 2.2.
struct ProxyHeader {
  // The longest that is taken, with what follows the addresses.
  static constexpr size_t kMostBytes = 1024;

  enum class State {
    kIncomplete,  // more bytes are needed
    kWhole,
    kBad,  // no such header, or a longer one
  };

  State state = State::kIncomplete;
  size_t size = 0;  // of a whole one; of an incomplete one at the least
  // The client's address; nothing if the proxy speaks for itself (LOCAL) or knows none.
  std::optional<boost::asio::ip::tcp::endpoint> source;
};

// Reads the header that `bytes`, a connection's first ones, begin with.
ProxyHeader ReadProxyHeader(std::span<const uint8_t> bytes);

}  // namespace millrace

#endif  // MILLRACE_SERVER_TLS_PROXY_HEADER_H_
