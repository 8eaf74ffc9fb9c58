// The operator's endpoints, which the administration's listener alone has: the console, the status
// of the server as JSON, log levels and the drain.
#ifndef MILLRACE_SERVER_HTTP_ADMIN_ADMIN_STATUS_H_
#define MILLRACE_SERVER_HTTP_ADMIN_ADMIN_STATUS_H_

#include <string_view>

#include "server/frontend.h"
#include "server/http/api/endpoint.h"
#include "server/http/api/http_message.h"

namespace millrace {

HttpProtocol AdminProtocol();

// Returns /admin/status: the server's state, and of its language model the queue, the sequences,
// the KV cache and the last steps. It waits for the engine thread.
Handled AdminStatus(const Frontend& frontend, const Wake& wake);

// Returns a file of the console: "/" or "/console/…". 404 if there is no such file.
HttpResponse ConsoleFileResponse(std::string_view path);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_ADMIN_ADMIN_STATUS_H_
