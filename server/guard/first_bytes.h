// The protocol of a connection, by its first bytes.
#ifndef MILLRACE_SERVER_GUARD_FIRST_BYTES_H_
#define MILLRACE_SERVER_GUARD_FIRST_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "server/tls/client_hello.h"
#include "server/tls/proxy_header.h"

namespace millrace {

struct FirstBytes {
  // The protocol is known by then.
  static constexpr size_t kMostBytes = ProxyHeader::kMostBytes + ClientHello::kMostBytes;

  enum class Protocol {
    kUnknown,  // more bytes are needed
    kHttp1,    // or nothing that the server knows, which is HTTP's to refuse
    kHttp2,
  };

  Protocol protocol = Protocol::kUnknown;
  size_t size = 0;  // while it is unknown: how many bytes must have come before another look
};

// Judges the bytes that a connection begins with. `proxied`: it is a proxy's, so that its header
// comes first.
//
// Without TLS, HTTP/2 is what begins with the first line of its preface (RFC 9113, 3.4). With TLS
// it is the connection of a client that offers "h2" by ALPN and not "http/1.1": one that offers
// both, as curl and browsers do, asks for what HTTP/1.1 serves.
FirstBytes ReadFirstBytes(std::span<const uint8_t> bytes, bool proxied, bool tls);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_FIRST_BYTES_H_
