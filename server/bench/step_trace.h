// Divides the trace of a run into steps, and sums up where a step's time goes.
#ifndef MILLRACE_SERVER_BENCH_STEP_TRACE_H_
#define MILLRACE_SERVER_BENCH_STEP_TRACE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "executors/factory.h"
#include "server/bench/offline_engine.h"

namespace millrace {

// Means over `steps` steps. Where operations of a step overlap the time is the earlier one's.
struct StepTrace {
  struct Row {
    std::string name;
    double us;        // a step
    double launches;  // a step
    double share;     // of busy_us
    double idle_us;   // a step, in which nothing ran, before this did
    double bytes;     // a step, that it must read and write; 0 where none are known
  };
  std::vector<Row> rows;  // the longest first

  int32_t steps;
  // The steps are those that decode the whole batch, from the begin of one to the begin of the
  // next; else all of the run, prompts included.
  bool only_whole_steps;
  double launches;        // a step
  double busy_us;         // of a step, in which something ran
  double span_us;         // of a step
  double largest_gap_us;  // inside a step, the median of the steps
  std::string after_gap;  // what ran next in the step of that median
};

// Divides a run's trace into steps. `operations` are those of `run`, in the order of their begin. A
// step is told from the next by an operation that occurs once in each; where a run has none, or
// fewer than two whole steps, its steps are not told apart. `kernel_bytes` are those of a whole
// step's kernels in their order, from the first that occurs once in each; they are left out where a
// step has another number of kernels. FailedPrecondition: there are no operations.
absl::StatusOr<StepTrace> SummarizeTrace(const std::vector<DeviceOperation>& operations,
                                         const OfflineRun& run,
                                         const std::vector<int64_t>& kernel_bytes = {});

// The same for each rank's operations, in the order of the ranks.
absl::StatusOr<std::vector<StepTrace>> SummarizeRanks(
    std::vector<DeviceOperation> operations, const OfflineRun& run,
    const std::vector<int64_t>& kernel_bytes = {});

// Returns a kernel's name for people: without its result's type, its arguments, our own and unnamed
// namespaces; at most 72 characters.
std::string ShortKernelName(std::string_view name);

}  // namespace millrace

#endif  // MILLRACE_SERVER_BENCH_STEP_TRACE_H_
