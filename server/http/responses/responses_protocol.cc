// The endpoints of OpenAI's API of responses.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "engine/request/request_id.h"
#include "server/http/api/api.h"
#include "server/http/json/json_writer.h"
#include "server/http/openai/model_defaults.h"
#include "server/http/responses/responses.h"

namespace millrace {
namespace {

constexpr std::string_view kResponsesPath = "/v1/responses";
constexpr std::string_view kResponsePath = "/v1/responses/{response_id}";

std::string_view ResponseIdOf(const HttpCall& call) {
  return std::string_view(call.head.path).substr(kResponsesPath.size() + 1);
}

HttpResponse NoSuchResponse(std::string_view id) {
  ApiError error = HttpError(404, "not_found",
                             StrCat("there is no response \"", Printable(id),
                                    "\": it was never made, was not stored, or is no longer kept"));
  error.param = "response_id";
  return ErrorResponse(error);
}

// Sets the request's messages: the instructions, the turns of the responses before, and its own.
void JoinConversation(const std::vector<Turn>& turns, ResponsesRequest& request) {
  std::vector<ChatMessage>& messages = std::get<Chat>(request.api.prompts.front()).messages;
  messages.clear();
  if (!request.instructions.empty()) {
    messages.push_back({.role = "system", .content = request.instructions});
  }
  for (const Turn& turn : turns) {
    messages.insert(messages.end(), turn->messages.begin(), turn->messages.end());
  }
  messages.insert(messages.end(), request.conversation.begin(), request.conversation.end());
}

Handled CreateResponse(const std::shared_ptr<ResponseStore>& store, const HttpCall& call) {
  const Frontend& frontend = call.api.frontend();
  const ApiOptions& options = call.api.options();
  absl::StatusOr<ResponsesRequest> request = ParseResponsesRequest(
      call.body, DefaultsOfModels(frontend), options.unknown_fields, options.auto_tool_choice);
  if (!request.ok()) return ErrorResponse(request.status());
  const absl::StatusOr<Engine*> engine = frontend.FindEngine(request->api.model);
  if (!engine.ok()) return ErrorResponse(engine.status());
  std::vector<Turn> turns;
  const std::string owner = call.api.OwnerOf(call.head);
  if (const std::string& id = request->previous_response_id; !id.empty()) {
    std::optional<StoredResponse> previous = store->Get(id, owner);
    if (!previous) {
      return ErrorResponse(FieldError("previous_response_id", "previous_response_not_found",
                                      StrCat("previous_response_id is \"", Printable(id),
                                             "\"; allowed: a response that was "
                                             "stored and is still kept")));
    }
    turns = std::move(previous->turns);
  }
  JoinConversation(turns, *request);
  if (absl::Status s = call.api.SetCaller(call.head, request->api.options); !s.ok()) {
    return ErrorResponse(s);
  }
  // The id is the server's own, since it is the key of the stored response.
  return std::make_unique<ResponsesAnswer>(*std::move(request), std::move(turns),
                                           StrCat("resp_", NewRequestId()), owner, store, **engine,
                                           call.wake);
}

Handled GetResponse(ResponseStore& store, const HttpCall& call) {
  const std::string_view id = ResponseIdOf(call);
  const std::optional<StoredResponse> response = store.Get(id, call.api.OwnerOf(call.head));
  if (!response) return NoSuchResponse(id);
  return HttpResponse{.shared_body = response->json};
}

Handled DeleteResponse(ResponseStore& store, const HttpCall& call) {
  const std::string_view id = ResponseIdOf(call);
  if (!store.Delete(id, call.api.OwnerOf(call.head))) return NoSuchResponse(id);
  std::string out = R"({"id":)";
  AppendJsonString(out, id);
  out += R"(,"object":"response","deleted":true})";
  return HttpResponse{.body = std::move(out)};
}

// The operations that take the id of the response that was made.
constexpr std::string_view kLinks = R"({
  "get": {"operationId": "get_v1_responses_response_id",
          "description": "The response is kept, unless store is false.",
          "parameters": {"response_id": "$response.body#/id"}},
  "delete": {"operationId": "delete_v1_responses_response_id",
             "description": "The response is kept, unless store is false.",
             "parameters": {"response_id": "$response.body#/id"}}})";

}  // namespace

HttpProtocol ResponsesProtocol() {
  const auto store = std::make_shared<ResponseStore>();
  return {
      .endpoints = {
          InferenceEndpoint(kResponsesPath,
                            {.summary = "Answers an input, and keeps the answer (OpenAI)",
                             .request = "ResponsesRequest",
                             .response = "Response",
                             .stream = "ResponseEvent",
                             .links = kLinks},
                            [store](const HttpCall& call) { return CreateResponse(store, call); }),
          {.method = "GET",
           .path = kResponsePath,
           .access = Scope::kInfer,
           .doc = {.summary = "Returns a response that is still kept", .response = "Response"},
           .handle = [store](const HttpCall& call) { return GetResponse(*store, call); }},
          {.method = "DELETE",
           .path = kResponsePath,
           .access = Scope::kInfer,
           .doc = {.summary = "Forgets a response", .response = "DeletedResponse"},
           .handle = [store](const HttpCall& call) { return DeleteResponse(*store, call); }},
      }};
}

}  // namespace millrace
