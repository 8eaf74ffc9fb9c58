// Each policy as a transcript (see scheduler_script_test_util.h).
#include "scheduler/scheduler.h"

#include "gtest/gtest.h"
#include "scheduler/scheduler_script_test_util.h"

namespace millrace {
namespace {

// ---- Budget ----

TEST(SchedulerTest, PrefillIsCutToTheBudgetAndItsLastChunkSamples) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 8, 16), R"(
add A prompt=18 max=2      | ok
plan                       | +A[0,8)
plan                       | A[8,16)
commit                     | no events
plan                       | A[16,18)*
commit                     | no events
commit                     | A +1
)");
}

TEST(SchedulerTest, DecodeComesFirstAndPrefillFillsTheRest) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 8, 16), R"(
add A prompt=3 max=9       | ok
add B prompt=3 max=9       | ok
plan                       | +A[0,3)*, +B[0,3)*
commit                     | A +1, B +1
add C prompt=20 max=9      | ok
add D prompt=3 max=9       | ok
plan                       | A[3,4)*, B[3,4)*, +C[0,6)
commit                     | A +1, B +1
plan                       | A[4,5)*, B[4,5)*, C[6,12)
commit                     | A +1, B +1
plan                       | A[5,6)*, B[5,6)*, C[12,18)
commit                     | A +1, B +1
plan                       | A[6,7)*, B[6,7)*, C[18,20)*, +D[0,3)*
commit                     | A +1, B +1, C +1, D +1
plan                       | A[7,8)*, B[7,8)*, C[20,21)*, D[3,4)*
)");
}

TEST(SchedulerTest, SeveralPromptsShareAStepAndTheFirstComesFirst) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 8, 16), R"(
add A prompt=5 max=2       | ok
add B prompt=6 max=2       | ok
add C prompt=4 max=2       | ok
plan                       | +A[0,5)*, +B[0,3)
plan                       | A[5,6)<1*, B[3,6)*, +C[0,4)*
commit                     | A +1
plan                       | B[6,7)<2*, C[4,5)<2*
)");
}

// ---- One step ahead ----

TEST(SchedulerTest, PlansTheNextStepFromATokenNotYetSampled) {
  EXPECT_TRANSCRIPT(SmallOptions(2, 8, 16), R"(
add A prompt=3 max=5       | ok
plan                       | +A[0,3)*
plan                       | A[3,4)<1*
plan                       | nothing
commit                     | A +1
plan                       | A[4,5)<2*
commit                     | A +1
commit                     | A +1
plan                       | A[5,6)*
commit                     | A +1
)");
}

TEST(SchedulerTest, AKnownEndIsNotPlannedBeyond) {
  EXPECT_TRANSCRIPT(SmallOptions(2, 8, 16), R"(
add A prompt=3 max=1       | ok
add B prompt=2 max=2       | ok
plan                       | +A[0,3)*, +B[0,2)*
plan                       | B[2,3)<1*
plan                       | nothing
commit                     | A +1 length (3 in, 0 cached, 1 out), B +1
plan                       | nothing
commit                     | B +1 length (2 in, 0 cached, 2 out)
)");
}

TEST(SchedulerTest, AnEndFoundLateDropsTheSurplusTokenAndItsSlotIsReusedAtOnce) {
  EXPECT_TRANSCRIPT(SmallOptions(1, 8, 4), R"(
add A prompt=3 max=9 stop=7  | ok
add B prompt=9 max=1         | ok
plan                         | +A[0,3)*
plan                         | A[3,4)<1*
commit A=7                   | A +1 stop 7 (3 in, 0 cached, 1 out)
stats                        | running 0 waiting 1, blocks held 0 cached 0 free 4, hits 0/3, preempted 0, prefill 3 decode 1
plan                         | +B[0,8)
commit A=7                   | no events
commit                       | no events
commit                       | nothing in flight
plan                         | B[8,9)*
commit                       | B +1 length (9 in, 0 cached, 1 out)
stats                        | running 0 waiting 0, blocks held 0 cached 2 free 2, hits 0/12, preempted 0, prefill 12 decode 1
)");
}

TEST(SchedulerTest, TheModelsLengthAndThePoolEndASequence) {
  EXPECT_TRANSCRIPT(SmallOptions(1, 64, 16), R"(
add A prompt=63 max=9      | ok
plan                       | +A[0,63)*
plan                       | nothing
commit                     | A +1 length (63 in, 0 cached, 1 out)
)");
  EXPECT_TRANSCRIPT(SmallOptions(1, 64, 2), R"(
add A prompt=7 max=9       | ok
plan                       | +A[0,7)*
plan                       | A[7,8)<1*
plan                       | nothing
commit                     | A +1
commit                     | A +1 length (7 in, 0 cached, 2 out)
plan                       | nothing
)");
}

