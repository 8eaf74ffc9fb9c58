// Log-probabilities in the two shapes of OpenAI's API.
#ifndef MILLRACE_SERVER_HTTP_LOGPROBS_WRITER_H_
#define MILLRACE_SERVER_HTTP_LOGPROBS_WRITER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/request.h"
#include "server/http/openai_request.h"

namespace millrace {

// Appends a token's text as a JSON string, for `token`, `tokens` and the keys of `top_logprobs`.
// Bytes that are not UTF-8 are written as OpenAI does: \xNN, after "bytes:" in completions.
void AppendTokenText(std::string& out, ApiKind kind, std::string_view bytes);

// The log-probabilities of one choice: all of them, or a stream's chunk by chunk.
class LogprobsWriter {
 public:
  explicit LogprobsWriter(ApiKind kind) : kind_(kind) {}

  void Add(const TokenDetail& detail);

  // Appends the JSON object of what was added since the last call.
  void Flush(std::string& out);

 private:
  void AddCompletion(const TokenDetail& detail);
  void AddChat(const TokenDetail& detail);

  const ApiKind kind_;
  // The insides of the lists. Chat has only the first.
  std::string tokens_;
  std::string logprobs_;
  std::string top_;
  std::string offsets_;
  int64_t offset_ = 0;  // of the next token in the choice's text, in characters
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_LOGPROBS_WRITER_H_
