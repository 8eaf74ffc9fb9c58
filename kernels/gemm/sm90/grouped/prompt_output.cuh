// The epilogue of prompt_kernel.cuh: scales the sums of a tile, adds biases, joins a gated linear's
// factors, rounds and writes. The steps are those of grouped_output.cuh.
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_PROMPT_OUTPUT_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_PROMPT_OUTPUT_CUH_

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/fp8.cuh"
#include "kernels/gemm/sm90/dense/wide_output.cuh"
#include "kernels/gemm/sm90/grouped/grouped_output.cuh"
#include "kernels/gemm/sm90/grouped/prompt_shape.cuh"
#include "kernels/transpose.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

// Writes a warp's 16 tokens of a tile of kRows rows of weights, from the registers in which wgmma
// leaves the sums: sums[4 i + 2 half + j] is token lane / 4 + 8 half, row 8 i + 2 (lane % 4) + j.
template <int kRows>
class PromptWriter {
 public:
  // Called by all 128 threads that have sums of 64 tokens.
  __device__ PromptWriter(const PromptParams& params, const GroupedTile& tile)
      : p_(params.p),
        sorted_(params.sorted_output || params.p.groups.order == nullptr),
        tile_(tile),
        first_row_(tile.row_tile * kRows) {
    if (p_.weight_scaling == WeightScaling::kTensor) scale_ = p_.weight_scales[tile.group];
    const float known = p_.input_scaling == Scaling::kTensor ? *p_.input_scales : p_.unit;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = threadIdx.x / kWarpSize * 16 + Lane() / 4 + 8 * half;
      inside_[half] = token < tile.count;
      input_scale_[half] = known;
      output_row_[half] = 0;
      if (!inside_[half]) continue;
      output_row_[half] = RowOf(tile.first + token);
      if (p_.input_scaling == Scaling::kToken) {
        input_scale_[half] = p_.input_scales[tile.first + token];
      }
    }
  }

  __device__ void Write(const float (&sums)[kRows / 2]) const {
    // Columns of the output that are stored together.
    constexpr int kColumns = 32;
    if (p_.output.gate == GroupedGate::kSilu) {
      WriteGatedTile<GroupedGate::kSilu>(sums);
    } else if (p_.output.gate == GroupedGate::kGeluTanh) {
      WriteGatedTile<GroupedGate::kGeluTanh>(sums);
    } else if (p_.output.gate == GroupedGate::kClampedSwish) {
      WriteGatedTile<GroupedGate::kClampedSwish>(sums);
    } else if (p_.output.fp32) {
#pragma unroll
      for (int first = 0; first < kRows; first += 8) {
        if (first_row_ + first >= p_.rows) return;
        WriteFp32(first, &sums[first / 2]);
      }
    } else {
#pragma unroll
      for (int first = 0; first < kRows; first += kColumns) {
        if (first_row_ + first >= p_.rows) return;
        WriteBf16(first, &sums[first / 2]);
      }
    }
  }

  // Fills the columns of a gated linear's output behind those of the weight with zeros, with the
  // last tile of rows.
  __device__ void WritePadding() const {
    if (p_.output.gate == GroupedGate::kNone || tile_.row_tile + 1 != p_.row_tiles) return;
    const int element = p_.output.scale != nullptr ? 1 : 2;  // bytes
    const int words = static_cast<int>(p_.output.stride - p_.rows / 2) * element / 8;
    const int first = threadIdx.x / 128 * kPromptUnit;
    const int tokens = min(tile_.count - first, kPromptUnit);
    for (int i = threadIdx.x % 128; i < words * tokens; i += 128) {
      const int64_t row = RowOf(tile_.first + first + i / words);
      uint8_t* const to = static_cast<uint8_t*>(p_.output.data) +
                          (row * p_.output.stride + p_.rows / 2) * element + i % words * 8;
      *reinterpret_cast<uint2*>(to) = make_uint2(0, 0);
    }
  }

 private:
  __device__ static int Lane() { return threadIdx.x % kWarpSize; }

  // Returns the output's row for a row of the order.
  __device__ int RowOf(int row) const { return sorted_ ? row : p_.groups.order[row]; }

  // Returns products of a lane's two tokens and two rows from `first` on. Rows that there are not
  // have no scales.
  struct Values {
    float of[2][2];
  };
  __device__ Values ValuesOf(int first, const float* sums) const {
    const int row = first_row_ + first + Lane() % 4 * 2;
    const int64_t at = int64_t{tile_.group} * p_.rows + row;
    float2 scale = make_float2(scale_, scale_), bias = make_float2(0, 0);
    if (row < p_.rows) {
      if (p_.weight_scaling == WeightScaling::kChannel) scale = PairAt(p_.weight_scales + at);
      if (p_.bias != nullptr) bias = PairAt(p_.bias + at);
    }
    Values values;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float own = input_scale_[half];
      values.of[half][0] = __fmaf_rn(__fmul_rn(sums[2 * half], own), scale.x, bias.x);
      values.of[half][1] = __fmaf_rn(__fmul_rn(sums[2 * half + 1], own), scale.y, bias.y);
    }
    return values;
  }
  __device__ static float2 PairAt(const float* from) {
    return *reinterpret_cast<const float2*>(from);
  }

  // An instance for each function: with branches in between the steps of one pair of factors would
  // wait for those of the pair before.
  template <GroupedGate kGate>
  __device__ void WriteGatedTile(const float (&sums)[kRows / 2]) const {
#pragma unroll
    for (int first = 0; first < kRows; first += 64) {
      if (first_row_ + first >= p_.rows) return;
      WriteGated<kGate>(first, &sums[first / 2]);
    }
  }

  template <GroupedGate kGate>
  __device__ float Join(float gate, float up) const {
    return JoinFactors(kGate, FactorOf(p_.output, gate), FactorOf(p_.output, up));
  }

  // Joins 64 rows to 32 columns.
  template <GroupedGate kGate>
  __device__ void WriteGated(int first, const float* sums) const {
    float2 joined[2][4];  // of a token: two neighbouring columns of each eight
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Values gate = ValuesOf(first + 16 * i, sums + 8 * i);
      const Values up = ValuesOf(first + 16 * i + 8, sums + 8 * i + 4);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        joined[half][i] = make_float2(Join<kGate>(gate.of[half][0], up.of[half][0]),
                                      Join<kGate>(gate.of[half][1], up.of[half][1]));
      }
    }
    const bool fp8 = p_.output.scale != nullptr;
    uint32_t words[2][4];
    if (fp8) {
      const float inverse = Fp8Inverse(*p_.output.scale);
#pragma unroll
      for (int i = 0; i < 8; ++i) words[i / 4][i % 4] = Fp8Codes2(joined[i / 4][i % 4], inverse);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        words[i / 4][i % 4] = Bf16Pair(joined[i / 4][i % 4].x, joined[i / 4][i % 4].y);
      }
    }
    const int column = (first_row_ + first) / 2 + Lane() % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t(&row)[4] = words[half];
      TransposeQuad(row);
      if (!inside_[half] || column >= p_.rows / 2) continue;
      const int64_t at = output_row_[half] * p_.output.stride + column;
      if (fp8) {
        *reinterpret_cast<uint2*>(static_cast<uint8_t*>(p_.output.data) + at) =
            make_uint2(row[0] | row[1] << 16, row[2] | row[3] << 16);
      } else {
        *reinterpret_cast<uint4*>(static_cast<Bf16*>(p_.output.data) + at) =
            make_uint4(row[0], row[1], row[2], row[3]);
      }
    }
  }

  // Writes 32 rows of outputs as BF16.
  __device__ void WriteBf16(int first, const float* sums) const {
    uint32_t words[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Values values = ValuesOf(first + 8 * i, sums + 4 * i);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        words[half][i] = Bf16Pair(values.of[half][0], values.of[half][1]);
      }
    }
    const int column = first_row_ + first + Lane() % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t(&row)[4] = words[half];
      TransposeQuad(row);
      if (!inside_[half] || column >= p_.rows) continue;
      *reinterpret_cast<uint4*>(static_cast<Bf16*>(p_.output.data) +
                                output_row_[half] * p_.output.stride + column) =
          make_uint4(row[0], row[1], row[2], row[3]);
    }
  }

  // Writes eight rows of outputs as fp32.
  __device__ void WriteFp32(int first, const float* sums) const {
    const Values values = ValuesOf(first, sums);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!inside_[half]) continue;
      float* const row = static_cast<float*>(p_.output.data) + output_row_[half] * p_.output.stride;
      *reinterpret_cast<float2*>(row + first_row_ + first + Lane() % 4 * 2) =
          make_float2(values.of[half][0], values.of[half][1]);
    }
  }

  const GroupedParams& p_;
  const bool sorted_;
  const GroupedTile& tile_;
  const int first_row_;
  float scale_ = 1;  // of the group, where there is one
  bool inside_[2];
  float input_scale_[2];
  int64_t output_row_[2];
};

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_PROMPT_OUTPUT_CUH_
