// A snapshot of an engine, for people who look at it.
#ifndef MILLRACE_ENGINE_METRICS_ENGINE_STATUS_H_
#define MILLRACE_ENGINE_METRICS_ENGINE_STATUS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "scheduler/scheduler.h"
#include "scheduler/scheduler_status.h"

namespace millrace {

// A step that has finished.
struct StepRecord {
  SteadyTime ended;
  Duration took;  // since it was submitted, or since the step before it ended, if that was later
  int64_t tokens;
  int32_t sequences;
};

// A sequence of a request; `sequence.id` is the engine's own.
struct RequestStatus {
  std::string id;  // as clients and logs know it
  uint32_t choice = 0;
  SequenceStatus sequence;
};

struct EngineStatus {
  SteadyTime now;
  SchedulerStats stats;
  int32_t arriving = 0;                 // admitted, and not yet in the scheduler
  std::vector<RequestStatus> requests;  // those that run, then those that wait; at most 200
  std::vector<KvCell> cells;            // at most 512
  std::vector<StepRecord> steps;        // the last 256, oldest first
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_METRICS_ENGINE_STATUS_H_
