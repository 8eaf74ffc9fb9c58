#include "scheduler/cost_model.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>

#include "gtest/gtest.h"

namespace millrace {
namespace {

StepWork Work(int32_t rows, int32_t prompt_tokens = 0, int32_t start = 0) {
  StepWork work{.decode_rows = rows, .decode_context = int64_t{rows} * 100};
  if (prompt_tokens > 0) work.AddPrompt(prompt_tokens, start);
  return work;
}

// Every kind of step has its own constant.
double Exact(const StepWork& work) {
  double ms = 1 + 0.5 * work.decode_rows + static_cast<double>(work.decode_context) / 1024 * 0.2;
  if (work.prompt_tokens > 0) {
    ms += (work.decode_rows > 0 ? 4 : 2) + 0.1 * work.prompt_tokens;
    ms += work.prompt_pairs / 1024 * 0.02;
  }
  return ms;
}

// Observes `steps` steps, every second one mixed.
void Teach(StepCostModel& model, const std::function<double(const StepWork&)>& exact, int steps,
           uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  for (int i = 0; i < steps; ++i) {
    const auto rows = static_cast<int32_t>(1 + random() % 15);
    const auto tokens = static_cast<int32_t>(1 + random() % 200);
    const StepWork work =
        Work(i % 8 == 7 ? 0 : rows, i % 2 == 0 ? 0 : tokens, static_cast<int32_t>(random() % 1000));
    if (work.decode_rows > 0 || work.prompt_tokens > 0) model.Observe(work, exact(work));
  }
}

TEST(StepCostModelTest, KnowsAKindOfStepOnceItWasSeen) {
  StepCostModel model;
  EXPECT_FALSE(model.Knows(Work(8)));
  model.Observe(Work(8), 10);
  EXPECT_TRUE(model.Knows(Work(8)));
  EXPECT_FALSE(model.Knows(Work(0, 50)));
  EXPECT_FALSE(model.Knows(Work(8, 50)));
  model.Observe(Work(0, 50), 20);
  EXPECT_TRUE(model.Knows(Work(0, 50)));
  EXPECT_TRUE(model.Knows(Work(8, 50))) << "by its parts";
  EXPECT_NEAR(model.Milliseconds(Work(8, 50)), 30, 2);
}

TEST(StepCostModelTest, LearnsTheConstantsOfPlainStepsPromptsAndMixedOnes) {
  StepCostModel model;
  Teach(model, Exact, 300);
  for (const StepWork& work :
       {Work(8), Work(0, 64, 500), Work(8, 64, 500), Work(4, 16), Work(15)}) {
    EXPECT_NEAR(model.Milliseconds(work), Exact(work), 0.02 * Exact(work))
        << work.decode_rows << " rows, " << work.prompt_tokens << " tokens";
  }
}

TEST(StepCostModelTest, LearnsStairs) {
  const auto stairs = [](const StepWork& work) {
    const int tokens = work.decode_rows + work.prompt_tokens;
    return 3.0 + (work.prompt_tokens > 0 ? 1 + 2 * ((tokens + 63) / 64) : 0);
  };
  StepCostModel model({.token_tile = 64});
  Teach(model, stairs, 300);
  for (const StepWork& work : {Work(8, 8), Work(8, 56), Work(8, 57), Work(8, 150)}) {
    EXPECT_NEAR(model.Milliseconds(work), stairs(work), 0.1) << work.prompt_tokens;
  }
}

// A few tokens read few experts, and from some number on all of them.
TEST(StepCostModelTest, LearnsWhatTheExpertsOfAChunkCost) {
  const auto mixture = [](const StepWork& work) {
    const int tokens = work.decode_rows + work.prompt_tokens;
    return 2 + 0.02 * work.prompt_tokens + 10 * (1 - std::pow(1 - 8.0 / 128, tokens));
  };
  StepCostModel model({.num_experts = 128, .experts_a_token = 8});
  std::mt19937_64 random(3);
  for (int i = 0; i < 300; ++i) {
    const StepWork work = Work(4, i % 2 == 0 ? 0 : static_cast<int32_t>(1 + random() % 300));
    model.Observe(work, mixture(work));
  }
  for (const int32_t tokens : {4, 16, 40, 100, 250}) {
    EXPECT_NEAR(model.Milliseconds(Work(4, tokens)), mixture(Work(4, tokens)), 0.3) << tokens;
  }
}

TEST(StepCostModelTest, LearnsWhatMovesCost) {
  constexpr int64_t kState = 19 << 20;
  const auto moving = [](const StepWork& work) {
    return Exact(work) + 0.2 * static_cast<double>(work.moved_bytes) / (1 << 20);
  };
  StepCostModel model;
  std::mt19937_64 random(7);
  const auto moved = [](StepWork work, int states) {
    work.moved_bytes = states * kState;
    return work;
  };
  for (int i = 0; i < 300; ++i) {
    const auto rows = static_cast<int32_t>(random() % 16);
    const auto tokens = static_cast<int32_t>(i % 2 == 0 && rows > 0 ? 0 : 1 + random() % 200);
    const StepWork work = moved(Work(rows, tokens), static_cast<int>(random() % 3));
    model.Observe(work, moving(work));
  }
  for (const StepWork& kind : {Work(8), Work(0, 64), Work(8, 64)}) {
    for (const int states : {0, 1, 2}) {
      const StepWork work = moved(kind, states);
      EXPECT_NEAR(model.Milliseconds(work), moving(work), 0.02 * moving(work))
          << work.decode_rows << " rows, " << work.prompt_tokens << " tokens, " << states;
    }
  }
}

TEST(StepCostModelTest, OutliersMoveNothing) {
  StepCostModel model;
  Teach(model, Exact, 300);
  const StepWork plain = Work(8);
  const StepWork mixed = Work(8, 64, 500);
  for (int i = 0; i < 5; ++i) {
    model.Observe(plain, 10 * Exact(plain));
    model.Observe(mixed, 10 * Exact(mixed));
  }
  for (const double none : {0.0, -5.0, std::nan("")}) model.Observe(mixed, none);
  EXPECT_NEAR(model.Milliseconds(plain), Exact(plain), 0.03 * Exact(plain));
  EXPECT_NEAR(model.Milliseconds(mixed), Exact(mixed), 0.03 * Exact(mixed));

  // One in three, for as long as the window is, and slow steps only.
  std::mt19937_64 random(5);
  Teach(
      model, [&](const StepWork& work) { return Exact(work) * (random() % 3 == 0 ? 10 : 1); }, 400);
  EXPECT_NEAR(model.Milliseconds(mixed), Exact(mixed), 0.1 * Exact(mixed));
}

// Nothing of the old device is left, whichever is the faster one.
TEST(StepCostModelTest, AChangeOfTheDeviceIsKnownWithinAWindow) {
  for (const double factor : {0.2, 0.7, 1.5, 6.0}) {
    StepCostModel model;
    Teach(model, Exact, 300);
    const auto changed = [&](const StepWork& work) {
      return factor * (Exact(work) + (work.prompt_tokens > 0 ? 5 : 0));
    };
    Teach(model, changed, 3 * WindowFit::kWindow, /*seed=*/2);  // of which 54 are mixed
    for (const StepWork& work : {Work(8), Work(8, 64, 500)}) {
      EXPECT_NEAR(model.Milliseconds(work), changed(work), 0.03 * changed(work)) << factor;
    }
  }
}

TEST(StepCostModelTest, AsksForVarietyWhereStepsAreAlike) {
  StepCostModel model;
  for (int i = 0; i < 48; ++i) model.Observe(Work(8, 64), 10);
  EXPECT_TRUE(model.NeedsVariety());
  for (int i = 0; i < 4; ++i) model.Observe(Work(8, 20), 10);
  EXPECT_FALSE(model.NeedsVariety());
}

}  // namespace
}  // namespace millrace
