// Cuts text into the pieces that byte-level BPE merges within, by a model's own regular expression.
#ifndef MILLRACE_SERVER_TEXT_PRE_TOKENIZER_H_
#define MILLRACE_SERVER_TEXT_PRE_TOKENIZER_H_

#include <memory>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct re_pattern_buffer;  // Oniguruma's regex_t

namespace millrace {

// Constant after construction: Split may be called from any thread.
class PreTokenizer {
 public:
  // `name` is GGUF's tokenizer.ggml.pre. UNIMPLEMENTED, naming those that are known, for another
  // one.
  static absl::StatusOr<PreTokenizer> Create(std::string_view name);

  // Whether a piece that is a token as it stands is taken without merging.
  bool ignore_merges() const { return ignore_merges_; }

  // Calls `emit` with each piece of `text` (valid UTF-8), front to back; together they are the
  // text. INVALID_ARGUMENT when more than about a million characters of white space follow each
  // other: the regular expression engine keeps 40 bytes for each of them.
  absl::Status Split(std::string_view text, absl::FunctionRef<void(std::string_view)> emit) const;

 private:
  struct FreeRegex {
    void operator()(re_pattern_buffer* regex) const;
  };

  PreTokenizer(re_pattern_buffer* regex, bool ignore_merges)
      : regex_(regex), ignore_merges_(ignore_merges) {}

  std::unique_ptr<re_pattern_buffer, FreeRegex> regex_;
  bool ignore_merges_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_TEXT_PRE_TOKENIZER_H_
