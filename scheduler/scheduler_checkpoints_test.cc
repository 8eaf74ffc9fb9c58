// State at slots: where it is copied, and what begins from a copy.
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/scheduler.h"
#include "scheduler/scheduler_script_test_util.h"

namespace millrace {
namespace {

// Blocks of four tokens, and so many checkpoints.
SchedulerOptions WithStates(int32_t slots, int32_t budget, int32_t checkpoints,
                            int32_t distance = 1024) {
  SchedulerOptions options = SmallOptions(slots, budget, 0);
  options.limits.state.groups = {PagedState{}, SlotState{}};
  options.limits.num_blocks = {64, checkpoints};
  options.checkpoint_distance = distance;
  return options;
}

// The prompt is cut at its last whole block but half a block, and copied in the next plan. In the
// answer a copy replaces the one before it.
TEST(SchedulerCheckpointsTest, ATurnBeginsWhereTheOneBeforeItEnded) {
  EXPECT_TRANSCRIPT(WithStates(2, 64, 8), R"(
add A prompt=19 same=19 max=12 | ok
plan                           | +A[0,16)
plan                           | A[16,19)*, A>s0
commit                         | no events
commit A=3                     | A +1
step A=4                       | A[19,20)* -> A +1
step A=5                       | A[20,21)*, A>s1 -> A +1
step A=6                       | A[21,22)* -> A +1
step A=7                       | A[22,23)* -> A +1
stats                          | running 1 waiting 0, blocks held 6 cached 0 free 58, hits 0/19, preempted 0, prefill 19 decode 4, checkpoints 2 of 8, began 0, replayed 0
step A=8                       | A[23,24)* -> A +1
step A=9                       | A[24,25)*, A>s1 -> A +1
step A=10                      | A[25,26)* -> A +1
step A=11                      | A[26,27)* -> A +1
step A=12                      | A[27,28)* -> A +1
step A=13                      | A[28,29)*, A>s1 -> A +1
step A=14                      | A[29,30)* -> A +1 length (19 in, 0 cached, 12 out)
stats                          | running 0 waiting 0, blocks held 0 cached 7 free 57, hits 0/19, preempted 0, prefill 19 decode 11, checkpoints 2 of 8, began 0, replayed 0
add B prompt=35 same=35 max=1  | ok
plan                           | +B[28,32), s1>B
plan                           | B[32,35)*, B>s2
stats                          | running 1 waiting 0, blocks held 9 cached 0 free 55, hits 28/54, preempted 0, prefill 26 decode 11, checkpoints 2 of 8, began 1, replayed 0
)");
}

// Prompts that leave a common prefix: the second one notes where.
TEST(SchedulerCheckpointsTest, APrefixThatIsSharedGetsACheckpoint) {
  EXPECT_TRANSCRIPT(WithStates(1, 64, 8), R"(
add A prompt=40 same=24 max=1 | ok
run 2                         | A[36,40)*, A>s0 -> A +1 length (40 in, 0 cached, 1 out)
add B prompt=40 same=24 max=1 | ok
step                          | +B[0,24) -> no events
step                          | B[24,36), B>s1 -> no events
step                          | B[36,40)*, B>s2 -> B +1 length (40 in, 0 cached, 1 out)
add C prompt=40 same=24 max=1 | ok
step                          | +C[24,36), s1>C -> no events
step                          | C[36,40)*, C>s3 -> C +1 length (40 in, 24 cached, 1 out)
stats                         | running 0 waiting 0, blocks held 0 cached 18 free 46, hits 24/120, preempted 0, prefill 96 decode 0, checkpoints 4 of 8, began 1, replayed 24
)");
}

// Prompts that come together: the second waits for the first one's checkpoint where they part.
TEST(SchedulerCheckpointsTest, APromptWaitsForABeginningThatAnotherComputes) {
  EXPECT_TRANSCRIPT(WithStates(3, 64, 8, /*distance=*/8), R"(
add A prompt=40 same=24 max=1 | ok
add B prompt=40 same=24 max=1 | ok
add C prompt=20 max=1         | ok
step                          | +A[0,8), +C[0,8) -> no events
step                          | A[8,16), C[8,16), A>s0, C>s1 -> no events
step                          | A[16,24), C[16,20)*, A>s2, C>s3 -> C +1 length (20 in, 0 cached, 1 out)
step                          | A[24,36), A>s4 -> no events
step                          | A[36,40)*, +B[24,36), s4>B, A>s5 -> A +1 length (40 in, 0 cached, 1 out)
step                          | B[36,40)*, B>s6 -> B +1 length (40 in, 24 cached, 1 out)
stats                         | running 0 waiting 0, blocks held 0 cached 19 free 45, hits 24/100, preempted 0, prefill 76 decode 0, checkpoints 7 of 8, began 1, replayed 0
)");
}

// Not for one that ends before it comes so far.
TEST(SchedulerCheckpointsTest, APromptWaitsNoLongerThanTheOtherRuns) {
  EXPECT_TRANSCRIPT(WithStates(2, 64, 8, /*distance=*/8), R"(
add A prompt=40 same=24 max=1 | ok
add B prompt=40 same=24 max=1 | ok
step                          | +A[0,8) -> no events
cancel A                      | A cancelled (40 in, 0 cached, 0 out)
step                          | +B[0,8) -> no events
)");
}

// A's row was cut at 24, where B waits. The next plan copies the state there, though C, which waits
// at 40, has come.
TEST(SchedulerCheckpointsTest, ACheckpointThatIsDueIsNotForgottenForALaterOne) {
  EXPECT_TRANSCRIPT(WithStates(3, 64, 8, /*distance=*/16), R"(
add A prompt=60 same=40 max=1 | ok
add B prompt=60 same=24 max=1 | ok
step                          | +A[0,16) -> no events
add C prompt=60 same=40 max=1 | ok
step                          | A[16,24), A>s0 -> no events
step                          | A[24,32), A>s1 -> no events
step                          | A[32,40), +B[24,32), s1>B, A>s2 -> no events
step                          | A[40,48), B[32,48), A>s3, B>s4 -> no events
step                          | A[48,56), B[48,56), +C[40,48), s3>C, A>s5, B>s6 -> no events
)");
}

// Beside another tenant, prompts are admitted before rows are planned: that A's state is to be
// copied where its rows have come, for B, is known in time.
TEST(SchedulerCheckpointsTest, APromptOfATenantWaitsForACopyOfThisStep) {
  EXPECT_TRANSCRIPT(WithStates(4, 25, 8, /*distance=*/32), R"(
add X prompt=3 max=20 tenant=2         | ok
step                                   | +X[0,3)* -> X +1
add A prompt=60 same=24 max=1 tenant=1 | ok
step                                   | X[3,4)*, +A[0,24) -> X +1
add B prompt=60 same=24 max=1 tenant=1 | ok
step                                   | X[4,5)*, A[24,32), X>s0, A>s1 -> X +1
step                                   | X[5,6)*, A[32,56), A>s2 -> X +1
step                                   | X[6,7)*, A[56,60)*, +B[24,32), s1>B, A>s3 -> X +1, A +1 length (60 in, 0 cached, 1 out)
)");
}

// D is a choice of C's prompt, and comes up when B has begun to wait for A.
TEST(SchedulerCheckpointsTest, AChoiceWaitsBehindAPromptThatWaits) {
  EXPECT_TRANSCRIPT(WithStates(8, 64, 8, /*distance=*/16), R"(
add X prompt=3 max=20 tenant=2         | ok
add A prompt=60 same=24 max=1 tenant=1 | ok
add C prompt=60 max=1 tenant=1         | ok
step                                   | +X[0,3)*, +A[0,16), +C[0,16) -> X +1
add B prompt=60 same=24 max=1 tenant=1 | ok
add D prompt=60 max=1 of=C tenant=1    | ok
step                                   | X[3,4)*, A[16,24), C[16,32), A>s0, C>s1 -> X +1
)");
}

// B's tenant was served less than A's, whose rows come behind.
TEST(SchedulerCheckpointsTest, APromptDoesNotWaitForATenantThatWasServedMore) {
  EXPECT_TRANSCRIPT(WithStates(3, 64, 8, /*distance=*/8), R"(
add A prompt=40 same=24 max=1 tenant=1 | ok
step                                   | +A[0,8) -> no events
add B prompt=40 same=24 max=1 tenant=2 | ok
step                                   | A[8,16), +B[0,8), A>s0 -> no events
)");
}

TEST(SchedulerCheckpointsTest, PromptsThatShareNothingDoNotWait) {
  EXPECT_TRANSCRIPT(WithStates(2, 64, 8, /*distance=*/1), R"(
add A prompt=20 max=1 | ok
add B prompt=20 max=1 | ok
step                  | +A[0,4), +B[0,4) -> no events
)");
}

// The only place has a checkpoint of more worth: A's and B's copies find none. C and D have waited
// for both, and go on together.
TEST(SchedulerCheckpointsTest, PromptsWaitTwiceAtTheMost) {
  EXPECT_TRANSCRIPT(WithStates(5, 64, 1, /*distance=*/16), R"(
add X prompt=60 max=1         | ok
run 9                         | nothing -> nothing in flight
add A prompt=30 same=16 max=9 | ok
add B prompt=30 same=16 max=9 | ok
add C prompt=30 same=16 max=9 | ok
add D prompt=30 same=16 max=9 | ok
step                          | +A[0,16) -> no events
step                          | A[16,28) -> no events
step                          | A[28,30)*, +B[0,16) -> A +1
step                          | A[30,31)*, B[16,28) -> A +1
step                          | A[31,32)*, B[28,30)*, +C[0,16), +D[0,16), B>s0 -> A +1, B +1
)");
}

TEST(SchedulerCheckpointsTest, ALongPromptGetsMoreAtGrowingDistances) {
  EXPECT_TRANSCRIPT(WithStates(1, 64, 8, /*distance=*/8), R"(
add A prompt=60 max=1 | ok
step                  | +A[0,8) -> no events
step                  | A[8,16), A>s0 -> no events
step                  | A[16,24), A>s1 -> no events
step                  | A[24,36), A>s2 -> no events
step                  | A[36,56), A>s3 -> no events
step                  | A[56,60)*, A>s4 -> A +1 length (60 in, 0 cached, 1 out)
step                  | nothing -> nothing in flight
)");
}

TEST(SchedulerCheckpointsTest, ChoicesWaitForTheirPromptsCheckpoint) {
  EXPECT_TRANSCRIPT(WithStates(4, 64, 8), R"(
add A prompt=18 max=3       | ok
add B prompt=18 max=3 of=A  | ok
add C prompt=18 max=2 of=A  | ok
plan                        | +A[0,16)
plan                        | A[16,18)*, A>s0
commit                      | no events
plan                        | A[18,19)<2*
commit                      | A +1
plan                        | A[19,20)<3*, +B[16,18)*, +C[16,18)*, s0>B, s0>C
commit                      | A +1
run 3                       | nothing -> B +1 length (18 in, 0 cached, 3 out)
stats                       | running 0 waiting 0, blocks held 0 cached 5 free 59, hits 0/18, preempted 0, prefill 22 decode 5, checkpoints 2 of 8, began 2, replayed 0
)");
}

// The only place has a checkpoint of more worth. The first choice's state finds none, so that the
// next two do not wait for one another; one of theirs does, and the last begins from it.
TEST(SchedulerCheckpointsTest, ChoicesBeginTogetherWhereTheirPromptsCheckpointIsRefused) {
  EXPECT_TRANSCRIPT(WithStates(4, 64, 1), R"(
add X prompt=40 max=1       | ok
run 2                       | X[36,40)*, X>s0 -> X +1 length (40 in, 0 cached, 1 out)
add A prompt=18 max=3       | ok
add B prompt=18 max=3 of=A  | ok
add C prompt=18 max=3 of=A  | ok
add D prompt=18 max=3 of=A  | ok
step                        | +A[0,16) -> no events
step                        | A[16,18)* -> A +1
step                        | A[18,19)*, +B[0,16), +C[0,16) -> A +1
step                        | A[19,20)*, B[16,18)*, C[16,18)*, C>s0 -> A +1 length (18 in, 0 cached, 3 out), B +1, C +1
)");
}

// A prompt of less than a block has none to wait for.
TEST(SchedulerCheckpointsTest, ChoicesOfAShortPromptBeginAtOnce) {
  EXPECT_TRANSCRIPT(WithStates(4, 64, 8), R"(
add A prompt=3 max=2       | ok
add B prompt=3 max=2 of=A  | ok
plan                       | +A[0,3)*, +B[0,3)*
)");
}

// A copy whose step failed or was not committed is no checkpoint.
TEST(SchedulerCheckpointsTest, AFailedSequencesCheckpointsAreWithdrawn) {
  EXPECT_TRANSCRIPT(WithStates(1, 64, 8), R"(
add A prompt=19 same=19 max=8 | ok
plan                          | +A[0,16)
plan                          | A[16,19)*, A>s0
commit                        | no events
commit fail=A                 | A failed (19 in, 0 cached, 0 out)
stats                         | running 0 waiting 0, blocks held 0 cached 0 free 64, hits 0/19, preempted 0, prefill 19 decode 0, checkpoints 0 of 8, began 0, replayed 0
add B prompt=19 same=19 max=1 | ok
plan                          | +B[0,16)
plan                          | B[16,19)*, B>s0
commit fail=step              | B failed (19 in, 0 cached, 0 out)
stats                         | running 0 waiting 0, blocks held 0 cached 0 free 64, hits 0/38, preempted 0, prefill 38 decode 0, checkpoints 0 of 8, began 0, replayed 0
commit                        | no events
)");
}

// It may still be wrong when its copy is made.
TEST(SchedulerCheckpointsTest, ACancelledSequencesLastCopyIsDropped) {
  EXPECT_TRANSCRIPT(WithStates(1, 64, 8), R"(
add A prompt=19 max=8 | ok
plan                  | +A[0,16)
plan                  | A[16,19)*, A>s0
cancel A              | A cancelled (19 in, 0 cached, 0 out)
commit                | no events
commit                | no events
stats                 | running 0 waiting 0, blocks held 0 cached 0 free 64, hits 0/19, preempted 0, prefill 19 decode 0, checkpoints 0 of 8, began 0, replayed 0
)");
}

// A preempted sequence goes on from its last checkpoint.
TEST(SchedulerCheckpointsTest, APreemptedSequenceBeginsFromItsAnswersCheckpoint) {
  SchedulerOptions options = WithStates(2, 64, 8);
  options.limits.num_blocks[0] = 10;
  EXPECT_TRANSCRIPT(options, R"(
add A prompt=11 max=20        | ok
add B prompt=11 max=20 prio=1 | ok
run 11                        | A[19,20)*, B[19,20)* -> A +1, B +1
stats                         | running 2 waiting 0, blocks held 10 cached 0 free 0, hits 0/22, preempted 0, prefill 22 decode 18, checkpoints 4 of 8, began 0, replayed 0
run 4                         | A[23,24)* -> A +1
stats                         | running 1 waiting 1, blocks held 6 cached 4 free 0, hits 0/22, preempted 1, prefill 22 decode 22, checkpoints 4 of 8, began 0, replayed 0
run 8                         | B[21,22)* -> B +1
stats                         | running 1 waiting 0, blocks held 6 cached 4 free 0, hits 0/22, preempted 1, prefill 35 decode 29, checkpoints 4 of 8, began 1, replayed 0
run 12                        | nothing -> nothing in flight
stats                         | running 0 waiting 0, blocks held 0 cached 9 free 1, hits 0/22, preempted 1, prefill 35 decode 37, checkpoints 5 of 8, began 1, replayed 0
)");
}

}  // namespace
}  // namespace millrace
