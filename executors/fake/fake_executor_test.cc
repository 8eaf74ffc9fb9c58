#include "executors/fake/fake_executor.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <utility>

#include "base/fault_points.h"
#include "executors/executor_driver_test_util.h"
#include "executors/factory.h"
#include "executors/mask_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

class FakeExecutorTest : public ::testing::Test {
 protected:
  void SetUp() override { Load({{.max_num_seqs = 8}}); }
  void TearDown() override { DisarmFaultPoints(); }

  void Load(const FakeSpec& device) {
    auto loaded = LoadExecutor({}, device);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    executor_ = *std::move(loaded);
  }

  std::unique_ptr<Executor> executor_;
};

TEST_F(FakeExecutorTest, SamplesWhatFakeTokenSays) {
  ExecutorDriver driver(*executor_);
  const SamplingParams sampling{.seed = 77, .sample_index = 2};
  const SlotId slot = driver.Add({65, 66, 67}, sampling);
  driver.Generate({slot}, 40, 2);
  const std::vector<Token>& tokens = driver.tokens(slot);
  ASSERT_EQ(tokens.size(), 43);
  for (int i = 3; i < 43; ++i) {
    EXPECT_EQ(tokens[i], FakeToken(sampling, i, tokens[i - 1])) << i;
    EXPECT_GE(tokens[i], ' ');
    EXPECT_LE(tokens[i], '~');
  }
  EXPECT_GT(std::set<Token>(tokens.begin() + 3, tokens.end()).size(), 10);
}

TEST_F(FakeExecutorTest, EachStepHasItsOwnMasks) {
  for (const bool late : {false, true}) {
    SetUp();
    ExpectMasksAreTheStepsOwn(*executor_, late);
  }
}

TEST_F(FakeExecutorTest, TokensFollowSeedIndexAndTemperature) {
  const auto token = [](const SamplingParams& sampling) {
    std::vector<Token> tokens;
    for (int i = 0; i < 8; ++i) tokens.push_back(FakeToken(sampling, i, 50));
    return tokens;
  };
  EXPECT_NE(token({.seed = 1}), token({.seed = 2}));
  EXPECT_NE(token({.seed = 1}), token({.seed = 1, .sample_index = 1}));
  EXPECT_EQ(token({.temperature = 0, .seed = 1}), token({.temperature = 0, .seed = 2}));
  const Token banned = FakeToken({.seed = 1}, 3, 50);
  EXPECT_NE(FakeToken({.seed = 1, .banned_tokens = {banned}, .banned_before = 4}, 3, 50), banned);
  EXPECT_EQ(FakeToken({.seed = 1, .banned_tokens = {banned}, .banned_before = 3}, 3, 50), banned);
}

TEST_F(FakeExecutorTest, LogprobsAreADistributions) {
  ExecutorDriver driver(*executor_);
  const SlotId slot = driver.Add({65, 66, 67}, {.temperature = 0, .top_logprobs = 20});
  const StepResult result = driver.Step({{slot, 3}}, 1);
  ASSERT_EQ(result.tokens.size(), 3);
  for (const TokenResult& token : result.tokens) {
    ASSERT_EQ(token.top.size(), 20);
    EXPECT_LT(*token.logprob, 0);
    EXPECT_GE(token.rank, 1);
    for (int i = token.top.begin + 1; i < token.top.end; ++i) {
      EXPECT_LE(result.top[i].logprob, result.top[i - 1].logprob);
    }
    const auto likelier =
        std::count_if(result.top.begin() + token.top.begin, result.top.begin() + token.top.end,
                      [&](const TokenLogprob& other) { return other.logprob > *token.logprob; });
    EXPECT_EQ(likelier, std::min(token.rank - 1, token.top.size()));
  }
  const TokenResult& sampled = result.tokens[2];
  EXPECT_EQ(sampled.rank, 1);
  EXPECT_EQ(result.top[sampled.top.begin].token, sampled.token);
  EXPECT_EQ(result.top[sampled.top.begin].logprob, *sampled.logprob);
}

TEST(FakeStepTimeTest, HasAFixedCostAndStairsWhereThereIsAPrompt) {
  using std::chrono::microseconds;
  const FakeSpec device{{},
                        /*step_us=*/2000,
                        /*token_us=*/10,
                        /*answer=*/"",
                        /*prompt_us=*/4000,
                        /*token_tile=*/128};
  StepPlan plan;
  plan.rows = {{.slot = 0, .start = 7, .num_tokens = 1}, {.slot = 1, .start = 9, .num_tokens = 1}};
  EXPECT_EQ(FakeStepTime(device, plan), microseconds(2000 + 2 * 10));
  for (const auto& [tokens, tiles] : {std::pair(2, 1), {126, 1}, {127, 2}, {512, 5}}) {
    StepPlan mixed;
    mixed.rows = plan.rows;
    mixed.rows.push_back({.slot = 2, .start = 0, .num_tokens = tokens});
    EXPECT_EQ(FakeStepTime(device, mixed), microseconds(2000 + 4000 + tiles * 1280)) << tokens;
    EXPECT_EQ(FakeStepTime(FakeSpec{{}, 2000, 10}, mixed), microseconds(2000 + (tokens + 2) * 10));
  }
}

