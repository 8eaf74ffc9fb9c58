// A snapshot of the scheduler, for people who look at it.
#ifndef MILLRACE_SCHEDULER_SCHEDULER_STATUS_H_
#define MILLRACE_SCHEDULER_SCHEDULER_STATUS_H_

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "scheduler/sequence_request.h"

namespace millrace {

struct SequenceStatus {
  SequenceId id = 0;
  bool running = false;  // else it waits
  int32_t priority = 0;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;    // of the prompt's, found in the prefix cache; 0 until it runs
  int32_t computed_tokens = 0;  // whose keys and values are in its blocks
  int32_t generated_tokens = 0;
  int32_t max_tokens = 0;  // to be generated at most
  int32_t blocks = 0;      // held, those shared with others included
  SteadyTime arrival;
};

// A range of neighbouring blocks of the KV cache.
struct KvCell {
  int32_t blocks = 0;
  int32_t held = 0;    // by sequences
  int32_t cached = 0;  // by none, but found by their content
};

struct SchedulerStatus {
  std::vector<SequenceStatus> sequences;  // those that run, then those that wait, by rank
  std::vector<KvCell> cells;              // in the order of the blocks
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_SCHEDULER_STATUS_H_
