// The endpoints of the operator: the console, the server's status, log levels and the drain.
#include <string>

#include "base/log.h"
#include "base/strings.h"
#include "server/http/admin/admin_status.h"
#include "server/http/api/api.h"

namespace millrace {
namespace {

constexpr std::string_view kText = "text/plain";

HttpResponse LogLevelsResponse() {
  return {.content_type = "text/plain; charset=utf-8", .body = StrCat(LogLevels(), "\n")};
}

Handled ShowLog(const HttpCall& /*call*/) { return LogLevelsResponse(); }

Handled SetLog(const HttpCall& call) {
  const std::string_view levels = Trim(call.body);
  if (levels.empty()) {
    return ErrorResponse(
        HttpError(400, "invalid_value", "the body is empty; allowed: levels, as http=debug"));
  }
  if (absl::Status s = SetLogLevels(levels); !s.ok()) return ErrorResponse(s);
  return LogLevelsResponse();
}

Handled ShowStatus(const HttpCall& call) { return AdminStatus(call.api.frontend(), call.wake); }

Handled ShowConsole(const HttpCall& call) { return ConsoleFileResponse(call.head.path); }

Handled Drain(const HttpCall& call) {
  call.api.options().drain();
  return HttpResponse{.status = 202, .body = R"({"draining":true})"};
}

HttpEndpoint AdminEndpoint(std::string_view method, std::string_view path, Access access,
                           const OperationDoc& doc, Handled (*handle)(const HttpCall&),
                           const BodyRule& body = {}) {
  return {.method = method,
          .path = path,
          .access = access,
          .listeners = {Listener::kAdmin},
          .body = body,
          .doc = doc,
          .handle = handle};
}

}  // namespace

HttpProtocol AdminProtocol() {
  return {
      .endpoints = {
          AdminEndpoint("GET", "/log", Scope::kAdmin,
                        {.summary = "Returns the log levels", .media = kText}, ShowLog),
          AdminEndpoint(
              "PUT", "/log", Scope::kAdmin,
              {.summary = "Sets log levels, as --log does", .media = kText, .body_media = kText},
              SetLog),
          AdminEndpoint("GET", "/", Access::Open(),
                        {.summary = "Returns the console's page", .media = "text/html"},
                        ShowConsole),
          AdminEndpoint("GET", "/console/{file}", Access::Open(),
                        {.summary = "Returns a file of the console",
                         .media = "text/css,text/javascript,image/svg+xml"},
                        ShowConsole),
          AdminEndpoint("GET", "/admin/status", Scope::kAdmin,
                        {.summary = "Returns the state of the server and its engine",
                         .response = "AdminStatus"},
                        ShowStatus),
          AdminEndpoint("POST", "/admin/drain", Scope::kAdmin,
                        {.summary = "Begins to end the server, as SIGTERM does",
                         .response = "Draining",
                         .status = 202},
                        Drain, {.media = BodyMedia::kJson}),
      }};
}

}  // namespace millrace
