// The time budget of steps, on devices whose times are known.
#include "scheduler/step_budget.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/timed_device_test_util.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

struct Device {
  const char* name;
  double step, row, token, context, pair;  // milliseconds; the last two for 1,024 positions
  double longest;                          // steps of a cut prompt, as a share of the uncut ones
  double noise = 0;                        // the largest relative one

  TimedDevice::Formula Formula(uint64_t seed = 3) const {
    return [*this, random = std::mt19937_64(seed)](const StepWork& work) mutable {
      const double exact = step + row * work.decode_rows + token * work.prompt_tokens +
                           context * static_cast<double>(work.decode_context) / 1024 +
                           pair * work.prompt_pairs / 1024;
      return exact * (1 + noise * static_cast<double>(random() % 1000) / 1000);
    };
  }
  double Decode(const StepWork& work) const {
    return step + row * work.decode_rows +
           context * static_cast<double>(work.decode_context) / 1024;
  }
};

const Device kDevices[] = {
    {"Gpu", 1, 0.002, 0.0148, 0.001, 0.0002, 0.6},
    {"Cpu", 6, 2.5, 1.6, 0.3, 0.1, 0.25},
    {"SlowByTheToken", 1, 1, 0.5, 0.1, 0.03, 0.25},
    {"NoisyCpu", 6, 2.5, 1.6, 0.3, 0.1, 0.25, 0.1},
};

