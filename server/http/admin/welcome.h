// The answer to GET /: what this server is, and where its paths are.
#ifndef MILLRACE_SERVER_HTTP_ADMIN_WELCOME_H_
#define MILLRACE_SERVER_HTTP_ADMIN_WELCOME_H_

#include <string>

#include "server/frontend.h"
#include "server/http/api/http_message.h"

namespace millrace {

// Returns a page for browsers, whose Accept names text/html, JSON for clients whose Accept names
// application/json, and else plain text. It needs no key, and names models only where others need
// none either. `console`: the URL of the console; empty: not shown.
HttpResponse WelcomeResponse(const HttpRequestHead& head, Frontend& frontend,
                             const std::string& console);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_ADMIN_WELCOME_H_
