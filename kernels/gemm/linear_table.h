// Which of cuBLASLt's algorithms are fastest, as measured offline on an H200 by linear_bench.
#ifndef MILLRACE_KERNELS_GEMM_LINEAR_TABLE_H_
#define MILLRACE_KERNELS_GEMM_LINEAR_TABLE_H_

#include <cstdint>

#include "kernels/gemm/linear.h"
#include "kernels/gemm/linear_algorithms.h"

namespace millrace::kernels {

struct TunedAlgorithm {
  int64_t run_tokens;  // on how many rows it runs best, if there is room (LinearRoom)
  AlgorithmConfig config;
};

// For a range of tokens that ends at `tokens`; null where DefaultChoice is as good, and for what
// was not measured. Another version of the library, or another GPU, may not have it: ask CanRun.
const TunedAlgorithm* FindTuned(const LinearShape& shape, const LinearOptions& options,
                                int64_t tokens);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_LINEAR_TABLE_H_
