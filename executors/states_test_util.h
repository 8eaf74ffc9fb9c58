// Shared by the tests of several executors: sequences of models whose layers have states at slots,
// alone, in a crowd, with prompts cut anywhere, and from checkpoints.
#ifndef MILLRACE_EXECUTORS_STATES_TEST_UTIL_H_
#define MILLRACE_EXECUTORS_STATES_TEST_UTIL_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "executors/executor_driver_test_util.h"
#include "executors/tiny_model_test_util.h"
#include "gtest/gtest.h"
#include "plan/step_plan.h"

namespace millrace {

inline constexpr int kStateVocabulary = 128;
inline constexpr int kStateSequences = 7;
inline constexpr int kStateGenerated = 40;
inline constexpr int kStateChunk = 512;  // more than any of these prompts

inline std::vector<Token> StatePrompt(int sequence) {
  return Prompt(1 + 61 * sequence % 130, sequence, kStateVocabulary);
}

inline SamplingParams StateSampling(int sequence) {
  return {.temperature = 0.9f, .seed = static_cast<uint64_t>(sequence), .top_logprobs = 2};
}

inline std::vector<SlotId> AddStateSequences(ExecutorDriver& driver) {
  std::vector<SlotId> slots;
  for (int i = 0; i < kStateSequences; ++i) {
    slots.push_back(driver.Add(StatePrompt(i), StateSampling(i)));
  }
  return slots;
}

inline std::vector<SequenceOutput> OutputsOf(const ExecutorDriver& driver,
                                             const std::vector<SlotId>& slots) {
  std::vector<SequenceOutput> outputs;
  for (const SlotId slot : slots) outputs.push_back(driver.output(slot));
  return outputs;
}

// Returns each sequence's output, computed by itself.
inline std::vector<SequenceOutput> StatesAlone(Executor& executor) {
  ExecutorDriver driver(executor);
  std::vector<SequenceOutput> outputs;
  for (int i = 0; i < kStateSequences; ++i) {
    const SlotId slot = driver.Add(StatePrompt(i), StateSampling(i));
    driver.Generate({slot}, kStateGenerated, kStateChunk);
    outputs.push_back(driver.output(slot));
    driver.Remove(slot);  // and the next one takes the slot, with what is left there
  }
  return outputs;
}

// Returns the outputs of all of them together, whose prompts are cut into pieces of `chunk` tokens.
inline std::vector<SequenceOutput> StatesInACrowd(Executor& executor, int chunk) {
  ExecutorDriver driver(executor);
  const std::vector<SlotId> slots = AddStateSequences(driver);
  driver.Generate(slots, kStateGenerated, chunk);
  return OutputsOf(driver, slots);
}

// The same in steps that prompts and decoding tokens share.
inline std::vector<SequenceOutput> StatesInMixedSteps(Executor& executor) {
  ExecutorDriver driver(executor);
  const std::vector<SlotId> slots = AddStateSequences(driver);
  const auto is_done = [&](int i) {
    return driver.tokens(slots[i]).size() == StatePrompt(i).size() + kStateGenerated;
  };
  std::vector<int32_t> computed(kStateSequences);
  for (int step = 0;; ++step) {
    std::vector<ExecutorDriver::Share> shares;
    for (int i = 0; i < kStateSequences; ++i) {
      if (is_done(i)) continue;
      const auto known = static_cast<int32_t>(driver.tokens(slots[i]).size());
      const int32_t count = std::min(known - computed[i], 1 + (step + i) % 6);
      shares.push_back({slots[i], count});
      computed[i] += count;
    }
    if (shares.empty()) break;
    driver.Step(shares);
  }
  return OutputsOf(driver, slots);
}

// Expects that a sequence goes on from its tokens in another slot, as after a preemption.
inline void ExpectGoesOnFromItsTokens(Executor& executor) {
  ExecutorDriver driver(executor);
  const SlotId slot = driver.Add(StatePrompt(3), StateSampling(3));
  driver.Generate({slot}, kStateGenerated, kStateChunk);
  const SequenceOutput whole = driver.output(slot);
  std::vector<Token> half = whole.tokens;
  half.resize(half.size() - kStateGenerated / 2);
  const SlotId other = driver.Add(half, StateSampling(3));
  driver.Generate({other}, kStateGenerated / 2, 7);
  EXPECT_EQ(driver.tokens(other), whole.tokens);
  EXPECT_TRUE(std::equal(driver.logprobs(other).begin(), driver.logprobs(other).end(),
                         whole.logprobs.begin() + kStateGenerated / 2));
}

// Expects that a sequence which begins from a checkpoint of another's state goes on as that one
// does, although the slot that the state was copied from has gone on, too. The executor has run no
// step, has blocks of 16 tokens, eight slots at least and the last of its checkpoints, and the
// model's second group is that of its slots.
inline void ExpectBeginsFromACheckpoint(Executor& executor) {
  constexpr int kShared = 4;  // blocks
  const StepLimits& limits = executor.info().limits;
  const BlockId checkpoint = limits.max_num_seqs + limits.num_checkpoints() - 1;
  const auto tokens = Prompt(16 * kShared + 20, 0, kStateVocabulary);
  const auto params =
      std::make_shared<const SamplingParams>(SamplingParams{.temperature = 0, .top_logprobs = 0});
  const auto run = [&](StepPlan plan) {
    CheckOk(executor.Submit(std::move(plan)));
    std::optional<StepResult> result = executor.Wait();
    CheckOk(result->status);
    return std::move(result->tokens);
  };
  StepPlan prompt{.id = 1};
  prompt.starts = {{0, params}};
  prompt.tokens.assign(tokens.begin(), tokens.begin() + 16 * kShared);
  prompt.blocks = {0, 1, 2, 3};
  prompt.rows = {{.slot = 0,
                  .start = 0,
                  .num_tokens = 16 * kShared,
                  .tokens = {0, 16 * kShared},
                  .blocks = {0, kShared}}};
  run(std::move(prompt));
  // The rest of the prompt, in two blocks of its own for each sequence.
  const auto rest = [&](SlotId slot, StepPlan plan) {
    plan.tokens.assign(tokens.begin() + 16 * kShared, tokens.end());
    const auto first = static_cast<int32_t>(plan.blocks.size());
    plan.blocks.insert(plan.blocks.end(), {10 + 2 * slot, 11 + 2 * slot});
    plan.logits = {{.offset = 0, .target = 5}, {.offset = 7, .target = 6}, {.offset = 19}};
    plan.rows = {{.slot = slot,
                  .start = 16 * kShared,
                  .num_tokens = 20,
                  .tokens = {0, 20},
                  .blocks = {first > 0 ? 0 : first, first + 2},
                  .logits = {0, 3}}};
    return run(std::move(plan));
  };
  StepPlan copies{.id = 2};
  copies.moves = {{.group = 1, .from = {0}, .to = {checkpoint}}};
  const std::vector<TokenResult> first = rest(0, std::move(copies));
  StepPlan begins{.id = 3};
  begins.moves = {{.group = 1, .from = {checkpoint}, .to = {7}}};
  begins.starts = {{7, params}};
  begins.blocks = {0, 1, 2, 3};
  const std::vector<TokenResult> second = rest(7, std::move(begins));
  ASSERT_EQ(first.size(), 3u);
  ASSERT_EQ(second.size(), first.size());
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(second[i].token, first[i].token);
    EXPECT_EQ(second[i].logprob, first[i].logprob);
  }
}

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_STATES_TEST_UTIL_H_
