#include "scheduler/step_budget.h"

#include <algorithm>
#include <chrono>

namespace millrace {
namespace {

// The share of the allowed time that is planned: steps differ from their prediction.
constexpr double kPlanned = 0.9;

// Steps that are all alike do not tell what of their time is the prompt's. So one in so many takes
// only the least, and among those that take only the least, one in so many takes twice as much: so
// few that the 99th percentile does not show them.
constexpr int64_t kProbeEvery = 24;
constexpr int64_t kProbeLeastEvery = 128;

// Large chunks are a multiple of this: products of whole tiles are cheaper.
constexpr int32_t kTile = 16;
constexpr int32_t kLarge = 4 * kTile;

// Steps of more than so many of the device's own tiles are made of whole ones.
constexpr int32_t kWholeFrom = 3;

}  // namespace

void StepBudget::Begin(int32_t decode_rows, int64_t decode_context) {
  if (limited_ && prompt_tokens_ > 0) {  // the step before
    ++num_mixed_;
    num_at_least_ += prompt_tokens_ <= least_ ? 1 : 0;
  }
  limited_ = target_.has_value() && decode_rows > 0;
  prompt_tokens_ = 0;
  decode_rows_ = decode_rows;
  milliseconds_ = 0;
  least_ = kLeastPromptTokens;
  if (!limited_ || !model_.knows_decode() || !model_.knows_prompt()) return;

  const double decode =
      model_.Milliseconds({.decode_rows = decode_rows, .decode_context = decode_context});
  const double most = *target_ == Duration::zero()
                          ? kMostSlowdown * decode
                          : std::chrono::duration<double, std::milli>(*target_).count();
  milliseconds_ = kPlanned * most - decode;
  if (num_mixed_ % kProbeEvery == kProbeEvery - 1) milliseconds_ = 0;
  if (num_at_least_ % kProbeLeastEvery == kProbeLeastEvery - 1) least_ = 2 * kLeastPromptTokens;
}

// The tokens cut off cost little in the next step, whose decoding rows fill no tile.
int32_t StepBudget::WholeTiles(int32_t tokens, int32_t wanted) const {
  const int32_t prompt = prompt_tokens_ + tokens;
  const int32_t over = (decode_rows_ + prompt) % tile_;
  if (tokens == 0 || decode_rows_ + prompt <= kWholeFrom * tile_ || over >= prompt) return tokens;
  return 2 * over < tile_ ? std::max(tokens - over, 0) : std::min(tokens + tile_ - over, wanted);
}

int32_t StepBudget::Allow(int32_t wanted, int32_t start) const {
  if (!limited_) return wanted;
  int32_t tokens =
      model_.knows_prompt() ? model_.PromptTokensWithin(milliseconds_, start, wanted) : 0;
  if (tokens < wanted && tokens > kLarge) tokens -= tokens % kTile;
  if (tile_ > 1) tokens = WholeTiles(tokens, wanted);
  return std::clamp(std::max(tokens, least_ - prompt_tokens_), 0, wanted);
}

void StepBudget::Take(int32_t tokens, int32_t start) {
  if (!limited_ || tokens <= 0) return;
  StepWork alone;
  alone.AddPrompt(tokens, start);
  const StepWork nothing;
  milliseconds_ -= model_.Milliseconds(alone) - model_.Milliseconds(nothing);
  prompt_tokens_ += tokens;
}

Duration StepBudget::Predict(const StepWork& work) const {
  const bool known = (work.decode_rows == 0 || model_.knows_decode()) &&
                     (work.prompt_tokens == 0 || model_.knows_prompt());
  if (!known) return Duration::zero();
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double, std::milli>(model_.Milliseconds(work)));
}

void StepBudget::Observe(const StepWork& work, Duration time) {
  if (!target_.has_value()) return;
  model_.Observe(work, std::chrono::duration<double, std::milli>(time).count());
}

}  // namespace millrace
