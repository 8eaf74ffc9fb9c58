// Finds a tokenizer file's patterns in a text.
#ifndef MILLRACE_TEXT_TOKENIZER_TEXT_PATTERN_H_
#define MILLRACE_TEXT_TOKENIZER_TEXT_PATTERN_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/tokenizers/tokenizer_spec.h"

struct re_pattern_buffer;  // Oniguruma's regex_t

namespace millrace {

// Constant after construction: ForEach may be called from any thread.
class TextMatcher {
 public:
  struct Match {
    size_t begin;
    size_t end;
    int group;  // the first group that matched, 0 when there is none
  };

  // Makes a matcher. INVALID_ARGUMENT for an expression that Oniguruma refuses.
  static absl::StatusOr<TextMatcher> Create(const TextPattern& pattern);

  // Calls `found` with the matches in `text` (valid UTF-8), from left to right; none overlaps the
  // one before it, and an empty one does not stand at its end. An error of `found` ends the search
  // and is returned. INVALID_ARGUMENT when the expression needs too much memory or too many steps:
  // it keeps 40 bytes for each character of a run that it may have to give back.
  absl::Status ForEach(std::string_view text, absl::FunctionRef<absl::Status(Match)> found) const;

 private:
  struct FreeRegex {
    void operator()(re_pattern_buffer* regex) const;
  };

  TextMatcher() = default;
  absl::Status ForEachLiteral(std::string_view text,
                              absl::FunctionRef<absl::Status(Match)> found) const;

  std::string literal_;  // where regex_ is not set
  std::unique_ptr<re_pattern_buffer, FreeRegex> regex_;
};

// Returns the expression with a `++` for each `+` (and `*+` for `*`) at the end of an alternative
// of the outermost level. Nothing follows such a repetition, so what it took is never asked back,
// and Oniguruma need not keep track of it.
std::string WithPossessiveEnds(std::string_view regex);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_TEXT_PATTERN_H_
