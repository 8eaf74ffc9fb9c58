// Answers in the shapes of OpenAI's API: text_completion, chat.completion, chat.completion.chunk.
#ifndef MILLRACE_SERVER_HTTP_OPENAI_RESPONSE_H_
#define MILLRACE_SERVER_HTTP_OPENAI_RESPONSE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "server/http/api_error.h"
#include "server/http/openai_request.h"

namespace millrace {

// The output of one choice: all of it, or one chunk's worth.
struct ChoicePart {
  std::string text;
  std::string logprobs;                 // LogprobsWriter's object; empty: null
  std::vector<Token> prompt_token_ids;  // empty: not wanted, or said before
  std::vector<Token> token_ids;         // shown if return_token_ids
  const Finish* finish = nullptr;       // the last part has it
  Usage usage;                          // of the choice so far; shown if continuous_usage
};

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
  void AppendChoice(std::string& out, size_t index, const ChoicePart& part,
                    std::string_view message) const;

  const ApiKind kind_;
  const bool return_token_ids_;
  const bool continuous_usage_;
  std::string head_;  // {"id":…,"object":…,…,"choices":[
  std::string rest_;  // what follows a chunk's choices
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAI_RESPONSE_H_
