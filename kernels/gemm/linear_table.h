// Which of cuBLASLt's algorithms are fastest, as measured offline on an H200 by linear_bench.
#ifndef MILLRACE_KERNELS_GEMM_LINEAR_TABLE_H_
#define MILLRACE_KERNELS_GEMM_LINEAR_TABLE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/gemm/linear.h"
#include "kernels/gemm/linear_algorithms.h"

namespace millrace::kernels {

struct TunedAlgorithm {
  int64_t run_tokens;  // on how many rows it runs best, if there is room (LinearRoom)
  AlgorithmConfig config;
};

// What it was measured with, and holds for: cuBLASLt's version and the GPU's compute capability.
inline constexpr size_t kTunedVersion = 130100;
inline constexpr int kTunedCapability = 90;

// For a range of tokens that ends at `tokens`; null where DefaultChoice is as good, and for what
// was not measured.
const TunedAlgorithm* FindTuned(const LinearShape& shape, const LinearOptions& options,
                                int64_t tokens);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_LINEAR_TABLE_H_
