// Shared by the tests of several executors: sequences of models whose layers have windows, with the
// blocks behind these kept or released.
#ifndef MILLRACE_EXECUTORS_WINDOWS_TEST_UTIL_H_
#define MILLRACE_EXECUTORS_WINDOWS_TEST_UTIL_H_

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "executors/executor_driver_test_util.h"
#include "executors/tiny_model_test_util.h"
#include "formats/twins/family_twins.h"
#include "plan/step_plan.h"

namespace millrace {

inline constexpr int kTwinVocabulary = 128;
inline constexpr int kWindowSequences = 4;
inline constexpr int kWindowPrompt = 100;     // tokens of each
inline constexpr int kWindowGenerated = 100;  // of each

// Gives the twin windows of so many positions and writes it to `path`, in place of what is there.
inline std::string WriteWindowTwin(FamilyTwin twin, int window, const std::string& path) {
  twin.config["sliding_window"] = window;
  std::filesystem::remove_all(path);
  WriteTwinFolder(twin, path);
  return path;
}

// Makes kWindowSequences sequences that begin alike and are sampled differently.
inline std::vector<SequenceOutput> GenerateInWindows(Executor& executor, bool release, int chunk) {
  ExecutorDriver driver(executor);
  if (release) driver.ReleaseBehindWindows();
  std::vector<SlotId> slots;
  for (int i = 0; i < kWindowSequences; ++i) {
    std::vector<Token> prompt = Prompt(kWindowPrompt, 0, kTwinVocabulary);
    const std::vector<Token> own = Prompt(kWindowPrompt, i, kTwinVocabulary);
    std::copy(own.begin() + 64, own.end(), prompt.begin() + 64);
    slots.push_back(
        driver.Add(std::move(prompt),
                   {.temperature = 0.9f, .seed = static_cast<uint64_t>(i), .top_logprobs = 2}));
  }
  driver.Generate(slots, kWindowGenerated, chunk);
  std::vector<SequenceOutput> outputs;
  for (const SlotId slot : slots) outputs.push_back(driver.output(slot));
  return outputs;
}

// Makes the sequences of `kept`, which GenerateInWindows made on this executor, one by one from a
// cached prefix of four blocks, of which a group with a window has the last ones alone.
inline std::vector<SequenceOutput> GenerateBehindPrefix(Executor& executor,
                                                        absl::Span<const SequenceOutput> kept) {
  ExecutorDriver driver(executor, /*last_id=*/10000);
  const SlotId first = driver.Add(Prompt(kWindowPrompt, 0, kTwinVocabulary), {.temperature = 0});
  driver.Generate({first}, 1, 64);
  const std::vector<BlockId> prefix(driver.blocks(first).begin(), driver.blocks(first).begin() + 4);
  driver.ReleaseBehindWindows();
  std::vector<SequenceOutput> outputs;
  for (size_t i = 0; i < kept.size(); ++i) {
    std::vector<Token> prompt = kept[i].tokens;
    prompt.resize(kWindowPrompt);
    const SlotId slot =
        driver.Add(std::move(prompt), {.temperature = 0.9f, .seed = i, .top_logprobs = 2}, prefix);
    driver.Generate({slot}, kWindowGenerated, 16);
    outputs.push_back(driver.output(slot));
    driver.Remove(slot);
  }
  return outputs;
}

// Forks a sequence of less than a block, of a model with two groups on an executor that has run no
// step: a block of each group is copied to another place. Returns the result of the step that
// copies, in which both sequences go on with the same token.
inline StepResult ForkTwoGroups(Executor& executor) {
  const auto params =
      std::make_shared<const SamplingParams>(SamplingParams{.temperature = 0, .top_logprobs = 1});
  const auto step = [&](StepPlan plan) {
    CheckOk(executor.Submit(std::move(plan)));
    std::optional<StepResult> result = executor.Wait();
    CheckOk(result->status);
    return *std::move(result);
  };
  StepPlan first{.id = 1};
  first.starts = {{0, params}};
  first.tokens = Prompt(10, 3, kTwinVocabulary);
  first.blocks = {0, 1};
  first.rows = {{.slot = 0, .start = 0, .num_tokens = 10, .tokens = {0, 10}, .blocks = {0, 2}}};
  step(std::move(first));
  StepPlan fork{.id = 2};
  fork.moves = {{.group = 1, .from = {1}, .to = {3}}, {.group = 0, .from = {0}, .to = {5}}};
  fork.starts = {{1, params}};
  fork.tokens = {7, 7};
  fork.blocks = {5, 3};
  fork.logits = {{.offset = 0}, {.offset = 0}};
  fork.rows = {{.slot = 0, .start = 10, .num_tokens = 1, .tokens = {0, 1}, .logits = {0, 1}},
               {.slot = 1,
                .start = 10,
                .num_tokens = 1,
                .tokens = {1, 2},
                .blocks = {0, 2},
                .logits = {1, 2}}};
  return step(std::move(fork));
}

// Expects that both sequences of ForkTwoGroups see the same.
inline void ExpectForkSeesCopies(const StepResult& result) {
  EXPECT_EQ(result.moves_completed, 2);
  ASSERT_EQ(result.tokens.size(), 2);
  EXPECT_EQ(result.tokens[0].token, result.tokens[1].token);
  EXPECT_EQ(*result.tokens[0].logprob, *result.tokens[1].logprob);
}

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_WINDOWS_TEST_UTIL_H_
