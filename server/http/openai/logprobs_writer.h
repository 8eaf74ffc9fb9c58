// Log-probabilities in the two shapes of OpenAI's API.
#ifndef MILLRACE_SERVER_HTTP_OPENAI_LOGPROBS_WRITER_H_
#define MILLRACE_SERVER_HTTP_OPENAI_LOGPROBS_WRITER_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "engine/request/request.h"
#include "server/http/openai/openai_request.h"

namespace millrace {

// Appends a token's text as a JSON string, for `token`, `tokens` and the keys of `top_logprobs`.
// Bytes that are not UTF-8 are written as OpenAI does: \xNN, after "bytes:" in completions.
void AppendTokenText(std::string& out, ApiKind kind, std::string_view bytes);

// Appends elements of vLLM's `prompt_logprobs` to an open array: for each token of an echoed prompt
// an object of its likeliest `top` alternatives and itself, by their ids; null for the first.
void AppendPromptLogprobs(std::string& out, absl::Span<const TokenDetail> prompt, int32_t top);

// The log-probabilities of one choice: all of them, or a stream's chunk by chunk.
class LogprobsWriter {
 public:
  // Shows at most `top` alternatives of each token.
  LogprobsWriter(ApiKind kind, int32_t top) : kind_(kind), top_shown_(static_cast<size_t>(top)) {}

  void Add(const TokenDetail& detail);

  // Appends the JSON object of what was added since the last call.
  void Flush(std::string& out);

 private:
  void AddCompletion(const TokenDetail& detail);
  void AddChat(const TokenDetail& detail);
  void CountCharacters(std::string_view bytes);

  absl::Span<const TokenAlternative> Shown(const TokenDetail& detail) const {
    return absl::MakeConstSpan(detail.top).first(std::min(detail.top.size(), top_shown_));
  }

  const ApiKind kind_;
  const size_t top_shown_;
  // The insides of the lists. Chat has only the first.
  std::string tokens_;
  std::string logprobs_;
  std::string top_;
  std::string offsets_;
  int64_t offset_ = 0;  // of the next token in the choice's text, in characters
  std::string cut_;     // the beginning of a character whose end has not come
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAI_LOGPROBS_WRITER_H_
