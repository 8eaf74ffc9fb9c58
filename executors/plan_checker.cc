#include "executors/plan_checker.h"

#include <algorithm>
#include <utility>

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

absl::Status CheckTiers(const StepPlan& plan) {
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    for (const auto& [field, place] :
         {std::pair("from", plan.moves[i].from), std::pair("to", plan.moves[i].to)}) {
      if (place.tier == StatePlace::Tier::kDevice) continue;
      return absl::UnimplementedError(
          StrCat("step plan: moves[", i, "].", field, ".tier is the host; allowed: the device"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PlanChecker::CheckRow(const StepPlan& plan, size_t i, const Slot& slot) const {
  const StepRow& row = plan.rows[i];
  if (!slot.started) return Invalid("rows[", i, "].slot is ", row.slot, ", which no plan started");
  if (slot.next_position.has_value() &&
      (row.start > *slot.next_position || row.start < slot.least_position)) {
    return Invalid(
        "rows[", i, "].start is ", row.start, ", but slot ", row.slot, " has ",
        slot.least_position < *slot.next_position ? StrCat(slot.least_position, " to ") : "",
        *slot.next_position, " tokens");
  }
  if (!slot.next_position.has_value() && row.start > 0) {
    MILLRACE_RETURN_IF_ERROR(CheckState(plan, i));
  }
  const int32_t block_size = limits_.block_size();
  const int64_t blocks = int64_t{slot.num_blocks} + NumNewBlocks(row, limits_.state);
  const int64_t most = limits_.state.BlocksFor(limits_.max_model_len);
  if (blocks > most) {
    return Invalid("rows[", i, "].blocks: slot ", row.slot, " would have ", blocks,
                   " blocks, allowed: ", most);
  }
  if (blocks * block_size < int64_t{row.start} + row.num_tokens) {
    return Invalid("rows[", i, "].blocks: slot ", row.slot, " has ", blocks, " blocks of ",
                   block_size, " tokens for ", row.start + row.num_tokens, " positions");
  }
  if (row.sampled_by.has_value() && row.sampled_by != slot.last_sampled) {
    return Invalid("rows[", i, "].sampled_by is ", *row.sampled_by,
                   ", but the last step that sampled for slot ", row.slot, " is ",
                   slot.last_sampled.value_or(0));
  }
  return CheckWindows(plan, i, slot);
}

// A sequence that begins behind its first token brings the state of those before.
absl::Status PlanChecker::CheckState(const StepPlan& plan, size_t i) const {
  const StepRow& row = plan.rows[i];
  for (int group = 0; group < limits_.state.num_groups(); ++group) {
    if (limits_.state.Paged(group) != nullptr) continue;
    const bool is_moved =
        std::any_of(plan.moves.begin(), plan.moves.end(), [&](const StateMove& move) {
          return move.group == group && move.to == StatePlace{.block = row.slot};
        });
    if (is_moved) continue;
    return Invalid("rows[", i, "].start is ", row.start,
                   " in a new slot; allowed: 0, or a move of a state of group ", group, " to slot ",
                   row.slot);
  }
  return absl::OkStatus();
}

// A block that is missing lies before the window of the row's first position.
absl::Status PlanChecker::CheckWindows(const StepPlan& plan, size_t i, const Slot& slot) const {
  const StepRow& row = plan.rows[i];
  for (int group = 0; group < limits_.state.num_groups(); ++group) {
    if (limits_.state.Paged(group) == nullptr) continue;
    int32_t place = slot.num_blocks;
    for (const BlockId block : NewBlocks(plan, row, limits_.state, group)) {
      if (block == kNoBlock && place >= limits_.state.BlocksBehindWindow(group, row.start)) {
        return Invalid("rows[", i, "].blocks has none of group ", group, " for the positions from ",
                       place * limits_.block_size(), " on, which the row's window reads");
      }
      ++place;
    }
  }
  return absl::OkStatus();
}

absl::Status PlanChecker::Check(const StepPlan& plan) {
  MILLRACE_RETURN_IF_ERROR(ValidatePlan(plan, limits_));
  MILLRACE_RETURN_IF_ERROR(CheckTiers(plan));
  if (plan.id <= last_id_) {
    return Invalid("id is ", plan.id, ", but the last plan's was ", last_id_);
  }
  for (size_t i = 0; !late_masks_ && i < plan.logits.size(); ++i) {
    if (!plan.logits[i].late_mask) continue;
    return Invalid("logits[", i, "] has a late mask, which this executor does not take");
  }
  int32_t num_draft = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    num_draft += plan.rows[i].num_draft;
    if (plan.rows[i].num_draft <= max_draft_tokens_) continue;
    return Invalid("rows[", i, "].num_draft is ", plan.rows[i].num_draft,
                   ", allowed of this executor: ", max_draft_tokens_);
  }
  if (num_draft > max_step_draft_tokens_) {
    return Invalid("rows have ", num_draft,
                   " tokens of drafts, allowed of this executor: ", max_step_draft_tokens_);
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
  for (size_t i = 0; i < plan.logits.size(); ++i) {
    if (plan.logits[i].late_mask) awaited_.emplace(plan.id, static_cast<int32_t>(i));
  }
  for (const SlotStart& start : plan.starts) slots_[start.slot] = fresh;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    Slot& slot = slots_[row.slot];
    if (row.sampled_by.has_value() && row.num_draft > 0) {
      awaited_drafts_.emplace(std::pair(plan.id, static_cast<int32_t>(i)), row.num_draft);
    }
    const bool exact = !row.sampled_by.has_value() || !slot.next_position.has_value();
    const int32_t least = exact ? row.start : std::min(slot.least_position, row.start);
    slot.least_position = least + row.num_tokens - row.num_draft;
    slot.next_position = row.start + row.num_tokens;
    slot.num_blocks += NumNewBlocks(row, limits_.state);
    if (Samples(plan, row)) slot.last_sampled = plan.id;
  }
  return absl::OkStatus();
}

absl::Status PlanChecker::CheckDrafts(absl::Span<const LateDraft> drafts) {
  absl::flat_hash_set<std::pair<StepId, int32_t>> given;
  for (size_t i = 0; i < drafts.size(); ++i) {
    const LateDraft& draft = drafts[i];
    const auto awaited = awaited_drafts_.find({draft.step, draft.row});
    if (awaited == awaited_drafts_.end() || !given.insert(awaited->first).second) {
      return absl::InvalidArgumentError(StrCat("drafts[", i, "] is of step ", draft.step, ", rows[",
                                               draft.row, "], which waits for no draft"));
    }
    if (draft.tokens.size() > static_cast<size_t>(awaited->second)) {
      return absl::InvalidArgumentError(StrCat("drafts[", i, "] has ", draft.tokens.size(),
                                               " tokens, allowed: ", awaited->second));
    }
    for (const Token token : draft.tokens) {
      if (token >= 0 && token < limits_.vocab_size) continue;
      return absl::InvalidArgumentError(StrCat("drafts[", i, "] has the token ", token,
                                               ", allowed: 0 to ", limits_.vocab_size - 1));
    }
  }
  for (const auto& row : given) awaited_drafts_.erase(row);
  return absl::OkStatus();
}

absl::Status PlanChecker::CheckMasks(absl::Span<const LateMask> masks) {
  const size_t words = MaskWords(limits_.vocab_size);
  for (size_t i = 0; i < masks.size(); ++i) {
    const LateMask& late = masks[i];
    if (late.mask == nullptr || late.mask->size() != words) {
      return absl::InvalidArgumentError(StrCat("masks[", i, "] has ",
                                               late.mask == nullptr ? 0 : late.mask->size(),
                                               " words, allowed: ", words));
    }
  }
  for (size_t i = 0; i < masks.size(); ++i) {
    if (awaited_.erase({masks[i].step, masks[i].logits}) > 0) continue;
    for (size_t before = 0; before < i; ++before) {
      awaited_.emplace(masks[before].step, masks[before].logits);
    }
    return absl::InvalidArgumentError(StrCat("masks[", i, "] is of step ", masks[i].step,
                                             ", logits[", masks[i].logits,
                                             "], which waits for no mask"));
  }
  return absl::OkStatus();
}

}  // namespace millrace
