#include "executors/slot_results.h"

namespace millrace {

StepResult SlotResults::Make(const StepPlan& plan, absl::Span<const Sampled> sampled) {
  for (const SlotStart& start : plan.starts) failed_[start.slot] = false;
  StepResult result;
  result.id = plan.id;
  result.rows.reserve(plan.rows.size());
  size_t next = 0;
  for (const StepRow& row : plan.rows) {
    const int32_t first_token = static_cast<int32_t>(result.tokens.size());
    for (int32_t at = row.logits.begin; at < row.logits.end; ++at, ++next) {
      const Sampled& one = sampled[next];
      failed_[row.slot] = failed_[row.slot] || !one.ok;
      if (failed_[row.slot]) continue;
      const int32_t first_top = static_cast<int32_t>(result.top.size());
      result.top.insert(result.top.end(), one.top.begin(), one.top.end());
      result.tokens.push_back({.token = one.token,
                               .logprob = one.logprob,
                               .rank = one.rank,
                               .top = {first_top, static_cast<int32_t>(result.top.size())}});
    }
    RowResult& row_result = result.rows.emplace_back();
    row_result.slot = row.slot;
    if (failed_[row.slot]) {
      row_result.status = absl::InternalError("the model's logits were not finite numbers");
      result.tokens.resize(first_token);
    }
    row_result.tokens = {first_token, static_cast<int32_t>(result.tokens.size())};
  }
  return result;
}

}  // namespace millrace
