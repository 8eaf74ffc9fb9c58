// Sequences of one prompt.
#include "gtest/gtest.h"
#include "scheduler/scheduler.h"
#include "scheduler/scheduler_script_test_util.h"

namespace millrace {
namespace {

TEST(SchedulerGroupTest, OnePromptIsComputedOnceAndItsPartialBlockCopied) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 8, 16, false), R"(
add A prompt=10 max=3      | ok
add B prompt=10 max=3 of=A | ok
add C prompt=10 max=3 of=A | ok
add D prompt=2 max=1       | ok
plan                       | +A[0,8)
plan                       | A[8,10)*, +D[0,2)*
stats                      | running 2 waiting 2, blocks held 4 cached 0 free 12, hits 0/0, preempted 0, prefill 12 decode 0
commit                     | no events
plan                       | A[10,11)<2*, +B[9,10)*, +C[9,10)*, 2>4, 2>5
commit                     | A +1, D +1 length (2 in, 0 cached, 1 out)
commit                     | A +1, B +1, C +1
plan                       | A[11,12)*, B[10,11)*, C[10,11)*
commit                     | A +1 length (10 in, 0 cached, 3 out), B +1, C +1
stats                      | running 2 waiting 0, blocks held 4 cached 0 free 12, hits 0/0, preempted 0, prefill 14 decode 4
step                       | B[11,12)*, C[11,12)* -> B +1 length (10 in, 0 cached, 3 out), C +1 length (10 in, 0 cached, 3 out)
)");
}

TEST(SchedulerGroupTest, AGroupOutlivesWhoComputesItsPrompt) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 4, 16, false), R"(
add A prompt=7 max=1       | ok
add B prompt=7 max=1 of=A  | ok
add C prompt=7 max=1 of=A  | ok
plan                       | +A[0,4)
cancel A                   | A cancelled (7 in, 0 cached, 0 out)
cancel C                   | C cancelled (7 in, 0 cached, 0 out)
plan                       | +B[0,4)
commit                     | no events
commit                     | no events
add D prompt=7 max=1 of=A  | ok
plan                       | B[4,7)*
plan                       | +D[6,7)*, 1>2
commit                     | B +1 length (7 in, 0 cached, 1 out)
commit                     | D +1 length (7 in, 0 cached, 1 out)
stats                      | running 0 waiting 0, blocks held 0 cached 0 free 16, hits 0/0, preempted 0, prefill 12 decode 0
)");
}

// A sequence that scores its prompt computes all of it; the others need not.
TEST(SchedulerGroupTest, ScoringSequencesShareNothingOfTheirGroupButGive) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 16, 16), R"(
add A prompt=6 max=2 score      | ok
add B prompt=6 max=2 of=A       | ok
add C prompt=6 max=2 of=A score | ok
plan                            | +A[0,6)?5*, +C[0,6)?5*
plan                            | A[6,7)<1*, C[6,7)<1*, +B[5,6)*, 1>4
)");
}

// B begins in step 2 with a block that A was to fill in step 1. C has not begun.
TEST(SchedulerGroupTest, WhoSharesTheBlocksOfAFailedSequenceFailsWithIt) {
  EXPECT_TRANSCRIPT(SmallOptions(2, 16, 16), R"(
add A prompt=6 max=3       | ok
add B prompt=6 max=3 of=A  | ok
add C prompt=6 max=1 of=A  | ok
plan                       | +A[0,6)*
plan                       | A[6,7)<1*, +B[5,6)*, 1>2
commit fail=A              | A failed (6 in, 0 cached, 0 out), B failed (6 in, 0 cached, 0 out)
plan                       | +C[0,6)*
commit                     | no events
commit                     | C +1 length (6 in, 0 cached, 1 out)
stats                      | running 0 waiting 0, blocks held 0 cached 1 free 15, hits 0/12, preempted 0, prefill 13 decode 1
)");
}

TEST(SchedulerGroupTest, AnotherPromptDoesNotJoinAGroup) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 16, 16), R"(
add A prompt=6 max=2            | ok
add B prompt=5 max=2 of=A       | prompt_group: 65 is of sequences with another prompt
plan                            | +A[0,6)*
)");
}

}  // namespace
}  // namespace millrace
