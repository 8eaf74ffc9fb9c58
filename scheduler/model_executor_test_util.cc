#include "scheduler/model_executor_test_util.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr uint64_t kGarbage = 0;

uint64_t Mix(uint64_t x) {  // splitmix64's finalizer
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The value cached for `token` after a prefix whose values add up to `sum`; never kGarbage.
uint64_t CachedValue(uint64_t sum, Token token) {
  return Mix(sum + 0x9e3779b97f4a7c15 * static_cast<uint64_t>(token + 1)) | 1;
}

// Returns what a token of the prompt, or a generated one, adds to a sequence's counts.
uint64_t Counted(Token token, bool generated) {
  return Mix(static_cast<uint64_t>(token) * 2 + (generated ? 1 : 0) + 77);
}

Token SampledToken(uint64_t sum, int32_t vocab_size) {
  return static_cast<Token>(Mix(sum) % static_cast<uint64_t>(vocab_size));
}

float Logprob(uint64_t sum, Token target) {
  return -static_cast<float>(Mix(sum ^ static_cast<uint64_t>(target)) >> 48);
}

}  // namespace

ModelExecutor::ModelExecutor(const StepLimits& limits)
    : limits_(limits),
      planned_(limits.max_num_seqs),
      run_(limits.max_num_seqs),
      kv_(static_cast<size_t>(limits.num_blocks) * limits.block_size, kGarbage),
      writer_(limits.num_blocks) {}

absl::Status ModelExecutor::Submit(StepPlan plan) {
  MILLRACE_RETURN_IF_ERROR(ValidatePlan(plan, limits_));
  if (plan.id != ++last_step_) {
    return absl::InvalidArgumentError(StrCat("step ", plan.id, " after ", last_step_ - 1));
  }
  if (num_in_flight() == kMaxStepsInFlight) {
    return absl::ResourceExhaustedError("too many steps in flight");
  }
  for (const SlotStart& start : plan.starts) planned_[start.slot] = PlannedSlot{.taken = true};
  for (const StepRow& row : plan.rows) MILLRACE_RETURN_IF_ERROR(CheckRow(plan, row));
  MILLRACE_RETURN_IF_ERROR(CheckWrites(plan));

  std::vector<std::vector<BlockId>>& tables = tables_.emplace_back();
  for (const StepRow& row : plan.rows) tables.push_back(planned_[row.slot].table);
  in_flight_.push_back(std::move(plan));
  return absl::OkStatus();
}

absl::Status ModelExecutor::CheckRow(const StepPlan& plan, const StepRow& row) {
  PlannedSlot& slot = planned_[row.slot];
  const std::string where = StrCat("step ", plan.id, ", slot ", row.slot, ": ");
  const bool fresh = slot.table.empty();
  if (!slot.taken) return absl::InvalidArgumentError(where + "was not started");
  if (!fresh && row.start != slot.length) {
    return absl::InvalidArgumentError(StrCat(where, "start ", row.start, " after ", slot.length));
  }
  if (row.sampled_by && (slot.sampled_by != row.sampled_by || fresh)) {
    return absl::InvalidArgumentError(where + "that step samples no token for this position");
  }
  slot.table.insert(slot.table.end(), plan.blocks.begin() + row.blocks.begin,
                    plan.blocks.begin() + row.blocks.end);
  slot.length = row.start + row.num_tokens;
  const int64_t capacity = static_cast<int64_t>(slot.table.size()) * limits_.block_size;
  if (capacity < slot.length || capacity - slot.length >= limits_.block_size) {
    return absl::InvalidArgumentError(
        StrCat(where, slot.table.size(), " blocks for ", slot.length, " positions"));
  }
  const bool samples = row.logits.size() > 0 && !plan.logits[row.logits.end - 1].target.has_value();
  slot.sampled_by = samples ? std::optional<StepId>(plan.id) : std::nullopt;
  return absl::OkStatus();
}

absl::Status ModelExecutor::CheckWrites(const StepPlan& plan) {
  std::fill(writer_.begin(), writer_.end(), nullptr);
  for (const StepRow& row : plan.rows) {
    for (int32_t i = row.start / limits_.block_size;
         i <= (row.start + row.num_tokens - 1) / limits_.block_size; ++i) {
      writer_[planned_[row.slot].table[i]] = &row;
    }
  }
  for (const StepRow& row : plan.rows) {
    for (const BlockId block : planned_[row.slot].table) {
      if (writer_[block] != nullptr && writer_[block] != &row) {
        return absl::InvalidArgumentError(StrCat("step ", plan.id, ": slot ", row.slot,
                                                 " holds block ", block, ", which slot ",
                                                 writer_[block]->slot, " writes"));
      }
    }
  }
  return absl::OkStatus();
}

