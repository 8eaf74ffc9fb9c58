// Finds the tokens that a tokenizer matches whole, before its model sees the text.
#ifndef MILLRACE_TEXT_TOKENIZER_ADDED_TOKENS_H_
#define MILLRACE_TEXT_TOKENIZER_ADDED_TOKENS_H_

#include <optional>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/token.h"
#include "formats/tokenizers/tokenizer_spec.h"
#include "text/tokenizer/special_matcher.h"
#include "text/tokenizer/text_pattern.h"

namespace millrace {

class AddedTokens {
 public:
  AddedTokens() = default;
  // Returns the tokens' contents as they are to be matched.
  static absl::StatusOr<AddedTokens> Create(std::vector<AddedTokenSpec> tokens);

  struct Part {
    size_t begin, end;           // in the text; not empty
    std::optional<Token> token;  // none: text for the model
  };
  // Calls `emit` with the parts of `text`, from left to right; an error of it ends the work and is
  // returned. Without parse_special special tokens are text.
  absl::Status Split(std::string_view text, bool parse_special,
                     absl::FunctionRef<absl::Status(Part)> emit) const;

 private:
  // Returns whether the character on either side of [begin, end) is one of a word.
  bool StandsInWord(std::string_view text, size_t begin, size_t end) const;

  std::vector<AddedTokenSpec> tokens_;
  SpecialMatcher matcher_;  // its tokens are indices into tokens_
  std::optional<TextMatcher> word_;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_ADDED_TOKENS_H_
