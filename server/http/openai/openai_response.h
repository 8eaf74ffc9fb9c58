// Answers in the shapes of OpenAI's API: text_completion, chat.completion, chat.completion.chunk.
#ifndef MILLRACE_SERVER_HTTP_OPENAI_OPENAI_RESPONSE_H_
#define MILLRACE_SERVER_HTTP_OPENAI_OPENAI_RESPONSE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request/request.h"
#include "server/http/json/api_error.h"
#include "server/http/openai/openai_request.h"

namespace millrace {

// The output of one choice: all of it, or one chunk's worth.
struct ChoicePart {
  std::string text;
  std::string reasoning;
  std::vector<ToolCallDelta> calls;     // of a chat
  bool called = false;                  // the choice has calls, of which this part may have none
  std::string logprobs;                 // LogprobsWriter's object; empty: null
  std::string prompt_logprobs;          // a list; empty: not wanted
  std::vector<Token> prompt_token_ids;  // empty: not wanted, or said before
  std::vector<Token> token_ids;         // shown if return_token_ids
  const Finish* finish = nullptr;       // the last part has it
  Usage usage;                          // of the choice so far; shown if continuous_usage
};

// Adds the parts of calls to those that have come, of which the last may go on.
void MergeCalls(std::vector<ToolCallDelta> from, std::vector<ToolCallDelta>& calls);

// Returns an id for a call of the answer `answer_id`: 9 letters and digits, as Mistral's templates
// insist on. It is another one for each call of all answers.
std::string ToolCallId(std::string_view answer_id, size_t choice, int32_t index);

// Writes one answer. What its chunks have in common is put into words once.
class AnswerWriter {
 public:
  AnswerWriter(const ApiRequest& request, std::string_view id, std::string_view model,
               int64_t created);

  // Appends the answer as one JSON object.
  void AppendWhole(std::string& out, std::span<const ChoicePart> choices, const Usage& usage) const;

  // Append one server-sent event each ("data: …\n\n").
  void AppendChunk(std::string& out, size_t index, const ChoicePart& part, bool first) const;
  void AppendUsageChunk(std::string& out, const Usage& usage) const;
  static void AppendDone(std::string& out);
  static void AppendError(std::string& out, const ApiError& error);

 private:
  // A choice is its index, then what AppendText, AppendMessage or AppendDelta adds, then the end.
  static void BeginChoice(std::string& out, size_t index);
  void EndChoice(std::string& out, const ChoicePart& part) const;
  static void AppendText(std::string& out, const ChoicePart& part);
  void AppendMessage(std::string& out, size_t index, const ChoicePart& part) const;
  void AppendDelta(std::string& out, size_t index, const ChoicePart& part, bool first) const;

  // Appends what a message or a delta has beside its content, each with a comma before it.
  void AppendReasoning(std::string& out, const ChoicePart& part) const;
  void AppendCalls(std::string& out, size_t choice, const ChoicePart& part, bool whole) const;

  const ApiKind kind_;
  const std::string id_;
  const bool named_call_;
  const bool return_token_ids_;
  const bool continuous_usage_;
  std::string head_;  // {"id":…,"object":…,…,"choices":[
  std::string rest_;  // what follows a chunk's choices
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAI_OPENAI_RESPONSE_H_
