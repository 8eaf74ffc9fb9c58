#include "executors/slot_results.h"

#include <algorithm>

namespace millrace {

int32_t AcceptedDraft(const StepPlan& plan, const StepRow& row, absl::Span<const Sampled> sampled) {
  const absl::Span<const Token> draft =
      absl::MakeConstSpan(plan.tokens).subspan(row.tokens.end - row.num_draft, row.num_draft);
  const absl::Span<const Sampled> samples =
      sampled.last(std::min(sampled.size(), draft.size() + 1));
  size_t accepted = 0;
  while (accepted < draft.size() && samples[accepted].ok &&
         samples[accepted].token == draft[accepted]) {
    ++accepted;
  }
  return static_cast<int32_t>(accepted);
}

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
    const absl::Span<const Sampled> of_row = sampled.subspan(next, row.logits.size());
    next += of_row.size();
    const size_t kept = of_row.size() - row.num_draft + AcceptedDraft(plan, row, of_row);
    for (const Sampled& one : of_row.first(kept)) {
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
