// /openapi.json: the description of a listener's endpoints, in OpenAPI 3.1.
#ifndef MILLRACE_SERVER_HTTP_OPENAPI_OPENAPI_H_
#define MILLRACE_SERVER_HTTP_OPENAPI_OPENAPI_H_

#include <string>

#include "server/http/api/api.h"
#include "server/http/api/endpoint.h"

namespace millrace {

// Returns the protocol of the one endpoint /openapi.json, which makes the document at its first
// call.
HttpProtocol OpenApiProtocol();

// Returns the document.
std::string OpenApiJson(const Api& api);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAPI_OPENAPI_H_
