// The paths and errors of the Open Inference Protocol, version 2 (server/kserve has what it asks).
#ifndef MILLRACE_SERVER_HTTP_KSERVE_H_
#define MILLRACE_SERVER_HTTP_KSERVE_H_

#include <optional>
#include <string>
#include <string_view>

#include "server/http/api_error.h"
#include "server/http/http_message.h"

namespace millrace {

inline constexpr std::string_view kKservePath = "/v2";
inline constexpr std::string_view kKserveLivePath = "/v2/health/live";
inline constexpr std::string_view kKserveReadyPath = "/v2/health/ready";
inline constexpr std::string_view kKserveModelsPath = "/v2/models/";

// Returns whether a path is the protocol's. Cohere's /v2/rerank is not.
bool IsKservePath(std::string_view path);

// The path behind kKserveModelsPath: NAME[/versions/VERSION][/ready or /infer].
struct KserveModelPath {
  enum class Action { kMetadata, kReady, kInfer };
  std::string model;
  std::string version;  // empty: none
  Action action = Action::kMetadata;
};
KserveModelPath ParseKserveModelPath(std::string_view rest);

// Returns an error's response in the protocol's shape, {"error": "text"}.
HttpResponse KserveError(const ApiError& error);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_KSERVE_H_
