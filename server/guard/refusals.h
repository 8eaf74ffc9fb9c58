// The last words to clients that speak another protocol than the port's.
#ifndef MILLRACE_SERVER_GUARD_REFUSALS_H_
#define MILLRACE_SERVER_GUARD_REFUSALS_H_

#include <string>

#include "server/guard/http2.h"

namespace millrace {

// Returns whether the bytes begin as "GET /..." and the like do.
bool LooksLikeHttp1(http2::Bytes bytes);

// Returns what a port of gRPC answers to a request of HTTP/1.
std::string Http1Refusal();

// Returns what a port of gRPC with TLS answers to a client without it. It is HTTP/1 for clients of
// HTTP/2, too: one that got its first SETTINGS would take the connection for a good one, and
// connect again and again.
std::string PlaintextRefusal();

// Returns what a proxy is answered that does not begin with its header.
std::string NoProxyHeaderRefusal();

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_REFUSALS_H_
