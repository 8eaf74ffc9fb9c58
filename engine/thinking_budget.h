// Bounds what a model thinks: after so many tokens of reasoning, the end of the reasoning is
// forced.
#ifndef MILLRACE_ENGINE_THINKING_BUDGET_H_
#define MILLRACE_ENGINE_THINKING_BUDGET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/token.h"
#include "text/grammar/grammar.h"
#include "text/grammar/vocabulary.h"

namespace millrace {

// The texts around the reasoning of one answer.
struct ThinkingMarkers {
  std::string open, close;
  bool inside = false;  // the prompt has opened the reasoning
  bool once = false;    // no reasoning is at another place than the answer's beginning
};

// Follows one answer, as a GrammarMatcher does. A copy goes on by itself.
class ThinkingBudget {
 public:
  // `tokens`: of reasoning, without its markers, over the whole answer.
  static absl::StatusOr<ThinkingBudget> Create(ThinkingMarkers markers, int32_t tokens,
                                               std::shared_ptr<const GrammarVocabulary> vocabulary);

  // Moves past a token. False: it was not in the mask.
  bool Accept(Token token);
  // Returns the tokens that may come next: all of them, or those that write the closing marker.
  absl::StatusOr<std::shared_ptr<const TokenMask>> Mask() { return Narrow(all_); }
  // Returns those of them that are in `mask`.
  absl::StatusOr<std::shared_ptr<const TokenMask>> Narrow(std::shared_ptr<const TokenMask> mask);

 private:
  ThinkingBudget(ThinkingMarkers markers, int32_t tokens, GrammarMatcher closing,
                 std::shared_ptr<const GrammarVocabulary> vocabulary);
  // Returns whether the text so far ends with `marker`, or has it within its last token.
  bool Finds(const std::string& marker, std::string_view bytes);
  void ForceWhereSpent();
  void FindBeginning(std::string_view bytes);
  void Close();

  const std::shared_ptr<const GrammarVocabulary> vocabulary_;
  const std::shared_ptr<const TokenMask> all_;
  const ThinkingMarkers markers_;
  const GrammarMatcher closing_;           // before the closing marker
  std::optional<GrammarMatcher> forcing_;  // within it
  bool inside_;
  bool over_ = false;  // no reasoning comes any more
  int32_t left_;
  std::string tail_;  // of the text since the last marker: what may be the beginning of one
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_THINKING_BUDGET_H_
