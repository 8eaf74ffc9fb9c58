#include "server/http/kserve.h"

#include <utility>

#include "base/percent.h"
#include "base/status.h"
#include "base/strings.h"
#include "config/help.h"
#include "engine/request_id.h"
#include "server/http/api.h"
#include "server/http/deferred_answer.h"
#include "server/http/json_writer.h"
#include "server/http/kserve_json.h"
#include "server/kserve/tensor_query.h"

namespace millrace {
namespace {

HttpResponse StatusError(const absl::Status& status) {
  return KserveError(ErrorFromStatus(status));
}

HttpResponse WrongMethod(std::string_view path, std::string_view allowed) {
  HttpResponse response = KserveError(HttpError(
      405, "method_not_allowed", StrCat("the method of ", Printable(path), " is ", allowed)));
  response.headers.emplace_back("Allow", std::string(allowed));
  return response;
}

HttpResponse ServerMetadata() {
  std::string out = R"({"name":"millrace","version":)";
  AppendJsonString(out, Version());
  out += R"(,"extensions":["binary_tensor_data"]})";
  return {.body = std::move(out)};
}

HttpResponse Ready(bool ready, std::string_view what) {
  if (ready) return {.body = R"({"ready":true})"};
  return KserveError(HttpError(503, "service_unavailable", what));
}

}  // namespace

bool IsKservePath(std::string_view path) {
  return path == kKservePath || path.starts_with(kKserveModelsPath) ||
         path.starts_with("/v2/health/");
}

// From the end, since a model's name may have slashes.
KserveModelPath ParseKserveModelPath(std::string_view rest) {
  constexpr std::string_view kInfer = "/infer";
  constexpr std::string_view kReady = "/ready";
  constexpr std::string_view kVersions = "/versions/";
  KserveModelPath path;
  if (rest.ends_with(kInfer)) {
    path.action = KserveModelPath::Action::kInfer;
    rest.remove_suffix(kInfer.size());
  } else if (rest.ends_with(kReady)) {
    path.action = KserveModelPath::Action::kReady;
    rest.remove_suffix(kReady.size());
  }
  if (const size_t at = rest.rfind(kVersions); at != rest.npos) {
    path.version = PercentDecoded(rest.substr(at + kVersions.size()));
    rest = rest.substr(0, at);
  }
  path.model = PercentDecoded(rest);
  return path;
}

HttpResponse KserveError(const ApiError& error) {
  HttpResponse response = ErrorResponse(error);
  response.body = R"({"error":)";
  AppendJsonString(response.body, error.message);
  response.body += '}';
  return response;
}

Handled Api::KserveInfo(const HttpRequestHead& head) const {
  if (head.path == kKservePath) return ServerMetadata();
  const bool live = frontend_.live();
  if (head.path == kKserveLivePath) {
    if (live) return HttpResponse{.body = R"({"live":true})"};
    return KserveError(HttpError(503, "unhealthy", "the device hangs or has failed"));
  }
  const bool ready = live && frontend_.ready();
  if (head.path == kKserveReadyPath) return Ready(ready, "the server is not ready");
  const KserveModelPath path =
      ParseKserveModelPath(std::string_view(head.path).substr(kKserveModelsPath.size()));
  if (path.action == KserveModelPath::Action::kInfer) return WrongMethod(head.path, "POST");
  const absl::StatusOr<QueryModel> model =
      DescribeModel(frontend_, path.model.empty() ? "/" : path.model, path.version);
  if (!model.ok()) return StatusError(model.status());
  if (path.action == KserveModelPath::Action::kReady) return Ready(ready, "the model is not ready");
  return HttpResponse{.body = QueryModelJson(*model)};
}

Handled Api::KserveInfer(const HttpRequestHead& head, const std::string& body,
                         const Wake& wake) const {
  const KserveModelPath path =
      ParseKserveModelPath(std::string_view(head.path).substr(kKserveModelsPath.size()));
  if (path.action != KserveModelPath::Action::kInfer) return WrongMethod(head.path, "GET");
  absl::StatusOr<KserveRequest> parsed =
      ParseKserveRequest(body, head.json_length, options_.unknown_fields);
  if (!parsed.ok()) return StatusError(parsed.status());
  TensorQuery query = std::move(parsed->query);
  query.model = path.model.empty() ? "/" : path.model;
  query.version = path.version;
  query.id = StrCat("infer-", head.request_id);
  if (absl::Status s = SetCaller(head, query); !s.ok()) {
    return StatusError(s);
  }
  auto answer = std::make_unique<DeferredAnswer>(wake);
  const auto request = std::make_shared<const KserveRequest>(*std::move(parsed));
  auto done = [complete = answer->Completer(), request,
               model = query.model](absl::StatusOr<std::vector<WireTensor>> outputs) {
    if (!outputs.ok()) return complete(StatusError(outputs.status()));
    absl::StatusOr<HttpResponse> reply = KserveReply(*request, model, *std::move(outputs));
    complete(reply.ok() ? *std::move(reply) : StatusError(reply.status()));
  };
  answer->WhenDropped(RunQuery(frontend_, std::move(query), std::move(done)));
  return answer;
}

}  // namespace millrace