TEST_F(FakeExecutorTest, TakesTheStatedTime) {
  Load({{.max_num_seqs = 8}, /*step_us=*/2000, /*token_us=*/100});
  ExecutorDriver driver(*executor_);
  const SlotId slot = driver.Add(std::vector<Token>(30, 65), {});
  const auto begin = std::chrono::steady_clock::now();
  driver.Generate({slot}, 11, 30);  // 11 steps and 40 tokens
  EXPECT_GE(std::chrono::steady_clock::now() - begin,
            std::chrono::microseconds(11 * 2000 + 40 * 100));
}

TEST_F(FakeExecutorTest, ARowFailsAloneAndWhatFollowsFromItToo) {
  ASSERT_TRUE(ArmFaultPoints("fake.row_error").ok());
  StepPlan plan;
  plan.id = 1;
  plan.tokens = {1, 2};
  plan.blocks = {0, 1};
  plan.logits = {{.offset = 0}, {.offset = 0}};
  for (const SlotId slot : {0, 1}) {
    plan.starts.push_back({slot, std::make_shared<SamplingParams>()});
    plan.rows.push_back({.slot = slot,
                         .start = 0,
                         .num_tokens = 1,
                         .tokens = {slot, slot + 1},
                         .blocks = {slot, slot + 1},
                         .logits = {slot, slot + 1}});
  }
  StepPlan next;
  next.id = 2;
  next.logits = {{.offset = 0}, {.offset = 0}};
  for (const SlotId slot : {0, 1}) {
    next.rows.push_back(
        {.slot = slot, .start = 1, .num_tokens = 1, .sampled_by = 1, .logits = {slot, slot + 1}});
  }
  ASSERT_TRUE(executor_->Submit(plan).ok());
  ASSERT_TRUE(executor_->Submit(next).ok());
  for (int i = 0; i < 2; ++i) {
    const std::optional<StepResult> result = executor_->Wait();
    ASSERT_TRUE(result->status.ok());
    EXPECT_EQ(result->rows[0].status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(result->rows[0].tokens.size(), 0);
    EXPECT_TRUE(result->rows[1].status.ok());
    EXPECT_EQ(result->rows[1].tokens.size(), 1);
  }
}

TEST_F(FakeExecutorTest, AFailedDeviceStaysFailed) {
  ASSERT_TRUE(ArmFaultPoints("fake.device_error").ok());
  StepPlan plan;
  plan.id = 1;
  ASSERT_TRUE(executor_->Submit(plan).ok());
  EXPECT_EQ(executor_->Wait()->status.code(), absl::StatusCode::kUnavailable);
  plan.id = 2;
  EXPECT_EQ(executor_->Submit(plan).code(), absl::StatusCode::kUnavailable);
}

TEST_F(FakeExecutorTest, AHangEndsWhenItsPointIsDisarmed) {
  ASSERT_TRUE(ArmFaultPoints("fake.hang=1000000").ok());
  StepPlan plan;
  plan.id = 1;
  ASSERT_TRUE(executor_->Submit(plan).ok());
  EXPECT_FALSE(executor_->Poll().has_value());
  DisarmFaultPoints();
  EXPECT_TRUE(executor_->Wait()->status.ok());
}

TEST_F(FakeExecutorTest, RefusesPlansThatBreakTheContract) {
  StepPlan plan;
  plan.id = 1;
  plan.starts = {{.slot = 0, .sampling = std::make_shared<SamplingParams>()}};
  plan.rows = {{.slot = 0, .start = 16, .num_tokens = 1, .tokens = {0, 1}, .blocks = {0, 2}}};
  plan.tokens = {1};
  plan.blocks = {0, 1};
  EXPECT_THAT(std::string(executor_->Submit(plan).message()), HasSubstr("block 0 holds 0 tokens"));
}

TEST_F(FakeExecutorTest, RefusesAnArenaWithoutABlock) {
  EXPECT_FALSE(LoadExecutor({}, FakeSpec{{.kv_cache_memory = 100}}).ok());
  EXPECT_THAT(std::string(LoadExecutor({}, CudaSpec{}).status().message()), HasSubstr("cuda"));
}

}  // namespace
}  // namespace millrace
