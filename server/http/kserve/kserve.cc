#include "server/http/kserve/kserve.h"

#include <utility>

#include "base/percent.h"
#include "base/status.h"
#include "base/strings.h"
#include "config/help.h"
#include "engine/request/request_id.h"
#include "server/http/api/api.h"
#include "server/http/api/deferred_answer.h"
#include "server/http/json/json_writer.h"
#include "server/http/kserve/kserve_json.h"
#include "server/kserve/tensor_query.h"

namespace millrace {
namespace {

constexpr std::string_view kServerPath = "/v2";
constexpr std::string_view kModelsPath = "/v2/models/";

std::string KserveErrorJson(const ApiError& error) {
  std::string out = R"({"error":)";
  AppendJsonString(out, error.message);
  out += '}';
  return out;
}

HttpResponse KserveError(const ApiError& error) {
  HttpResponse response = ErrorResponse(error);
  response.body = KserveErrorJson(error);
  return response;
}

HttpResponse StatusError(const absl::Status& status) {
  return KserveError(ErrorFromStatus(status));
}

HttpResponse WrongMethod(std::string_view path, std::string_view allowed) {
  HttpResponse response = KserveError(HttpError(
      405, "method_not_allowed", StrCat("the method of ", Printable(path), " is ", allowed)));
  response.headers.emplace_back("Allow", std::string(allowed));
  return response;
}

Handled ServerMetadata(const HttpCall& /*call*/) {
  std::string out = R"({"name":"millrace","version":)";
  AppendJsonString(out, Version());
  out += R"(,"extensions":["binary_tensor_data"]})";
  return HttpResponse{.body = std::move(out)};
}

HttpResponse Ready(bool ready, std::string_view what) {
  if (ready) return {.body = R"({"ready":true})"};
  return KserveError(HttpError(503, "service_unavailable", what));
}

KserveModelPath ModelPathOf(const HttpCall& call) {
  return ParseKserveModelPath(std::string_view(call.head.path).substr(kModelsPath.size()));
}

Handled Live(const HttpCall& call) {
  if (call.api.frontend().live()) return HttpResponse{.body = R"({"live":true})"};
  return KserveError(HttpError(503, "unhealthy", "the device hangs or has failed"));
}

bool IsReady(const HttpCall& call) {
  return call.api.frontend().live() && call.api.frontend().ready();
}

Handled ServerReady(const HttpCall& call) {
  return Ready(IsReady(call), "the server is not ready");
}

Handled DescribeTensors(const HttpCall& call) {
  const KserveModelPath path = ModelPathOf(call);
  if (path.action == KserveModelPath::Action::kInfer) return WrongMethod(call.head.path, "POST");
  const bool ready = IsReady(call);
  const absl::StatusOr<QueryModel> model =
      DescribeModel(call.api.frontend(), path.model.empty() ? "/" : path.model, path.version);
  if (!model.ok()) return StatusError(model.status());
  if (path.action == KserveModelPath::Action::kReady) return Ready(ready, "the model is not ready");
  return HttpResponse{.body = QueryModelJson(*model)};
}

Handled Infer(const HttpCall& call) {
  const KserveModelPath path = ModelPathOf(call);
  if (path.action != KserveModelPath::Action::kInfer) return WrongMethod(call.head.path, "GET");
  absl::StatusOr<KserveRequest> parsed =
      ParseKserveRequest(call.body, call.head.json_length, call.api.options().unknown_fields);
  if (!parsed.ok()) return StatusError(parsed.status());
  TensorQuery query = std::move(parsed->query);
  query.model = path.model.empty() ? "/" : path.model;
  query.version = path.version;
  query.id = StrCat("infer-", call.head.request_id);
  if (absl::Status s = call.api.SetCaller(call.head, query); !s.ok()) return StatusError(s);
  auto answer = std::make_unique<DeferredAnswer>(call.wake);
  const auto request = std::make_shared<const KserveRequest>(*std::move(parsed));
  auto done = [complete = answer->Completer(), request,
               model = query.model](absl::StatusOr<std::vector<WireTensor>> outputs) {
    if (!outputs.ok()) return complete(StatusError(outputs.status()));
    absl::StatusOr<HttpResponse> reply = KserveReply(*request, model, *std::move(outputs));
    complete(reply.ok() ? *std::move(reply) : StatusError(reply.status()));
  };
  answer->WhenDropped(RunQuery(call.api.frontend(), std::move(query), std::move(done)));
  return answer;
}

// Cohere's /v2/rerank is not the protocol's.
bool IsKservePath(std::string_view path) {
  return path == kServerPath || path.starts_with(kModelsPath) || path.starts_with("/v2/health/");
}

HttpEndpoint Question(std::string_view path, const OperationDoc& doc,
                      Handled (*handle)(const HttpCall& call)) {
  return {.method = "GET", .path = path, .access = Scope::kAny, .doc = doc, .handle = handle};
}

}  // namespace

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

HttpProtocol KserveProtocol() {
  HttpEndpoint infer =
      InferenceEndpoint("/v2/models/{model}/infer",
                        {.summary = "Computes a model's outputs of its inputs (KServe)",
                         .request = "InferRequest",
                         .response = "InferResponse"},
                        Infer);
  infer.body.media = BodyMedia::kJsonOrTensors;
  return {
      .endpoints =
          {Question(kServerPath,
                    {.summary = "Describes the server (KServe)", .response = "KserveServer"},
                    ServerMetadata),
           Question("/v2/health/live",
                    {.summary = "Whether the server lives (KServe)", .response = "KserveLive"},
                    Live),
           Question("/v2/health/ready",
                    {.summary = "Whether the server is ready (KServe)", .response = "KserveReady"},
                    ServerReady),
           Question("/v2/models/{model}",
                    {.summary = "Describes a model's tensors (KServe)", .response = "KserveModel"},
                    DescribeTensors),
           std::move(infer)},
      .errors = ErrorShape{.owns = IsKservePath, .body = KserveErrorJson, .schema = "KserveError"}};
}

}  // namespace millrace
