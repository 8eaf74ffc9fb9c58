#include "executors/executor_driver_test_util.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <numeric>

namespace millrace {

void CheckOk(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::abort();
}

ExecutorDriver::ExecutorDriver(Executor& executor, StepId last_id)
    : executor_(executor), sequences_(executor.info().limits.max_num_seqs), last_id_(last_id) {
  const StepLimits& limits = executor.info().limits;
  for (int group = 0; group < limits.state.num_groups(); ++group) {
    if (limits.state.Paged(group) == nullptr) continue;
    groups_.push_back(group);
    std::vector<BlockId>& free = free_blocks_.emplace_back(limits.num_blocks[group]);
    std::iota(free.rbegin(), free.rend(), 0);
  }
}

SlotId ExecutorDriver::Add(std::vector<Token> prompt, SamplingParams sampling,
                           absl::Span<const BlockId> cached) {
  SlotId slot = 0;
  while (sequences_[slot].used) ++slot;
  const int32_t prompt_tokens = static_cast<int32_t>(prompt.size());
  Sequence& sequence = sequences_[slot];
  sequence = {
      .used = true,
      .sampling = std::make_shared<const SamplingParams>(std::move(sampling)),
      .prompt_tokens = prompt_tokens,
      .tokens = std::move(prompt),
      .computed = static_cast<int32_t>(cached.size()) * executor_.info().limits.block_size(),
      .cached = cached.size()};
  sequence.tables.assign(groups_.size(), {cached.begin(), cached.end()});
  if (releases_) Release(sequence);
  return slot;
}

void ExecutorDriver::Remove(SlotId slot) {
  Sequence& sequence = sequences_[slot];
  for (size_t i = 0; i < groups_.size(); ++i) {
    const std::vector<BlockId>& table = sequence.tables[i];
    std::copy_if(table.begin() + static_cast<int64_t>(sequence.cached), table.end(),
                 std::back_inserter(free_blocks_[i]),
                 [](BlockId block) { return block != kNoBlock; });
  }
  sequence = {};
}

// Cached blocks belong to another sequence.
void ExecutorDriver::Release(Sequence& sequence) {
  const StateLayout& state = executor_.info().limits.state;
  for (size_t i = 0; i < groups_.size(); ++i) {
    std::vector<BlockId>& table = sequence.tables[i];
    const int32_t behind =
        state.BlocksBehindWindow(groups_[i], sequence.computed - sequence.drafts_in_flight);
    for (size_t j = 0; j < std::min<size_t>(behind, table.size()); ++j) {
      if (j >= sequence.cached && table[j] != kNoBlock) free_blocks_[i].push_back(table[j]);
      table[j] = kNoBlock;
    }
  }
}

// Takes blocks up to position `end`, and adds to the plan what the executor does not have yet.
Range ExecutorDriver::AddBlocks(Sequence& sequence, int32_t end, StepPlan& plan) {
  if (releases_) Release(sequence);
  const auto needed = static_cast<size_t>(executor_.info().limits.state.BlocksFor(end));
  Range added{.begin = static_cast<int32_t>(plan.blocks.size()), .end = 0};
  size_t size = 0;
  for (size_t i = 0; i < groups_.size(); ++i) {
    std::vector<BlockId>& table = sequence.tables[i];
    while (table.size() < needed) {
      if (free_blocks_[i].empty()) CheckOk(absl::ResourceExhaustedError("no block is free"));
      table.push_back(free_blocks_[i].back());
      free_blocks_[i].pop_back();
    }
    plan.blocks.insert(plan.blocks.end(), table.begin() + static_cast<int64_t>(sequence.sent),
                       table.end());
    size = table.size();
  }
  added.end = static_cast<int32_t>(plan.blocks.size());
  sequence.sent = size;
  return added;
}

// A plan has capacity for the history of one sequence of maximum length, so sequences with
// penalties and long prompts start in separate steps.
void ExecutorDriver::AddStart(SlotId slot, StepPlan& plan) {
  Sequence& sequence = sequences_[slot];
  sequence.started = true;
  SlotStart start{.slot = slot, .sampling = sequence.sampling};
  if (sequence.sampling->penalizes()) {
    start.history.begin = static_cast<int32_t>(plan.history.size());
    plan.history.insert(plan.history.end(), sequence.tokens.begin(), sequence.tokens.end());
    start.history.end = static_cast<int32_t>(plan.history.size());
    start.prompt_tokens = sequence.prompt_tokens;
  }
  plan.starts.push_back(std::move(start));
}

StepPlan ExecutorDriver::Plan(absl::Span<const Share> shares, std::optional<int32_t> score_from) {
  StepPlan plan;
  plan.id = ++last_id_;
  for (const auto& [slot, count] : shares) {
    Sequence& sequence = sequences_[slot];
    if (!sequence.started) AddStart(slot, plan);
    StepRow row{.slot = slot, .start = sequence.computed, .num_tokens = count};
    row.tokens.begin = static_cast<int32_t>(plan.tokens.size());
    if (sequence.sampled_by.has_value()) {
      row.sampled_by = sequence.sampled_by;
    } else {
      plan.tokens.insert(plan.tokens.end(), sequence.tokens.begin() + row.start,
                         sequence.tokens.begin() + row.start + count);
    }
    row.tokens.end = static_cast<int32_t>(plan.tokens.size());
    const int32_t end = row.start + count;
    row.blocks = AddBlocks(sequence, end, plan);
    sequence.computed = end;

    row.logits.begin = static_cast<int32_t>(plan.logits.size());
    const int32_t known = static_cast<int32_t>(sequence.tokens.size());
    if (score_from.has_value()) {
      for (int32_t at = std::max(row.start + 1, *score_from); at <= end && at < known; ++at) {
        plan.logits.push_back({.offset = at - 1 - row.start, .target = sequence.tokens[at]});
      }
    }
    if (end == known) {
      plan.logits.push_back({.offset = count - 1, .mask = sequence.mask});
      sequence.tokens.push_back(-1);  // a placeholder until the result arrives
      sequence.sampled_by = plan.id;
    }
    row.logits.end = static_cast<int32_t>(plan.logits.size());
    plan.rows.push_back(row);
  }
  return plan;
}

StepResult ExecutorDriver::Take() {
  std::optional<StepResult> result = executor_.Wait();
  CheckOk(result->status);
  for (const RowResult& row : result->rows) {
    CheckOk(row.status);
    Sequence& sequence = sequences_[row.slot];
    const auto unknown = std::find(sequence.tokens.begin(), sequence.tokens.end(), -1);
    if (row.tokens.size() == 0 || unknown == sequence.tokens.end()) continue;
    const TokenResult& sampled = result->tokens[row.tokens.end - 1];
    *unknown = sampled.token;
    if (sampled.logprob.has_value()) sequence.logprobs.push_back(*sampled.logprob);
  }
  return *std::move(result);
}

StepResult ExecutorDriver::Step(absl::Span<const Share> shares, std::optional<int32_t> score_from) {
  CheckOk(executor_.Submit(Plan(shares, score_from)));
  StepResult result = Take();
  for (const auto& [slot, count] : shares) {
    (void)count;
    sequences_[slot].sampled_by.reset();
  }
  return result;
}

void ExecutorDriver::Decode(absl::Span<const SlotId> slots, int32_t steps) {
  std::vector<Share> shares;
  for (const SlotId slot : slots) shares.push_back({slot, 1});
  for (int32_t step = 0; step < steps; ++step) {
    CheckOk(executor_.Submit(Plan(shares, std::nullopt)));
    if (step > 0) Take();
  }
  Take();
  for (const SlotId slot : slots) sequences_[slot].sampled_by.reset();
}

StepPlan ExecutorDriver::PlanDrafts(absl::Span<const SlotId> slots, int32_t most, bool late,
                                    const Guess& guess) {
  StepPlan plan;
  plan.id = ++last_id_;
  for (const SlotId slot : slots) {
    Sequence& sequence = sequences_[slot];
    StepRow row{.slot = slot, .start = sequence.computed, .num_tokens = 1 + most};
    row.tokens.begin = static_cast<int32_t>(plan.tokens.size());
    row.num_draft = most;
    if (late) {
      row.sampled_by = plan.id - 1;
    } else {
      std::vector<Token> draft = guess(slot, sequence.tokens.size());
      draft.resize(std::min<size_t>(draft.size(), most));
      row.num_draft = static_cast<int32_t>(draft.size());
      row.num_tokens = 1 + row.num_draft;
      plan.tokens.push_back(sequence.tokens.back());
      plan.tokens.insert(plan.tokens.end(), draft.begin(), draft.end());
    }
    row.tokens.end = static_cast<int32_t>(plan.tokens.size());
    row.blocks = AddBlocks(sequence, row.start + row.num_tokens, plan);
    sequence.computed += row.num_tokens;
    sequence.drafts_in_flight += row.num_draft;
    row.logits.begin = static_cast<int32_t>(plan.logits.size());
    for (int32_t i = 0; i < row.num_tokens; ++i) {
      plan.logits.push_back({.offset = i, .mask = sequence.mask});
    }
    row.logits.end = static_cast<int32_t>(plan.logits.size());
    plan.rows.push_back(row);
  }
  return plan;
}

void ExecutorDriver::TakeDrafts(absl::Span<const SlotId> slots, const std::vector<int32_t>& lengths,
                                std::vector<int32_t>* next, const Guess& guess) {
  std::optional<StepResult> result = executor_.Wait();
  CheckOk(result->status);
  std::vector<LateDraft> drafts;
  for (size_t i = 0; i < slots.size(); ++i) {
    CheckOk(result->rows[i].status);
    Sequence& sequence = sequences_[slots[i]];
    const Range tokens = result->rows[i].tokens;
    sequence.drafts_in_flight -= lengths[i];
    sequence.computed -= lengths[i] - (tokens.size() - 1);
    for (int32_t at = tokens.begin; at < tokens.end; ++at) {
      sequence.tokens.push_back(result->tokens[at].token);
      const std::optional<float> logprob = result->tokens[at].logprob;
      if (logprob.has_value()) sequence.logprobs.push_back(*logprob);
    }
    if (next == nullptr) continue;
    std::vector<Token> draft = guess(slots[i], sequence.tokens.size());
    draft.resize(std::min<size_t>(draft.size(), (*next)[i]));
    const auto missing = (*next)[i] - static_cast<int32_t>(draft.size());
    sequence.drafts_in_flight -= missing;
    sequence.computed -= missing;
    (*next)[i] -= missing;
    drafts.push_back(
        {.step = last_id_, .row = static_cast<int32_t>(i), .tokens = std::move(draft)});
  }
  if (next != nullptr) CheckOk(executor_.SetDrafts(std::move(drafts)));
}

void ExecutorDriver::GenerateWithDrafts(absl::Span<const SlotId> slots, int32_t count,
                                        int32_t chunk, int32_t most, const Guess& guess) {
  Generate(slots, 1, chunk);
  const auto lengths = [](const StepPlan& plan) {
    std::vector<int32_t> drafts;
    for (const StepRow& row : plan.rows) drafts.push_back(row.num_draft);
    return drafts;
  };
  const auto all_have = [&](int32_t more) {
    return std::all_of(slots.begin(), slots.end(), [&](SlotId slot) {
      const Sequence& sequence = sequences_[slot];
      return static_cast<int32_t>(sequence.tokens.size()) - sequence.prompt_tokens + more >= count;
    });
  };
  StepPlan plan = PlanDrafts(slots, most, /*late=*/false, guess);
  std::vector<int32_t> oldest = lengths(plan);
  CheckOk(executor_.Submit(std::move(plan)));
  while (!all_have(1)) {
    plan = PlanDrafts(slots, most, /*late=*/true, guess);
    std::vector<int32_t> next = lengths(plan);
    CheckOk(executor_.Submit(std::move(plan)));
    TakeDrafts(slots, oldest, &next, guess);
    oldest = std::move(next);
  }
  TakeDrafts(slots, oldest, nullptr, guess);
}

void ExecutorDriver::Generate(absl::Span<const SlotId> slots, int32_t count, int32_t chunk) {
  const int32_t budget = executor_.info().limits.max_num_batched_tokens;
  for (const SlotId slot : slots) {
    Sequence& sequence = sequences_[slot];
    while (sequence.computed < static_cast<int32_t>(sequence.tokens.size()) &&
           !sequence.sampled_by) {
      const int32_t left = static_cast<int32_t>(sequence.tokens.size()) - sequence.computed;
      const int32_t known = static_cast<int32_t>(sequence.tokens.size());
      Step({{slot, std::min({left, chunk, budget})}});
      if (static_cast<int32_t>(sequence.tokens.size()) > known) break;
    }
  }
  if (count > 1) Decode(slots, count - 1);
}

PenalizedOutput GeneratePenalized(Executor& executor, const std::vector<Token>& prompt,
                                  int32_t count) {
  ExecutorDriver driver(executor);
  const SamplingParams strict{.temperature = 0, .repetition_penalty = 100};
  const SlotId slot = driver.Add(prompt, strict);
  const SlotId freely = driver.Add(prompt, {.temperature = 0});
  driver.Generate({slot, freely}, count, 16);
  std::vector<Token> half = driver.tokens(slot);
  half.resize(half.size() - count / 2);
  const SlotId again = driver.Add(half, strict);
  driver.Generate({again}, count / 2, 1000);
  return {driver.tokens(slot), driver.tokens(again), driver.tokens(freely)};
}

std::vector<TokenResult> ForkByCopy(Executor& executor, const std::vector<Token>& prompt,
                                    const SamplingParams& sampling) {
  constexpr BlockId kCopy = 5;
  const auto params = std::make_shared<const SamplingParams>(sampling);
  const auto length = static_cast<int32_t>(prompt.size());
  const auto step = [&](StepPlan plan) {
    CheckOk(executor.Submit(std::move(plan)));
    std::optional<StepResult> result = executor.Wait();
    CheckOk(result->status);
    return std::move(result->tokens);
  };
  StepPlan first;
  first.id = 1;
  first.starts = {{0, params}};
  first.tokens = prompt;
  first.blocks = {0};
  first.rows = {
      {.slot = 0, .start = 0, .num_tokens = length, .tokens = {0, length}, .blocks = {0, 1}}};
  step(std::move(first));
  StepPlan fork;
  fork.id = 2;
  fork.moves = {{.from = {0}, .to = {kCopy}}};
  fork.starts = {{1, params}};
  fork.tokens = {7, 7};
  fork.blocks = {kCopy};
  fork.logits = {{.offset = 0}, {.offset = 0}};
  fork.rows = {{.slot = 0, .start = length, .num_tokens = 1, .tokens = {0, 1}, .logits = {0, 1}},
               {.slot = 1,
                .start = length,
                .num_tokens = 1,
                .tokens = {1, 2},
                .blocks = {0, 1},
                .logits = {1, 2}}};
  return step(std::move(fork));
}

}  // namespace millrace
