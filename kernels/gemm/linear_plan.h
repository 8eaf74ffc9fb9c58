// The contents of a LinearPlan: for linear.cc, which launches it, and gemm_tuner.cu, which measures
// plans of one range.
#ifndef MILLRACE_KERNELS_GEMM_LINEAR_PLAN_H_
#define MILLRACE_KERNELS_GEMM_LINEAR_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/gemm/gemm_desc.h"
#include "kernels/gemm/linear.h"
#include "kernels/gemm/linear_algorithms.h"

namespace millrace::kernels {

class LinearPlan {
 public:
  struct Range {
    int64_t tokens;  // the largest number
    GemmConfig config;
    Algorithm algorithm;  // of a config of cuBLASLt
  };

  LinearPlan(const CublasLt& lt, const GemmDesc& desc, const LinearOptions& options)
      : lt(lt), desc(desc), options(options) {}

  // Adds a range for the tokens behind the last one's. False, and nothing added, where the config
  // cannot run them all on this device, or would break the options' exactness.
  bool Add(const GemmRange& range);

  const Range& RangeOf(int64_t tokens) const {
    return *std::find_if(ranges.begin(), ranges.end(),
                         [&](const Range& range) { return tokens <= range.tokens; });
  }

  const CublasLt& lt;
  const GemmDesc desc;
  const LinearOptions options;
  std::vector<Range> ranges;  // ascending, up to options.max_tokens
};

// Returns whether kernels of our own may run the product on this device under the options. Kernels
// with the bits of cuBLASLt's full sums must not stand in for its fast ones.
bool MayRunOwn(const GemmDesc& desc, const LinearOptions& options);

// Returns the number of SMs of the current device; 0 if it cannot be read.
int NumSms();

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_LINEAR_PLAN_H_
