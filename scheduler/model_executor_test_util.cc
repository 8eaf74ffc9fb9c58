#include "scheduler/model_executor_test_util.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr uint64_t kGarbage = 0;
constexpr uint64_t kGarbageState = 2;  // 0 is that of no tokens

uint64_t Mix(uint64_t x) {  // splitmix64's finalizer
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The value that a group caches for `token`, which sees values that add up to `sum`; never
// kGarbage.
uint64_t CachedValue(uint64_t sum, Token token, int group) {
  return Mix(sum + 0x9e3779b97f4a7c15 * static_cast<uint64_t>(token + 1) +
             static_cast<uint64_t>(group)) |
         1;
}

// Adds up what the positions of a sequence see, one position after the other, and caches its
// tokens. `Cell` is a function that returns the value cached in a group for a position.
template <typename Cell>
class Reader {
 public:
  // `next`: the first position that is cached by it; `state`: of the groups of slots before it.
  Reader(const StateLayout& layout, const Cell& cell, int32_t next, uint64_t state)
      : layout_(layout), cell_(cell), state_(state), saw_garbage_(state == kGarbageState) {
    for (int group = 0; group < layout.num_groups(); ++group) {
      const PagedState* const paged = layout.Paged(group);
      if (paged == nullptr) continue;
      const int32_t seen = paged->window.has_value() ? std::min(next, *paged->window - 1) : next;
      for (int32_t i = next - seen; i < next; ++i) See(group, i);
    }
    next_ = next;
  }

  // Caches a token at the next position, or garbage.
  void Cache(Token token, bool garbage) {
    const uint64_t before = sum();
    for (int group = 0; group < layout_.num_groups(); ++group) {
      const PagedState* const paged = layout_.Paged(group);
      if (paged == nullptr) {
        state_ = garbage ? kGarbageState : CachedValue(before, token, group);
        continue;
      }
      cell_(group, next_) = garbage ? kGarbage : CachedValue(before, token, group);
      See(group, next_);
    }
    ++next_;
    for (int group = 0; group < layout_.num_groups(); ++group) {
      const PagedState* const paged = layout_.Paged(group);
      if (paged == nullptr || !paged->window.has_value()) continue;
      // The next position sees one less than the window, and then itself.
      if (next_ >= *paged->window) sum_ -= cell_(group, next_ - *paged->window);
    }
  }

  uint64_t sum() const { return sum_ + state_; }
  uint64_t state() const { return state_; }
  bool saw_garbage() const { return saw_garbage_; }

 private:
  void See(int group, int32_t position) {
    const uint64_t value = cell_(group, position);
    saw_garbage_ |= value == kGarbage;
    sum_ += value;
  }

  const StateLayout& layout_;
  const Cell& cell_;
  int32_t next_ = 0;
  uint64_t sum_ = 0;
  uint64_t state_;
  bool saw_garbage_;
};

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
      kv_(limits.state.num_groups()) {
  for (int group = 0; group < limits.state.num_groups(); ++group) {
    if (limits.state.Paged(group) == nullptr) {
      states_.assign(limits.num_places(group), {.value = kGarbageState});
    } else {
      kv_[group].assign(static_cast<size_t>(limits.num_blocks[group]) * limits.block_size(),
                        kGarbage);
    }
  }
  states_.resize(std::max<size_t>(states_.size(), limits.max_num_seqs));
}

absl::Status ModelExecutor::Submit(StepPlan plan) {
  MILLRACE_RETURN_IF_ERROR(ValidatePlan(plan, limits_));
  if (plan.id != ++last_step_) {
    return absl::InvalidArgumentError(StrCat("step ", plan.id, " after ", last_step_ - 1));
  }
  if (num_in_flight() == kMaxStepsInFlight) {
    return absl::ResourceExhaustedError("too many steps in flight");
  }
  for (const SlotStart& start : plan.starts) {
    planned_[start.slot] = PlannedSlot{.taken = true, .tables = Tables(kv_.size())};
  }
  for (const StepRow& row : plan.rows) MILLRACE_RETURN_IF_ERROR(CheckRow(plan, row));
  MILLRACE_RETURN_IF_ERROR(CheckWrites(plan));

  std::vector<Tables>& tables = tables_.emplace_back();
  for (const StepRow& row : plan.rows) tables.push_back(planned_[row.slot].tables);
  in_flight_.push_back(std::move(plan));
  return absl::OkStatus();
}

absl::Status ModelExecutor::CheckRow(const StepPlan& plan, const StepRow& row) {
  PlannedSlot& slot = planned_[row.slot];
  const std::string where = StrCat("step ", plan.id, ", slot ", row.slot, ": ");
  const bool fresh = slot.places == 0;
  if (!slot.taken) return absl::InvalidArgumentError(where + "was not started");
  if (!fresh && (row.start > slot.length || row.start < slot.least)) {
    return absl::InvalidArgumentError(
        StrCat(where, "start ", row.start, " after ", slot.least, " to ", slot.length));
  }
  if (row.sampled_by && (slot.sampled_by != row.sampled_by || fresh)) {
    return absl::InvalidArgumentError(where + "that step samples no token for this position");
  }
  const auto is_its_state = [&](const StateMove& move) {
    return limits_.state.Paged(move.group) == nullptr && move.to.block == row.slot;
  };
  if (fresh && row.start > 0 && limits_.has_slots() &&
      std::none_of(plan.moves.begin(), plan.moves.end(), is_its_state)) {
    return absl::InvalidArgumentError(StrCat(where, "start ", row.start, " without its state"));
  }
  for (int group = 0; group < limits_.state.num_groups(); ++group) {
    if (limits_.state.Paged(group) == nullptr) continue;
    const absl::Span<const BlockId> blocks = NewBlocks(plan, row, limits_.state, group);
    slot.tables[group].insert(slot.tables[group].end(), blocks.begin(), blocks.end());
  }
  slot.places += NumNewBlocks(row, limits_.state);
  const int32_t first = row.sampled_by && !fresh ? std::min(slot.least, row.start) : row.start;
  slot.least = first + row.num_tokens - row.num_draft;
  slot.length = row.start + row.num_tokens;
  slot.most = std::max(slot.most, slot.length);
  if (slot.places != limits_.state.BlocksFor(slot.most)) {
    return absl::InvalidArgumentError(
        StrCat(where, slot.places, " blocks for ", slot.length, " positions"));
  }
  const bool samples = row.logits.size() > 0 && !plan.logits[row.logits.end - 1].target.has_value();
  slot.sampled_by = samples ? std::optional<StepId>(plan.id) : std::nullopt;
  return absl::OkStatus();
}

absl::Status ModelExecutor::CheckWrites(const StepPlan& plan) {
  for (int group = 0; group < limits_.state.num_groups(); ++group) {
    if (limits_.state.Paged(group) == nullptr) continue;
    std::vector<const StepRow*> writers(limits_.num_blocks[group]);
    for (const StepRow& row : plan.rows) {
      const int32_t end = limits_.state.BlocksFor(row.start + row.num_tokens);
      for (int32_t i = row.start / limits_.block_size(); i < end; ++i) {
        writers[planned_[row.slot].tables[group][i]] = &row;
      }
    }
    for (const StepRow& row : plan.rows) {
      const std::vector<BlockId>& table = planned_[row.slot].tables[group];
      for (size_t i = limits_.state.BlocksBehindWindow(group, row.start); i < table.size(); ++i) {
        const StepRow* const writer = writers[table[i]];
        if (writer == nullptr || writer == &row) continue;
        return absl::InvalidArgumentError(StrCat("step ", plan.id, ": slot ", row.slot,
                                                 " sees block ", table[i], " of group ", group,
                                                 ", which slot ", writer->slot, " writes"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ModelExecutor::SetDrafts(absl::Span<const LateDraft> drafts) {
  for (const LateDraft& draft : drafts) {
    const auto plan = std::find_if(in_flight_.begin(), in_flight_.end(),
                                   [&](const StepPlan& plan) { return plan.id == draft.step; });
    const StepRow* const row = plan == in_flight_.end() ? nullptr : &plan->rows.at(draft.row);
    if (row == nullptr || !row->sampled_by || row->tokens.size() > 0 ||
        static_cast<int32_t>(draft.tokens.size()) > row->num_draft) {
      return absl::InvalidArgumentError(StrCat("a draft of ", draft.tokens.size(), " for step ",
                                               draft.step, ", row ", draft.row));
    }
    SetDraft(draft, *plan);
  }
  return absl::OkStatus();
}

StepResult ModelExecutor::Run(const Script& script) {
  const StepPlan plan = std::move(in_flight_.front());
  const std::vector<Tables> tables = std::move(tables_.front());
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
  for (const StateMove& move : plan.moves) {
    if (limits_.state.Paged(move.group) == nullptr) {
      states_[move.to.block] = states_[move.from.block];
      continue;
    }
    const auto block = [&](const StatePlace& place) {
      return kv_[move.group].begin() + place.block * limits_.block_size();
    };
    std::copy_n(block(move.from), limits_.block_size(), block(move.to));
  }
  moves_ += static_cast<int64_t>(plan.moves.size());
  result.moves_completed = moves_;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    Script row_script = script;
    if (script.fail_step) row_script.fault = [](const StepRow&) { return Fault::kRow; };
    result.rows.push_back(RunRow(plan, plan.rows[i], tables[i], row_script, result));
  }
  if (script.fail_step) {
    result = StepResult{.id = plan.id,
                        .status = absl::UnavailableError("the device has failed"),
                        .moves_completed = moves_};
  }
  return result;
}

RowResult ModelExecutor::RunRow(const StepPlan& plan, const StepRow& row, const Tables& tables,
                                const Script& script, StepResult& result) {
  RunSlot& slot = run_[row.slot];
  const auto cell = [&](int group, int32_t position) -> Value& {
    const BlockId block = tables[group][position / limits_.block_size()];
    return kv_[group].at(block * limits_.block_size() + position % limits_.block_size());
  };
  State& state = states_[row.slot];
  const int32_t start = row.sampled_by ? slot.end : row.start;
  if (start == 0) state = {};
  // One of other tokens is garbage, too.
  const bool is_wrong = limits_.has_slots() && state.tokens != start;
  Reader reader(limits_.state, cell, start, is_wrong ? kGarbageState : state.value);
  bool garbage = slot.failed || reader.saw_garbage();
  const Fault fault = script.fault ? script.fault(row) : Fault::kNone;
  garbage |= fault != Fault::kNone;

  RowResult answer{.slot = row.slot};
  answer.tokens.begin = static_cast<int32_t>(result.tokens.size());
  int32_t wanted = row.logits.begin;
  std::vector<Token> inputs(plan.tokens.begin() + row.tokens.begin,
                            plan.tokens.begin() + row.tokens.end);
  if (row.sampled_by) inputs.insert(inputs.begin(), slot.sampled);
  EXPECT_EQ(static_cast<int32_t>(inputs.size()), row.num_tokens) << "its draft has not come";
  const int32_t checked = row.num_tokens - row.num_draft;
  slot.end = start + checked;
  Value kept = reader.state();
  for (int32_t i = 0; i < row.num_tokens; ++i) {
    // What follows a token of the draft that was not sampled stays in the cache until it is
    // overwritten, and leaves nothing in the state.
    const bool is_right = i < checked || (start + i == slot.end && inputs[i] == slot.sampled);
    reader.Cache(inputs[i], garbage);
    const uint64_t sum = reader.sum();
    if (is_right) kept = reader.state();
    if (is_right && i >= checked) slot.end = start + i + 1;
    if (!is_right || wanted == row.logits.end || plan.logits[wanted].offset != i) continue;
    if (const std::optional<Token> target = plan.logits[wanted++].target) {
      result.tokens.push_back({.token = *target, .logprob = Logprob(sum, *target), .rank = 1});
      continue;
    }
    const std::optional<Token> scripted = script.sampled ? script.sampled(row) : std::nullopt;
    slot.sampled = scripted.value_or(SampledToken(sum + slot.counts, limits_.vocab_size));
    if (slot.penalizes) slot.counts += Counted(slot.sampled, true);
    result.tokens.push_back({.token = slot.sampled});
  }
  state = {.value = kept, .tokens = slot.end};
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
  uint64_t counts = 0;
  std::vector<std::vector<Value>> cached(kv_.size(), std::vector<Value>(limits_.max_model_len));
  const auto cell = [&](int group, int32_t position) -> Value& { return cached[group][position]; };
  Reader reader(limits_.state, cell, 0, 0);
  for (const Token token : prompt) counts += penalizes ? Counted(token, false) : 0;
  for (size_t i = 0; i < prompt.size(); ++i) {
    reader.Cache(prompt[i], false);
    if (i + 1 < prompt.size()) {
      output.prompt_logprobs.push_back(Logprob(reader.sum(), prompt[i + 1]));
    }
  }
  while (static_cast<int32_t>(output.generated.size()) < max_tokens) {
    const Token token = SampledToken(reader.sum() + counts, limits_.vocab_size);
    counts += penalizes ? Counted(token, true) : 0;
    output.generated.push_back(token);
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) break;
    reader.Cache(token, false);
  }
  return output;
}

}  // namespace millrace
