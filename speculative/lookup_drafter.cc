#include "speculative/lookup_drafter.h"

#include <algorithm>
#include <utility>

namespace millrace {

std::shared_ptr<const SuffixAutomaton> LookupDrafter::IndexPrompt(const LookupOptions& options,
                                                                  absl::Span<const Token> prompt) {
  const size_t skipped = prompt.size() - std::min<size_t>(prompt.size(), kMaxTextTokens);
  return std::make_shared<const SuffixAutomaton>(options.min_match, prompt.subspan(skipped));
}

std::shared_ptr<const SuffixAutomaton> LookupDrafter::IndexPrediction(
    const LookupOptions& options, absl::Span<const Token> prediction) {
  return std::make_shared<const SuffixAutomaton>(options.min_match,
                                                 prediction.subspan(0, kMaxTextTokens));
}

LookupDrafter::LookupDrafter(const LookupOptions& options,
                             std::shared_ptr<const SuffixAutomaton> prompt,
                             std::shared_ptr<const SuffixAutomaton> prediction)
    : options_(options), answer_(options.min_match) {
  if (prediction != nullptr) {
    texts_.push_back(FollowedText::FromItsBeginning(std::move(prediction)));
  }
  texts_.push_back(FollowedText::FromItsEnd(std::move(prompt)));
  num_given_ = texts_.size();
}

void LookupDrafter::Append(absl::Span<const Token> tokens) {
  for (const Token token : tokens) {
    for (FollowedText& text : texts_) text.Append(token);
    answer_.Append(token);
    if (answer_.text().size() < kMaxAnswerTokens) continue;
    // What came before this part is given up.
    texts_.erase(texts_.begin() + static_cast<ptrdiff_t>(num_given_), texts_.end());
    texts_.push_back(FollowedText::FromItsEnd(std::make_shared<const SuffixAutomaton>(
        std::exchange(answer_, SuffixAutomaton(options_.min_match)))));
  }
}

std::vector<Token> LookupDrafter::Draft(int32_t most) const {
  const absl::Span<const Token> answer = answer_.text();
  absl::Span<const Token> next = answer.subspan(answer_.repeated_end());
  int32_t common = answer_.repeated().length;
  bool is_answer = true;
  for (const FollowedText& text : texts_) {
    if (text.common() <= common || text.next().empty()) continue;
    next = text.next();
    common = text.common();
    is_answer = false;
  }
  std::vector<Token> draft;
  if (common < options_.min_match) return draft;
  const auto size = static_cast<size_t>(std::clamp(most, 0, std::min(common, options_.max_tokens)));
  while (draft.size() < size) {
    if (draft.size() < next.size()) {
      draft.push_back(next[draft.size()]);
    } else if (is_answer) {
      draft.push_back(draft[draft.size() - next.size()]);  // it repeats itself, and goes on so
    } else {
      break;
    }
  }
  return draft;
}

std::unique_ptr<Drafter> LookupDrafter::Clone() const {
  return std::make_unique<LookupDrafter>(*this);
}

}  // namespace millrace
