// How many prompt tokens a step may take beside the sequences that decode, by time.
#ifndef MILLRACE_SCHEDULER_STEP_BUDGET_H_
#define MILLRACE_SCHEDULER_STEP_BUDGET_H_

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "scheduler/cost_model.h"

namespace millrace {

// However little time there is, a step takes this many prompt tokens if there are as many.
inline constexpr int32_t kLeastPromptTokens = 16;

// Without a target, a step may take this many times as long as its decoding rows alone.
inline constexpr double kMostSlowdown = 3;

// Deterministic: a function of the steps begun and observed, whose times are arguments.
class StepBudget {
 public:
  // `target` is the time that a step with decoding rows may take. Zero: kMostSlowdown times what
  // its decoding rows alone would. Unset: there is no limit.
  // `tile`: StepLimits::token_tile.
  explicit StepBudget(std::optional<Duration> target, int32_t tile = 1)
      : target_(target), tile_(tile) {}

  // Begins a step whose decoding rows are these.
  void Begin(int32_t decode_rows, int64_t decode_context);

  // Returns how many of `wanted` prompt tokens from position `start` on the step may take, which
  // Take then counts.
  int32_t Allow(int32_t wanted, int32_t start) const;
  void Take(int32_t tokens, int32_t start);

  // Returns how long a step takes, by those observed; zero where they do not tell.
  Duration Predict(const StepWork& work) const;

  // Takes the time of a step that was run, with the work that it really had.
  void Observe(const StepWork& work, Duration time);

 private:
  // Returns the number nearest to `tokens`, at most `wanted`, that makes a large step whole tiles.
  int32_t WholeTiles(int32_t tokens, int32_t wanted) const;

  const std::optional<Duration> target_;
  const int32_t tile_;
  StepCostModel model_;
  int64_t num_mixed_ = 0;      // limited steps that took prompt tokens
  int64_t num_at_least_ = 0;   // of these, those that took only the least
  bool limited_ = false;       // of the step at hand
  double milliseconds_ = 0;    // left of it
  int32_t decode_rows_ = 0;    // that it has
  int32_t prompt_tokens_ = 0;  // that it has taken
  int32_t least_ = 0;          // that it may take in any case
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_STEP_BUDGET_H_