// ---- Admission ----

TEST(SchedulerTest, NoneOvertakesAFirstThatDoesNotFit) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 16, 6), R"(
add A prompt=8 max=2       | ok
plan                       | +A[0,8)*
add B prompt=16 max=2      | ok
add C prompt=1 max=2       | ok
plan                       | A[8,9)<1*
commit                     | A +1
commit                     | A +1 length (8 in, 0 cached, 2 out)
plan                       | +B[0,16)*
)");
}

TEST(SchedulerTest, ANewcomerNeedsTheBlocksThatRunningOnesWillWantSoon) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 16, 4), R"(
add A prompt=4 max=9       | ok
add B prompt=4 max=9       | ok
plan                       | +A[0,4)*, +B[0,4)*
commit                     | A +1, B +1
add C prompt=1 max=1       | ok
plan                       | A[4,5)*, B[4,5)*
)");
}

TEST(SchedulerTest, SlotsBoundTheRunningOnes) {
  EXPECT_TRANSCRIPT(SmallOptions(2, 16, 16), R"(
add A prompt=1 max=1       | ok
add B prompt=1 max=2       | ok
add C prompt=1 max=1       | ok
plan                       | +A[0,1)*, +B[0,1)*
plan                       | B[1,2)<1*
commit                     | A +1 length (1 in, 0 cached, 1 out), B +1
plan                       | +C[0,1)*
commit                     | B +1 length (1 in, 0 cached, 2 out)
commit                     | C +1 length (1 in, 0 cached, 1 out)
)");
}

TEST(SchedulerTest, TheLowerPriorityValueGoesFirstAndThenTheEarlier) {
  EXPECT_TRANSCRIPT(SmallOptions(1, 16, 16), R"(
add A prompt=1 max=1 prio=1  | ok
add B prompt=1 max=1 prio=1  | ok
add C prompt=1 max=1         | ok
add D prompt=1 max=1 prio=-1 | ok
plan                         | +D[0,1)*
commit                       | D +1 length (1 in, 0 cached, 1 out)
plan                         | +C[0,1)*
commit                       | C +1 length (1 in, 0 cached, 1 out)
plan                         | +A[0,1)*
commit                       | A +1 length (1 in, 0 cached, 1 out)
plan                         | +B[0,1)*
)");
}

TEST(SchedulerTest, AWaitingSequenceDoesNotPreemptWhateverItsPriority) {
  EXPECT_TRANSCRIPT(SmallOptions(1, 16, 16), R"(
add A prompt=1 max=3 prio=9  | ok
plan                         | +A[0,1)*
add B prompt=1 max=1         | ok
plan                         | A[1,2)<1*
commit                       | A +1
plan                         | A[2,3)<2*
commit                       | A +1
commit                       | A +1 length (1 in, 0 cached, 3 out)
plan                         | +B[0,1)*
)");
}

TEST(SchedulerTest, APriorityBringsItsPrefillForwardAmongTheRunning) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 8, 16), R"(
add A prompt=16 max=1 prio=1 | ok
add B prompt=3 max=1 prio=1  | ok
plan                         | +A[0,8)
add C prompt=6 max=1         | ok
plan                         | A[8,16)*
commit                       | no events
plan                         | +C[0,6)*, +B[0,2)
commit                       | A +1 length (16 in, 0 cached, 1 out)
plan                         | B[2,3)*
)");
}

// ---- Preemption ----

TEST(SchedulerTest, TheNewestIsPreemptedAndResumesWithItsTokens) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 16, 6, false), R"(
add A prompt=4 max=6       | ok
add B prompt=4 max=6       | ok
add C prompt=4 max=16      | ok
run 4                      | A[6,7)*, B[6,7)*, C[6,7)* -> A +1, B +1, C +1
step                       | A[7,8)*, B[7,8)*, C[7,8)* -> A +1, B +1, C +1
step                       | A[8,9)*, B[8,9)* -> A +1 length (4 in, 0 cached, 6 out), B +1 length (4 in, 0 cached, 6 out)
stats                      | running 0 waiting 1, blocks held 0 cached 0 free 6, hits 0/0, preempted 1, prefill 12 decode 14
step                       | +C[0,9)* -> C +1
step                       | C[9,10)* -> C +1
)");
}

