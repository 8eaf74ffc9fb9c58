// How many prompt tokens a step may take beside the sequences that decode, by time.
//
// Design. A prompt that is cut over k steps pays k times for what a step costs apart from its
// prompt tokens. That is the price of cutting, and what it buys is shorter steps, which is the time
// between the tokens of the sequences that decode. So the rule states a price, and no length: of
// all ways to cut what waits into equal steps, take the one with the shortest steps that costs no
// more than kMostShare of the time that the prompts would take uncut. The throughput loses less,
// since each of the steps also has a token for every decoding row. Where steps cost much apart from
// their prompt tokens, chunks grow, up to whole prompts: no cost leads to ever smaller ones.
// What steps cost is measured (StepCostModel). Where steps are so alike that they do not tell, one
// of kProbeEvery is cut otherwise.
// Chunks beside decoding rows: Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference
// with Sarathi-Serve", OSDI 2024, whose budget is a number of tokens that is profiled before.
#ifndef MILLRACE_SCHEDULER_STEP_BUDGET_H_
#define MILLRACE_SCHEDULER_STEP_BUDGET_H_

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "scheduler/cost_model.h"

namespace millrace {

// However little time there is, a step takes this many prompt tokens if there are as many.
inline constexpr int32_t kLeastPromptTokens = 16;

// What cutting prompts may cost, as a share of the time that they would take uncut.
inline constexpr double kMostShare = 0.1;

// The same where a target is set that even the least chunk exceeds: steps take about twice as long
// as the least.
inline constexpr double kMostShareInVain = 1;

// The prompt tokens that are assumed to wait where the caller does not say how many do.
inline constexpr int32_t kManyPromptTokens = 8192;

// Deterministic: a function of the steps begun and observed, whose times are arguments.
class StepBudget {
 public:
  // `target` is the time that a step with decoding rows may take, whatever that costs. Zero: the
  // rule above. Unset: there is no limit.
  StepBudget(std::optional<Duration> target, const StepShape& shape);
  explicit StepBudget(std::optional<Duration> target, int32_t token_tile = 1)
      : StepBudget(target, StepShape{.token_tile = token_tile}) {}

  // Begins a step whose decoding rows are these. `waiting`: prompt tokens that an uncut step would
  // take. `moved_bytes`: what the step copies whatever prompt tokens it takes.
  void Begin(int32_t decode_rows, int64_t decode_context, int32_t waiting = kManyPromptTokens,
             int64_t moved_bytes = 0);

  // Returns how many of `wanted` prompt tokens from position `start` on the step may take, which
  // Take then counts.
  int32_t Allow(int32_t wanted, int32_t start);
  void Take(int32_t tokens, int32_t start);

  // Returns how long a step takes, by those observed; zero where they do not tell.
  Duration Predict(const StepWork& work) const;

  // Takes the time of a step that was run, with the work that it really had.
  void Observe(const StepWork& work, Duration time);

  // Return what cutting has cost so far, by the model: how much longer the steps of prompts took
  // than uncut ones, and how much of that sequences that decode got no tokens for.
  Duration prompt_cost() const { return prompt_cost_; }
  Duration throughput_cost() const { return throughput_cost_; }

 private:
  double Milliseconds(int32_t prompt_tokens, double pairs) const;
  int32_t Rounded(int32_t prompt_tokens) const;
  int32_t ShortestWithin(double share, int32_t start) const;
  int32_t WholeTiles(int32_t start) const;
  int32_t WithinTarget(int32_t wanted, int32_t start) const;
  void SetLimit(int32_t wanted, int32_t start);
  void CountCost();

  const std::optional<Duration> target_;
  const int32_t tile_;
  StepCostModel model_;
  int64_t num_mixed_ = 0;  // limited steps that took prompt tokens
  double busy_ = 0;        // their share of the limited steps of late
  Duration prompt_cost_{};
  Duration throughput_cost_{};

  // Of the current step:
  bool limited_ = false;
  bool is_probe_ = false;
  bool is_cut_ = false;        // prompt tokens were refused
  bool keeps_target_ = false;  // by cutting; where that is in vain, by the price
  int32_t waiting_ = 0;
  int32_t least_ = 0;             // prompt tokens that it may take in any case
  std::optional<int32_t> limit_;  // prompt tokens that it may take; set by the first Allow
  StepWork work_;                 // that it has
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_STEP_BUDGET_H_
