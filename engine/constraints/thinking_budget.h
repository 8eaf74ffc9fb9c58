// Bounds what a model thinks: after so many tokens of reasoning, the end of the reasoning is
// forced.
#ifndef MILLRACE_ENGINE_CONSTRAINTS_THINKING_BUDGET_H_
#define MILLRACE_ENGINE_CONSTRAINTS_THINKING_BUDGET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/token.h"
#include "text/grammar/grammar.h"
#include "text/grammar/vocabulary.h"

namespace millrace {

// The texts around the reasoning of one answer.
struct ThinkingMarkers {
  struct Pair {
    std::string open, close;
    // This is forced where the budget is spent; without parts, the text that closes is.
    GrammarSpec forced = {};
  };
  std::vector<Pair> pairs;  // spellings: the text that opens the reasoning, and its counterpart
  // Texts that end the reasoning beside those of the pairs.
  std::vector<std::string> closes = {};
  bool inside = false;  // the prompt has opened the reasoning, as the first of the pairs has it
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
  ThinkingBudget(ThinkingMarkers markers, int32_t tokens, std::vector<GrammarMatcher> closing,
                 std::shared_ptr<const GrammarVocabulary> vocabulary);
  // Adds a token's bytes to tail_. Special tokens' names come without their frames.
  void Extend(std::string_view bytes);
  // Returns whether the text so far ends with `marker`, or has it within its last token.
  bool Finds(const std::string& marker);
  bool FindsOpening();
  bool FindsClosing();
  void CutTail();
  void ForceWhereSpent();
  void FindBeginning();
  void Close();

  const std::shared_ptr<const GrammarVocabulary> vocabulary_;
  const std::shared_ptr<const TokenMask> all_;
  const ThinkingMarkers markers_;
  const std::vector<GrammarMatcher> closing_;  // before each of the pairs' closing markers
  std::optional<GrammarMatcher> forcing_;      // within one
  size_t opened_ = 0;                          // the pair whose text has opened the reasoning
  size_t longest_ = 0;                         // bytes of a marker
  bool inside_;
  bool over_ = false;  // no reasoning comes any more
  int32_t left_;
  std::string tail_;  // of the text since the last marker: what may be the beginning of one
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_CONSTRAINTS_THINKING_BUDGET_H_
