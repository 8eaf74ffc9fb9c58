#include "executors/plan_checker.h"

#include <algorithm>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

template <typename... Pieces>
absl::Status Invalid(const Pieces&... pieces) {
  return absl::InvalidArgumentError(StrCat("step plan: ", pieces...));
}

bool Samples(const StepPlan& plan, const StepRow& row) {
  for (int32_t at = row.logits.begin; at < row.logits.end; ++at) {
    if (!plan.logits[at].target.has_value()) return true;
  }
  return false;
}

}  // namespace

absl::Status PlanChecker::CheckRow(const StepPlan& plan, size_t i, const Slot& slot) const {
  const StepRow& row = plan.rows[i];
  if (!slot.started) return Invalid("rows[", i, "].slot is ", row.slot, ", which no plan started");
  if (slot.next_position.has_value() && row.start != *slot.next_position) {
    return Invalid("rows[", i, "].start is ", row.start, ", but slot ", row.slot, " has ",
                   *slot.next_position, " tokens");
  }
  const int64_t blocks = int64_t{slot.num_blocks} + row.blocks.size();
  const int64_t most =
      (int64_t{limits_.max_model_len} + limits_.block_size - 1) / limits_.block_size;
  if (blocks > most) {
    return Invalid("rows[", i, "].blocks: slot ", row.slot, " would have ", blocks,
                   " blocks, allowed: ", most);
  }
  if (blocks * limits_.block_size < int64_t{row.start} + row.num_tokens) {
    return Invalid("rows[", i, "].blocks: slot ", row.slot, " has ", blocks, " blocks of ",
                   limits_.block_size, " tokens for ", row.start + row.num_tokens, " positions");
  }
  if (row.sampled_by.has_value() && row.sampled_by != slot.last_sampled) {
    return Invalid("rows[", i, "].sampled_by is ", *row.sampled_by,
                   ", but the last step that sampled for slot ", row.slot, " is ",
                   slot.last_sampled.value_or(0));
  }
  return absl::OkStatus();
}

absl::Status PlanChecker::Check(const StepPlan& plan) {
  MILLRACE_RETURN_IF_ERROR(ValidatePlan(plan, limits_));
  if (plan.id <= last_id_) {
    return Invalid("id is ", plan.id, ", but the last plan's was ", last_id_);
  }
  for (size_t i = 0; !late_masks_ && i < plan.logits.size(); ++i) {
    if (plan.logits[i].late_mask == nullptr) continue;
    return Invalid("logits[", i, "] has a late mask, which this executor does not take");
  }
  const Slot fresh{.started = true};
  std::vector<bool> starts(plan.starts.empty() ? 0 : slots_.size());
  for (const SlotStart& start : plan.starts) starts[start.slot] = true;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const SlotId slot = plan.rows[i].slot;
    const bool is_fresh = !starts.empty() && starts[slot];
    MILLRACE_RETURN_IF_ERROR(CheckRow(plan, i, is_fresh ? fresh : slots_[slot]));
  }
  // The plan is valid: record it.
  last_id_ = plan.id;
  for (const SlotStart& start : plan.starts) slots_[start.slot] = fresh;
  for (const StepRow& row : plan.rows) {
    Slot& slot = slots_[row.slot];
    slot.next_position = row.start + row.num_tokens;
    slot.num_blocks += row.blocks.size();
    if (Samples(plan, row)) slot.last_sampled = plan.id;
  }
  return absl::OkStatus();
}

}  // namespace millrace
