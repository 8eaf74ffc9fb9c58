// Several runs of growing load, and the search for the highest rate that holds the goals.
#ifndef MILLRACE_LOADTEST_SWEEP_H_
#define MILLRACE_LOADTEST_SWEEP_H_

#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "loadtest/options.h"
#include "loadtest/result.h"
#include "loadtest/runner.h"

namespace millrace {

// Finds the highest rate that holds: doubles from `start` until one does not, then halves the ratio
// between the highest that holds and the lowest that does not, until they are within 5 % or `steps`
// runs are done. If the first does not hold, it halves until one does. `holds` runs a rate.
// Returns nullopt if none holds.
absl::StatusOr<std::optional<double>> FindHighestRate(
    double start, double most, int64_t steps,
    const std::function<absl::StatusOr<bool>(double)>& holds);

// Returns whether a run holds the goals: enough of its requests keep them.
bool Holds(const Result& result, double attainment);

// Runs `sweep`, prints a line a run, and writes --json and --html.
absl::Status RunSweep(const LoadRunner& runner);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_SWEEP_H_
