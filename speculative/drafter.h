// Guesses the tokens that a sequence goes on with.
#ifndef MILLRACE_SPECULATIVE_DRAFTER_H_
#define MILLRACE_SPECULATIVE_DRAFTER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/token.h"

namespace millrace {

// The drafter of one sequence. A draft costs what its positions take in a step, and never changes
// what is sampled: those tokens of it are kept that equal what would have been sampled without it.
// Used by one thread at a time; a call takes microseconds a token.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // Takes the sequence's next tokens, in their order, from the first of its prompt on.
  virtual void Append(absl::Span<const Token> tokens) = 0;

  // Returns the tokens that are likely to come next, at most `most`; none if it knows nothing. The
  // same tokens appended give the same draft.
  virtual std::vector<Token> Draft(int32_t most) const = 0;

  // Returns a drafter in the same state, for another sequence that has begun with the same tokens.
  virtual std::unique_ptr<Drafter> Clone() const = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SPECULATIVE_DRAFTER_H_
