// Groups of layers with windows: what is released, found again, and counted.
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/scheduler.h"
#include "scheduler/scheduler_script_test_util.h"

namespace millrace {
namespace {

SchedulerOptions WithGroups(SchedulerOptions options, std::vector<StateGroup> groups,
                            std::vector<int32_t> blocks) {
  options.limits.state.groups = std::move(groups);
  options.limits.num_blocks = std::move(blocks);
  return options;
}

StateGroup Pages() { return PagedState{}; }
StateGroup Window(int32_t tokens) { return PagedState{.window = tokens}; }

TEST(SchedulerWindowsTest, ALongSequenceHoldsItsWindowAlone) {
  EXPECT_TRANSCRIPT(WithGroups(SmallOptions(2, 8, 0, /*prefix_caching=*/false), {Window(6)}, {5}),
                    R"(
add A prompt=30 max=30 | ok
step                   | +A[0,8) -> no events
stats                  | running 1 waiting 0, blocks held 2 cached 0 free 3, hits 0/0, preempted 0, prefill 8 decode 0
run 32                 | A[58,59)* -> A +1 length (30 in, 0 cached, 30 out)
stats                  | running 0 waiting 0, blocks held 0 cached 0 free 5, hits 0/0, preempted 0, prefill 30 decode 29
)");
}

TEST(SchedulerWindowsTest, APromptIsCutWhereBlocksWithAWindowAreShort) {
  EXPECT_TRANSCRIPT(WithGroups(SmallOptions(2, 16, 0), {Pages(), Window(6)}, {16, 5}), R"(
add A prompt=20 max=2  | ok
add B prompt=20 max=2  | ok
plan                   | +A[0,16)
plan                   | A[16,20)*
commit                 | no events
plan                   | A[20,21)<2*
commit                 | A +1
plan                   | +B[0,12)
run 2                  | B[12,20)* -> no events
stats                  | running 1 waiting 0, blocks held 5 cached 5 free 6, hits 0/40, preempted 0, prefill 40 decode 1
)");
}

TEST(SchedulerWindowsTest, AChunkLeavesWhatOthersDecodeInto) {
  EXPECT_TRANSCRIPT(WithGroups(SmallOptions(4, 64, 0), {Pages(), Window(9)}, {64, 9}), R"(
add A prompt=8 max=20 prio=1  | ok
add B prompt=8 max=20 prio=1  | ok
plan                          | +A[0,8)*, +B[0,8)*
add P prompt=40 max=2         | ok
plan                          | A[8,9)<1*, B[8,9)<1*, +P[0,12)
commit                        | A +1, B +1
plan                          | P[12,16), A[9,10)<2*, B[9,10)<2*
commit                        | A +1, B +1
plan                          | P[16,20), A[10,11)<3*, B[10,11)<3*
commit                        | A +1, B +1
run 8                         | A[18,19)<11*, B[18,19)<11* -> A +1, B +1
stats                         | running 2 waiting 0, blocks held 10 cached 10 free 44, hits 0/56, preempted 0, prefill 56 decode 23
)");
}

TEST(SchedulerWindowsTest, TwoPromptsWithoutABlockPreemptNobody) {
  EXPECT_TRANSCRIPT(WithGroups(SmallOptions(4, 64, 0), {Pages(), Window(9)}, {64, 10}), R"(
add A prompt=8 max=20 prio=1  | ok
step                          | +A[0,8)* -> A +1
add P prompt=30 max=2         | ok
add Q prompt=30 max=2         | ok
plan                          | A[8,9)*, +P[0,28)
plan                          | P[28,30)*, A[9,10)<2*, +Q[0,16)
commit                        | A +1
plan                          | P[30,31)<3*, Q[16,24), A[10,11)<3*
run 8                         | A[17,18)<10* -> A +1
stats                         | running 1 waiting 0, blocks held 5 cached 14 free 45, hits 0/68, preempted 0, prefill 68 decode 12
)");
}

TEST(SchedulerWindowsTest, LateChoicesComputeThePromptOnce) {
  EXPECT_TRANSCRIPT(
      WithGroups(SmallOptions(2, 64, 0, /*prefix_caching=*/false), {Pages(), Window(6)}, {32, 12}),
      R"(
add X prompt=4 max=12       | ok
step                        | +X[0,4)* -> X +1
add A prompt=10 max=12      | ok
add B prompt=10 max=3 of=A  | ok
add C prompt=10 max=3 of=A  | ok
run 13                      | B[10,11)*, +C[9,10)*, 8>2, 5>4 -> B +1, C +1
step                        | B[11,12)*, C[10,11)* -> B +1 length (10 in, 0 cached, 3 out), C +1
step                        | C[11,12)* -> C +1 length (10 in, 0 cached, 3 out)
stats                       | running 0 waiting 0, blocks held 0 cached 0 free 32, hits 0/0, preempted 0, prefill 25 decode 26
)");
}

TEST(SchedulerWindowsTest, APrefixIsFoundByItsLastWindow) {
  EXPECT_TRANSCRIPT(WithGroups(SmallOptions(2, 64, 0), {Pages(), Window(6)}, {16, 8}), R"(
add A prompt=17 same=17 max=12 | ok
run 12                         | A[27,28)* -> A +1 length (17 in, 0 cached, 12 out)
add B prompt=20 same=17 max=1  | ok
step                           | +B[16,20)* -> B +1 length (20 in, 16 cached, 1 out)
add C prompt=12 same=10 max=1  | ok
step                           | +C[8,12)* -> C +1 length (12 in, 8 cached, 1 out)
stats                          | running 0 waiting 0, blocks held 0 cached 9 free 7, hits 24/49, preempted 0, prefill 25 decode 11
)");
}

TEST(SchedulerWindowsTest, APrefixWhoseWindowIsGoneIsComputedAgain) {
  EXPECT_TRANSCRIPT(WithGroups(SmallOptions(2, 64, 0), {Pages(), Window(6)}, {16, 5}), R"(
add A prompt=17 same=17 max=1  | ok
step                           | +A[0,17)* -> A +1 length (17 in, 0 cached, 1 out)
add B prompt=17 max=1          | ok
step                           | +B[0,17)* -> B +1 length (17 in, 0 cached, 1 out)
add C prompt=20 same=17 max=1  | ok
step                           | +C[0,20)* -> C +1 length (20 in, 0 cached, 1 out)
)");
}

TEST(SchedulerWindowsTest, ChoicesShareWhatTheirFirstStillHas) {
  EXPECT_TRANSCRIPT(WithGroups(SmallOptions(2, 64, 0), {Pages(), Window(6)}, {16, 8}), R"(
add A prompt=10 max=3       | ok
add B prompt=10 max=3 of=A  | ok
add C prompt=10 max=1 of=A  | ok
plan                        | +A[0,10)*
plan                        | A[10,11)<1*, +B[9,10)*, 2>3, 2>3
commit                      | A +1
run 3                       | +C[9,10)*, 3>4, 3>4 -> B +1 length (10 in, 0 cached, 3 out)
)");
}

TEST(SchedulerWindowsTest, StateAtASlotIsComputedByEachSequence) {
  EXPECT_TRANSCRIPT(WithGroups(SmallOptions(2, 64, 0), {Pages(), SlotState{}}, {16, 0}), R"(
add A prompt=10 max=3         | ok
add B prompt=10 max=3 of=A    | ok
plan                          | +A[0,10)*, +B[0,10)*
run 3                         | nothing -> A +1 length (10 in, 0 cached, 3 out), B +1 length (10 in, 0 cached, 3 out)
add C prompt=10 same=10 max=1 | ok
step                          | +C[0,10)* -> C +1 length (10 in, 0 cached, 1 out)
)");
}

TEST(SchedulerWindowsTest, WhatFitsIsCountedByGroup) {
  StepLimits limits = WithGroups(SmallOptions(2, 16, 0), {Pages(), Window(6)}, {8, 3}).limits;
  EXPECT_TRUE(CheckFits(32, 1, limits).ok());
  EXPECT_EQ(CheckFits(33, 1, limits).message(),
            "the prompt of 33 tokens and 1 more need 9 blocks of the KV cache, but it has 8");
  EXPECT_EQ(MaxNewTokens(30, limits), 3);
  limits.num_blocks = {16, 3};
  EXPECT_EQ(MaxNewTokens(30, limits), 34);  // to the model's length
  limits.num_blocks = {16, 2};
  EXPECT_EQ(CheckFits(9, 1, limits).message(),
            "the prompt of 9 tokens and 1 more need 3 blocks of the KV cache for windows of 6, but "
            "it has 2");
}

TEST(SchedulerWindowsTest, ALayoutThatCannotBeServedIsRefused) {
  const auto error = [](std::vector<StateGroup> groups, std::vector<int32_t> blocks) {
    const absl::Status status =
        Scheduler::Create(WithGroups(SmallOptions(2, 16, 0), std::move(groups), std::move(blocks)))
            .status();
    return std::string(status.message());
  };
  EXPECT_EQ(error({SlotState{}}, {0}), "state: has no paged group");
  EXPECT_EQ(error({Pages(), Window(4)}, {8}), "num_blocks: has 1 groups, the state 2");
  EXPECT_EQ(error({Window(0)}, {8}), "window: is 0, must be at least 1");
}

}  // namespace
}  // namespace millrace
