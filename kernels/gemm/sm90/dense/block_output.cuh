// The epilogue of block_kernel.cuh: rounds the sums of a tile and writes them.
#ifndef MILLRACE_KERNELS_GEMM_SM90_DENSE_BLOCK_OUTPUT_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_DENSE_BLOCK_OUTPUT_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/sm90/dense/wide_output.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

struct TokenOutput {
  void* data;  // [tokens][stride], BF16 or fp32
  int64_t stride;
  int rows, tokens;
  bool fp32;
};

// Writes a warp's kRows outputs of 16 tokens from the registers in which wgmma leaves them.
template <int kRows>
class TokenWriter {
 public:
  // BF16 is gathered in shared memory, 16 outputs of 16 tokens at a time, two in turn.
  static constexpr int kBytes = 2 * 16 * 16 * sizeof(Bf16);  // of a warp

  __device__ TokenWriter(const TokenOutput& to, uint32_t memory) : to_(to), memory_(memory) {}

  // Writes the tokens before `end`. Called by all threads of a warp.
  __device__ void Write(int first_row, int first_token, int end,
                        const float (&sums)[kRows / 2]) const {
    if (first_token >= end) return;
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      const int row = first_row + 16 * i;
      if (row >= to_.rows) return;  // rows are a multiple of 16
      if (to_.fp32) {
        WriteFp32(row, first_token, end, &sums[8 * i]);
      } else {
        WriteBf16(row, first_token, end, &sums[8 * i], memory_ + i % 2 * (kBytes / 2));
      }
    }
  }

 private:
  __device__ void WriteFp32(int first_row, int first_token, int end, const float* sums) const {
    const int lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int token = first_token + lane / 4 + i % 4 / 2 * 8;
      const int row = first_row + i / 4 * 8 + lane % 4 * 2;
      if (token < end) {
        *reinterpret_cast<float2*>(static_cast<float*>(to_.data) + token * to_.stride + row) =
            make_float2(sums[i], sums[i + 1]);
      }
    }
  }

  // Stores four matrices of 8 tokens x 8 outputs: tokens 0 and 8 of outputs 0, then of outputs 8.
  __device__ void WriteBf16(int first_row, int first_token, int end, const float* sums,
                            uint32_t memory) const {
    const int lane = threadIdx.x % kWarpSize;
    StoreMatrices(memory + lane * 16, Bf16Pair(sums[0], sums[1]), Bf16Pair(sums[2], sums[3]),
                  Bf16Pair(sums[4], sums[5]), Bf16Pair(sums[6], sums[7]));
    __syncwarp();
    const int token = first_token + lane % 16;
    if (token < end) {
      Bf16* const out = static_cast<Bf16*>(to_.data) + token * to_.stride + first_row;
      *reinterpret_cast<uint4*>(out + lane / 16 * 8) = LoadShared(memory + lane * 16);
    }
  }

  const TokenOutput& to_;
  const uint32_t memory_;
};

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_DENSE_BLOCK_OUTPUT_CUH_
