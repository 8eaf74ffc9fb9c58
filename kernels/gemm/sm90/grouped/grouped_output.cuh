// The epilogue of grouped_kernel.cuh: scales the sums of a tile, adds biases, joins a gated
// linear's factors, rounds and writes.
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_OUTPUT_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_OUTPUT_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/elementwise/gate.cuh"
#include "kernels/fp8.cuh"
#include "kernels/gemm/sm90/gate_output.cuh"
#include "kernels/gemm/sm90/grouped/grouped_shape.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

// Returns the joined factors. No step can be contracted in one kernel and not in another. NaN stays
// NaN.
__device__ inline float JoinFactors(GroupedGate function, float gate, float up) {
  if (function == GroupedGate::kSilu) return Gate(gate, up);
  if (function == GroupedGate::kGeluTanh) {
    // x / 2 (1 + tanh(z)) is x / (1 + exp(-2 z)).
    constexpr float kTwice = 2 * 0.7978845608028654f;  // 2 sqrt(2 / pi)
    const float cube = __fmul_rn(__fmul_rn(gate, gate), gate);
    const float z = __fmul_rn(kTwice, __fmaf_rn(0.044715f, cube, gate));
    return __fmul_rn(__fmul_rn(gate, Sigmoid(z)), up);
  }
  gate = gate > 7 ? 7 : gate;
  up = up > 7 ? 7 : up < -7 ? -7 : up;
  const float swish = __fmul_rn(gate, Sigmoid(__fmul_rn(1.702f, gate)));
  return __fmul_rn(swish, __fadd_rn(up, 1.0f));
}

// Returns a factor as it is joined.
__device__ inline float FactorOf(const GroupedOutput& output, float value) {
  return output.rounds_factors ? __bfloat162float(__float2bfloat16_rn(value)) : value;
}

// Where a tile's rows go, and what their inputs are scaled by.
template <int kTokens>
struct GroupedColumns {
  int pair[kTokens / 8];     // of row lane / 4 of each eight
  float scale[kTokens / 4];  // of rows 2 (lane % 4) and the next, which a lane has sums of

  __device__ void LoadPairs(const GroupedParams& p, const GroupedTile& tile) {
    const int lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int i = 0; i < kTokens / 8; ++i) pair[i] = PairOf(p, tile, 8 * i + lane / 4);
  }

  // kFourBit: inputs have no scales, and sums those of the weights' format.
  template <bool kFourBit>
  __device__ void LoadScales(const GroupedParams& p, const GroupedTile& tile) {
    const int lane = threadIdx.x % kWarpSize;
    const float known = !kFourBit && p.input_scaling == Scaling::kTensor ? *p.input_scales : p.unit;
#pragma unroll
    for (int i = 0; i < kTokens / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& own = scale[2 * i + j];
        own = known;
        if (!kFourBit && p.input_scaling == Scaling::kToken) {
          own = p.input_scales[PairOf(p, tile, 8 * i + lane % 4 * 2 + j) / p.slots];
        }
      }
    }
  }

 private:
  __device__ static int PairOf(const GroupedParams& p, const GroupedTile& tile, int row) {
    if (row >= tile.count) return 0;
    return p.output_rows == nullptr ? tile.first + row : p.output_rows[tile.first + row];
  }
};

// Writes a warp's 16 rows of weights for the tile's rows, from the registers in which wgmma leaves
// the sums: sums[4 i + 2 half + j] is weight row lane / 4 + 8 half, tile row 8 i + 2 (lane % 4) +
// j.
template <int kTokens>
class GroupedWriter {
 public:
  // `first_row`: the warp's, of the group's weight. Called by whole warps.
  __device__ GroupedWriter(const GroupedParams& params, const GroupedTile& tile, int first_row)
      : p_(params), tile_(tile), first_row_(first_row) {}

