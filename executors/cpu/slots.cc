#include "executors/cpu/slots.h"

#include <utility>

#include "base/strings.h"

namespace millrace::cpu {

Slots::Slots(const StepLimits& limits) : slots_(limits.max_num_seqs) {
  for (Slot& slot : slots_) {
    slot.block_table.reserve((limits.max_model_len + limits.block_size - 1) / limits.block_size);
  }
}

void Slots::Begin(const StepPlan& plan, CpuStepInput* input) {
  for (const SlotStart& start : plan.starts) {
    Slot& slot = slots_[start.slot];
    slot.sampling = start.sampling;
    slot.block_table.clear();
    slot.failed = false;
  }
  input->rows.clear();
  input->tokens.clear();
  input->positions.clear();
  input->row_of.clear();
  input->wanted.clear();
  input->samples.clear();
  for (const StepRow& row : plan.rows) {
    Slot& slot = slots_[row.slot];
    slot.block_table.insert(slot.block_table.end(), plan.blocks.begin() + row.blocks.begin,
                            plan.blocks.begin() + row.blocks.end);
    const int first = static_cast<int>(input->tokens.size());
    for (int i = 0; i < row.num_tokens; ++i) {
      input->tokens.push_back(row.sampled_by.has_value() ? slot.last_token
                                                         : plan.tokens[row.tokens.begin + i]);
      input->positions.push_back(row.start + i);
      input->row_of.push_back(static_cast<int>(input->rows.size()));
    }
    input->rows.push_back({first, row.num_tokens, slot.block_table.data()});
    for (int32_t at = row.logits.begin; at < row.logits.end; ++at) {
      const WantedLogits& wanted = plan.logits[at];
      input->wanted.push_back(first + wanted.offset);
      input->samples.push_back({slot.sampling.get(), row.start + wanted.offset + 1, wanted.target});
    }
  }
}

StepResult Slots::End(const StepPlan& plan, absl::Span<const Sampled> sampled) {
  StepResult result;
  result.id = plan.id;
  result.rows.reserve(plan.rows.size());
  size_t next = 0;
  for (const StepRow& row : plan.rows) {
    Slot& slot = slots_[row.slot];
    const int32_t first_token = static_cast<int32_t>(result.tokens.size());
    for (int32_t at = row.logits.begin; at < row.logits.end; ++at, ++next) {
      const Sampled& one = sampled[next];
      slot.failed = slot.failed || !one.ok;
      if (slot.failed) continue;
      const int32_t first_top = static_cast<int32_t>(result.top.size());
      result.top.insert(result.top.end(), one.top.begin(), one.top.end());
      result.tokens.push_back({.token = one.token,
                               .logprob = one.logprob,
                               .rank = one.rank,
                               .top = {first_top, static_cast<int32_t>(result.top.size())}});
      if (!plan.logits[at].target.has_value()) slot.last_token = one.token;
    }
    RowResult& row_result = result.rows.emplace_back();
    row_result.slot = row.slot;
    if (slot.failed) {
      row_result.status = absl::InternalError("the model's logits were not finite numbers");
      result.tokens.resize(first_token);
    }
    row_result.tokens = {first_token, static_cast<int32_t>(result.tokens.size())};
  }
  return result;
}

}  // namespace millrace::cpu
