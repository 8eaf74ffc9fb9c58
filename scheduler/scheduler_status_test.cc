#include "scheduler/scheduler_status.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "scheduler/block_hash.h"
#include "scheduler/scheduler.h"
#include "scheduler/scheduler_script_test_util.h"

namespace millrace {
namespace {

SequenceRequest Request(SequenceId id, int prompt, int max_tokens, int32_t priority = 0) {
  SequenceRequest request;
  request.id = id;
  request.prompt.assign(prompt, 1);
  request.priority = priority;
  request.stop.max_tokens = max_tokens;
  request.sampling = std::make_shared<const SamplingParams>();
  return request;
}

TEST(SchedulerStatusTest, TellsWhatRunsAndThenWhatWaits) {
  auto scheduler = *Scheduler::Create(SmallOptions(2, 4, 8, false));
  ASSERT_TRUE(scheduler->Add(Request(1, 6, 9)).ok());
  ASSERT_TRUE(scheduler->Add(Request(2, 3, 5, /*priority=*/7)).ok());
  ASSERT_TRUE(scheduler->Add(Request(3, 3, 5)).ok());
  ASSERT_TRUE(scheduler->Plan(SteadyTime()).has_value());

  const SchedulerStatus status = scheduler->Status(100, 100);
  ASSERT_EQ(status.sequences.size(), 3u);
  EXPECT_EQ(status.sequences[0].id, 1u);
  EXPECT_TRUE(status.sequences[0].running);
  EXPECT_EQ(status.sequences[0].prompt_tokens, 6);
  EXPECT_EQ(status.sequences[0].computed_tokens, 4);  // a step's budget
  EXPECT_EQ(status.sequences[0].max_tokens, 9);
  EXPECT_GT(status.sequences[0].blocks, 0);
  EXPECT_EQ(status.sequences[1].id, 3u);  // ranks before the one that came earlier
  EXPECT_FALSE(status.sequences[1].running);
  EXPECT_EQ(status.sequences[2].priority, 7);
  EXPECT_EQ(scheduler->Status(2, 1).sequences.size(), 2u);
  EXPECT_TRUE(scheduler->Status(0, 1).sequences.empty());
}

// The second prompt is that of the first, which computes it.
TEST(SchedulerStatusTest, TellsWhatWaitsForAPrefix) {
  SchedulerOptions options = SmallOptions(2, 16, 0);
  options.limits.state.groups = {PagedState{}, SlotState{}};
  options.limits.num_blocks = {64, 8};
  options.checkpoint_distance = 8;
  auto scheduler = *Scheduler::Create(options);
  for (const SequenceId id : {1, 2}) {
    SequenceRequest request = Request(id, 40, 1);
    request.prompt_hashes = HashPrompt({}, request.prompt, options.limits.block_size());
    ASSERT_TRUE(scheduler->Add(std::move(request)).ok());
  }
  ASSERT_TRUE(scheduler->Plan(SteadyTime()).has_value());

  const SchedulerStatus status = scheduler->Status(100, 1);
  EXPECT_EQ(scheduler->stats().num_waiting, 1);
  ASSERT_EQ(status.sequences.size(), 2u);
  EXPECT_EQ(status.sequences[1].id, 2u);
  EXPECT_FALSE(status.sequences[1].running);
  EXPECT_EQ(scheduler->Status(1, 1).sequences.size(), 1u);
}

TEST(SchedulerStatusTest, CellsHoldEveryBlockOnce) {
  auto scheduler = *Scheduler::Create(SmallOptions(2, 4, 8, false));
  ASSERT_TRUE(scheduler->Add(Request(1, 6, 9)).ok());
  ASSERT_TRUE(scheduler->Plan(SteadyTime()).has_value());
  for (const int32_t most : {1, 3, 8, 100}) {
    const SchedulerStatus status = scheduler->Status(0, most);
    EXPECT_EQ(status.cells.size(), static_cast<size_t>(std::min(most, 8)));
    int32_t blocks = 0;
    int32_t held = 0;
    for (const KvCell& cell : status.cells) {
      EXPECT_GT(cell.blocks, 0);
      EXPECT_LE(cell.held + cell.cached, cell.blocks);
      blocks += cell.blocks;
      held += cell.held;
    }
    EXPECT_EQ(blocks, 8);
    EXPECT_EQ(held, scheduler->stats().blocks_held);
  }
}

}  // namespace
}  // namespace millrace
