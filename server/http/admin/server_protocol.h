// The endpoints by which the server says what it is and how it is: models, probes, metrics,
// version.
#ifndef MILLRACE_SERVER_HTTP_ADMIN_SERVER_PROTOCOL_H_
#define MILLRACE_SERVER_HTTP_ADMIN_SERVER_PROTOCOL_H_

#include "server/http/api/endpoint.h"

namespace millrace {

HttpProtocol ServerProtocol();

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_ADMIN_SERVER_PROTOCOL_H_
