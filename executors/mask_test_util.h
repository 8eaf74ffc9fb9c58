// Checks how an executor samples under masks. Shared by the tests of several executors.
#ifndef MILLRACE_EXECUTORS_MASK_TEST_UTIL_H_
#define MILLRACE_EXECUTORS_MASK_TEST_UTIL_H_

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executors/executor_driver_test_util.h"
#include "executors/tiny_model_test_util.h"
#include "gtest/gtest.h"

namespace millrace {

inline std::shared_ptr<const SampleMask> MaskOf(const Executor& executor,
                                                const std::vector<Token>& allowed) {
  SampleMask mask((executor.info().limits.vocab_size + 31) / 32);
  for (const Token token : allowed) mask[token / 32] |= 1U << (token % 32);
  return std::make_shared<const SampleMask>(std::move(mask));
}

// The tokens that are `first` plus a multiple of `step`.
inline std::vector<Token> Every(const Executor& executor, Token first, Token step) {
  std::vector<Token> tokens;
  for (Token t = first; t < executor.info().limits.vocab_size; t += step) tokens.push_back(t);
  return tokens;
}

inline std::vector<SamplingParams> MaskedSampling() {
  return {{.temperature = 0, .top_logprobs = 3},
          {.temperature = 1, .seed = 1, .top_logprobs = 0},
          {.temperature = 2, .top_k = 200, .seed = 2},
          {.temperature = 1, .top_p = 0.9f, .repetition_penalty = 1.5f, .seed = 3},
          {.temperature = 1,
           .min_p = 0.02f,
           .logit_bias = {{7, 50}, {8, 30}},
           .seed = 4,
           .top_logprobs = 2},
          {.temperature = 1,
           .typical_p = 0.7f,
           .frequency_penalty = 0.5f,
           .seed = 5,
           .banned_tokens = {3, 4, 5},
           .banned_before = 45}};
}

// Runs those of the sequences 0, 1, … that `which` names, all in the same steps. Sequences 2i and
// 2i + 1 have the same prompt and sampling; the even ones are masked, by other tokens in each half.
inline std::vector<SequenceOutput> GenerateMasked(Executor& executor, const std::vector<int>& which,
                                                  int chunk, StepId* last_id) {
  constexpr int kHalf = 6;
  ExecutorDriver driver(executor, *last_id);
  std::vector<SlotId> slots;
  for (const int i : which) {
    slots.push_back(driver.Add(Prompt(33 + i / 2, i / 2), MaskedSampling()[i / 2]));
    if (i % 2 == 0) driver.SetMask(slots.back(), MaskOf(executor, Every(executor, 3, 5)));
  }
  driver.Generate(slots, kHalf, chunk);
  for (size_t at = 0; at < which.size(); ++at) {
    if (which[at] % 2 == 0) driver.SetMask(slots[at], MaskOf(executor, {7 + which[at], 200, 260}));
  }
  driver.Decode(slots, kHalf);
  *last_id = driver.last_id();
  std::vector<SequenceOutput> outputs;
  for (size_t at = 0; at < which.size(); ++at) {
    outputs.push_back(driver.output(slots[at]));
    const std::vector<Token>& tokens = outputs.back().tokens;
    for (int n = 0; which[at] % 2 == 0 && n < 2 * kHalf; ++n) {
      const Token token = tokens[tokens.size() - 2 * kHalf + n];
      EXPECT_TRUE(n < kHalf ? token % 5 == 3
                            : token == 7 + which[at] || token == 200 || token == 260)
          << "token " << n << " of sequence " << which[at] << " is " << token;
    }
  }
  return outputs;
}

// Checks that masked sequences keep to their masks, and that each sequence's tokens and
// log-probabilities are the same beside the others and alone. Returns them.
inline std::vector<SequenceOutput> ExpectMasksHold(Executor& executor) {
  EXPECT_TRUE(executor.info().takes_masks);
  std::vector<int> all(2 * MaskedSampling().size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  StepId last_id = 0;
  std::vector<SequenceOutput> together = GenerateMasked(executor, all, 1000, &last_id);
  for (const int i : all) {
    EXPECT_EQ(GenerateMasked(executor, {i}, 7, &last_id)[0], together[i]) << "sequence " << i;
  }
  return together;
}

// Checks that of steps in flight together each has its own masks. `late`: masks are set once the
// step before has ended; some allow every token, as when a sequence has ended meanwhile.
inline void ExpectMasksAreTheStepsOwn(Executor& executor, bool late = false) {
  constexpr int kSteps = 12, kSlots = 3;
  const auto sampling =
      std::make_shared<const SamplingParams>(SamplingParams{.temperature = 1, .seed = 8});
  const auto allowed = [](int step, SlotId slot) { return 10 + 7 * step + slot; };
  const auto masked = [](int step, SlotId slot) { return slot == 2 || step % 2 == slot; };
  std::vector<SlotId> unset;  // of the last step
  const auto dropped = [late](int step, SlotId slot) { return late && (step + slot) % 4 == 3; };
  const auto check = [&](int step) {
    const std::optional<StepResult> result = executor.Wait();
    CheckOk(result->status);
    for (SlotId slot = 0; slot < kSlots; ++slot) {
      const Token token = result->tokens[slot].token;
      EXPECT_TRUE(!masked(step, slot) || (step > 0 && dropped(step, slot)) ||
                  token == allowed(step, slot))
          << step << ": " << token;
    }
  };
  const auto set_late_masks = [&](int step) {
    if (!late) return;
    std::vector<LateMask> masks;
    for (const SlotId slot : unset) {
      const std::vector<Token> tokens =
          dropped(step, slot) ? Every(executor, 0, 1) : std::vector<Token>{allowed(step, slot)};
      masks.push_back({.step = static_cast<StepId>(step) + 1,
                       .logits = slot,
                       .mask = MaskOf(executor, tokens)});
    }
    unset.clear();
    // One by one in every other step.
    for (; step % 2 == 1 && masks.size() > 1; masks.pop_back()) {
      CheckOk(executor.SetMasks({masks.back()}));
    }
    CheckOk(executor.SetMasks(std::move(masks)));
  };
  for (int step = 0; step < kSteps; ++step) {
    StepPlan plan;
    plan.id = step + 1;
    for (SlotId slot = 0; slot < kSlots; ++slot) {
      StepRow row{.slot = slot, .start = step, .num_tokens = 1, .logits = {slot, slot + 1}};
      if (step == 0) {
        plan.starts.push_back({slot, sampling});
        plan.tokens.push_back(5 + slot);
        plan.blocks.push_back(slot);
        row.tokens = row.blocks = {slot, slot + 1};
      } else {
        row.sampled_by = step;
      }
      plan.rows.push_back(row);
      plan.logits.push_back({.offset = 0});
      if (!masked(step, slot)) continue;
      if (late && step > 0) {
        unset.push_back(slot);
        plan.logits.back().late_mask = true;
      } else {
        plan.logits.back().mask = MaskOf(executor, {allowed(step, slot)});
      }
    }
    CheckOk(executor.Submit(std::move(plan)));
    if (step > 0) check(step - 1);
    set_late_masks(step);
  }
  check(kSteps - 1);
}

// Checks that a mask changes nothing but which token is sampled: log-probabilities and ranks stay
// those of all tokens, and other positions of the row are scored as without it. A row that may
// sample no token fails alone, and a mask of the wrong size fails the plan.
inline void ExpectMasksAreAppliedLast(Executor& executor) {
  const auto greedy =
      std::make_shared<const SamplingParams>(SamplingParams{.temperature = 0, .top_logprobs = 4});
  const int32_t vocab = executor.info().limits.vocab_size;
  const std::vector<Token> prompt = Prompt(12, 4);
  const auto plan_of = [&](StepId id, const std::vector<std::shared_ptr<const SampleMask>>& masks) {
    StepPlan plan;
    plan.id = id;
    for (SlotId slot = 0; slot < static_cast<SlotId>(masks.size()); ++slot) {
      const auto first = static_cast<int32_t>(plan.tokens.size());
      const auto logits = static_cast<int32_t>(plan.logits.size());
      plan.starts.push_back({slot, greedy});
      plan.tokens.insert(plan.tokens.end(), prompt.begin(), prompt.end());
      plan.blocks.push_back(slot);
      plan.logits.push_back({.offset = 3, .target = prompt[4]});
      plan.logits.push_back({.offset = 11, .mask = masks[slot]});
      plan.rows.push_back({.slot = slot,
                           .start = 0,
                           .num_tokens = 12,
                           .tokens = {first, first + 12},
                           .blocks = {slot, slot + 1},
                           .logits = {logits, logits + 2}});
    }
    return plan;
  };
  const auto run = [&](StepPlan plan) {
    CheckOk(executor.Submit(std::move(plan)));
    std::optional<StepResult> result = executor.Wait();
    CheckOk(result->status);
    return *std::move(result);
  };
  const StepResult plain = run(plan_of(1, {nullptr}));
  const TokenLogprob* const top = &plain.top[plain.tokens[1].top.begin];
  ASSERT_EQ(plain.tokens[1].token, top[0].token);
  std::vector<Token> all_but_two;
  for (Token token = 0; token < vocab; ++token) {
    if (token != top[0].token && token != top[1].token) all_but_two.push_back(token);
  }
  const StepResult masked =
      run(plan_of(2, {nullptr, MaskOf(executor, all_but_two), MaskOf(executor, {}),
                      MaskOf(executor, {top[3].token})}));
  const auto expect = [&](size_t row, int likeliest) {
    ASSERT_TRUE(masked.rows[row].status.ok());
    const TokenResult& scored = masked.tokens[masked.rows[row].tokens.begin];
    const TokenResult& sampled = masked.tokens[masked.rows[row].tokens.begin + 1];
    EXPECT_EQ(scored.logprob, plain.tokens[0].logprob);
    EXPECT_EQ(sampled.token, top[likeliest].token);
    EXPECT_EQ(sampled.logprob, top[likeliest].logprob);
    EXPECT_EQ(sampled.rank, likeliest + 1);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(masked.top[sampled.top.begin + i].token, top[i].token);
      EXPECT_EQ(masked.top[sampled.top.begin + i].logprob, top[i].logprob);
    }
  };
  expect(0, 0);
  expect(1, 2);
  EXPECT_EQ(masked.rows[2].status.code(), absl::StatusCode::kInternal);
  expect(3, 3);
  const auto wrong = std::make_shared<const SampleMask>((vocab + 31) / 32 + 1);
  const absl::Status refused = executor.Submit(plan_of(3, {wrong}));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(refused.message()).find("has a mask of"), std::string::npos) << refused;
  if (executor.info().takes_late_masks) return;
  StepPlan late = plan_of(4, {nullptr});
  late.logits[1].late_mask = true;
  EXPECT_EQ(executor.Submit(std::move(late)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(executor.SetMasks({{.step = 4, .logits = 1, .mask = MaskOf(executor, {1})}}).code(),
            absl::StatusCode::kUnimplemented);
}

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MASK_TEST_UTIL_H_
