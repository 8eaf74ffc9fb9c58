#include "server/http/routes.h"

#include <array>
#include <vector>

#include "base/log.h"
#include "base/strings.h"
#include "config/help.h"
#include "server/http/admin_status.h"
#include "server/http/kserve.h"
#include "server/http/messages.h"
#include "server/http/openapi.h"
#include "server/http/responses.h"
#include "server/http/server_info.h"
#include "server/http/welcome.h"

namespace millrace {
namespace {

// Returns the scope as --keys names it; empty for any.
std::string_view Name(Scope scope) {
  constexpr std::string_view kNames[kNumScopes] = {"", "infer", "metrics", "admin"};
  return kNames[static_cast<size_t>(scope)];
}

}  // namespace

std::span<const Api::Route> Api::Routes() {
  using Head = HttpRequestHead;
  constexpr auto kScore = [](const Api& api, const Head& head, const std::string& body,
                             const Wake& wake) { return api.Score(false, head, body, wake); };
  constexpr auto kRerank = [](const Api& api, const Head& head, const std::string& body,
                              const Wake& wake) { return api.Score(true, head, body, wake); };
  constexpr auto kKserveInfo = [](const Api& api, const Head& head, const std::string&,
                                  const Wake&) { return api.KserveInfo(head); };
  static constexpr std::array kRoutes = {
      Route{"/v1/completions", "POST", true, false, false, true,
            [](const Api& api, const Head& head, const std::string& body, const Wake& wake) {
              return api.Generate(ApiKind::kCompletion, head, body, wake);
            }},
      Route{"/v1/chat/completions", "POST", true, false, false, true,
            [](const Api& api, const Head& head, const std::string& body, const Wake& wake) {
              return api.Generate(ApiKind::kChat, head, body, wake);
            }},
      Route{kMessagesPath, "POST", true, false, false, true,
            [](const Api& api, const Head& head, const std::string& body, const Wake& wake) {
              return api.Messages(head, body, wake);
            }},
      Route{kCountTokensPath, "POST", true, false, false, true,
            [](const Api& api, const Head& head, const std::string& body, const Wake& wake) {
              return api.CountTokens(head, body, wake);
            }},
      Route{kResponsesPath, "POST", true, false, false, true,
            [](const Api& api, const Head& head, const std::string& body, const Wake& wake) {
              return api.CreateResponse(head, body, wake);
            }},
      Route{"/v1/responses/", "GET", true, false, false, false,
            [](const Api& api, const Head& head, const std::string&, const Wake&) {
              return api.GetResponse(head);
            }},
      Route{"/v1/responses/", "DELETE", true, false, false, false,
            [](const Api& api, const Head& head, const std::string&, const Wake&) {
              return api.DeleteResponse(head);
            }},
      Route{"/v1/embeddings", "POST", true, false, false, true,
            [](const Api& api, const Head& head, const std::string& body, const Wake& wake) {
              return api.Embed(head, body, wake);
            }},
      Route{"/v1/score", "POST", true, false, false, true, kScore},
      Route{"/score", "POST", true, false, false, true, kScore},
      Route{"/v1/rerank", "POST", true, false, false, true, kRerank},
      Route{"/rerank", "POST", true, false, false, true, kRerank},
      Route{"/v2/rerank", "POST", true, false, false, true, kRerank},
      Route{kKservePath, "GET", true, false, false, false, kKserveInfo},
      Route{kKserveLivePath, "GET", true, false, false, false, kKserveInfo},
      Route{kKserveReadyPath, "GET", true, false, false, false, kKserveInfo},
      Route{kKserveModelsPath, "GET", true, false, false, false, kKserveInfo},
      Route{kKserveModelsPath, "POST", true, false, false, true,
            [](const Api& api, const Head& head, const std::string& body, const Wake& wake) {
              return api.KserveInfer(head, body, wake);
            }},
      Route{"/tokenize", "POST", true, false, false, true,
            [](const Api& api, const Head& head, const std::string& body, const Wake& wake) {
              return api.Tokenize(head, body, wake);
            }},
      Route{"/tokenizer_info", "GET", true, false, false, false,
            [](const Api& api, const Head&, const std::string&, const Wake&) {
              return api.Info(TokenizerInfoJson);
            }},
      Route{"/detokenize", "POST", true, false, false, true,
            [](const Api& api, const Head& head, const std::string& body, const Wake& wake) {
              return api.Detokenize(head, body, wake);
            }},
      Route{"/v1/models", "GET", true, true, false, false,
            [](const Api& api, const Head& head, const std::string&, const Wake&) {
              return api.Models(head);
            }},
      Route{kModelsPath, "GET", true, true, false, false,
            [](const Api& api, const Head& head, const std::string&, const Wake&) {
              return api.Models(head);
            }},
      Route{"/livez", "GET", true, true, true, false,
            [](const Api& api, const Head&, const std::string&, const Wake&) {
              return api.Health(/*needs_ready=*/false);
            }},
      Route{"/readyz", "GET", true, true, true, false,
            [](const Api& api, const Head&, const std::string&, const Wake&) {
              return api.Health(/*needs_ready=*/true);
            }},
      Route{"/health", "GET", true, true, true, false,
            [](const Api& api, const Head&, const std::string&, const Wake&) {
              return api.Health(/*needs_ready=*/true);
            }},
      Route{"/server_info", "GET", true, false, false, false,
            [](const Api& api, const Head&, const std::string&, const Wake&) {
              return api.Info(ServerInfoJson);
            }},
      Route{"/get_server_info", "GET", true, false, false, false,
            [](const Api& api, const Head&, const std::string&, const Wake&) {
              return api.Info(ServerInfoJson);
            }},
      Route{"/model_info", "GET", true, false, false, false,
            [](const Api& api, const Head&, const std::string&, const Wake&) {
              return api.Info(ModelInfoJson);
            }},
      Route{"/get_model_info", "GET", true, false, false, false,
            [](const Api& api, const Head&, const std::string&, const Wake&) {
              return api.Info(ModelInfoJson);
            }},
      Route{"/health_generate", "GET", true, false, false, false,
            [](const Api& api, const Head&, const std::string&, const Wake&) {
              return api.Health(/*needs_ready=*/true);
            }},
      Route{"/metrics", "GET", true, true, false, false,
            [](const Api& api, const Head&, const std::string&, const Wake&) {
              return api.Metrics();
            }},
      Route{"/version", "GET", true, true, false, false,
            [](const Api&, const Head&, const std::string&, const Wake&) -> Handled {
              return HttpResponse{.body = StrCat(R"({"version":")", Version(), R"("})")};
            }},
      Route{"/openapi.json", "GET", true, true, false, false,
            [](const Api& api, const Head&, const std::string&, const Wake&) -> Handled {
              return HttpResponse{.body = api.OpenApi()};
            }},
      Route{"/log", "GET", false, true, false, false,
            [](const Api&, const Head&, const std::string&, const Wake&) -> Handled {
              return HttpResponse{.content_type = "text/plain; charset=utf-8",
                                  .body = StrCat(LogLevels(), "\n")};
            }},
      Route{"/log", "PUT", false, true, false, false,
            [](const Api& api, const Head&, const std::string& body, const Wake&) {
              return api.SetLog(body);
            }},
      Route{"/", "GET", true, false, true, false,
            [](const Api& api, const Head& head, const std::string&, const Wake&) -> Handled {
              return WelcomeResponse(head, api.frontend_, api.options_.console);
            }},
      Route{"/", "GET", false, true, true, false,
            [](const Api&, const Head& head, const std::string&, const Wake&) -> Handled {
              return ConsoleFileResponse(head.path);
            }},
      Route{"/console/", "GET", false, true, true, false,
            [](const Api&, const Head& head, const std::string&, const Wake&) -> Handled {
              return ConsoleFileResponse(head.path);
            }},
      Route{"/admin/status", "GET", false, true, false, false,
            [](const Api& api, const Head&, const std::string&, const Wake& wake) {
              return AdminStatus(api.frontend_, wake);
            }},
      Route{"/admin/drain", "POST", false, true, false, false,
            [](const Api& api, const Head&, const std::string&, const Wake&) -> Handled {
              api.options_.drain();
              return HttpResponse{.status = 202, .body = R"({"draining":true})"};
            }},
  };
  return kRoutes;
}

bool Api::Has(const Route& route) const {
  const bool on_admin = route.on_admin || IsForConsole(route.path);
  if (!(options_.admin ? on_admin : route.on_public)) return false;
  return !options_.metrics_only || (route.open && route.path != "/") || route.path == "/metrics";
}

// A path that ends in a slash stands for all that begin so.
bool Api::IsPathOf(const Route& route, std::string_view path) {
  const bool prefix = route.path.size() > 1 && route.path.ends_with('/');
  return prefix ? path.starts_with(route.path) : path == route.path;
}

std::string Api::AllowedMethods(std::string_view path) const {
  std::string methods;
  for (const Route& route : Routes()) {
    if (!Has(route) || !IsPathOf(route, path)) continue;
    methods += StrCat(route.method, route.method == "GET" ? ", HEAD, " : ", ");
  }
  return methods + "OPTIONS";
}

const Api::Route* Api::FindRoute(const HttpRequestHead& head) const {
  const std::string_view method = head.method == "HEAD" ? "GET" : std::string_view(head.method);
  const Route* found = nullptr;  // the right one, or else one of another method
  for (const Route& route : Routes()) {
    if (!Has(route) || !IsPathOf(route, head.path)) continue;
    if (found == nullptr || route.method == method) found = &route;
  }
  return found;
}

const std::string& Api::OpenApi() const {
  std::call_once(openapi_made_, [this] {
    const bool guarded = (!options_.admin || frontend_.guards_admin()) &&
                         !frontend_.Authorize(/*authorization=*/"").ok();
    std::vector<DocumentedRoute> routes;
    for (const Route& route : Routes()) {
      if (!Has(route)) continue;
      routes.push_back({.path = route.path,
                        .method = route.method,
                        .needs_key = guarded && !route.open,
                        .serving = route.serving,
                        .scope = Name(route.scope())});
    }
    openapi_ = OpenApiJson(routes, options_.unknown_fields);
  });
  return openapi_;
}

}  // namespace millrace
