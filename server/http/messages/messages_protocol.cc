// The endpoints of Anthropic's API.
#include <memory>
#include <string>
#include <utility>

#include "base/strings.h"
#include "server/http/api/api.h"
#include "server/http/api/deferred_answer.h"
#include "server/http/messages/messages.h"
#include "server/http/openai/model_defaults.h"

namespace millrace {
namespace {

constexpr std::string_view kMessagesPath = "/v1/messages";

// Returns whether a budget can end the model's thoughts. Without thoughts there is nothing to end;
// those in channels have no marker that could be forced, and Anthropic calls the budget a target.
bool BoundsThoughts(const EngineInfo& info) {
  return !info.reasoning_parser.empty() && info.reasoning_parser != "openai_gptoss";
}

Handled CreateMessage(const HttpCall& call) {
  const Frontend& frontend = call.api.frontend();
  const ApiOptions& options = call.api.options();
  absl::StatusOr<ApiRequest> request =
      ParseMessagesRequest(call.body, /*count=*/false, DefaultsOfModels(frontend),
                           options.unknown_fields, options.auto_tool_choice);
  if (!request.ok()) return MessagesError(request.status());
  const absl::StatusOr<Engine*> engine = frontend.FindEngine(request->model);
  if (!engine.ok()) return MessagesError(engine.status());
  GenerateRequest& generate = request->options;
  if (!BoundsThoughts((*engine)->info())) generate.thinking_token_budget.reset();
  if (absl::Status s = call.api.SetCaller(call.head, generate); !s.ok()) return MessagesError(s);
  return std::make_unique<MessagesAnswer>(*std::move(request), StrCat("msg_", call.head.request_id),
                                          **engine, call.wake);
}

Handled CountTokens(const HttpCall& call) {
  const ApiOptions& options = call.api.options();
  absl::StatusOr<ApiRequest> request = ParseMessagesRequest(
      call.body, /*count=*/true, nullptr, options.unknown_fields, options.auto_tool_choice);
  if (!request.ok()) return MessagesError(request.status());
  const absl::StatusOr<Engine*> engine = call.api.frontend().FindEngine(request->model);
  if (!engine.ok()) return MessagesError(engine.status());
  TokenizeRequest tokenize = {.prompt = std::move(request->prompts.front())};
  if (absl::Status s = call.api.SetCaller(call.head, tokenize.tenant, tokenize.deadline); !s.ok()) {
    return MessagesError(s);
  }
  auto answer = std::make_unique<DeferredAnswer>(call.wake);
  answer->WhenDropped((*engine)->Tokenize(
      std::move(tokenize),
      [complete = answer->Completer()](const absl::StatusOr<TokenizeResult>& result) {
        if (!result.ok()) return complete(MessagesError(result.status()));
        complete(HttpResponse{.body = StrCat(R"({"input_tokens":)", result->tokens.size(), "}")});
      }));
  return answer;
}

bool IsMessagesPath(std::string_view path) {
  return path.starts_with(kMessagesPath) &&
         (path.size() == kMessagesPath.size() || path[kMessagesPath.size()] == '/');
}

}  // namespace

HttpProtocol MessagesProtocol() {
  return {.endpoints = {InferenceEndpoint(kMessagesPath,
                                          {.summary = "Answers a conversation (Anthropic)",
                                           .request = "MessagesRequest",
                                           .response = "Message",
                                           .stream = "MessagesEvent"},
                                          CreateMessage),
                        InferenceEndpoint("/v1/messages/count_tokens",
                                          {.summary = "Counts a conversation's tokens (Anthropic)",
                                           .request = "CountTokensRequest",
                                           .response = "InputTokens"},
                                          CountTokens)},
          .errors = ErrorShape{
              .owns = IsMessagesPath, .body = MessagesErrorJson, .schema = "MessagesError"}};
}

}  // namespace millrace
