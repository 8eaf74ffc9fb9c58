// The gate epilogue: writes silu(gate) * up of a tile's sums where the layer's next linear reads
// it. With GateLayout::kInterleaved the thread that holds a gate's sum holds the other factor's,
// too.
#ifndef MILLRACE_KERNELS_GEMM_SM90_GATE_OUTPUT_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_GATE_OUTPUT_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/elementwise/gate.cuh"
#include "kernels/fp8.cuh"
#include "kernels/gemm/sm90/own_linear.h"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

// Transposes a warp's matrix of 8 x 8, of which a lane has two neighbours in a row.
__device__ inline uint32_t Transposed(uint32_t pair) {
  uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

struct GateOutput {
  void* data;  // [tokens][stride], BF16, or FP8 where it has a scale; null: the product has no gate
  int64_t stride;
  const float* scale;
  const float* channel_scales;  // of the weight's rows, or null
};

inline GateOutput GateOutputOf(const OwnLinear& args) {
  const bool channels = args.weight.scaling == WeightScaling::kChannel;
  return {.data = args.gated.data,
          .stride = args.gated.stride,
          .scale = args.gated.type == Type::kFp8 ? args.gated.scales : nullptr,
          .channel_scales = channels ? args.weight.scales : nullptr};
}

// The products are rounded to BF16 first: the bits are those of LaunchGatedActivation, which reads
// them so.
class GateWriter {
 public:
  __device__ explicit GateWriter(const GateOutput& to)
      : to_(to), inverse_(to.scale != nullptr ? Fp8Inverse(*to.scale) : 1) {}

  // Stores the gate of a lane's two products of a token in a tile of 16 rows from `first_row` on.
  __device__ void Store(int64_t token, int first_row, float gate, float up) const {
    const float value = ValueOf(first_row, gate, up);
    const int64_t at = token * to_.stride + first_row / 2 + Place();
    if (to_.scale != nullptr) {
      static_cast<uint8_t*>(to_.data)[at] = Fp8Code(value, inverse_);
    } else {
      static_cast<Bf16*>(to_.data)[at] = __float2bfloat16_rn(value);
    }
  }

  // Stores the gate of a warp's products of eight tokens before `end`, of which wgmma leaves a lane
  // two tokens. They are transposed, so that a lane stores two values of one token.
  __device__ void StoreEight(int first_token, int end, int first_row, const float (&gates)[2],
                             const float (&ups)[2]) const {
    const float2 values =
        make_float2(ValueOf(first_row, gates[0], ups[0]), ValueOf(first_row, gates[1], ups[1]));
    const int lane = threadIdx.x % kWarpSize;
    const int token = first_token + lane / 4;
    const int64_t at = token * to_.stride + first_row / 2 + lane % 4 * 2;
    if (to_.scale != nullptr) {
      const uint32_t codes = Fp8Codes2(values, inverse_);
      const uint32_t transposed = Transposed(__byte_perm(codes, 0, 0x4140));  // each in 16 bits
      if (token < end) {
        *reinterpret_cast<uint16_t*>(static_cast<uint8_t*>(to_.data) + at) =
            __byte_perm(transposed, 0, 0x4420);
      }
    } else {
      const __nv_bfloat162 pair = __float22bfloat162_rn(values);
      const uint32_t transposed = Transposed(*reinterpret_cast<const uint32_t*>(&pair));
      if (token < end) *reinterpret_cast<uint32_t*>(static_cast<Bf16*>(to_.data) + at) = transposed;
    }
  }

 private:
  // Returns the lane's row of eight.
  __device__ static int Place() { return threadIdx.x % kWarpSize / 4; }

  __device__ float ValueOf(int first_row, float gate, float up) const {
    gate = __bfloat162float(__float2bfloat16_rn(gate));
    up = __bfloat162float(__float2bfloat16_rn(up));
    if (to_.channel_scales != nullptr) {
      gate *= to_.channel_scales[first_row + Place()];
      up *= to_.channel_scales[first_row + 8 + Place()];
    }
    return Gate(gate, up);
  }

  const GateOutput& to_;
  const float inverse_;
};

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GATE_OUTPUT_CUH_
