// The list of the protocols that the HTTP endpoint speaks.
#ifndef MILLRACE_SERVER_HTTP_ALL_PROTOCOLS_H_
#define MILLRACE_SERVER_HTTP_ALL_PROTOCOLS_H_

#include <vector>

#include "server/http/api/endpoint.h"

namespace millrace {

// Returns all protocols, with state of their own: responses that one Api keeps, no other has.
std::vector<HttpProtocol> AllProtocols();

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_ALL_PROTOCOLS_H_
