// The administration's listener for the console: the status of the server as JSON, and the requests
// that its page may send.
#ifndef MILLRACE_SERVER_HTTP_ADMIN_STATUS_H_
#define MILLRACE_SERVER_HTTP_ADMIN_STATUS_H_

#include <optional>
#include <string_view>

#include "server/frontend.h"
#include "server/http/http_message.h"

namespace millrace {

// Returns /admin/status: the server's state, and of its language model the queue, the sequences,
// the KV cache and the last steps. It waits for the engine thread.
Handled AdminStatus(const Frontend& frontend, const Wake& wake);

// Returns a file of the console: "/" or "/console/…". 404 if there is no such file.
HttpResponse ConsoleFileResponse(std::string_view path);

// Returns whether the console's page may use this path of the API at the administration's listener.
bool IsForConsole(std::string_view path);

// Refuses what changes state, or generates, for any page but the listener's own. HostPolicy lets
// other pages of this machine ask; a program without an Origin is no page, and may change state,
// but generates at the public port, which has keys.
std::optional<ApiError> CheckAdminOrigin(const HttpRequestHead& head);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_ADMIN_STATUS_H_
