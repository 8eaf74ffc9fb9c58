// Counts the tokens of a predicted answer that the answer has.
#ifndef MILLRACE_ENGINE_ANSWER_PREDICTION_COUNT_H_
#define MILLRACE_ENGINE_ANSWER_PREDICTION_COUNT_H_

#include <cstdint>
#include <memory>

#include "base/token.h"
#include "engine/request/request.h"
#include "speculative/followed_text.h"
#include "speculative/suffix_automaton.h"

namespace millrace {

// OpenAI's accepted and rejected prediction tokens. They depend on the prediction and the answer
// alone, and not on what was drafted of it, which depends on the load.
class PredictionCount {
 public:
  // After a deviation at least `min_match` tokens in a row count.
  PredictionCount(std::shared_ptr<const SuffixAutomaton> prediction, int32_t min_match);

  // Takes the answer's next token.
  void Add(Token token);

  PredictedTokens tokens() const;

 private:
  int32_t size_;  // of the prediction
  int32_t min_match_;
  FollowedText text_;
  int32_t accepted_ = 0;
  int32_t uncounted_ = 0;  // the answer's last tokens that are not in accepted_
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_ANSWER_PREDICTION_COUNT_H_
