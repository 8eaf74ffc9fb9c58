// One event of an OpenAI-compatible stream.
#ifndef MILLRACE_LOADTEST_STREAM_CHUNK_H_
#define MILLRACE_LOADTEST_STREAM_CHUNK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

struct StreamChunk {
  bool has_text = false;  // text, reasoning or a part of a tool call that is not empty
  bool has_finish = false;
  bool has_error = false;
  std::string error;  // the error's message
  std::optional<int64_t> prompt_tokens;
  std::optional<int64_t> completion_tokens;
  std::optional<int64_t> cached_tokens;
};

// Reads a chunk of a chat or text completion, or an object with `error`, in one pass that allocates
// nothing but for an error's message. Appends the text of its choices to `text` unless that is
// null. Returns false for what is not a JSON object, or is nested more than 64 deep.
bool ReadStreamChunk(std::string_view json, StreamChunk& chunk, std::string* text);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_STREAM_CHUNK_H_
