#include "scheduler/step_budget.h"

#include <algorithm>
#include <chrono>

namespace millrace {
namespace {

// The share of a target that is planned: steps differ from their prediction.
constexpr double kPlanned = 0.9;

// While steps are alike, one in so many is cut otherwise.
constexpr int64_t kProbeEvery = 12;

// Over about so many steps it is known how often a step has prompts.
constexpr double kBusySteps = 32;

// Chunks of a device without tiles are a multiple of this: products of whole ones are cheaper.
constexpr int32_t kGranule = 16;

Duration ToDuration(double milliseconds) {
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double, std::milli>(milliseconds));
}

}  // namespace

StepBudget::StepBudget(std::optional<Duration> target, const StepShape& shape)
    : target_(target), tile_(shape.token_tile), model_(shape) {}

void StepBudget::Begin(int32_t decode_rows, int64_t decode_context, int32_t waiting,
                       int64_t moved_bytes) {
  if (limited_ && work_.prompt_tokens > 0) {  // the step before
    ++num_mixed_;
    CountCost();
  }
  if (limited_) busy_ += ((work_.prompt_tokens > 0 ? 1.0 : 0.0) - busy_) / kBusySteps;
  limited_ = target_.has_value() && decode_rows > 0;
  work_ = {
      .decode_rows = decode_rows, .decode_context = decode_context, .moved_bytes = moved_bytes};
  waiting_ = waiting;
  limit_.reset();
  is_cut_ = false;
  keeps_target_ = false;
  is_probe_ = num_mixed_ % kProbeEvery == kProbeEvery - 1 && model_.NeedsVariety();
  // What a tile has left costs nothing.
  least_ = tile_ > 1 ? Rounded(kLeastPromptTokens) : kLeastPromptTokens;
}

// Returns at least so many tokens, which end a tile.
int32_t StepBudget::Rounded(int32_t prompt_tokens) const {
  const int32_t before = tile_ > 1 ? work_.decode_rows : 0;
  const int32_t granule = tile_ > 1 ? tile_ : kGranule;
  return (before + prompt_tokens + granule - 1) / granule * granule - before;
}

// Leaves out moved bytes, which are copied once however prompts are cut.
double StepBudget::Milliseconds(int32_t prompt_tokens, double pairs) const {
  StepWork work = work_;
  work.moved_bytes = 0;
  work.prompt_tokens = prompt_tokens;
  work.prompt_pairs = pairs;
  return model_.Milliseconds(work);
}

// Returns the least prompt tokens of a step for which cutting costs no more than such a share.
int32_t StepBudget::ShortestWithin(double share, int32_t start) const {
  const double pairs = start + waiting_ / 2.0;  // a token, on average
  const double most = (1 + share) * Milliseconds(waiting_, pairs * waiting_);
  for (int32_t chunk = Rounded(1); chunk < waiting_; chunk = Rounded(chunk + 1 + chunk / 16)) {
    const int32_t more = (waiting_ - 1) / chunk;  // steps before the last
    const int32_t last = waiting_ - more * chunk;
    const double time =
        more * Milliseconds(chunk, pairs * chunk) + Milliseconds(last, pairs * last);
    if (time <= most) return Rounded((waiting_ + more) / (more + 1));
  }
  return waiting_;
}

// Returns what waits, or where that costs less, what fills whole tiles of it: the rest then fills
// up a tile of the next prompt, or, where none comes, takes a step of its own.
int32_t StepBudget::WholeTiles(int32_t start) const {
  const int32_t rest = (work_.decode_rows + waiting_) % tile_;
  const int32_t whole = waiting_ - rest;
  if (tile_ == 1 || rest == 0 || whole < tile_) return waiting_;
  const double pairs = start + waiting_ / 2.0;  // a token, on average
  const double uncut = Milliseconds(waiting_, pairs * waiting_);
  const double tile = uncut - Milliseconds(whole, pairs * whole);
  const double alone = Milliseconds(rest, pairs * rest) - Milliseconds(0, 0) - tile;
  const double saved = tile * (tile_ - rest) / tile_;
  return (1 - busy_) * std::max(alone, 0.0) < busy_ * saved ? whole : waiting_;
}

// Returns how many more tokens keep the step within the target.
int32_t StepBudget::WithinTarget(int32_t wanted, int32_t start) const {
  const double most = kPlanned * std::chrono::duration<double, std::milli>(*target_).count();
  const auto fits = [&](int32_t tokens) {
    StepWork work = work_;
    work.AddPrompt(tokens, start);
    return model_.Milliseconds(work) <= most;
  };
  if (fits(wanted)) return wanted;
  int32_t low = 0;
  for (int32_t high = wanted; high - low > 1;) {
    const int32_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

// Cutting once makes two steps of one.
void StepBudget::CountCost() {
  const int32_t left = waiting_ - work_.prompt_tokens;
  if (!is_cut_ || left <= 0 || !model_.Knows(work_)) return;
  const double pairs = work_.prompt_pairs / work_.prompt_tokens;
  const double cost = Milliseconds(work_.prompt_tokens, work_.prompt_pairs) +
                      Milliseconds(left, pairs * left) - Milliseconds(waiting_, pairs * waiting_);
  prompt_cost_ += ToDuration(std::max(cost, 0.0));
  throughput_cost_ += ToDuration(std::max(cost - Milliseconds(0, 0), 0.0));
}

void StepBudget::SetLimit(int32_t wanted, int32_t start) {
  const bool has_target = *target_ > Duration::zero();
  StepWork least = work_;
  least.AddPrompt(least_, start);
  if (!model_.Knows(least)) {
    limit_ = least_;
  } else if (!has_target) {
    limit_ = ShortestWithin(kMostShare, start);
    if (*limit_ >= waiting_) limit_ = WholeTiles(start);
  } else if (Predict(least) > *target_) {
    limit_ = ShortestWithin(kMostShareInVain, start);
  } else {
    keeps_target_ = true;
    limit_ = waiting_;
  }
  if (!is_probe_) return;
  if (wanted <= *limit_) {
    limit_ = Rounded(wanted / 2);
  } else if (!has_target) {
    limit_ = Rounded(2 * *limit_);
  }
}

int32_t StepBudget::Allow(int32_t wanted, int32_t start) {
  if (!limited_ || wanted <= 0) return wanted;
  if (work_.prompt_tokens + wanted > waiting_) {
    waiting_ = work_.prompt_tokens + wanted;
    limit_.reset();
  }
  if (!limit_.has_value()) SetLimit(wanted, start);
  int32_t tokens = std::min(wanted, *limit_ - work_.prompt_tokens);
  if (keeps_target_ && tokens > 0) tokens = WithinTarget(tokens, start);
  tokens = std::clamp(std::max(tokens, least_ - work_.prompt_tokens), 0, wanted);
  is_cut_ |= tokens < wanted;
  return tokens;
}

void StepBudget::Take(int32_t tokens, int32_t start) {
  if (!limited_ || tokens <= 0) return;
  work_.AddPrompt(tokens, start);
}

Duration StepBudget::Predict(const StepWork& work) const {
  return model_.Knows(work) ? ToDuration(model_.Milliseconds(work)) : Duration::zero();
}

void StepBudget::Observe(const StepWork& work, Duration time) {
  if (!target_.has_value()) return;
  model_.Observe(work, std::chrono::duration<double, std::milli>(time).count());
}

}  // namespace millrace
