// Drafts by looking up what followed the last tokens where they stood before.
#ifndef MILLRACE_SPECULATIVE_LOOKUP_DRAFTER_H_
#define MILLRACE_SPECULATIVE_LOOKUP_DRAFTER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/token.h"
#include "speculative/drafter.h"
#include "speculative/followed_text.h"
#include "speculative/suffix_automaton.h"

namespace millrace {

// The defaults are those that measured best (docs/experiments/lookup-drafts.md).
struct LookupOptions {
  int32_t min_match = 3;   // at least 1; fewer tokens in common are no reason for a draft
  int32_t max_tokens = 8;  // of a draft
};

// Finds the longest suffix of the sequence that occurs earlier in it, and drafts what followed at
// the last such place: as many tokens as the suffix has, since a short one is often a coincidence.
// A text that the client predicts (OpenAI's predicted outputs) is looked up as well, and is drafted
// from its beginning until the answer deviates from it.
//
// Memory: the prompt and the prediction are shared with clones. An answer takes about 60 bytes a
// token; of more than kMaxAnswerTokens the last ones are looked up, at least so many.
class LookupDrafter final : public Drafter {
 public:
  static constexpr int32_t kMaxTextTokens = 1 << 17;
  static constexpr int32_t kMaxAnswerTokens = 1 << 15;

  // Prepares a prompt, of which the last kMaxTextTokens are looked up, or a prediction, of which
  // the first are.
  static std::shared_ptr<const SuffixAutomaton> IndexPrompt(const LookupOptions& options,
                                                            absl::Span<const Token> prompt);
  static std::shared_ptr<const SuffixAutomaton> IndexPrediction(const LookupOptions& options,
                                                                absl::Span<const Token> prediction);

  // The drafter of a sequence that has `prompt` and no token more. `prediction` may be null.
  LookupDrafter(const LookupOptions& options, std::shared_ptr<const SuffixAutomaton> prompt,
                std::shared_ptr<const SuffixAutomaton> prediction);

  void Append(absl::Span<const Token> tokens) override;
  std::vector<Token> Draft(int32_t most) const override;
  std::unique_ptr<Drafter> Clone() const override;

 private:
  LookupOptions options_;
  std::vector<FollowedText> texts_;  // prediction and prompt, then an earlier part of the answer
  size_t num_given_;                 // the first ones, which are not the answer's
  SuffixAutomaton answer_;           // or its last part
};

}  // namespace millrace

#endif  // MILLRACE_SPECULATIVE_LOOKUP_DRAFTER_H_
