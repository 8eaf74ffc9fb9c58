#include "server/http/admin/server_protocol.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/percent.h"
#include "base/strings.h"
#include "config/help.h"
#include "engine/metrics/metrics.h"
#include "server/http/admin/model_json.h"
#include "server/http/admin/server_info.h"
#include "server/http/admin/welcome.h"
#include "server/http/api/api.h"
#include "server/http/messages/messages.h"

namespace millrace {
namespace {

constexpr std::string_view kModelPath = "/v1/models/{model}";
constexpr Listeners kPublicAndAdmin = {Listener::kPublic, Listener::kAdmin};
constexpr Listeners kAllListeners = {Listener::kPublic, Listener::kAdmin, Listener::kMetrics};

// Anthropic's clients get errors in its shape, although the path is OpenAI's.
HttpResponse ModelError(const HttpCall& call, const absl::Status& status) {
  return call.head.is_anthropic ? MessagesError(status) : ErrorResponse(status);
}

Handled ListModels(const HttpCall& call) {
  const Frontend& frontend = call.api.frontend();
  const bool anthropic = call.head.is_anthropic;
  std::vector<NamedModel> models;
  for (ServedModel* model : frontend.models()) {
    for (const std::string& name : frontend.names(*model)) models.push_back({name, model});
  }
  // Anthropic's pages have 20 models; OpenAI's list has all.
  const absl::StatusOr<ModelPage> page =
      PageOfModels(models, call.head.query, anthropic ? 20 : models.size());
  if (!page.ok()) return ModelError(call, page.status());
  if (anthropic) return HttpResponse{.body = AnthropicModelList(*page)};
  std::string out = R"({"object":"list","data":[)";
  for (const NamedModel& named : page->models) {
    if (&named != page->models.data()) out += ',';
    AppendModel(out, *named.model, named.name);
  }
  out += "]}";
  return HttpResponse{.body = std::move(out)};
}

Handled DescribeModel(const HttpCall& call) {
  const std::string name =
      PercentDecoded(std::string_view(call.head.path).substr(kModelPath.find('{')));
  const absl::StatusOr<ServedModel*> model = call.api.frontend().Find(name.empty() ? "/" : name);
  if (!model.ok()) return ModelError(call, model.status());
  const std::string shown = name.empty() ? (*model)->model_name() : name;
  std::string out;
  if (call.head.is_anthropic) {
    AppendAnthropicModel(out, {shown, *model});
  } else {
    AppendModel(out, **model, shown);
  }
  return HttpResponse{.body = std::move(out)};
}

Handled Live(const HttpCall& call) {
  if (call.api.frontend().live()) return HttpResponse{.body = R"({"status":"ok"})"};
  return ErrorResponse(
      HttpError(503, "unhealthy", "there is work and no step finishes, or the device has failed"));
}

Handled Ready(const HttpCall& call) {
  const Frontend& frontend = call.api.frontend();
  if (!frontend.live()) return Live(call);
  if (!frontend.ready()) return call.api.NotReady();
  const std::vector<std::string> stale = frontend.stale_files();
  if (stale.empty()) return HttpResponse{.body = R"({"status":"ok"})"};
  return HttpResponse{
      .body = StrCat(
          R"({"status":"ok","detail":"the files of these settings cannot be read, and what was read before stays in force: )",
          JoinList(stale), R"("})")};
}

Handled RenderMetrics(const HttpCall& call) {
  return HttpResponse{.content_type = std::string(Metrics::kContentType),
                      .body = call.api.frontend().metrics().Render()};
}

Handled ShowVersion(const HttpCall& /*call*/) {
  return HttpResponse{.body = StrCat(R"({"version":")", Version(), R"("})")};
}

Handled Welcome(const HttpCall& call) {
  return WelcomeResponse(call.head, call.api.frontend(), call.api.options().console);
}

// An endpoint that answers with what `to_json` says of the only model.
HttpEndpoint ModelEndpoint(std::string_view path, Access access, OperationDoc doc,
                           std::string (*to_json)(ServedModel&)) {
  doc.may_be_missing = true;
  return {.method = "GET",
          .path = path,
          .access = access,
          .doc = doc,
          .handle = [to_json](const HttpCall& call) -> Handled {
            const absl::StatusOr<ServedModel*> model = call.api.frontend().Find("");
            if (!model.ok()) return ErrorResponse(model.status());
            return HttpResponse{.body = to_json(**model)};
          }};
}

HttpEndpoint ProbeEndpoint(std::string_view path, std::string_view summary,
                           Handled (*handle)(const HttpCall&)) {
  return {.method = "GET",
          .path = path,
          .access = Access::Open(),
          .listeners = kAllListeners,
          .doc = {.summary = summary, .response = "Status"},
          .handle = handle};
}

constexpr std::string_view kModelsQuery = R"([
  {"name": "limit", "in": "query",
   "description": "The most models: of Anthropic's form 20 by default, of OpenAI's all.",
   "schema": {"type": "integer", "minimum": 1, "maximum": 1000}},
  {"name": "after_id", "in": "query",
   "description": "The id of the model behind which the list begins.",
   "schema": {"type": "string"}},
  {"name": "before_id", "in": "query",
   "description": "The id of the model at which the list ends, without after_id.",
   "schema": {"type": "string"}}])";

}  // namespace

