// The first message of a TLS client, before OpenSSL sees it.
#ifndef MILLRACE_SERVER_TLS_CLIENT_HELLO_H_
#define MILLRACE_SERVER_TLS_CLIENT_HELLO_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace {

// The first byte of a TLS connection: a handshake record.
inline constexpr uint8_t kTlsHandshakeRecord = 22;

// RFC 8446, 4.1.2, in as many records as the client likes.
struct ClientHello {
  // The most that is taken, with the headers of the records. Clients send 2 KiB at most.
  static constexpr size_t kMostBytes = (16 << 10) + 5;

  enum class State {
    kIncomplete,  // more bytes are needed
    kWhole,
    kNotTls,  // something else than a handshake
    kBad,     // of TLS, but another message, a longer one, or a broken record
  };

  State state = State::kIncomplete;
  // The size of a whole one; for an incomplete one, how many bytes must have come before it is
  // worth another look.
  size_t size = 0;
  // The protocols that a whole one offers by ALPN, as "h2", in the client's order. Empty: none, or
  // its extensions are broken, of which OpenSSL informs the client.
  std::vector<std::string> protocols = {};
};

// Reads the message that `bytes`, a connection's first ones, begin with.
ClientHello ReadClientHello(std::span<const uint8_t> bytes);

}  // namespace millrace

#endif  // MILLRACE_SERVER_TLS_CLIENT_HELLO_H_
