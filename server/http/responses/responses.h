// OpenAI's API of responses: POST /v1/responses, GET and DELETE /v1/responses/ID.
#ifndef MILLRACE_SERVER_HTTP_RESPONSES_RESPONSES_H_
#define MILLRACE_SERVER_HTTP_RESPONSES_RESPONSES_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/http/api/endpoint.h"
#include "server/http/openai/block_answer.h"
#include "server/http/openai/openai_request.h"
#include "server/http/responses/response_store.h"

namespace millrace {

HttpProtocol ResponsesProtocol();

// The namespaces of tools that have one, by the names of the tools.
using Namespaces = std::map<std::string, std::string>;

struct ResponsesRequest {
  ApiRequest api;                         // its one prompt is the chat with `conversation` alone
  std::string instructions;               // come before the conversation; may be empty
  std::vector<ChatMessage> conversation;  // without instructions and what the next names
  std::string previous_response_id;
  Namespaces namespaces;
  bool store = true;
  std::string shown;  // the members of a response that repeat the request: `"tools":[],…`
};

// Parses a body into what a chat is parsed into. Errors as ParseApiRequest's.
absl::StatusOr<ResponsesRequest> ParseResponsesRequest(std::string_view body,
                                                       const DefaultsOf& defaults,
                                                       UnknownFields unknown,
                                                       bool auto_tool_choice);

class ResponsesAnswer : public BlockAnswer {
 public:
  // `turns` are of the responses before, which the request goes on from; `store` is not null.
  ResponsesAnswer(ResponsesRequest request, std::vector<Turn> turns, std::string id,
                  std::string owner, std::shared_ptr<ResponseStore> store, Engine& engine,
                  const Wake& wake);

 private:
  State Poll(HttpResponse& response, std::string& body) override;
  bool Ping(HttpResponse& response, std::string& body) override;
  bool ended() const override { return state_ == State::kEnd || state_ == State::kBroken; }
  size_t held_bytes() const override;
  std::string_view call_id_prefix() const override { return "call_"; }
  void Begin(std::string& body) override;
  void Open(const AnswerBlock& block, std::string& body) override;
  void Delta(const AnswerBlock& block, std::string_view text, std::string& body) override;
  void Close(const AnswerBlock& block, bool complete, std::string& body) override;
  void End(const Finish& finish, std::string& body) override;
  std::shared_ptr<const SharedBody> Whole(const Finish& finish) override;
  HttpResponse Refusal(const ApiError& error) override;
  void Break(const ApiError& error, std::string& body) override;

  void BeginEvent(std::string& body, std::string_view name);
  void AppendPlace(std::string& body, const AnswerBlock& block, bool content) const;
  std::string ItemId(const AnswerBlock& block) const;
  void AppendContent(std::string& out, const AnswerBlock& block, bool whole) const;
  void AppendItem(std::string& out, const AnswerBlock& block, bool whole, bool complete) const;
  // Returns the response as an object. `finish` is null while the answer is in progress.
  std::shared_ptr<const SharedBody> Response(std::string_view status, const Finish* finish) const;
  void AppendHead(std::string& out, std::string_view status) const;
  void AppendTail(std::string& out, std::string_view status, const Finish* finish) const;
  // Appends a response to a stream's events.
  void Append(const SharedBody& response, std::string& body);
  void Keep(std::shared_ptr<const SharedBody> json);

  const std::shared_ptr<const std::string> shown_;
  const Namespaces namespaces_;
  const std::string owner_;
  const std::shared_ptr<ResponseStore> store_;
  std::vector<Turn> turns_;
  std::vector<ChatMessage> messages_;  // of the request, and at the end its answer
  int64_t sequence_ = 0;
  // Events of a stream with a long shown_ in them, which no poll has returned whole, and the state
  // to return then.
  SharedBody events_;
  size_t polled_ = 0;  // of their bytes
  State state_ = State::kWaiting;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_RESPONSES_RESPONSES_H_
