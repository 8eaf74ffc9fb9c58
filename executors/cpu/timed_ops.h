// Times a step op by op, for benchmarks.
#ifndef MILLRACE_EXECUTORS_CPU_TIMED_OPS_H_
#define MILLRACE_EXECUTORS_CPU_TIMED_OPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executors/device_spec.h"

namespace millrace::cpu {

struct OpTime {
  std::string name;
  double seconds = 0;       // of all calls in a step
  double weight_bytes = 0;  // read by them
  double operations = 0;    // multiplications and additions in their matrix products
};

// Returns the median times of a step of the model with `tokens` tokens: `sequences` sequences that
// have the same number each, decoding with 192 positions before them when that number is one.
absl::StatusOr<std::vector<OpTime>> TimeOps(const std::string& model, const CpuSpec& device,
                                            int tokens, int sequences);

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_TIMED_OPS_H_
