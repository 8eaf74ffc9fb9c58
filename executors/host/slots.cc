#include "executors/host/slots.h"

namespace millrace {

Slots::Slots(const StepLimits& limits)
    : state_(limits.state), slots_(limits.max_num_seqs), results_(limits) {
  for (Slot& slot : slots_) {
    slot.block_tables.resize(state_.num_groups());
    for (int group = 0; group < state_.num_groups(); ++group) {
      if (state_.Paged(group) == nullptr) continue;
      slot.block_tables[group].reserve(state_.BlocksFor(limits.max_model_len));
    }
  }
}

void Slots::Append(const StepPlan& plan, const StepRow& row, Slot& slot) const {
  for (int group = 0; group < state_.num_groups(); ++group) {
    if (state_.Paged(group) == nullptr) continue;
    const absl::Span<const BlockId> blocks = NewBlocks(plan, row, state_, group);
    std::vector<BlockId>& table = slot.block_tables[group];
    table.insert(table.end(), blocks.begin(), blocks.end());
  }
}

void Slots::Begin(const StepPlan& plan, CpuStepInput* input) {
  for (const SlotStart& start : plan.starts) {
    Slot& slot = slots_[start.slot];
    slot.sampling = start.sampling;
    slot.counts.Reset(
        absl::MakeConstSpan(plan.history).subspan(start.history.begin, start.history.size()),
        start.prompt_tokens);
    for (std::vector<BlockId>& table : slot.block_tables) table.clear();
  }
  input->rows.clear();
  input->tokens.clear();
  input->positions.clear();
  input->types.clear();
  input->row_of.clear();
  input->wanted.clear();
  input->samples.clear();
  for (const StepRow& row : plan.rows) {
    Slot& slot = slots_[row.slot];
    Append(plan, row, slot);
    const int first = static_cast<int>(input->tokens.size());
    for (int i = 0; i < row.num_tokens; ++i) {
      input->tokens.push_back(row.sampled_by.has_value() ? slot.last_token
                                                         : plan.tokens[row.tokens.begin + i]);
      input->positions.push_back(row.start + i);
      input->types.push_back(i >= row.second_type.value_or(row.num_tokens) ? 1 : 0);
      input->row_of.push_back(static_cast<int>(input->rows.size()));
    }
    input->rows.push_back({first, row.num_tokens, slot.block_tables, row.slot});
    for (int32_t at = row.logits.begin; at < row.logits.end; ++at) {
      const WantedLogits& wanted = plan.logits[at];
      input->wanted.push_back(first + wanted.offset);
      input->samples.push_back({.params = slot.sampling.get(),
                                .position = row.start + wanted.offset + 1,
                                .target = wanted.target,
                                .counts = &slot.counts,
                                .mask = wanted.mask.get()});
    }
  }
}

StepResult Slots::End(const StepPlan& plan, absl::Span<const Sampled> sampled) {
  size_t next = 0;
  for (const StepRow& row : plan.rows) {
    for (int32_t at = row.logits.begin; at < row.logits.end; ++at, ++next) {
      if (plan.logits[at].target.has_value()) continue;
      Slot& slot = slots_[row.slot];
      slot.last_token = sampled[next].token;
      if (slot.sampling->penalizes()) slot.counts.AddGenerated(slot.last_token);
    }
  }
  return results_.Make(plan, sampled);
}

}  // namespace millrace
