// The epilogue of wide_kernel.cuh: scales the sums of a tile, gates, rounds and writes them.
#ifndef MILLRACE_KERNELS_GEMM_SM90_DENSE_WIDE_OUTPUT_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_DENSE_WIDE_OUTPUT_CUH_

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/sm90/gate_output.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

// Rounds two numbers to BF16, the first one in the lower half.
__device__ inline uint32_t Bf16Pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Loads 16 bytes of shared memory.
__device__ inline uint4 LoadShared(uint32_t from) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(from)
               : "memory");
  return value;
}

// Stores four matrices of 8 x 8; lane i passes the address of row i % 8 of matrix i / 8.
__device__ inline void StoreMatrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
#endif
}

struct WideOutput {
  void* data;  // [tokens][stride], BF16 or fp32; or `gate`
  int64_t stride;
  int tokens;
  bool fp32;
  GateOutput gate;
};

// Writes a warp's 16 outputs of kTokens tokens from the registers in which wgmma leaves them.
template <int kTokens>
class OutputWriter {
 public:
  // BF16 is transposed in shared memory, so that a token's 16 outputs are stored together.
  static constexpr int kBlock = std::min(kTokens, 32);
  static constexpr int kBytes = kBlock * 16 * sizeof(Bf16);  // of a warp

  __device__ OutputWriter(const WideOutput& to, uint32_t memory) : to_(to), memory_(memory) {}

  // Writes the tokens before `end`. Called by all threads of a warp.
  __device__ void Write(int first_row, int first_token, int end, const float (&sums)[kTokens / 2],
                        float scale) const {
#pragma unroll
    for (int block = 0; block < kTokens; block += kBlock) {
      const int token = first_token + block;
      if (token >= end) break;
      if (to_.gate.data != nullptr) {
        WriteGated(first_row, token, end, &sums[block / 2], scale);
      } else if (to_.fp32) {
        WriteFp32(first_row, token, end, &sums[block / 2], scale);
      } else {
        WriteBf16(first_row, token, end, &sums[block / 2], scale);
      }
    }
  }

 private:
  __device__ void WriteFp32(int first_row, int first_token, int end, const float* sums,
                            float scale) const {
    const int lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int i = 0; i < kBlock / 2; ++i) {
      const int token = first_token + i / 4 * 8 + lane % 4 * 2 + i % 2;
      const int row = first_row + lane / 4 + i % 4 / 2 * 8;
      if (token < end) {
        static_cast<float*>(to_.data)[token * to_.stride + row] = sums[i] * scale;
      }
    }
  }

  __device__ void WriteGated(int first_row, int first_token, int end, const float* sums,
                             float scale) const {
    const GateWriter writer(to_.gate);
#pragma unroll
    for (int i = 0; i < kBlock / 2; i += 4) {
      const int token = first_token + i * 2;  // of eight
      if (token >= end) break;
      writer.StoreEight(token, end, first_row, {sums[i] * scale, sums[i + 1] * scale},
                        {sums[i + 2] * scale, sums[i + 3] * scale});
    }
  }

  __device__ void WriteBf16(int first_row, int first_token, int end, const float* sums,
                            float scale) const {
    const int lane = threadIdx.x % kWarpSize;
    // [eight tokens][eight rows][token][row]
#pragma unroll
    for (int i = 0; i < kBlock / 2; i += 4) {
      StoreTransposed(memory_ + (i * 4 + lane % 16) * 16,
                      Bf16Pair(sums[i] * scale, sums[i + 1] * scale),
                      Bf16Pair(sums[i + 2] * scale, sums[i + 3] * scale));
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kBlock * 2; i += kWarpSize) {
      const int piece = i + lane;  // of eight rows of a token
      const int token = first_token + piece / 16 * 8 + piece % 8;
      if (piece < kBlock * 2 && token < end) {
        Bf16* const out = static_cast<Bf16*>(to_.data) + token * to_.stride + first_row;
        *reinterpret_cast<uint4*>(out + piece % 16 / 8 * 8) = LoadShared(memory_ + piece * 16);
      }
    }
    __syncwarp();
  }

  // Stores two matrices of 8 x 8, transposed; lane i of the first 16 passes the address of row i %
  // 8 of matrix i / 8 of the result.
  __device__ static void StoreTransposed(uint32_t to, uint32_t first, uint32_t second) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to),
                 "r"(first), "r"(second)
                 : "memory");
#endif
  }

  const WideOutput& to_;
  const uint32_t memory_;
};

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_DENSE_WIDE_OUTPUT_CUH_