StepResult ModelExecutor::Run(const Script& script) {
  const StepPlan plan = std::move(in_flight_.front());
  const std::vector<std::vector<BlockId>> tables = std::move(tables_.front());
  in_flight_.pop_front();
  tables_.pop_front();

  StepResult result{.id = plan.id};
  for (const SlotStart& start : plan.starts) {
    run_[start.slot] = RunSlot{.penalizes = start.sampling->penalizes()};
    for (int32_t i = 0; i < start.history.size(); ++i) {
      run_[start.slot].counts +=
          Counted(plan.history[start.history.begin + i], i >= start.prompt_tokens);
    }
  }
  for (const BlockCopy& copy : plan.copies) {
    const auto block = [&](BlockId id) { return kv_.begin() + id * limits_.block_size; };
    std::copy_n(block(copy.src), limits_.block_size, block(copy.dst));
  }
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    Script row_script = script;
    if (script.fail_step) row_script.fault = [](const StepRow&) { return Fault::kRow; };
    result.rows.push_back(RunRow(plan, plan.rows[i], tables[i], row_script, result));
  }
  if (script.fail_step) {
    result = StepResult{.id = plan.id, .status = absl::UnavailableError("the device has failed")};
  }
  return result;
}

RowResult ModelExecutor::RunRow(const StepPlan& plan, const StepRow& row,
                                absl::Span<const BlockId> table, const Script& script,
                                StepResult& result) {
  RunSlot& slot = run_[row.slot];
  const auto kv = [&](int32_t position) -> Value& {
    return kv_[table[position / limits_.block_size] * limits_.block_size +
               position % limits_.block_size];
  };
  uint64_t sum = 0;
  bool garbage = slot.failed;
  for (int32_t i = 0; i < row.start; ++i) {
    garbage |= kv(i) == kGarbage;
    sum += kv(i);
  }
  const Fault fault = script.fault ? script.fault(row) : Fault::kNone;
  garbage |= fault != Fault::kNone;

  RowResult answer{.slot = row.slot};
  answer.tokens.begin = static_cast<int32_t>(result.tokens.size());
  int32_t wanted = row.logits.begin;
  for (int32_t i = 0; i < row.num_tokens; ++i) {
    const Token input = row.sampled_by ? slot.sampled : plan.tokens[row.tokens.begin + i];
    Value& value = kv(row.start + i);
    value = garbage ? kGarbage : CachedValue(sum, input);
    sum += value;
    if (wanted == row.logits.end || plan.logits[wanted].offset != i) continue;
    if (const std::optional<Token> target = plan.logits[wanted++].target) {
      result.tokens.push_back({.token = *target, .logprob = Logprob(sum, *target), .rank = 1});
      continue;
    }
    const std::optional<Token> scripted = script.sampled ? script.sampled(row) : std::nullopt;
    slot.sampled = scripted.value_or(SampledToken(sum + slot.counts, limits_.vocab_size));
    if (slot.penalizes) slot.counts += Counted(slot.sampled, true);
    result.tokens.push_back({.token = slot.sampled});
  }
  if (slot.failed || fault == Fault::kRow || (garbage && row.logits.size() > 0)) {
    slot.failed = true;
    result.tokens.resize(answer.tokens.begin);
    answer.status = absl::InternalError("the logits are not finite");
  }
  answer.tokens.end = static_cast<int32_t>(result.tokens.size());
  return answer;
}

ModelExecutor::Output ModelExecutor::Reference(absl::Span<const Token> prompt, int32_t max_tokens,
                                               absl::Span<const Token> stops,
                                               bool penalizes) const {
  Output output;
  uint64_t sum = 0, counts = 0;
  for (const Token token : prompt) counts += penalizes ? Counted(token, false) : 0;
  for (size_t i = 0; i < prompt.size(); ++i) {
    sum += CachedValue(sum, prompt[i]);
    if (i + 1 < prompt.size()) output.prompt_logprobs.push_back(Logprob(sum, prompt[i + 1]));
  }
  while (static_cast<int32_t>(output.generated.size()) < max_tokens) {
    const Token token = SampledToken(sum + counts, limits_.vocab_size);
    counts += penalizes ? Counted(token, true) : 0;
    output.generated.push_back(token);
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) break;
    sum += CachedValue(sum, token);
  }
  return output;
}

}  // namespace millrace
