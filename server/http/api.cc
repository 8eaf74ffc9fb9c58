#include "server/http/api.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "base/percent.h"
#include "base/strings.h"
#include "config/help.h"
#include "engine/infer_engine.h"
#include "engine/metrics.h"
#include "server/http/admin_status.h"
#include "server/http/deferred_answer.h"
#include "server/http/embedding.h"
#include "server/http/generation.h"
#include "server/http/json_writer.h"
#include "server/http/kserve.h"
#include "server/http/messages.h"
#include "server/http/model_json.h"
#include "server/http/responses.h"
#include "server/http/routes.h"

namespace millrace {
namespace {

constexpr absl::Duration kDrainRetryAfter = absl::Seconds(5);

// Bodies above this are parsed elsewhere: JSON takes some 10 ns a byte.
constexpr size_t kSmallBytes = 32 << 10;

Credentials CredentialsOf(const HttpRequestHead& head) {
  Credentials shown{.authorization = head.authorization};
  if (head.identities != nullptr) shown.identities = *head.identities;
  return shown;
}

HttpResponse Refusal(int status, std::string_view code, std::string_view message) {
  return ErrorResponse(HttpError(status, code, message));
}

HttpResponse Unavailable(std::string_view message) {
  ApiError error = HttpError(503, "service_unavailable", message);
  error.retry_after = kDrainRetryAfter;
  return ErrorResponse(error);
}

// "application/json; charset=utf-8"
bool IsJson(std::string_view content_type) {
  constexpr std::string_view kJson = "application/json";
  const std::string_view type = content_type.substr(0, kJson.size());
  const std::string_view rest = content_type.substr(type.size());
  return absl::EqualsIgnoreCase(AbslView(type), AbslView(kJson)) &&
         (rest.empty() || rest.front() == ';' || rest.front() == ' ');
}

HttpResponse JsonResponse(std::string body) { return {.body = std::move(body)}; }

std::string TokenizeJson(const TokenizeResult& result, bool strings, int32_t max_model_len) {
  std::string out = R"({"count":)";
  AppendJsonNumber(out, static_cast<int64_t>(result.tokens.size()));
  out += R"(,"max_model_len":)";
  AppendJsonNumber(out, max_model_len);
  out += R"(,"tokens":)";
  AppendJsonNumbers(out, result.tokens);
  out += R"(,"token_strs":)";
  if (!strings) {
    out += "null}";
    return out;
  }
  out += '[';
  for (size_t i = 0; i < result.token_strs.size(); ++i) {
    if (i > 0) out += ',';
    AppendJsonString(out, result.token_strs[i]);
  }
  out += "]}";
  return out;
}

}  // namespace

void BeginEventStream(HttpResponse& response) {
  response.status = 200;
  response.content_type = "text/event-stream; charset=utf-8";
  response.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response{
      .status = error.status, .body = ErrorJson(error), .reason = error.code, .param = error.param};
  if (error.retry_after) {
    response.headers.emplace_back("Retry-After", StrCat(RetrySeconds(*error.retry_after)));
  }
  // OpenAI's and Anthropic's clients would send the request again, which costs its time once more:
  // a second try has the deadline of the first, and the same fault.
  if (error.status == 400 || error.status == 504) {
    response.headers.emplace_back("x-should-retry", "false");
  }
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

std::optional<HttpResponse> Api::Check(const HttpRequestHead& head) const {
  std::optional<HttpResponse> refusal = CheckHead(head);
  if (refusal && refusal->status >= 400) ShapeError(head.path, *refusal);
  return refusal;
}

Api::Handler Api::HandlerOf(const HttpRequestHead& head) const {
  const Route* const route = FindRoute(head);
  if (route == nullptr) return {.name = "none", .routine = false};
  if (route->path == kModelsPath) return {.name = "/v1/models/{model}", .routine = false};
  if (route->path == kKserveModelsPath) {
    return {.name = route->method == "POST" ? "/v2/models/{model}/infer" : "/v2/models/{model}",
            .routine = false};
  }
  return {.name = route->path, .routine = route->open || route->path == "/metrics"};
}

void Api::SetHosts(HostPolicy hosts) {
  auto policy = std::make_shared<const HostPolicy>(std::move(hosts));
  const std::lock_guard lock(mutex_);
  hosts_.swap(policy);
}

// Probes come from where the pod's name is not known, and say nothing that a page could use.
std::optional<HttpResponse> Api::CheckAccess(const HttpRequestHead& head,
                                             const Route* route) const {
  const auto hosts = [this] {
    const std::lock_guard lock(mutex_);
    return hosts_;
  }();
  const bool open = route != nullptr && route->open;
  const bool allowed_page = cors_.Allows(head);
  if (absl::Status s = hosts->Check(open ? std::string_view() : std::string_view(head.host),
                                    allowed_page ? std::nullopt : head.origin);
      !s.ok()) {
    return ErrorResponse(ErrorFromStatus(s));
  }
  const bool guarded = !options_.admin || frontend_.guards_admin();
  if (!guarded || options_.metrics_only || open) return std::nullopt;
  // A browser sends no key with it.
  if (allowed_page && CorsPolicy::IsPreflight(head)) return std::nullopt;
  const Scope scope = route == nullptr ? Scope::kAny : route->scope();
  if (absl::Status s = frontend_.Authorize(CredentialsOf(head), scope, nullptr); !s.ok()) {
    return ErrorResponse(ErrorFromStatus(s));
  }
  return std::nullopt;
}

std::optional<HttpResponse> Api::CheckHead(const HttpRequestHead& head) const {
  const Route* route = FindRoute(head);
  if (auto refusal = CheckAccess(head, route)) return refusal;
  if (route == nullptr) {
    return Refusal(404, "unknown_url",
                   StrCat("there is no path ", Printable(head.path), " on this server"));
  }
  const std::string allow = AllowedMethods(head.path);
  if (CorsPolicy::IsPreflight(head) && cors_.Allows(head)) {
    return CorsPolicy::Preflight(head, allow);
  }
  if (head.method == "OPTIONS") return HttpResponse{.status = 204, .headers = {{"Allow", allow}}};
  if (head.method != route->method && !(head.method == "HEAD" && route->method == "GET")) {
    HttpResponse refusal = Refusal(405, "method_not_allowed",
                                   StrCat("the method of ", head.path, " is ", route->method,
                                          ", not ", Printable(head.method)));
    refusal.headers.emplace_back("Allow", allow);
    return refusal;
  }
  if (options_.admin) {
    if (const auto refusal = CheckAdminOrigin(head)) return ErrorResponse(*refusal);
  }
  if (auto refusal = CheckBody(head)) return refusal;
  if (route->serving) return CheckServing();
  return std::nullopt;
}

std::optional<HttpResponse> Api::CheckBody(const HttpRequestHead& head) const {
  // The protocol's clients say no type, and have tensors in binary behind the JSON.
  const bool tensors =
      head.path.starts_with(kKserveModelsPath) &&
      (head.content_type.empty() || head.content_type == "application/octet-stream");
  if (head.method == "POST" && !IsJson(head.content_type) && !tensors) {
    return Refusal(415, "unsupported_media_type",
                   StrCat("Content-Type is \"", Printable(head.content_type),
                          "\"; allowed: application/json"));
  }
  if (!head.content_encoding.empty() && head.content_encoding != "identity") {
    return Refusal(
        415, "unsupported_media_type",
        StrCat("Content-Encoding is \"", Printable(head.content_encoding), "\"; allowed: none"));
  }
  if (head.content_length.value_or(0) > options_.max_body_bytes) {
    return Refusal(413, "body_too_large",
                   StrCat("the body has ", *head.content_length, " bytes; allowed: at most ",
                          options_.max_body_bytes));
  }
  return std::nullopt;
}

std::optional<HttpResponse> Api::CheckServing() const {
  if (frontend_.takes_work()) return std::nullopt;
  return NotReady();
}

HttpResponse Api::NotReady() const {
  if (frontend_.leaving()) return Unavailable("the server is shutting down");
  const std::string loading = frontend_.loading();
  return Unavailable(StrCat("the server is not ready yet", loading.empty() ? "" : ": ", loading));
}

RequestCost Api::CostOf(const HttpRequestHead& head, size_t body_bytes) const {
  if (head.path == "/metrics" || head.path == "/openapi.json") return RequestCost::kRendering;
  return body_bytes > kSmallBytes ? RequestCost::kBody : RequestCost::kSmall;
}

bool Api::IsOpen(const HttpRequestHead& head) const {
  const Route* route = FindRoute(head);
  return route != nullptr && route->open;
}

Handled Api::Handle(const HttpRequestHead& head, const std::string& body, const Wake& wake) const {
  return FindRoute(head)->handle(*this, head, body, wake);
}

std::optional<absl::Time> DeadlineOf(const HttpRequestHead& head) {
  if (!head.timeout.has_value()) return std::nullopt;
  return absl::Now() + *head.timeout;
}

// The key may have been revoked since Check. Of a deadline in the body and one in the header, the
// earlier counts.
absl::Status Api::SetCaller(const HttpRequestHead& head, std::shared_ptr<const Tenant>& tenant,
                            std::optional<absl::Time>& deadline) const {
  if (const auto by_header = DeadlineOf(head)) {
    deadline = std::min(deadline.value_or(*by_header), *by_header);
  }
  // The console's page, which has no key to send where the administration needs none.
  if (options_.admin && !frontend_.guards_admin()) return absl::OkStatus();
  return frontend_.Authorize(CredentialsOf(head), Scope::kInfer, &tenant);
}

std::shared_ptr<const Tenant> Api::TenantOf(const HttpRequestHead& head) const {
  std::shared_ptr<const Tenant> tenant;
  if (options_.admin && !frontend_.guards_admin()) return nullptr;
  if (!frontend_.Authorize(CredentialsOf(head), Scope::kAny, &tenant).ok()) return nullptr;
  return tenant;
}

std::string Api::OwnerOf(const HttpRequestHead& head) const {
  std::shared_ptr<const Tenant> tenant;
  std::optional<absl::Time> deadline;
  if (!SetCaller(head, tenant, deadline).ok() || tenant == nullptr) return head.authorization;
  return StrCat("tenant ", tenant->limits().name);
}

Handled Api::Generate(ApiKind kind, const HttpRequestHead& head, const std::string& body,
                      const Wake& wake) const {
  absl::StatusOr<ApiRequest> request =
      ParseApiRequest(kind, body, Defaults(), options_.unknown_fields, options_.auto_tool_choice);
  if (!request.ok()) return ErrorResponse(ErrorFromStatus(request.status()));
  absl::StatusOr<Engine*> engine = frontend_.FindEngine(request->model);
  if (!engine.ok()) return ErrorResponse(ErrorFromStatus(engine.status()));
  if (absl::Status s = SetCaller(head, request->options); !s.ok()) {
    return ErrorResponse(ErrorFromStatus(s));
  }
  return std::make_unique<Generation>(
      *std::move(request), StrCat(kind == ApiKind::kChat ? "chatcmpl-" : "cmpl-", head.request_id),
      **engine, wake);
}

Handled Api::Embed(const HttpRequestHead& head, const std::string& body, const Wake& wake) const {
  absl::StatusOr<ApiEmbeddingRequest> request =
      ParseEmbeddingRequest(body, options_.unknown_fields);
  if (!request.ok()) return ErrorResponse(ErrorFromStatus(request.status()));
  absl::StatusOr<Engine*> engine = frontend_.FindEngine(request->model);
  if (!engine.ok()) return ErrorResponse(ErrorFromStatus(engine.status()));
  request->request.id = StrCat("embd-", head.request_id);
  if (absl::Status s = SetCaller(head, request->request); !s.ok()) {
    return ErrorResponse(ErrorFromStatus(s));
  }
  auto answer = std::make_unique<DeferredAnswer>(wake);
  auto done = [complete = answer->Completer(), id = request->request.id,
               model = request->model.empty() ? (*engine)->info().model_name : request->model,
               base64 = request->base64](const absl::StatusOr<Embeddings>& embeddings) {
    if (!embeddings.ok()) return complete(ErrorResponse(ErrorFromStatus(embeddings.status())));
    HttpResponse response = JsonResponse(EmbeddingsJson(id, model, *embeddings, base64));
    response.tokens = UsedTokens{.prompt = embeddings->prompt_tokens};
    complete(std::move(response));
  };
  answer->WhenDropped((*engine)->Embed(std::move(request->request), std::move(done)));
  return answer;
}

Handled Api::Tokenize(const HttpRequestHead& head, const std::string& body,
                      const Wake& wake) const {
  absl::StatusOr<ApiTokenizeRequest> parsed = ParseTokenizeRequest(body, options_.unknown_fields);
  if (!parsed.ok()) return ErrorResponse(ErrorFromStatus(parsed.status()));
  absl::StatusOr<Engine*> engine = frontend_.FindEngine(parsed->model);
  if (!engine.ok()) return ErrorResponse(ErrorFromStatus(engine.status()));
  auto answer = std::make_unique<DeferredAnswer>(wake);
  const bool strings = parsed->request.return_token_strs;
  if (absl::Status s = SetCaller(head, parsed->request.tenant, parsed->request.deadline); !s.ok()) {
    return ErrorResponse(ErrorFromStatus(s));
  }
  answer->WhenDropped((*engine)->Tokenize(
      std::move(parsed->request),
      [complete = answer->Completer(), strings,
       length = (*engine)->info().max_model_len](const absl::StatusOr<TokenizeResult>& result) {
        complete(result.ok() ? JsonResponse(TokenizeJson(*result, strings, length))
                             : ErrorResponse(ErrorFromStatus(result.status())));
      }));
  return answer;
}

Handled Api::Detokenize(const HttpRequestHead& head, const std::string& body,
                        const Wake& wake) const {
  absl::StatusOr<ApiDetokenizeRequest> request =
      ParseDetokenizeRequest(body, options_.unknown_fields);
  if (!request.ok()) return ErrorResponse(ErrorFromStatus(request.status()));
  absl::StatusOr<Engine*> engine = frontend_.FindEngine(request->model);
  if (!engine.ok()) return ErrorResponse(ErrorFromStatus(engine.status()));
  auto answer = std::make_unique<DeferredAnswer>(wake);
  DetokenizeRequest detokenize = {.tokens = std::move(request->tokens)};
  if (absl::Status s = SetCaller(head, detokenize.tenant, detokenize.deadline); !s.ok()) {
    return ErrorResponse(ErrorFromStatus(s));
  }
  answer->WhenDropped((*engine)->Detokenize(
      std::move(detokenize),
      [complete = answer->Completer()](const absl::StatusOr<std::string>& text) {
        if (!text.ok()) return complete(ErrorResponse(ErrorFromStatus(text.status())));
        std::string out = R"({"prompt":)";
        AppendJsonString(out, *text);
        out += '}';
        complete(JsonResponse(std::move(out)));
      }));
  return answer;
}

Handled Api::Models(const HttpRequestHead& head) const {
  if (head.path.starts_with(kModelsPath)) {
    const std::string name = PercentDecoded(head.path.substr(kModelsPath.size()));
    absl::StatusOr<ServedModel*> model = frontend_.Find(name.empty() ? "/" : name);
    if (!model.ok() && head.is_anthropic) return MessagesError(ErrorFromStatus(model.status()));
    if (!model.ok()) return ErrorResponse(ErrorFromStatus(model.status()));
    std::string out;
    if (head.is_anthropic) {
      AppendAnthropicModel(out, {name.empty() ? (*model)->model_name() : name, *model});
      return JsonResponse(std::move(out));
    }
    AppendModel(out, **model, name.empty() ? (*model)->model_name() : name);
    return JsonResponse(std::move(out));
  }
  std::vector<NamedModel> models;
  for (ServedModel* model : frontend_.models()) {
    for (const std::string& name : frontend_.names(*model)) models.push_back({name, model});
  }
  // Anthropic's pages have 20 models; OpenAI's list has all.
  const absl::StatusOr<ModelPage> page =
      PageOfModels(models, head.query, head.is_anthropic ? 20 : models.size());
  if (!page.ok()) {
    const ApiError error = ErrorFromStatus(page.status());
    return head.is_anthropic ? MessagesError(error) : ErrorResponse(error);
  }
  if (head.is_anthropic) return JsonResponse(AnthropicModelList(*page));
  std::string out = R"({"object":"list","data":[)";
  for (const NamedModel& named : page->models) {
    if (&named != page->models.data()) out += ',';
    AppendModel(out, *named.model, named.name);
  }
  out += "]}";
  return JsonResponse(std::move(out));
}

Handled Api::Info(std::string (*to_json)(ServedModel&)) const {
  const absl::StatusOr<ServedModel*> model = frontend_.Find("");
  if (!model.ok()) return ErrorResponse(ErrorFromStatus(model.status()));
  return JsonResponse(to_json(**model));
}

Handled Api::Health(bool needs_ready) const {
  if (!frontend_.live()) {
    return Refusal(503, "unhealthy",
                   "there is work and no step finishes, or the device has failed");
  }
  if (needs_ready && !frontend_.ready()) return NotReady();
  const std::vector<std::string> stale =
      needs_ready ? frontend_.stale_files() : std::vector<std::string>();
  if (stale.empty()) return JsonResponse(R"({"status":"ok"})");
  return JsonResponse(StrCat(
      R"({"status":"ok","detail":"the files of these settings cannot be read, and what was read before stays in force: )",
      JoinList(stale), R"("})"));
}

Handled Api::Metrics() const {
  return HttpResponse{.content_type = std::string(millrace::Metrics::kContentType),
                      .body = frontend_.metrics().Render()};
}

Handled Api::SetLog(const std::string& body) const {
  const std::string_view levels = Trim(body);
  if (levels.empty()) {
    return Refusal(400, "invalid_value", "the body is empty; allowed: levels, as http=debug");
  }
  if (absl::Status s = SetLogLevels(levels); !s.ok()) return ErrorResponse(ErrorFromStatus(s));
  return HttpResponse{.content_type = "text/plain; charset=utf-8",
                      .body = StrCat(LogLevels(), "\n")};
}

}  // namespace millrace