HttpProtocol ServerProtocol() {
  return {
      .endpoints = {
          {.method = "GET",
           .path = "/v1/models",
           .access = Scope::kAny,
           .listeners = kPublicAndAdmin,
           .doc = {.summary = "Lists the models (OpenAI; Anthropic, where anthropic-version is "
                              "sent)",
                   .response = "AnyModels",
                   .parameters = kModelsQuery},
           .handle = ListModels},
          {.method = "GET",
           .path = kModelPath,
           .access = Scope::kAny,
           .listeners = kPublicAndAdmin,
           .doc = {.summary = "Describes a model (OpenAI; Anthropic, where anthropic-version is "
                              "sent)",
                   .response = "AnyModel"},
           .handle = DescribeModel},
          ProbeEndpoint("/livez", "Answers 200 while the server works", Live),
          ProbeEndpoint(
              "/readyz",
              "Answers 200 while the server is ready: not while it loads or is about to end",
              Ready),
          ProbeEndpoint("/health", "The same as /readyz (vLLM)", Ready),
          {.method = "GET",
           .path = "/health_generate",
           .access = Scope::kAny,
           .doc = {.summary = "The same as /readyz, with a key (SGLang)", .response = "Status"},
           .handle = Ready},
          ModelEndpoint("/server_info", Scope::kAny,
                        {.summary = "Describes the server (SGLang)", .response = "ServerInfo"},
                        ServerInfoJson),
          ModelEndpoint("/get_server_info", Scope::kAny,
                        {.summary = "The same as /server_info (SGLang)", .response = "ServerInfo"},
                        ServerInfoJson),
          ModelEndpoint("/model_info", Scope::kAny,
                        {.summary = "Describes the model (SGLang)", .response = "ModelInfo"},
                        ModelInfoJson),
          ModelEndpoint("/get_model_info", Scope::kAny,
                        {.summary = "The same as /model_info (SGLang)", .response = "ModelInfo"},
                        ModelInfoJson),
          ModelEndpoint(
              "/tokenizer_info", Scope::kInfer,
              {.summary = "Returns the tokenizer's special tokens and chat template (vLLM)",
               .response = "TokenizerInfo"},
              TokenizerInfoJson),
          {.method = "GET",
           .path = "/metrics",
           .access = Scope::kMetrics,
           .listeners = kAllListeners,
           .renders = true,
           .doc = {.summary = "Returns the metrics in Prometheus's text format",
                   .media = "text/plain"},
           .handle = RenderMetrics},
          {.method = "GET",
           .path = "/version",
           .access = Scope::kAny,
           .listeners = kPublicAndAdmin,
           .doc = {.summary = "Returns the server's version (vLLM)", .response = "VersionInfo"},
           .handle = ShowVersion},
          {.method = "GET",
           .path = "/",
           .access = Access::Open(),
           .doc = {.summary = "Says what this server is and where its paths are",
                   .media = "text/html,text/plain,application/json"},
           .handle = Welcome},
      }};
}

}  // namespace millrace
