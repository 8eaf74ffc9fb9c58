#include "executors/host/slots.h"

#include <algorithm>

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

namespace {

// Returns the tokens of the draft up to this input token of the row, of its `given` ones the last.
absl::Span<const Token> Drafted(const StepRow& row, int32_t offset, absl::Span<const Token> given) {
  const int32_t drafted = std::max(offset - (row.num_tokens - 1 - row.num_draft), 0);
  return given.last(row.num_draft).first(drafted);
}

}  // namespace

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
    // Tokens of earlier drafts may have turned out to be others.
    const int32_t start = row.sampled_by.has_value() ? slot.end : row.start;
    slot.end = start;
    const absl::Span<const Token> given =
        absl::MakeConstSpan(plan.tokens).subspan(row.tokens.begin, row.tokens.size());
    if (row.sampled_by.has_value()) input->tokens.push_back(slot.last_token);
    input->tokens.insert(input->tokens.end(), given.begin(), given.end());
    for (int i = 0; i < row.num_tokens; ++i) {
      input->positions.push_back(start + i);
      input->types.push_back(i >= row.second_type.value_or(row.num_tokens) ? 1 : 0);
      input->row_of.push_back(static_cast<int>(input->rows.size()));
    }
    input->rows.push_back({first, row.num_tokens, slot.block_tables, row.slot, row.num_draft});
    for (int32_t at = row.logits.begin; at < row.logits.end; ++at) {
      const WantedLogits& wanted = plan.logits[at];
      input->wanted.push_back(first + wanted.offset);
      input->samples.push_back({.params = slot.sampling.get(),
                                .position = start + wanted.offset + 1,
                                .target = wanted.target,
                                .counts = &slot.counts,
                                .drafted = Drafted(row, wanted.offset, given),
                                .mask = wanted.mask.get()});
    }
  }
}

StepResult Slots::End(const StepPlan& plan, absl::Span<const Sampled> sampled) {
  size_t next = 0;
  accepted_.clear();
  for (const StepRow& row : plan.rows) {
    Slot& slot = slots_[row.slot];
    const absl::Span<const Sampled> of_row = sampled.subspan(next, row.logits.size());
    next += of_row.size();
    const int32_t accepted = AcceptedDraft(plan, row, of_row);
    slot.end += row.num_tokens - row.num_draft + accepted;
    accepted_.push_back(accepted);
    for (int32_t i = 0; i < row.logits.size() - row.num_draft + accepted; ++i) {
      if (plan.logits[row.logits.begin + i].target.has_value()) continue;
      slot.last_token = of_row[i].token;
      if (slot.sampling->penalizes()) slot.counts.AddGenerated(slot.last_token);
    }
  }
  return results_.Make(plan, sampled);
}

}  // namespace millrace
