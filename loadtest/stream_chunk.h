// One event of an OpenAI-compatible stream.
#ifndef MILLRACE_LOADTEST_STREAM_CHUNK_H_
#define MILLRACE_LOADTEST_STREAM_CHUNK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {

struct StreamChunk {
  bool has_text = false;  // text, reasoning or a part of a tool call that is not empty
  bool has_finish = false;
  bool has_error = false;
  std::string error;  // the error's message
  std::optional<int64_t> prompt_tokens;
  std::optional<int64_t> completion_tokens;
  std::optional<int64_t> cached_tokens;
  // Cached tokens by the tier that had them: "local" of vLLM's local_cached_tokens, "host" of
  // SGLang's cached_tokens_details.host. At most kMostTiers.
  std::vector<std::pair<std::string, int64_t>> cached_by_tier;
};

inline constexpr size_t kMostTiers = 8;

// Reads a chunk of a chat or text completion, or an object with `error`, in one pass that allocates
// nothing but for an error's message and tiers of caches. Appends the text of its choices to
// `text`, and their thoughts to `reasoning`, each unless it is null. Returns false for what is not
// a JSON object, or is nested more than 64 deep.
bool ReadStreamChunk(std::string_view json, StreamChunk& chunk, std::string* text,
                     std::string* reasoning);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_STREAM_CHUNK_H_