SchedulerOptions Options(std::optional<Duration> itl_slo) {
  return {.limits = {.max_num_seqs = 16,
                     .max_num_batched_tokens = 2048,
                     .max_model_len = 8192,
                     .num_blocks = {8192},
                     .state = StateLayout::OnePool(16),
                     .vocab_size = 1000},
          .prefix_caching = false,
          .itl_slo = itl_slo};
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

class StepBudgetTest : public ::testing::TestWithParam<Device> {};

// Eight streams decode; then a long prompt comes. Cutting it costs it a tenth of its time and makes
// the longest step shorter, where decoding rows are that much cheaper than the step.
TEST_P(StepBudgetTest, ALongPromptIsCutForATenthOfItsTime) {
  double took[2];
  double longest[2] = {0, 0};
  for (const bool is_cut : {false, true}) {
    TimedDevice device(Options(is_cut ? std::optional(Duration::zero()) : std::nullopt),
                       GetParam().Formula());
    for (int i = 0; i < 8; ++i) device.Add(40 + 10 * i, 8000);
    device.Learn(/*before=*/40, /*prompts=*/8, /*least=*/100, /*more=*/30);
    const SteadyTime added = device.now();
    for (const TimedDevice::Step& step : device.RunPrompt(7000)) {
      longest[is_cut ? 1 : 0] = std::max(longest[is_cut ? 1 : 0], step.milliseconds);
    }
    took[is_cut ? 1 : 0] = ToSeconds(device.now() - added);
  }
  // Chunks of one size are not of one time where the context grows.
  EXPECT_LE(took[1], took[0] * (1 + 1.2 * kMostShare + GetParam().noise));
  EXPECT_LE(longest[1], longest[0] * GetParam().longest);
}

// Whatever the times are: where prompts wait beside decoding rows, the step takes at least 16 of
// their tokens, or all there are.
TEST_P(StepBudgetTest, EveryStepTakesTheLeastOfPrompts) {
  for (const Duration target : {Duration::zero(), Duration(milliseconds(1))}) {
    std::mt19937_64 random(5);
    TimedDevice device(Options(target), GetParam().Formula());
    for (int i = 0; i < 400; ++i) {
      if (random() % 4 == 0) device.Add(1 + static_cast<int>(random() % 300), 1 + random() % 60);
      device.RunStep();
    }
    device.RunUntilIdle();
    int mixed = 0;
    for (const TimedDevice::Step& step : device.steps()) {
      if (step.work.decode_rows == 0) continue;
      const int64_t ready = step.could_begin
                                ? kLeastPromptTokens
                                : std::min<int64_t>(step.ready_prompt, kLeastPromptTokens);
      EXPECT_GE(step.work.prompt_tokens, ready);
      mixed += step.work.prompt_tokens > 0 ? 1 : 0;
    }
    EXPECT_GT(mixed, 100);
  }
}

TEST_P(StepBudgetTest, ATargetInMillisecondsHolds) {
  const double decode = GetParam().Decode({.decode_rows = 4, .decode_context = 4 * 400});
  const double target = decode + 40 * GetParam().token + 5;
  TimedDevice device(Options(std::chrono::duration_cast<Duration>(
                         std::chrono::duration<double, std::milli>(target))),
                     GetParam().Formula());
  for (int i = 0; i < 4; ++i) device.Add(100, 2000);
  device.Learn(/*before=*/40, /*prompts=*/8, /*least=*/60, /*more=*/10);
  std::vector<double> times;
  for (const TimedDevice::Step& step : device.RunPrompt(1500)) times.push_back(step.milliseconds);
  EXPECT_LE(Quantile(times, 0.99), target * (1 + GetParam().noise));
  EXPECT_GE(Quantile(times, 0.5), 0.6 * target);  // and it is used
  EXPECT_GT(device.scheduler().stats().prompt_cut_time, Duration::zero());
  EXPECT_GE(device.scheduler().stats().prompt_cut_time, device.scheduler().stats().prompt_cut_loss);
}

// The budget decides how a prompt is cut, and nothing else than the times decides the budget.
TEST_P(StepBudgetTest, TheSameTimesMakeTheSameSteps) {
  std::vector<std::vector<int32_t>> prompts;
  for (const uint64_t seed : {1, 1, 2}) {
    TimedDevice device(Options(Duration::zero()), GetParam().Formula(seed));
    for (int i = 0; i < 6; ++i) device.Add(50 + 600 * i, 300);
    device.RunUntilIdle();
    prompts.emplace_back();
    for (const TimedDevice::Step& step : device.steps()) {
      prompts.back().push_back(step.work.prompt_tokens);
    }
  }
  EXPECT_EQ(prompts[0], prompts[1]);
  EXPECT_EQ(prompts[0] != prompts[2], GetParam().noise > 0);
}

INSTANTIATE_TEST_SUITE_P(, StepBudgetTest, ::testing::ValuesIn(kDevices),
                         [](const auto& info) { return info.param.name; });

// What waits is known when it is cut: no step is much shorter than the others.
TEST(StepBudgetChunksTest, ChunksAreEqual) {
  TimedDevice device(Options(Duration::zero()), kDevices[0].Formula());
  for (int i = 0; i < 4; ++i) device.Add(40 + 10 * i, 8000);
  device.Learn(/*before=*/40, /*prompts=*/30, /*least=*/50, /*more=*/10);
  std::vector<int32_t> chunks;
  for (const TimedDevice::Step& step : device.RunPrompt(700)) {
    if (step.work.prompt_tokens > 0) chunks.push_back(step.work.prompt_tokens);
  }
  ASSERT_GE(chunks.size(), 2);
  EXPECT_LE(chunks.front() - chunks.back(), 32);
}

// A device that computes tiles of 64 tokens: where prompts are cut, steps consist of whole ones,
// decoding rows included.
TEST(StepBudgetTileTest, StepsThatCutPromptsAreWholeTiles) {
  constexpr int kTile = 64;
  SchedulerOptions options = Options(Duration::zero());
  options.limits.max_num_seqs = 64;
  options.limits.token_tile = kTile;
  TimedDevice device(options, kDevices[0].Formula());
  std::mt19937_64 random(7);
  for (int i = 0; i < 900; ++i) {
    if (i % 8 == 0) device.Add(100 + static_cast<int>(random() % 4000), 200);
    device.RunStep();
  }
  int whole = 0;
  for (const TimedDevice::Step& step : device.steps()) {
    const int tokens = step.work.decode_rows + step.work.prompt_tokens;
    if (step.work.decode_rows == 0 || tokens >= options.limits.max_num_batched_tokens) continue;
    if (!step.could_begin && step.ready_prompt <= step.work.prompt_tokens) continue;
    EXPECT_EQ(tokens % kTile, 0) << tokens;
    ++whole;
  }
  EXPECT_GT(whole, 20);
}

// A sequence that comes while a long step runs is in the next one.
// Returns how many of 512 prompt tokens a step beside 64 decoding rows takes, where one step of
// `steps` has a prompt, which costs it `fixed` ms and 2 ms a tile of 128 tokens.
int32_t TokensOf512(double fixed, int steps) {
  StepBudget budget(Duration::zero(), 128);
  int32_t taken = 0;
  for (int i = 0; i < 800; ++i) {
    const int32_t waiting = i % steps == 0 ? 512 : 0;
    StepWork work = {.decode_rows = 64, .decode_context = 32768};
    budget.Begin(work.decode_rows, work.decode_context, waiting);
    if (waiting > 0) {
      taken = budget.Allow(waiting, 0);
      budget.Take(taken, 0);
      work.AddPrompt(taken, 0);
    }
    const int32_t tiles = (64 + work.prompt_tokens + 127) / 128;
    const double time = waiting > 0 ? 2.5 + fixed + 2 * tiles : 2.5;
    budget.Observe(work, std::chrono::duration_cast<Duration>(
                             std::chrono::duration<double, std::milli>(time)));
  }
  return taken;
}

// A tile that is half empty is left to the next prompt, if there will be one.
TEST(StepBudgetTileTest, WholeTilesAreTakenWhereMorePromptsFollow) {
  EXPECT_EQ(TokensOf512(0.5, 2), 448);
  EXPECT_EQ(TokensOf512(0.5, 20), 512);
  EXPECT_EQ(TokensOf512(6, 2), 512);
}

// Sequences that decode have their states copied at the end of each block, in one of four steps
// here: such a step takes fewer prompt tokens, and no other does.
TEST(StepBudgetMovesTest, ATargetHoldsWhereStatesAreCopied) {
  constexpr double kCopy = 20;  // milliseconds
  SchedulerOptions options = Options(milliseconds(80));
  options.limits.state.groups = {PagedState{}, SlotState{.bytes = 20 << 20}};
  options.limits.num_blocks = {8192, 64};
  options.prefix_caching = true;
  TimedDevice device(options, [cpu = kDevices[1].Formula()](const StepWork& work) mutable {
    return cpu(work) + kCopy * static_cast<double>(work.moved_bytes) / (20 << 20);
  });
  for (int i = 0; i < 4; ++i) device.Add(100 + 4 * i, 2000);
  device.Learn(/*before=*/60, /*prompts=*/12, /*least=*/60, /*more=*/10);
  std::vector<double> times;
  int moving = 0;
  for (const TimedDevice::Step& step : device.RunPrompt(1500)) {
    times.push_back(step.milliseconds);
    moving += step.work.moved_bytes > 0 ? 1 : 0;
  }
  EXPECT_GT(moving, 5);
  EXPECT_LE(Quantile(times, 0.95), 80);
  EXPECT_GE(Quantile(times, 0.1), 0.6 * 80);
}

TEST(PlanFromTest, IsShortlyBeforeTheEndOfALongStepAndAtOnceInAShortOne) {
  for (const auto& [step, wait] :
       {std::pair(100.0, 75.0), {40.0, 30.0}, {20.0, 10.0}, {8.0, 0.0}}) {
    TimedDevice device(Options(Duration::zero()), [ms = step](const StepWork&) { return ms; });
    EXPECT_EQ(device.scheduler().PlanFrom(), SteadyTime::min());
    device.Add(40, 200);
    ASSERT_TRUE(device.RunStep());
    EXPECT_LE(device.scheduler().PlanFrom(), device.now()) << "a step of an unknown kind";
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(device.RunStep());
    const double from = ToSeconds(device.scheduler().PlanFrom() - device.now()) * 1e3;
    EXPECT_NEAR(std::max(from, 0.0), wait, step / 50);
  }
}

TEST(StepBudgetOffTest, WithoutATargetPromptsTakeWholeSteps) {
  TimedDevice device(Options(std::nullopt), kDevices[1].Formula());
  for (int i = 0; i < 8; ++i) device.Add(40, 200);
  for (int i = 0; i < 40; ++i) device.RunStep();
  device.Add(4000, 1);
  const size_t first = device.steps().size();
  for (int i = 0; i < 3; ++i) device.RunStep();
  EXPECT_EQ(device.steps()[first].work.prompt_tokens, 2048 - 8);
  EXPECT_EQ(device.scheduler().stats().prompt_cut_time, Duration::zero());
}

}  // namespace
}  // namespace millrace
