// The norm of a single token in the prologue of another kernel, which saves a launch and the wait
// for it: every CTA computes the whole row, with the bits of LaunchRmsNorm.
#ifndef MILLRACE_KERNELS_NORM_TOKEN_NORM_CUH_
#define MILLRACE_KERNELS_NORM_TOKEN_NORM_CUH_

#include <cuda_runtime.h>

#include "kernels/device_util.cuh"
#include "kernels/norm/norm_rule.cuh"
#include "kernels/norm/rms_norm.h"
#include "kernels/types.h"

namespace millrace::kernels {

// Each of a CTA's kThreads threads has eight columns. The norm has one token, no mixture, an output
// in BF16 and rows of at most kThreads * 8 columns.
template <int kThreads>
class TokenNorm {
 public:
  struct Shared {
    alignas(16) Bf16 row[kThreads * 8];
    float squares[kThreads / kWarpSize];  // of each warp's columns
  };

  // Loads what is constant. Called before the predecessor is awaited.
  __device__ explicit TokenNorm(const RmsNormArgs& args) : args_(args) {
    if (!IsInside()) return;
    Load8(args.weight + Column(), weight_);
    delta_.LoadConstants(args.delta, Column());
    if (args.delta_bias != nullptr) Load8(args.delta_bias + Column(), bias_);
  }

  // Leaves the row in `shared`, and CTA 0 writes it to args.out. Ends with a barrier.
  __device__ void Make(Shared& shared) {
    float x[8] = {};
    if (IsInside()) {
      Load8(args_.residual + Column(), sum_);
      if (args_.delta.data != nullptr) {
        delta_.Load(args_.delta, 0, Column());
        AddDelta();
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] = sum_[j];
    }
    const float squares = WarpReduce<Add>(SumOfSquares(x));
    if (threadIdx.x % kWarpSize == 0) shared.squares[threadIdx.x / kWarpSize] = squares;
    if (IsInside()) MultiplyBy(weight_, x);
    __syncthreads();
    const float factor = NormFactor(SumOfParts(shared.squares, kThreads / kWarpSize),
                                    1.0f / static_cast<float>(args_.width), args_.epsilon);
    if (IsInside()) MultiplyBy(factor, x);
    Store8(shared.row + Column(), x);
    if (blockIdx.x == 0 && Column() < args_.out.stride) {
      Store8(static_cast<Bf16*>(args_.out.data) + Column(), x);
    }
    __syncthreads();
  }

  // Stores the sum of residual and delta. Called by one CTA when all have made the row.
  __device__ void StoreResidual() const {
    if (args_.delta.data != nullptr && IsInside()) Store8(args_.residual + Column(), sum_);
  }

 private:
  __device__ static int Column() { return static_cast<int>(threadIdx.x) * 8; }
  __device__ bool IsInside() const { return Column() < args_.width; }

  __device__ void AddDelta() {
    const bool weighted = args_.delta_factor != 1 || args_.delta_bias != nullptr;
    float values[8];
    Unpack8(delta_.data, values);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float scaled = __fmul_rn(values[j], delta_.token_scale),
                  factor = delta_.channel_scales[j];
      // The kernels of norms round the last product and the sum once, but for a factor or a bias.
      sum_[j] = weighted ? __fmaf_rn(args_.delta_factor,
                                     __fadd_rn(__fmul_rn(scaled, factor), bias_[j]), sum_[j])
                         : __fmaf_rn(scaled, factor, sum_[j]);
    }
  }

  const RmsNormArgs& args_;
  float weight_[8], bias_[8] = {};
  ProductVector<true> delta_;
  float sum_[8];
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_NORM_TOKEN_NORM_CUH_
