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
    {"Gpu", 4, 0.002, 0.0148, 0.001, 0.0002},
    {"Cpu", 6, 2.5, 1.6, 0.3, 0.1},
    {"SlowByTheToken", 1, 1, 0.5, 0.1, 0.03},
    {"NoisyCpu", 6, 2.5, 1.6, 0.3, 0.1, 0.1},
};

SchedulerOptions Options(std::optional<Duration> itl_slo) {
  return {.limits = {.max_num_seqs = 16,
                     .max_num_batched_tokens = 2048,
                     .max_model_len = 8192,
                     .num_blocks = 8192,
                     .block_size = 16,
                     .vocab_size = 1000},
          .prefix_caching = false,
          .itl_slo = itl_slo};
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

class StepBudgetTest : public ::testing::TestWithParam<Device> {};

// Eight streams decode; then a long prompt comes.
TEST_P(StepBudgetTest, ALongPromptSlowsStreamsByTheFactorAndEndsInTwiceItsTime) {
  constexpr int kPrompt = 7000;
  TimedDevice alone(Options(Duration::zero()), GetParam().Formula());
  const SequenceId only = alone.Add(kPrompt, 1);
  alone.RunUntilIdle();
  const Duration time_alone = *alone.life(only).first_token - alone.life(only).added;

  TimedDevice device(Options(Duration::zero()), GetParam().Formula());
  for (int i = 0; i < 8; ++i) device.Add(40 + 10 * i, 8000);
  for (int i = 0; i < 40; ++i) device.RunStep();
  const SequenceId prompt = device.Add(kPrompt, 1);
  const size_t first = device.steps().size();
  while (!device.life(prompt).ended) ASSERT_TRUE(device.RunStep());

  std::vector<double> slowdowns;
  for (size_t i = first; i < device.steps().size(); ++i) {
    const TimedDevice::Step& step = device.steps()[i];
    slowdowns.push_back(step.milliseconds / GetParam().Decode(step.work));
  }
  EXPECT_LE(Quantile(slowdowns, 0.99), kMostSlowdown * (1 + GetParam().noise));
  const Duration took = *device.life(prompt).first_token - device.life(prompt).added;
  EXPECT_LE(ToSeconds(took), 2 * ToSeconds(time_alone));
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
  for (int i = 0; i < 40; ++i) device.RunStep();
  const SequenceId prompt = device.Add(1500, 1);
  const size_t first = device.steps().size();
  while (!device.life(prompt).ended) ASSERT_TRUE(device.RunStep());
  std::vector<double> times;
  for (size_t i = first; i < device.steps().size(); ++i) {
    times.push_back(device.steps()[i].milliseconds);
  }
  EXPECT_LE(Quantile(times, 0.99), target * (1 + GetParam().noise));
  EXPECT_GE(Quantile(times, 0.5), 0.6 * target);  // and it is used
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

// A device that computes tiles of 64 tokens: large steps consist of whole ones, decoding rows
// included, wherever another prompt waits or what is cut off is less than half of a tile.
TEST(StepBudgetTileTest, LargeStepsAreWholeTiles) {
  constexpr int kTile = 64;
  SchedulerOptions options = Options(Duration::zero());
  options.limits.max_num_seqs = 64;
  options.limits.token_tile = kTile;
  TimedDevice device(options, kDevices[0].Formula());
  std::mt19937_64 random(7);
  for (int i = 0; i < 600; ++i) {
    if (i % 8 == 0) device.Add(100 + static_cast<int>(random() % 900), 200);
    device.RunStep();
  }
  int whole = 0;
  for (const TimedDevice::Step& step : device.steps()) {
    const int tokens = step.work.decode_rows + step.work.prompt_tokens;
    if (step.work.decode_rows == 0 || tokens <= 3 * kTile) continue;
    EXPECT_TRUE(tokens % kTile == 0 || tokens % kTile >= kTile / 2) << tokens;
    whole += tokens % kTile == 0 ? 1 : 0;
  }
  EXPECT_GT(whole, 20);
}

// A sequence that comes while a long step runs is in the next one.
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
}

TEST(StepCostModelTest, LearnsALinearDevice) {
  StepCostModel model;
  std::mt19937_64 random(1);
  const auto exact = [](const StepWork& work) {
    return 5 + 0.5 * work.decode_rows + 0.1 * work.prompt_tokens + work.prompt_pairs / 1024 * 0.02;
  };
  for (int i = 0; i < 300; ++i) {
    StepWork work{.decode_rows = static_cast<int32_t>(random() % 16)};
    work.decode_context = work.decode_rows * 100;
    if (i % 2 == 0) work.AddPrompt(static_cast<int32_t>(1 + random() % 200), random() % 1000);
    model.Observe(work, exact(work));
  }
  StepWork work{.decode_rows = 8, .decode_context = 800};
  EXPECT_NEAR(model.Milliseconds(work), exact(work), 0.2);
  work.AddPrompt(64, 500);
  EXPECT_NEAR(model.Milliseconds(work), exact(work), 0.5);
  const double ms = exact(work) - 9;
  EXPECT_NEAR(model.PromptTokensWithin(ms, 500, 1000), 64, 4);
  EXPECT_EQ(model.PromptTokensWithin(ms, 500, 10), 10);
  EXPECT_EQ(model.PromptTokensWithin(0, 500, 10), 0);
}

TEST(StepCostModelTest, OneSlowStepOrNoTimeChangesLittle) {
  StepCostModel model;
  const StepWork decode{.decode_rows = 8, .decode_context = 800};
  StepWork mixed = decode;
  mixed.AddPrompt(32, 100);
  for (int i = 0; i < 40; ++i) {
    model.Observe(decode, 10);
    model.Observe(mixed, 20);
  }
  model.Observe(mixed, 10'000);
  model.Observe(mixed, 0);
  model.Observe(mixed, -5);
  EXPECT_NEAR(model.Milliseconds(decode), 10, 1);
  EXPECT_NEAR(model.Milliseconds(mixed), 20, 2);
}

}  // namespace
}  // namespace millrace
