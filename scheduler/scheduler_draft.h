// A plan being made. Not for others than the scheduler.
#ifndef MILLRACE_SCHEDULER_SCHEDULER_DRAFT_H_
#define MILLRACE_SCHEDULER_SCHEDULER_DRAFT_H_

#include <cstdint>
#include <vector>

#include "scheduler/scheduler.h"

namespace millrace {

// A slot whose state, after the steps planned so far, is that of the sequence's first `position`
// tokens, to be copied before the next row changes it.
struct StateToCopy {
  Sequence* sequence;
  SlotId slot;
  int32_t position;
};

struct Scheduler::Draft {
  StepPlan plan = {};
  PlannedStep& step;
  int32_t budget = 0;         // input tokens left
  int32_t decodes_ahead = 0;  // running sequences still to be visited that decode: a token each
  int32_t blocks_ahead = 0;   // that these need of each pool in this step
  BlockCounts reserved = {};  // that running sequences will soon need: not for new ones
  std::vector<StateToCopy> to_copy = {};
  std::vector<CheckpointId> restored = {};  // that rows of the plan begin from
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_SCHEDULER_DRAFT_H_
