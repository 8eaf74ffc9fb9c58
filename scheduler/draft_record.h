// How often the guesses of a sequence's drafter were right.
#ifndef MILLRACE_SCHEDULER_DRAFT_RECORD_H_
#define MILLRACE_SCHEDULER_DRAFT_RECORD_H_

#include <cstdint>

#include "absl/types/span.h"
#include "base/token.h"

namespace millrace {

// Every guess is compared with what came, whether or not a row checked it: a drafter that has
// become worse costs no step to find out, and neither does one that has become better.
class DraftRecord {
 public:
  // Takes a draft and the tokens that came in its place, of which there may be fewer.
  void Observe(absl::Span<const Token> draft, absl::Span<const Token> came);

  // Returns how many tokens of a draft are worth their positions, at most `most`: the n-th is if
  // the first n are right at least as often as `cost` says, the time of a position as a share of
  // the time in which the step samples a token without it, and a tenth more, since that is an
  // estimate.
  int32_t WorthDrafting(double cost, int32_t most) const;

  // Returns the probability that the next token of a draft is right if those before it are.
  double acceptance() const { return right_ / (right_ + wrong_); }

 private:
  // Counts of late; they begin with what is assumed of a drafter.
  double right_ = 1.5;
  double wrong_ = 0.5;
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_DRAFT_RECORD_H_
