// What the scheduler says of the blocks that its prefix cache stores and evicts.
#include "scheduler/block_events.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/model_executor_test_util.h"
#include "scheduler/scheduler.h"
#include "scheduler/scheduler_script_test_util.h"

namespace millrace {
namespace {

constexpr int32_t kBlock = 4;
const BlockHash kRoot = CacheRoot({"the model"});

class BlockEventsTest : public testing::Test {
 protected:
  void Begin(int32_t blocks, std::vector<StateGroup> groups = {PagedState{}}) {
    SchedulerOptions options = SmallOptions(/*slots=*/2, /*budget=*/64, blocks);
    options.block_events = true;
    options.limits.num_blocks.assign(groups.size(), blocks);
    options.limits.state.groups = std::move(groups);
    scheduler_ = *Scheduler::Create(options);
    executor_ = std::make_unique<ModelExecutor>(options.limits);
  }

  // Serves a prompt, and returns what came of the cache. `fault`: its first row fails.
  std::vector<BlockEvent> Serve(std::vector<Token> prompt, int32_t max_tokens,
                                const std::string& salt = "", bool fault = false) {
    SequenceRequest request{.id = ++id_};
    request.prompt_hashes = HashPrompt(kRoot, prompt, kBlock);
    request.prompt_hashes.salt = salt;
    request.prompt = std::move(prompt);
    request.sampling = std::make_shared<SamplingParams>();
    request.stop.max_tokens = max_tokens;
    EXPECT_TRUE(scheduler_->Add(std::move(request)).ok());
    std::vector<TokenEvent> events;
    while (scheduler_->HasWork()) {
      while (std::optional<StepPlan> plan = scheduler_->Plan({})) {
        EXPECT_TRUE(executor_->Submit(*std::move(plan)).ok());
      }
      ModelExecutor::Script script;
      if (fault) script.fault = [](const StepRow&) { return ModelExecutor::Fault::kRow; };
      EXPECT_TRUE(scheduler_->Commit(executor_->Run(script), {}, &events).ok());
    }
    return scheduler_->TakeBlockEvents();
  }

  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<ModelExecutor> executor_;
  SequenceId id_ = 0;
};

TEST_F(BlockEventsTest, FullBlocksOfPromptsAndAnswersAreStoredInTheirOrder) {
  Begin(/*blocks=*/8);
  const std::vector<Token> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const std::vector<BlockEvent> events = Serve(prompt, /*max_tokens=*/3, "a salt");
  ASSERT_EQ(events.size(), 3u);
  const BlockHashes hashes = HashPrompt(kRoot, prompt, kBlock);
  EXPECT_EQ(events[0].hash, hashes.blocks[0]);
  EXPECT_EQ(events[0].parent, kRoot);
  EXPECT_EQ(events[0].tokens, (std::vector<Token>{1, 2, 3, 4}));
  EXPECT_EQ(events[0].salt, "a salt");
  EXPECT_EQ(events[1].hash, hashes.blocks[1]);
  EXPECT_EQ(events[1].parent, hashes.blocks[0]);
  EXPECT_EQ(events[1].tokens, (std::vector<Token>{5, 6, 7, 8}));
  EXPECT_EQ(events[1].salt, "");
  EXPECT_EQ(events[2].parent, hashes.blocks[1]);  // with two tokens of the answer
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(events[i].stored);
    EXPECT_EQ(events[i].place, i);
  }
  // What is found again is stored no second time.
  EXPECT_TRUE(Serve(prompt, 1).empty());
}

TEST_F(BlockEventsTest, AnEvictedBlockIsRemovedBeforeWhatTakesItsPlaceIsStored) {
  Begin(/*blocks=*/3);
  const std::vector<Token> first = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(Serve(first, 1).size(), 2u);
  const std::vector<BlockEvent> events = Serve({11, 12, 13, 14, 15, 16, 17, 18, 19}, 1);
  const BlockHashes hashes = HashPrompt(kRoot, first, kBlock);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_FALSE(events[0].stored);
  EXPECT_EQ(events[0].hash, hashes.blocks[1]);  // the tail goes first
  EXPECT_FALSE(events[1].stored);
  EXPECT_EQ(events[1].hash, hashes.blocks[0]);
  EXPECT_TRUE(events[2].stored && events[3].stored);
}

TEST_F(BlockEventsTest, TheBlocksOfAFailedSequenceAreRemoved) {
  Begin(/*blocks=*/8);
  const std::vector<Token> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(Serve(prompt, 1).size(), 2u);
  const std::vector<BlockEvent> events = Serve(prompt, 1, "", /*fault=*/true);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_FALSE(events[0].stored || events[1].stored);
}

TEST_F(BlockEventsTest, EachGroupHasEventsOfItsOwn) {
  Begin(/*blocks=*/8, {PagedState{.window = 6}, SlotState{}, PagedState{}});
  const std::vector<BlockEvent> events = Serve({1, 2, 3, 4, 5}, 1);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].group, 0);
  EXPECT_EQ(events[1].group, 2);
  EXPECT_EQ(events[0].hash, events[1].hash);
}

TEST_F(BlockEventsTest, WithoutTheOptionThereAreNone) {
  const SchedulerOptions options = SmallOptions(2, 64, 8);
  scheduler_ = *Scheduler::Create(options);
  executor_ = std::make_unique<ModelExecutor>(options.limits);
  EXPECT_TRUE(Serve({1, 2, 3, 4, 5, 6, 7, 8, 9}, 3).empty());
}

}  // namespace
}  // namespace millrace
