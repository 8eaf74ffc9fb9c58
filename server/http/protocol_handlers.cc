// The handlers of the protocols beside OpenAI's chats: Anthropic's messages and OpenAI's responses.
#include <utility>

#include "base/strings.h"
#include "engine/request_id.h"
#include "server/http/api.h"
#include "server/http/deferred_answer.h"
#include "server/http/json_writer.h"
#include "server/http/messages.h"
#include "server/http/responses.h"
#include "server/http/scoring.h"

namespace millrace {
namespace {

HttpResponse NoSuchResponse(std::string_view id) {
  ApiError error = HttpError(404, "not_found",
                             StrCat("there is no response \"", Printable(id),
                                    "\": it was never made, was not stored, or is no longer kept"));
  error.param = "response_id";
  return ErrorResponse(error);
}

// Returns whether a budget can end the model's thoughts. Without thoughts there is nothing to end;
// those in channels have no marker that could be forced, and Anthropic calls the budget a target.
bool BoundsThoughts(const EngineInfo& info) {
  return !info.reasoning_parser.empty() && info.reasoning_parser != "openai_gptoss";
}

}  // namespace

DefaultsOf Api::Defaults() const {
  return [this](const std::string& model) {
    const absl::StatusOr<Engine*> engine = frontend_.FindEngine(model);
    return engine.ok() ? (*engine)->info().sampling : SamplingDefaults();
  };
}

Handled Api::Messages(const HttpRequestHead& head, const std::string& body,
                      const Wake& wake) const {
  absl::StatusOr<ApiRequest> request = ParseMessagesRequest(
      body, /*count=*/false, Defaults(), options_.unknown_fields, options_.auto_tool_choice);
  if (!request.ok()) return MessagesError(ErrorFromStatus(request.status()));
  const absl::StatusOr<Engine*> engine = frontend_.FindEngine(request->model);
  if (!engine.ok()) return MessagesError(ErrorFromStatus(engine.status()));
  GenerateRequest& options = request->options;
  if (!BoundsThoughts((*engine)->info())) options.thinking_token_budget.reset();
  if (absl::Status s = SetCaller(head, options); !s.ok()) {
    return MessagesError(ErrorFromStatus(s));
  }
  return std::make_unique<MessagesAnswer>(*std::move(request), StrCat("msg_", head.request_id),
                                          **engine, wake);
}

Handled Api::CountTokens(const HttpRequestHead& head, const std::string& body,
                         const Wake& wake) const {
  absl::StatusOr<ApiRequest> request = ParseMessagesRequest(
      body, /*count=*/true, nullptr, options_.unknown_fields, options_.auto_tool_choice);
  if (!request.ok()) return MessagesError(ErrorFromStatus(request.status()));
  const absl::StatusOr<Engine*> engine = frontend_.FindEngine(request->model);
  if (!engine.ok()) return MessagesError(ErrorFromStatus(engine.status()));
  TokenizeRequest tokenize = {.prompt = std::move(request->prompts.front())};
  if (absl::Status s = SetCaller(head, tokenize.tenant, tokenize.deadline); !s.ok()) {
    return MessagesError(ErrorFromStatus(s));
  }
  auto answer = std::make_unique<DeferredAnswer>(wake);
  answer->WhenDropped((*engine)->Tokenize(
      std::move(tokenize),
      [complete = answer->Completer()](const absl::StatusOr<TokenizeResult>& result) {
        if (!result.ok()) return complete(MessagesError(ErrorFromStatus(result.status())));
        complete(HttpResponse{.body = StrCat(R"({"input_tokens":)", result->tokens.size(), "}")});
      }));
  return answer;
}

Handled Api::CreateResponse(const HttpRequestHead& head, const std::string& body,
                            const Wake& wake) const {
  absl::StatusOr<ResponsesRequest> request =
      ParseResponsesRequest(body, Defaults(), options_.unknown_fields, options_.auto_tool_choice);
  if (!request.ok()) return ErrorResponse(ErrorFromStatus(request.status()));
  const absl::StatusOr<Engine*> engine = frontend_.FindEngine(request->api.model);
  if (!engine.ok()) return ErrorResponse(ErrorFromStatus(engine.status()));
  std::vector<Turn> turns;
  const std::string owner = OwnerOf(head);
  if (const std::string& id = request->previous_response_id; !id.empty()) {
    std::optional<StoredResponse> previous = responses_->Get(id, owner);
    if (!previous) {
      return ErrorResponse(
          ErrorFromStatus(FieldError("previous_response_id", "previous_response_not_found",
                                     StrCat("previous_response_id is \"", Printable(id),
                                            "\"; allowed: a response that was "
                                            "stored and is still kept"))));
    }
    turns = std::move(previous->turns);
  }
  std::vector<ChatMessage>& messages = std::get<Chat>(request->api.prompts.front()).messages;
  messages.clear();
  if (!request->instructions.empty()) {
    messages.push_back({.role = "system", .content = request->instructions});
  }
  for (const Turn& turn : turns) {
    messages.insert(messages.end(), turn->messages.begin(), turn->messages.end());
  }
  messages.insert(messages.end(), request->conversation.begin(), request->conversation.end());
  GenerateRequest& options = request->api.options;
  if (absl::Status s = SetCaller(head, options); !s.ok()) {
    return ErrorResponse(ErrorFromStatus(s));
  }
  // The id is the server's own, since it is the key of the stored response.
  return std::make_unique<ResponsesAnswer>(*std::move(request), std::move(turns),
                                           StrCat("resp_", NewRequestId()), owner, responses_,
                                           **engine, wake);
}

Handled Api::GetResponse(const HttpRequestHead& head) const {
  const std::string_view id = std::string_view(head.path).substr(kResponsesPath.size() + 1);
  const std::optional<StoredResponse> response = responses_->Get(id, OwnerOf(head));
  if (!response) return NoSuchResponse(id);
  return HttpResponse{.shared_body = response->json};
}

Handled Api::DeleteResponse(const HttpRequestHead& head) const {
  const std::string_view id = std::string_view(head.path).substr(kResponsesPath.size() + 1);
  if (!responses_->Delete(id, OwnerOf(head))) return NoSuchResponse(id);
  std::string out = R"({"id":)";
  AppendJsonString(out, id);
  out += R"(,"object":"response","deleted":true})";
  return HttpResponse{.body = std::move(out)};
}

Handled Api::Score(bool rerank, const HttpRequestHead& head, const std::string& body,
                   const Wake& wake) const {
  absl::StatusOr<ScoringRequest> parsed =
      ParseScoringRequest(rerank, body, options_.unknown_fields);
  if (!parsed.ok()) return ErrorResponse(ErrorFromStatus(parsed.status()));
  const absl::StatusOr<Engine*> engine = frontend_.FindEngine(parsed->model);
  if (!engine.ok()) return ErrorResponse(ErrorFromStatus(engine.status()));
  absl::StatusOr<EmbedRequest> embed = InputsOf(*parsed, (*engine)->info());
  if (!embed.ok()) return ErrorResponse(ErrorFromStatus(embed.status()));
  embed->id = StrCat(rerank ? "rerank-" : "score-", head.request_id);
  if (absl::Status s = SetCaller(head, *embed); !s.ok()) {
    return ErrorResponse(ErrorFromStatus(s));
  }
  auto answer = std::make_unique<DeferredAnswer>(wake);
  const auto request = std::make_shared<const ScoringRequest>(*std::move(parsed));
  auto done = [complete = answer->Completer(), request, id = embed->id,
               info = (*engine)->info()](const absl::StatusOr<Embeddings>& computed) {
    if (!computed.ok()) return complete(ErrorResponse(ErrorFromStatus(computed.status())));
    complete(HttpResponse{
        .body = ScoringJson(*request, id, request->model.empty() ? info.model_name : request->model,
                            ScoresOf(*request, info, *computed), computed->prompt_tokens),
        .tokens = UsedTokens{.prompt = computed->prompt_tokens}});
  };
  answer->WhenDropped((*engine)->Embed(*std::move(embed), std::move(done)));
  return answer;
}

}  // namespace millrace
