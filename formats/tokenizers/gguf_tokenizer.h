// The tokenizer and the chat template of a GGUF file, as its metadata describe them.
#ifndef MILLRACE_FORMATS_TOKENIZERS_GGUF_TOKENIZER_H_
#define MILLRACE_FORMATS_TOKENIZERS_GGUF_TOKENIZER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "formats/gguf/gguf.h"

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

// The values of tokenizer.ggml.model.
enum class TokenizerKind {
  kGpt2,    // "gpt2": byte-level BPE; tokens are in GPT-2's spelling of bytes as characters
  kLlama,   // "llama": SentencePiece's BPE, whose merges follow from the scores
  kGemma4,  // "gemma4": the same with its merges
  kT5,      // "t5": SentencePiece's Unigram
  kBert,    // "bert": WordPiece; tokens that begin a word begin with U+2581
};

// The views point into the mapped file: they hold as long as the GgufFile does.
struct GgufTokenizer {
  TokenizerKind kind = TokenizerKind::kGpt2;
  std::string_view pre;  // tokenizer.ggml.pre, "default" where the file has none
  absl::Span<const std::string_view> tokens;  // by id
  std::vector<TokenType> types;               // by id, kNormal where the file has none
  std::vector<float> scores;                  // by id; of kLlama and kT5
  absl::Span<const std::string_view> merges;  // "left right", the best first; of kGpt2 and kGemma4
  absl::Span<const uint8_t> charsmap;         // precompiled_charsmap of kT5, perhaps empty
  // Ids, each in [0, tokens.size()).
  std::optional<int32_t> bos, eos, eot, eom, pad, unknown, cls, separator;
  std::optional<int32_t> fim_prefix, fim_suffix, fim_middle;
  std::optional<int32_t> fim_padding, fim_repository, fim_separator;
  std::vector<int32_t> ends;              // that end an answer, ascending
  std::optional<int32_t> left_stripping;  // takes white space before it along
  std::vector<int32_t> right_stripping;   // take white space behind them along
  bool add_bos = false;
  bool add_eos = false;
  bool add_sep = false;  // the separator between two texts
  bool add_space_prefix = false;
  bool remove_extra_whitespaces = false;
  // tokenizer.ggml.normalizer.*: of kBert, and of tokenizer.ggml.pre "whitespace".
  bool lowercase = false;
  bool strip_accents = false;
  std::string_view chat_template;  // empty where the file has none
  std::string_view tool_template;  // for chats with tools, where the file has one of its own
  // What the file says that is not followed, or leaves out: whole sentences that name the key.
  std::vector<std::string> warnings;
};

// Reads the tokenizer's metadata. INVALID_ARGUMENT or NOT_FOUND for a damaged or lying file,
// UNIMPLEMENTED for a kind of tokenizer that is not known; each names the file and the key. What
// keys leave out is as in llama.cpp: special tokens are found by their texts
// (gguf_special_tokens.h).
absl::StatusOr<GgufTokenizer> ReadGgufTokenizer(const GgufFile& file);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TOKENIZERS_GGUF_TOKENIZER_H_
