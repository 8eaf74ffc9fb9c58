// The endpoints of the Open Inference Protocol, version 2 (server/kserve has what it asks).
#ifndef MILLRACE_SERVER_HTTP_KSERVE_KSERVE_H_
#define MILLRACE_SERVER_HTTP_KSERVE_KSERVE_H_

#include <string>
#include <string_view>

#include "server/http/api/endpoint.h"

namespace millrace {

HttpProtocol KserveProtocol();

// The path behind /v2/models/: NAME[/versions/VERSION][/ready or /infer].
struct KserveModelPath {
  enum class Action { kMetadata, kReady, kInfer };
  std::string model;
  std::string version;  // empty: none
  Action action = Action::kMetadata;
};
KserveModelPath ParseKserveModelPath(std::string_view rest);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_KSERVE_KSERVE_H_
