// The epilogue of skinny_kernel.cuh: scales the sums of a tile, gates, rounds and writes them.
#ifndef MILLRACE_KERNELS_GEMM_SM90_DENSE_SKINNY_OUTPUT_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_DENSE_SKINNY_OUTPUT_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/sm90/dense/skinny_shape.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

template <typename Shape>
class SkinnyWriter {
 public:
  __device__ explicit SkinnyWriter(const SkinnyParams& params) : p_(params) {}

  // Called by all threads of the warps that multiply. `sums`: a thread's sums of a tile, unscaled.
  template <int kCount>
  __device__ void Write(int tile, const float (&sums)[kCount]) const {
    const int warp = threadIdx.x / kWarpSize;
    const int row = warp % (Shape::kGroup > 1 ? Shape::kRowWarps : 4) * 16;  // the warp's first
    const int first_row = tile * Shape::kRows + row;
    if (row >= Shape::kRows || first_row >= p_.rows) return;  // rows are a multiple of 16
    float scale = 1;
    if (p_.weight_scale != nullptr) scale *= *p_.weight_scale;
    if (p_.input_scale != nullptr) scale *= *p_.input_scale;
    if (p_.gate.data != nullptr) {
      StoreGated(first_row, Shape::kGroup > 1 ? warp / Shape::kRowWarps : 0, sums, scale);
      return;
    }
    if constexpr (Shape::kGroup > 1) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        StoreOne(first_row, Shape::SumIndex(warp / Shape::kRowWarps, i), sums[i] * scale);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const int token = 2 * i;  // of eight
        if (token >= p_.tokens) break;
        const float values[4] = {sums[i] * scale, sums[i + 1] * scale, sums[i + 2] * scale,
                                 sums[i + 3] * scale};
        if (p_.fp32) {
          for (int j = 0; j < 4; ++j) StoreOne(first_row, i + j, values[j]);
        } else {
          StoreBf16(first_row, token, values);
        }
      }
    }
  }

 private:
  template <int kCount>
  __device__ void StoreGated(int first_row, int part, const float (&sums)[kCount],
                             float scale) const {
    const GateWriter writer(p_.gate);
    constexpr int kUp = kCount == 2 ? 1 : 2;  // from a gate's sum to the other factor's
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i / kUp % 2 != 0) continue;
      const int64_t token = TokenOf(Shape::SumIndex(part, i));
      if (token < p_.tokens) writer.Store(token, first_row, sums[i] * scale, sums[i + kUp] * scale);
    }
  }

  // Returns the token of the sum that wgmma leaves in a lane's register i.
  __device__ static int TokenOf(int i) {
    return i / 4 * 8 + threadIdx.x % kWarpSize % 4 * 2 + i % 2;
  }

  __device__ void StoreOne(int first_row, int i, float value) const {
    const int lane = threadIdx.x % kWarpSize;
    const int token = TokenOf(i);
    const int row = first_row + lane / 4 + i % 4 / 2 * 8;
    if (token >= p_.tokens) return;
    const int64_t at = token * p_.output_stride + row;
    if (p_.fp32) {
      static_cast<float*>(p_.output)[at] = value;
    } else {
      static_cast<Bf16*>(p_.output)[at] = __float2bfloat16_rn(value);
    }
  }

  // Transposes within the warp, so that a thread stores two rows of one token.
  __device__ void StoreBf16(int first_row, int first_token, const float (&values)[4]) const {
    const int lane = threadIdx.x % kWarpSize;
    const int token = first_token + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * half], values[2 * half + 1]);
      const uint32_t rows = Transposed(*reinterpret_cast<const uint32_t*>(&pair));
      if (token < p_.tokens) {
        Bf16* const to = static_cast<Bf16*>(p_.output) + token * p_.output_stride + first_row;
        *reinterpret_cast<uint32_t*>(to + 8 * half + lane % 4 * 2) = rows;
      }
    }
  }

  const SkinnyParams& p_;
};

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_DENSE_SKINNY_OUTPUT_CUH_
