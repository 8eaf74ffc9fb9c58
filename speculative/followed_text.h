// A text that a sequence may repeat, and the place in it where the sequence goes on.
#ifndef MILLRACE_SPECULATIVE_FOLLOWED_TEXT_H_
#define MILLRACE_SPECULATIVE_FOLLOWED_TEXT_H_

#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "base/token.h"
#include "speculative/suffix_automaton.h"

namespace millrace {

// Used by one thread at a time. Copies share the text.
class FollowedText {
 public:
  // The longest match there can be: of a text that the sequence has not deviated from yet.
  static constexpr int32_t kWhole = 1 << 30;

  // Expects the sequence to begin as `text`, which does not change anymore.
  static FollowedText FromItsBeginning(std::shared_ptr<const SuffixAutomaton> text);
  // Expects the sequence, which ends as `text`, to go on as that did where it said the same before.
  static FollowedText FromItsEnd(std::shared_ptr<const SuffixAutomaton> text);

  // Takes the sequence's next token.
  void Append(Token token);

  // Returns the number of last tokens that the sequence shares with the text before next().
  int32_t common() const { return common_; }
  // Returns the tokens of the text with which the sequence may go on.
  absl::Span<const Token> next() const { return text_->text().subspan(next_); }

 private:
  FollowedText(std::shared_ptr<const SuffixAutomaton> text, SuffixAutomaton::Match match,
               int32_t next, int32_t common);

  std::shared_ptr<const SuffixAutomaton> text_;
  SuffixAutomaton::Match match_;  // of the sequence's longest suffix that the text has
  int32_t next_;
  int32_t common_;
};

}  // namespace millrace

#endif  // MILLRACE_SPECULATIVE_FOLLOWED_TEXT_H_
