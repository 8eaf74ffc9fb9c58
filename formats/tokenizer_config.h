// What a model file says about its tokenizer and its chat template.
#ifndef MILLRACE_FORMATS_TOKENIZER_CONFIG_H_
#define MILLRACE_FORMATS_TOKENIZER_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "formats/gguf.h"

namespace millrace {

// The kinds of tokens, by GGUF's numbers.
enum class TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // "<|im_end|>": parsed only where special text is asked for, hidden in output
  kUserDefined = 4,  // matched whole in any text
  kUnused = 5,
  kByte = 6,
};

// A byte-level BPE tokenizer. The views point into the mapped file: they hold as long as the
// GgufFile does.
struct TokenizerConfig {
  std::string_view pre;  // tokenizer.ggml.pre, "default" where the file has none
  absl::Span<const std::string_view> tokens;  // by id, in GPT-2's spelling of bytes as characters
  std::vector<TokenType> types;               // by id
  absl::Span<const std::string_view> merges;  // "left right", the best first
  std::optional<int32_t> bos, eos, eot, eom, pad;  // each in [0, tokens.size())
  bool add_bos = false;
  bool add_eos = false;
  std::string_view chat_template;  // empty where the file has none
};

// INVALID_ARGUMENT or NOT_FOUND for a damaged or lying file, UNIMPLEMENTED for another kind of
// tokenizer than byte-level BPE ("gpt2"); each names the file and the key.
absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const GgufFile& file);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TOKENIZER_CONFIG_H_
