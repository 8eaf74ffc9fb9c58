// Cuts text into the pieces within which a model looks for its tokens.
#ifndef MILLRACE_SERVER_TEXT_PRE_TOKENIZER_H_
#define MILLRACE_SERVER_TEXT_PRE_TOKENIZER_H_

#include <memory>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "formats/tokenizer_spec.h"

namespace millrace {

struct TextPiece {
  std::string_view text;  // valid UTF-8, not empty
  bool at_start = false;  // it begins with the first character of the whole text
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

#endif  // MILLRACE_SERVER_TEXT_PRE_TOKENIZER_H_
