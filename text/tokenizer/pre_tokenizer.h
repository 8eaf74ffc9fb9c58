// Cuts text into the pieces within which a model looks for its tokens.
#ifndef MILLRACE_TEXT_TOKENIZER_PRE_TOKENIZER_H_
#define MILLRACE_TEXT_TOKENIZER_PRE_TOKENIZER_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "formats/tokenizers/tokenizer_spec.h"

namespace millrace {

struct TextPiece {
  std::string_view text;  // Valid UTF-8, not empty.
  // The bytes at the piece's front that stem from the first character of the whole text as it came:
  // a normalizer may have made several characters of that one.
  size_t first_bytes = 0;

  // Returns the part of `size` bytes from `begin` on.
  TextPiece Part(size_t begin, size_t size) const {
    return {text.substr(begin, size),
            first_bytes > begin ? std::min(first_bytes - begin, size) : 0};
  }
};

// Constant after construction: Split may be called from any thread.
class PreTokenizer {
 public:
  using Emit = absl::FunctionRef<absl::Status(TextPiece)>;

  // One step of several. Calls `emit` with the parts of a piece, from left to right; they need not
  // be text of the piece, and end with the call.
  class Step {
   public:
    virtual ~Step() = default;
    virtual absl::Status Run(TextPiece piece, Emit emit) const = 0;
  };

  static absl::StatusOr<PreTokenizer> Create(absl::Span<const PreTokenizerSpec> specs);

  // Calls `emit` with each piece; an error of it ends the work and is returned. INVALID_ARGUMENT,
  // calling the text "prompt", where a regular expression needs too much for it.
  absl::Status Split(TextPiece text, Emit emit) const { return Run(0, text, emit); }

 private:
  absl::Status Run(size_t step, TextPiece piece, Emit emit) const;

  std::vector<std::unique_ptr<const Step>> steps_;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_PRE_TOKENIZER_H_
