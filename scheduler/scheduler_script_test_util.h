// For tests: a scheduler driven by lines of text, so that a policy's test is a transcript.
#ifndef MILLRACE_SCHEDULER_SCHEDULER_SCRIPT_TEST_UTIL_H_
#define MILLRACE_SCHEDULER_SCHEDULER_SCRIPT_TEST_UTIL_H_

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "scheduler/block_hash.h"
#include "scheduler/scheduler.h"

namespace millrace {

// Sees inside a Scheduler.
class SchedulerAuditor {
 public:
  // Describes what is wrong, or "": each block has as many holders as running sequences name it,
  // all others are available, slots are held by one sequence each, running sequences stand in order
  // of rank, tenants' accounts count what they hold, and each place of a checkpoint is free,
  // written by a step in flight, or found.
  static std::string Audit(const Scheduler& scheduler);

  // Describes where the blocks that the prefix cache finds are others than `followed`, which has
  // group and hash of each, or "".
  static std::string AuditEvents(const Scheduler& scheduler,
                                 const std::set<std::pair<int, BlockHash>>& followed);

 private:
  static std::string AuditPool(const Scheduler& scheduler, int index);
  static std::string AuditCheckpoints(const Scheduler& scheduler);
  static std::string AuditTenants(const Scheduler& scheduler);
  static std::string AuditGroups(const Scheduler& scheduler);
};

// Runs lines of the form `command | answer` against a scheduler and a ModelExecutor, auditing after
// each, and returns them with the answers that came. Lines without `|` are kept as they are.
//
//   add A prompt=9 max=3 [same=8] [stop=7] [prio=1] [score] [penalize] [of=B]
//                   one more sequence, named by one letter; its first 8 tokens are those of every
//                   prompt, the others its own, or, in a group with B, B's
//   plan            the rows of the plan: `A[0,4)` inputs at positions 0 to 3, `+A` it takes a
//                   slot, `<2` the input is what step 2 samples, `?3` three positions scored, `*`
//                   one sampled; after them, what is copied: `1>2` block 1 into block 2, `A>s0`
//                   A's state into checkpoint 0, `s0>B` that one into B's slot
//   commit [A=7] [fail=A] [fail=step]
//                   runs the oldest step, with 7 sampled for A, A's row failing, or all of it: its
//                   events
//   step [...]      a plan and its commit
//   run 5           so many of these; the last one is answered
//   cancel A
//   stats
std::string RunScript(const SchedulerOptions& options, std::string_view script);

// Wants gtest.
#define EXPECT_TRANSCRIPT(options, script) EXPECT_EQ(RunScript(options, script), script)

// A model's length of 64 tokens, in blocks of 4.
SchedulerOptions SmallOptions(int32_t slots, int32_t budget, int32_t blocks,
                              bool prefix_caching = true);

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_SCHEDULER_SCRIPT_TEST_UTIL_H_