  // Loads what Write scales sums by and adds to them.
  __device__ void LoadRows() {
    if (first_row_ >= p_.rows) return;  // rows are a multiple of 16
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = int64_t{tile_.group} * p_.rows + first_row_ + Lane() / 4 + 8 * half;
      scale_[half] = p_.weight_scaling == WeightScaling::kTensor    ? p_.weight_scales[tile_.group]
                     : p_.weight_scaling == WeightScaling::kChannel ? p_.weight_scales[at]
                                                                    : 1;
      bias_[half] = p_.bias == nullptr ? 0 : p_.bias[at];
    }
  }

  __device__ void Write(const float (&sums)[kTokens / 2], const GroupedColumns<kTokens>& columns) {
    if (first_row_ < p_.rows) WriteSums(sums, columns);
  }

  // The same for weights without scales. `bias`: of this lane's two rows.
  __device__ void Write(const float (&sums)[kTokens / 2], const GroupedColumns<kTokens>& columns,
                        const float (&bias)[2]) {
    if (first_row_ >= p_.rows) return;
    for (int half = 0; half < 2; ++half) scale_[half] = 1, bias_[half] = bias[half];
    WriteSums(sums, columns);
  }

 private:
  __device__ static int Lane() { return threadIdx.x % kWarpSize; }

  // Each way has a loop of its own: the code between the parts that run would be fetched, too,
  // which took 4 us of a tile of 128 tokens.
  __device__ void WriteSums(const float (&sums)[kTokens / 2],
                            const GroupedColumns<kTokens>& columns) const {
    const auto inside = [&](int i) { return 8 * i + Lane() / 4 < tile_.count; };
    if (p_.output.gate != GroupedGate::kNone) {
      ForEachEight(sums, columns, [&](int i, const float(&values)[4]) {
        WriteGated(values, columns.pair[i], inside(i));
      });
    } else if (p_.output.fp32) {
      ForEachEight(sums, columns,
                   [&](int i, const float(&values)[4]) { WriteFp32(values, 8 * i); });
    } else {
      ForEachEight(sums, columns, [&](int i, const float(&values)[4]) {
        WriteBf16(values, columns.pair[i], inside(i));
      });
    }
  }

  // Calls write(i, values) for each eight rows of the tile, with this lane's four values of them.
  template <typename Write>
  __device__ void ForEachEight(const float (&sums)[kTokens / 2],
                               const GroupedColumns<kTokens>& columns, const Write& write) const {
#pragma unroll
    for (int i = 0; i < kTokens / 8; ++i) {
      if (8 * i >= tile_.count) break;
      float values[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        values[j] = __fmaf_rn(__fmul_rn(sums[4 * i + j], columns.scale[2 * i + j % 2]),
                              scale_[j / 2], bias_[j / 2]);
      }
      write(i, values);
    }
  }

  // Lanes exchange their values, so that each has two neighbouring columns of one row.
  __device__ void WriteBf16(const float (&values)[4], int pair, bool inside) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t columns = Transposed(Pair(values[2 * half], values[2 * half + 1]));
      if (inside) {
        *reinterpret_cast<uint32_t*>(static_cast<Bf16*>(p_.output.data) + pair * p_.output.stride +
                                     first_row_ + 8 * half + Lane() % 4 * 2) = columns;
      }
    }
  }

  __device__ void WriteGated(const float (&values)[4], int pair, bool inside) const {
    float joined[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      joined[i] = JoinFactors(p_.output.gate, FactorOf(p_.output, values[i]),
                              FactorOf(p_.output, values[2 + i]));
    }
    const int64_t at = pair * p_.output.stride + first_row_ / 2 + Lane() % 4 * 2;
    if (p_.output.scale != nullptr) {
      const uint32_t codes =
          Fp8Codes2(make_float2(joined[0], joined[1]), Fp8Inverse(*p_.output.scale));
      const uint32_t columns = Transposed(__byte_perm(codes, 0, 0x4140));  // each in 16 bits
      if (inside) {
        *reinterpret_cast<uint16_t*>(static_cast<uint8_t*>(p_.output.data) + at) =
            static_cast<uint16_t>(__byte_perm(columns, 0, 0x4420));
      }
    } else {
      const uint32_t columns = Transposed(Pair(joined[0], joined[1]));
      if (inside) {
        *reinterpret_cast<uint32_t*>(static_cast<Bf16*>(p_.output.data) + at) = columns;
      }
    }
  }

  __device__ void WriteFp32(const float (&values)[4], int first) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first + Lane() % 4 * 2 + i % 2;
      if (row >= tile_.count) continue;
      const int64_t pair =
          p_.output_rows == nullptr ? tile_.first + row : p_.output_rows[tile_.first + row];
      static_cast<float*>(
          p_.output.data)[pair * p_.output.stride + first_row_ + Lane() / 4 + i / 2 * 8] =
          values[i];
    }
  }

  __device__ static uint32_t Pair(float first, float second) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }

  const GroupedParams& p_;
  const GroupedTile& tile_;
  const int first_row_;
  float scale_[2], bias_[2];
};

// Fills the columns of a gated linear's output behind those of the weight with zeros, for a tile's
// rows. Called by all `threads`, of which this one is `thread`.
__device__ inline void WritePadding(const GroupedParams& p, const GroupedTile& tile, int thread,
                                    int threads) {
  const int element = p.output.scale != nullptr ? 1 : 2;  // bytes
  const int words = static_cast<int>(p.output.stride - p.rows / 2) * element / 8;
  for (int i = thread; i < words * tile.count; i += threads) {
    const int row = tile.first + i / words;
    const int64_t pair = p.output_rows == nullptr ? row : p.output_rows[row];
    uint8_t* const to = static_cast<uint8_t*>(p.output.data) +
                        (pair * p.output.stride + p.rows / 2) * element + i % words * 8;
    *reinterpret_cast<uint2*>(to) = make_uint2(0, 0);
  }
}

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_OUTPUT_CUH_
