// The paths that the API has, and what each asks of a request before its body is read.
#ifndef MILLRACE_SERVER_HTTP_ROUTES_H_
#define MILLRACE_SERVER_HTTP_ROUTES_H_

#include <string>
#include <string_view>

#include "server/http/api.h"

namespace millrace {

// The path of a model's own description, which ends it.
inline constexpr std::string_view kModelsPath = "/v1/models/";

struct Api::Route {
  std::string_view path;  // one that ends in a slash stands for all that begin so
  std::string_view method;
  bool on_public;
  bool on_admin;
  bool open;     // answers without a key
  bool serving;  // refused while the server warms up or drains

  // Returns what a key needs.
  Scope scope() const {
    if (path == "/metrics") return Scope::kMetrics;
    if (on_admin && !on_public) return Scope::kAdmin;
    const bool infers = serving || path.starts_with("/v1/responses") || path == "/tokenizer_info";
    return infers ? Scope::kInfer : Scope::kAny;
  }
  Handled (*handle)(const Api& api, const HttpRequestHead& head, const std::string& body,
                    const Wake& wake);
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_ROUTES_H_
