// Anthropic's API: /v1/messages and /v1/messages/count_tokens.
#ifndef MILLRACE_SERVER_HTTP_MESSAGES_MESSAGES_H_
#define MILLRACE_SERVER_HTTP_MESSAGES_MESSAGES_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/http/api/endpoint.h"
#include "server/http/openai/block_answer.h"
#include "server/http/openai/openai_request.h"

namespace millrace {

HttpProtocol MessagesProtocol();

// Parses a body into what a chat is parsed into. `count`: of count_tokens, which has no fields of
// sampling. Errors as ParseApiRequest's.
absl::StatusOr<ApiRequest> ParseMessagesRequest(std::string_view body, bool count,
                                                const DefaultsOf& defaults, UnknownFields unknown,
                                                bool auto_tool_choice);

// Returns an error's response in Anthropic's shape.
HttpResponse MessagesError(const ApiError& error);
HttpResponse MessagesError(const absl::Status& status);
std::string MessagesErrorJson(const ApiError& error);

class MessagesAnswer : public BlockAnswer {
 public:
  using BlockAnswer::BlockAnswer;

 private:
  std::string_view call_id_prefix() const override { return "toolu_"; }
  void Begin(std::string& body) override;
  void Open(const AnswerBlock& block, std::string& body) override;
  void Delta(const AnswerBlock& block, std::string_view text, std::string& body) override;
  void Close(const AnswerBlock& block, bool complete, std::string& body) override;
  void End(const Finish& finish, std::string& body) override;
  std::shared_ptr<const SharedBody> Whole(const Finish& finish) override;
  HttpResponse Refusal(const ApiError& error) override;
  void Break(const ApiError& error, std::string& body) override;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_MESSAGES_MESSAGES_H_