TEST(SchedulerTest, TheLargestPriorityValueIsPreemptedBeforeTheNewest) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 16, 6, false), R"(
add A prompt=4 max=16      | ok
add B prompt=4 max=16 prio=1 | ok
add C prompt=4 max=16      | ok
run 5                      | A[7,8)*, C[7,8)*, B[7,8)* -> A +1, C +1, B +1
step                       | A[8,9)*, C[8,9)* -> A +1, C +1
)");
}

TEST(SchedulerTest, TheLastInRankSitsOutUntilItsBlocksAreWanted) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 16, 4, false), R"(
add A prompt=1 max=9       | ok
add B prompt=4 max=9       | ok
run 5                      | A[4,5)*, B[7,8)* -> A +1, B +1
step                       | A[5,6)* -> A +1
stats                      | running 2 waiting 0, blocks held 4 cached 0 free 0, hits 0/0, preempted 0, prefill 5 decode 9
run 2                      | A[7,8)* -> A +1
step                       | A[8,9)* -> A +1 length (1 in, 0 cached, 9 out)
stats                      | running 0 waiting 1, blocks held 0 cached 0 free 4, hits 0/0, preempted 1, prefill 5 decode 12
step                       | +B[0,9)* -> B +1
step                       | B[9,10)* -> B +1
)");
}

TEST(SchedulerTest, AFirstThatWasPreemptedIsNotOvertakenWhileItsTokenIsInFlight) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 16, 4, false), R"(
add A prompt=4 max=8       | ok
add B prompt=4 max=16 stop=7 | ok
run 4                      | A[6,7)*, B[6,7)* -> A +1, B +1
plan                       | A[7,8)*, B[7,8)*
add C prompt=1 max=1       | ok
plan                       | A[8,9)<5*
stats                      | running 1 waiting 2, blocks held 3 cached 0 free 1, hits 0/0, preempted 1, prefill 8 decode 9
commit                     | A +1, B +1
plan                       | A[9,10)<6*
commit                     | A +1
)");
}

TEST(SchedulerTest, APreemptedOneEndsWithTheTokenThatWasInFlight) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 16, 4, false), R"(
add A prompt=4 max=16        | ok
add B prompt=4 max=16 stop=7 | ok
run 4                        | A[6,7)*, B[6,7)* -> A +1, B +1
plan                         | A[7,8)*, B[7,8)*
plan                         | A[8,9)<5*
commit B=7                   | A +1, B +1 stop 7 (4 in, 0 cached, 5 out)
stats                        | running 1 waiting 0, blocks held 3 cached 0 free 1, hits 0/0, preempted 1, prefill 8 decode 9
)");
}

TEST(SchedulerTest, RecomputeBeginsAfterWhatTheCacheHasKept) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 16, 4), R"(
add A prompt=4 max=6       | ok
add B prompt=4 max=6       | ok
run 5                      | A[7,8)*, B[7,8)* -> A +1, B +1
step                       | A[8,9)* -> A +1 length (4 in, 0 cached, 6 out)
stats                      | running 0 waiting 1, blocks held 0 cached 3 free 1, hits 0/8, preempted 1, prefill 8 decode 9
step                       | +B[4,9)* -> B +1 length (4 in, 0 cached, 6 out)
stats                      | running 0 waiting 0, blocks held 0 cached 3 free 1, hits 0/8, preempted 1, prefill 13 decode 9
)");
}

// ---- Prefix cache ----

TEST(SchedulerTest, AFullBlockIsSharedOnceItsStepIsCommitted) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 16, 16), R"(
add A prompt=10 same=10 max=3 | ok
plan                          | +A[0,10)*
add B prompt=10 same=8 max=1  | ok
plan                          | A[10,11)<1*, +B[0,10)*
commit                        | A +1
add C prompt=12 same=8 max=1  | ok
add D prompt=12 same=6 max=1  | ok
plan                          | A[11,12)<2*, +C[8,12)*, +D[4,12)*
stats                         | running 4 waiting 0, blocks held 9 cached 0 free 7, hits 12/44, preempted 0, prefill 32 decode 2
)");
}

TEST(SchedulerTest, TheLastPositionOfAPromptIsAlwaysComputed) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 16, 16), R"(
add A prompt=8 same=8 max=1 | ok
step                        | +A[0,8)* -> A +1 length (8 in, 0 cached, 1 out)
add B prompt=8 same=8 max=1 | ok
add C prompt=9 same=9 max=1 | ok
step                        | +B[4,8)*, +C[8,9)* -> B +1 length (8 in, 4 cached, 1 out), C +1 length (9 in, 8 cached, 1 out)
)");
}

