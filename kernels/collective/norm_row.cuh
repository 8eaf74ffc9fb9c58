// The residual's addition, norm and quantization of a row whose delta is in registers, by the rules
// of norm/rms_norm.cu, with the same bits.
#ifndef MILLRACE_KERNELS_COLLECTIVE_NORM_ROW_CUH_
#define MILLRACE_KERNELS_COLLECTIVE_NORM_ROW_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/activation_row.cuh"
#include "kernels/device_util.cuh"
#include "kernels/norm/norm_rule.cuh"
#include "kernels/norm/rms_norm.h"

namespace millrace::kernels {

// One thread's part of the rows of a CTA: kVectors vectors, the i-th at RowColumn(0, i).
template <bool kNorm, int kVectors>
class NormRow {
 public:
  // Loads what no kernel of a step writes.
  __device__ void LoadConstants(const RmsNormArgs& args) {
    tensor_scale_ = TensorScale(args.out);
    share_ = 1.0f / args.width;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int64_t column = RowColumn(0, i);
      if (column < args.width) Load8(args.weight + column, weight_[i]);
    }
  }

  __device__ void LoadResidual(const RmsNormArgs& args, int64_t token) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int64_t column = RowColumn(0, i);
      if (column < args.width) {
        Load8(args.residual + token * args.width + column, x_[i]);
      } else {
#pragma unroll
        for (float& value : x_[i]) value = 0;
      }
    }
  }

  // Adds the delta in BF16, and writes the residual and the normed row. Called by all threads.
  __device__ void AddAndWrite(const RmsNormArgs& args, int64_t token,
                              const uint4 (&delta)[kVectors]) {
    constexpr int kMaxWarps = 16;
    // Two sets, used in turn: a warp may be in the next row while another still reads this one's.
    __shared__ float all_squares[2][kMaxWarps * kVectors], all_maxima[2][kMaxWarps];
    float(&squares)[kMaxWarps * kVectors] = all_squares[odd_];
    float(&maxima)[kMaxWarps] = all_maxima[odd_];
    odd_ ^= 1;

    const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
    const int warps = blockDim.x / kWarpSize;
    const bool token_scale = args.out.scaling == Scaling::kToken;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int64_t column = RowColumn(0, i);
      if (column < args.width) {
        Add(args, column, delta[i], x_[i]);
        Store8(args.residual + token * args.width + column, x_[i]);
      }
      const float sum = WarpReduce<millrace::kernels::Add>(SumOfSquares(x_[i]));
      if (lane == 0) squares[i * warps + warp] = sum;
      if (column < args.width) MultiplyBy(weight_[i], x_[i]);
    }
    if (token_scale) {
      const float largest = WarpReduce<Max>(Amax(x_));
      if (lane == 0) maxima[warp] = largest;
    }
    __syncthreads();

    const float factor = NormFactor(SumOfParts(squares, kVectors * warps), share_, args.epsilon);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (RowColumn(0, i) < args.width) MultiplyBy(factor, x_[i]);
    }
    if (token_scale) {
      const float largest = WarpReduce<Max>(lane < warps ? maxima[lane] : Max::kIdentity);
      const float scale = Fp8Scale(largest * factor);
      if (threadIdx.x == 0) args.out.scales[token] = scale;
      WriteCodes(x_, Fp8Inverse(scale), 0, token, args.out);
    } else {
      WriteRow(x_, tensor_scale_, 0, token, args.tokens, args.out);
    }
  }

 private:
  __device__ static void Add(const RmsNormArgs& args, int64_t column, const uint4& delta,
                             float (&x)[8]) {
    float addend[8];
    Unpack8(delta, addend);
    if (args.delta_factor == 1 && args.delta_bias == nullptr) {
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] = __fadd_rn(x[j], addend[j]);
      return;
    }
    float bias[8] = {};
    if (args.delta_bias != nullptr) Load8(args.delta_bias + column, bias);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      x[j] = __fmaf_rn(args.delta_factor, __fadd_rn(addend[j], bias[j]), x[j]);
    }
  }

  float tensor_scale_, share_;
  float weight_[kVectors][8];
  float x_[kVectors][8];
  int odd_ = 0;
};

// A plain all-reduce has no norm.
template <int kVectors>
class NormRow<false, kVectors> {
 public:
  __device__ void LoadConstants(const RmsNormArgs&) {}
  __device__ void LoadResidual(const RmsNormArgs&, int64_t) {}
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_COLLECTIVE_NORM_ROW_CUH_
