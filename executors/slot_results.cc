#include "executors/slot_results.h"

namespace millrace {

StepResult SlotResults::Begin(const StepPlan& plan) {
  for (const SlotStart& start : plan.starts) failed_[start.slot] = absl::OkStatus();
  StepResult result;
  result.id = plan.id;
  result.moves_completed = moves_ += static_cast<int64_t>(plan.moves.size());
  result.rows.reserve(plan.rows.size());
  return result;
}

StepResult SlotResults::Fail(const StepPlan& plan, const absl::Status& why) {
  StepResult result = Begin(plan);
  for (const StepRow& row : plan.rows) {
    if (failed_[row.slot].ok()) failed_[row.slot] = why;
    result.rows.push_back(
        {.slot = row.slot, .status = failed_[row.slot], .tokens = {}, .embedding = {}});
  }
  return result;
}

StepResult SlotResults::Make(const StepPlan& plan, absl::Span<const Sampled> sampled) {
  StepResult result = Begin(plan);
  size_t next = 0;
  for (const StepRow& row : plan.rows) {
    const int32_t first_token = static_cast<int32_t>(result.tokens.size());
    for (int32_t at = row.logits.begin; at < row.logits.end; ++at, ++next) {
      const Sampled& one = sampled[next];
      if (failed_[row.slot].ok() && !one.ok) {
        failed_[row.slot] = absl::InternalError("the model's logits were not finite numbers");
      }
      if (!failed_[row.slot].ok()) continue;
      const int32_t first_top = static_cast<int32_t>(result.top.size());
      result.top.insert(result.top.end(), one.top.begin(), one.top.end());
      result.tokens.push_back({.token = one.token,
                               .logprob = one.logprob,
                               .rank = one.rank,
                               .top = {first_top, static_cast<int32_t>(result.top.size())}});
    }
    RowResult& row_result = result.rows.emplace_back();
    row_result.slot = row.slot;
    row_result.status = failed_[row.slot];
    if (!row_result.status.ok()) result.tokens.resize(first_token);
    row_result.tokens = {first_token, static_cast<int32_t>(result.tokens.size())};
  }
  return result;
}

}  // namespace millrace
