#include "engine/answer/prediction_count.h"

#include <algorithm>
#include <utility>

namespace millrace {

PredictionCount::PredictionCount(std::shared_ptr<const SuffixAutomaton> prediction,
                                 int32_t min_match)
    : size_(static_cast<int32_t>(prediction->text().size())),
      min_match_(min_match),
      text_(FollowedText::FromItsBeginning(std::move(prediction))) {}

void PredictionCount::Add(Token token) {
  text_.Append(token);
  ++uncounted_;
  if (text_.common() < min_match_) return;
  accepted_ += std::min(uncounted_, text_.common());
  uncounted_ = 0;
}

PredictedTokens PredictionCount::tokens() const {
  const int32_t accepted = std::min(accepted_, size_);  // the answer may repeat itself
  return {.accepted = accepted, .rejected = size_ - accepted};
}

}  // namespace millrace