TEST(SchedulerTest, AConversationIsFoundWithItsAnswer) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 16, 16), R"(
add A prompt=6 same=6 max=3 | ok
step A=6                    | +A[0,6)* -> A +1
step A=7                    | A[6,7)* -> A +1
step A=8                    | A[7,8)* -> A +1 length (6 in, 0 cached, 3 out)
add B prompt=12 same=12 max=1 | ok
step                        | +B[8,12)* -> B +1 length (12 in, 8 cached, 1 out)
)");
}

TEST(SchedulerTest, TheBlocksReleasedLongestAgoGoFirstAndTheTailBeforeTheHead) {
  EXPECT_TRANSCRIPT(SmallOptions(1, 16, 6), R"(
add A prompt=12 max=1      | ok
step                       | +A[0,12)* -> A +1 length (12 in, 0 cached, 1 out)
add B prompt=12 max=1      | ok
step                       | +B[0,12)* -> B +1 length (12 in, 0 cached, 1 out)
stats                      | running 0 waiting 0, blocks held 0 cached 6 free 0, hits 0/24, preempted 0, prefill 24 decode 0
add C prompt=5 max=1       | ok
step                       | +C[0,5)* -> C +1 length (5 in, 0 cached, 1 out)
add B prompt=13 max=1      | ok
step                       | +B[12,13)* -> B +1 length (13 in, 12 cached, 1 out)
add A prompt=13 max=1      | ok
step                       | +A[4,13)* -> A +1 length (13 in, 4 cached, 1 out)
)");
}

TEST(SchedulerTest, WithoutTheCacheNothingIsKept) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 16, 16, false), R"(
add A prompt=8 same=8 max=1 | ok
step                        | +A[0,8)* -> A +1 length (8 in, 0 cached, 1 out)
add B prompt=9 same=8 max=1 | ok
step                        | +B[0,9)* -> B +1 length (9 in, 0 cached, 1 out)
stats                       | running 0 waiting 0, blocks held 0 cached 0 free 16, hits 0/0, preempted 0, prefill 17 decode 0
)");
}

// ---- Prompt scores ----

TEST(SchedulerTest, EachPromptTokenButTheFirstIsScored) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 4, 16), R"(
add A prompt=6 max=2 score | ok
plan                       | +A[0,4)?4
plan                       | A[4,6)?1*
commit                     | A scored 4
commit                     | A scored 1 +1
step                       | A[6,7)* -> A +1 length (6 in, 0 cached, 2 out)
add B prompt=5 max=0 score | ok
step                       | +B[0,4)?4 -> B scored 4
step                       | B[4,5) -> B length (5 in, 0 cached, 0 out)
add C prompt=1 max=0 score | ok
step                       | +C[0,1) -> C length (1 in, 0 cached, 0 out)
)");
}

TEST(SchedulerTest, ScoringTakesNothingFromTheCacheButFillsIt) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 16, 16), R"(
add A prompt=9 same=9 max=0 score | ok
step                       | +A[0,9)?8 -> A scored 8 length (9 in, 0 cached, 0 out)
add B prompt=9 same=9 max=0 score | ok
step                       | +B[0,9)?8 -> B scored 8 length (9 in, 0 cached, 0 out)
add C prompt=9 same=9 max=0 | ok
step                       | +C[8,9) -> C length (9 in, 8 cached, 0 out)
stats                      | running 0 waiting 0, blocks held 0 cached 2 free 14, hits 8/9, preempted 0, prefill 19 decode 0
)");
}

TEST(SchedulerTest, APreemptedOneIsNotScoredTwice) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 4, 10, false), R"(
add B prompt=1 max=12      | ok
add C prompt=1 max=12      | ok
add D prompt=1 max=12      | ok
step                       | +B[0,1)*, +C[0,1)*, +D[0,1)* -> B +1, C +1, D +1
add A prompt=16 max=1 prio=1 score | ok
run 7                      | B[7,8)*, C[7,8)*, D[7,8)*, A[6,7)?1 -> B +1, C +1, D +1, A scored 1
step                       | B[8,9)*, C[8,9)*, D[8,9)* -> B +1, C +1, D +1
step                       | B[9,10)*, C[9,10)*, D[9,10)* -> B +1, C +1, D +1
stats                      | running 3 waiting 1, blocks held 9 cached 0 free 1, hits 0/0, preempted 1, prefill 10 decode 27
run 2                      | B[11,12)*, C[11,12)*, D[11,12)* -> B +1 length (1 in, 0 cached, 12 out), C +1 length (1 in, 0 cached, 12 out), D +1 length (1 in, 0 cached, 12 out)
step                       | +A[0,4) -> no events
run 3                      | A[12,16)?3* -> A scored 3 +1 length (16 in, 0 cached, 1 out)
step                       | nothing -> nothing in flight
)");
}

}  // namespace
}  // namespace millrace
