#include "server/http/openai/openai_protocol.h"

#include <memory>
#include <string>
#include <utility>

#include "base/strings.h"
#include "server/http/api/api.h"
#include "server/http/api/deferred_answer.h"
#include "server/http/json/json_writer.h"
#include "server/http/openai/embedding.h"
#include "server/http/openai/generation.h"
#include "server/http/openai/model_defaults.h"
#include "server/http/openai/openai_request.h"
#include "server/http/openai/scoring.h"

namespace millrace {
namespace {

// The console's page may generate and count tokens.
constexpr Listeners kPublicAndConsole = {Listener::kPublic, Listener::kAdmin};

Handled Generate(ApiKind kind, const HttpCall& call) {
  const Frontend& frontend = call.api.frontend();
  const ApiOptions& options = call.api.options();
  absl::StatusOr<ApiRequest> request =
      ParseApiRequest(kind, call.body, DefaultsOfModels(frontend), options.unknown_fields,
                      options.auto_tool_choice);
  if (!request.ok()) return ErrorResponse(request.status());
  const absl::StatusOr<Engine*> engine = frontend.FindEngine(request->model);
  if (!engine.ok()) return ErrorResponse(engine.status());
  if (absl::Status s = call.api.SetCaller(call.head, request->options); !s.ok()) {
    return ErrorResponse(s);
  }
  return std::make_unique<Generation>(
      *std::move(request),
      StrCat(kind == ApiKind::kChat ? "chatcmpl-" : "cmpl-", call.head.request_id), **engine,
      call.wake);
}

Handled Embed(const HttpCall& call) {
  absl::StatusOr<ApiEmbeddingRequest> request =
      ParseEmbeddingRequest(call.body, call.api.options().unknown_fields);
  if (!request.ok()) return ErrorResponse(request.status());
  const absl::StatusOr<Engine*> engine = call.api.frontend().FindEngine(request->model);
  if (!engine.ok()) return ErrorResponse(engine.status());
  request->request.id = StrCat("embd-", call.head.request_id);
  if (absl::Status s = call.api.SetCaller(call.head, request->request); !s.ok()) {
    return ErrorResponse(s);
  }
  auto answer = std::make_unique<DeferredAnswer>(call.wake);
  auto done = [complete = answer->Completer(), id = request->request.id,
               model = request->model.empty() ? (*engine)->info().model_name : request->model,
               base64 = request->base64](const absl::StatusOr<Embeddings>& embeddings) {
    if (!embeddings.ok()) return complete(ErrorResponse(embeddings.status()));
    complete(HttpResponse{.body = EmbeddingsJson(id, model, *embeddings, base64),
                          .tokens = UsedTokens{.prompt = embeddings->prompt_tokens}});
  };
  answer->WhenDropped((*engine)->Embed(std::move(request->request), std::move(done)));
  return answer;
}

Handled Score(bool rerank, const HttpCall& call) {
  absl::StatusOr<ScoringRequest> parsed =
      ParseScoringRequest(rerank, call.body, call.api.options().unknown_fields);
  if (!parsed.ok()) return ErrorResponse(parsed.status());
  const absl::StatusOr<Engine*> engine = call.api.frontend().FindEngine(parsed->model);
  if (!engine.ok()) return ErrorResponse(engine.status());
  absl::StatusOr<EmbedRequest> embed = InputsOf(*parsed, (*engine)->info());
  if (!embed.ok()) return ErrorResponse(embed.status());
  embed->id = StrCat(rerank ? "rerank-" : "score-", call.head.request_id);
  if (absl::Status s = call.api.SetCaller(call.head, *embed); !s.ok()) return ErrorResponse(s);
  auto answer = std::make_unique<DeferredAnswer>(call.wake);
  const auto request = std::make_shared<const ScoringRequest>(*std::move(parsed));
  auto done = [complete = answer->Completer(), request, id = embed->id,
               info = (*engine)->info()](const absl::StatusOr<Embeddings>& computed) {
    if (!computed.ok()) return complete(ErrorResponse(computed.status()));
    complete(HttpResponse{
        .body = ScoringJson(*request, id, request->model.empty() ? info.model_name : request->model,
                            ScoresOf(*request, info, *computed), computed->prompt_tokens),
        .tokens = UsedTokens{.prompt = computed->prompt_tokens}});
  };
  answer->WhenDropped((*engine)->Embed(*std::move(embed), std::move(done)));
  return answer;
}

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

Handled Tokenize(const HttpCall& call) {
  absl::StatusOr<ApiTokenizeRequest> parsed =
      ParseTokenizeRequest(call.body, call.api.options().unknown_fields);
  if (!parsed.ok()) return ErrorResponse(parsed.status());
  const absl::StatusOr<Engine*> engine = call.api.frontend().FindEngine(parsed->model);
  if (!engine.ok()) return ErrorResponse(engine.status());
  TokenizeRequest& request = parsed->request;
  const bool strings = request.return_token_strs;
  if (absl::Status s = call.api.SetCaller(call.head, request.tenant, request.deadline); !s.ok()) {
    return ErrorResponse(s);
  }
  auto answer = std::make_unique<DeferredAnswer>(call.wake);
  answer->WhenDropped((*engine)->Tokenize(
      std::move(request),
      [complete = answer->Completer(), strings,
       length = (*engine)->info().max_model_len](const absl::StatusOr<TokenizeResult>& result) {
        complete(result.ok() ? HttpResponse{.body = TokenizeJson(*result, strings, length)}
                             : ErrorResponse(result.status()));
      }));
  return answer;
}

Handled Detokenize(const HttpCall& call) {
  absl::StatusOr<ApiDetokenizeRequest> parsed =
      ParseDetokenizeRequest(call.body, call.api.options().unknown_fields);
  if (!parsed.ok()) return ErrorResponse(parsed.status());
  const absl::StatusOr<Engine*> engine = call.api.frontend().FindEngine(parsed->model);
  if (!engine.ok()) return ErrorResponse(engine.status());
  DetokenizeRequest request = {.tokens = std::move(parsed->tokens)};
  if (absl::Status s = call.api.SetCaller(call.head, request.tenant, request.deadline); !s.ok()) {
    return ErrorResponse(s);
  }
  auto answer = std::make_unique<DeferredAnswer>(call.wake);
  answer->WhenDropped((*engine)->Detokenize(
      std::move(request),
      [complete = answer->Completer()](const absl::StatusOr<std::string>& text) {
        if (!text.ok()) return complete(ErrorResponse(text.status()));
        std::string out = R"({"prompt":)";
        AppendJsonString(out, *text);
        out += '}';
        complete({.body = std::move(out)});
      }));
  return answer;
}

HttpEndpoint Scoring(std::string_view path, std::string_view summary) {
  return InferenceEndpoint(path,
                           {.summary = summary, .request = "ScoreRequest", .response = "Scores"},
                           [](const HttpCall& call) { return Score(/*rerank=*/false, call); });
}

HttpEndpoint Ranking(std::string_view path, std::string_view summary) {
  return InferenceEndpoint(path,
                           {.summary = summary, .request = "RerankRequest", .response = "Ranking"},
                           [](const HttpCall& call) { return Score(/*rerank=*/true, call); });
}

}  // namespace

HttpProtocol OpenAiProtocol() {
  return {.endpoints = {
              InferenceEndpoint(
                  "/v1/completions",
                  {.summary = "Goes on with a prompt, or several (OpenAI, vLLM)",
                   .request = "CompletionRequest",
                   .response = "Completion",
                   .stream = "CompletionChunk"},
                  [](const HttpCall& call) { return Generate(ApiKind::kCompletion, call); },
                  kPublicAndConsole),
              InferenceEndpoint(
                  "/v1/chat/completions",
                  {.summary = "Answers a conversation (OpenAI, vLLM)",
                   .request = "ChatRequest",
                   .response = "ChatCompletion",
                   .stream = "ChatChunk"},
                  [](const HttpCall& call) { return Generate(ApiKind::kChat, call); },
                  kPublicAndConsole),
              InferenceEndpoint("/v1/embeddings",
                                {.summary = "Embeds texts (OpenAI, vLLM)",
                                 .request = "EmbeddingRequest",
                                 .response = "Embeddings"},
                                Embed),
              Scoring("/v1/score", "Scores pairs of texts (vLLM)"),
              Scoring("/score", "The same as /v1/score"),
              Ranking("/v1/rerank",
                      "Orders documents by what they say about a query (Jina, Cohere, vLLM)"),
              Ranking("/rerank", "The same as /v1/rerank"),
              Ranking("/v2/rerank", "The same as /v1/rerank"),
              InferenceEndpoint(
                  "/tokenize",
                  {.summary = "Returns the tokens of a text or of a rendered conversation (vLLM)",
                   .request = "TokenizeRequest",
                   .response = "Tokens"},
                  Tokenize, kPublicAndConsole),
              InferenceEndpoint("/detokenize",
                                {.summary = "Returns the text of tokens (vLLM)",
                                 .request = "DetokenizeRequest",
                                 .response = "Text"},
                                Detokenize, kPublicAndConsole),
          }};
}

}  // namespace millrace
