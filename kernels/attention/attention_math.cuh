// The arithmetic that the decode and prefill kernels share: mma.sync, online softmax over tiles
// (arXiv:2205.14135), and the merge of two chunks. The contract fixes the result bit for bit, so
// every rounding is explicit and the compiler has nothing to contract.
//
// Fragments have the layout of mma.m16n8k16. With g = lane / 4 and t = lane % 4, a lane holds
// columns 2t and 2t + 1 of row g (elements 0, 1) and of row g + 8 (elements 2, 3) of a 16 x 8
// float32 block. `half` selects one of the two rows.
#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_MATH_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_MATH_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/attention/paged_attention.h"
#include "kernels/mma.cuh"

namespace millrace::kernels::attention {

inline constexpr int kTile = 64;  // keys of one step of the online softmax
inline constexpr int kTileBlocks = kTile / 8;
inline constexpr int kTilesPerChunk = kAttentionChunk / kTile;
inline constexpr float kLog2E = 1.4426950408889634f;

__device__ inline float Infinity() { return __int_as_float(0x7f800000); }

// Returns 2^x: exactly 1 at 0, and 0 at -infinity.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// c += a * b: a is 16 x 16 (rows of queries), b is 16 x 8, both FP16 or both BF16.
template <bool kHalf>
__device__ inline void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kHalf) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    MultiplyBf16(c, a, b0, b1);
  }
}

// Packs two numbers as FP16, `low` in the lower half. Values out of range saturate.
__device__ inline uint32_t PackHalf(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ inline uint32_t Bf16ToHalf(uint32_t pair) {
  return PackHalf(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
}

__device__ inline uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ inline float2 UnpackBf16(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
}

// Maps a dot product of q and k to a score. The score's unit is such that probabilities are
// 2^(score * log2_unit).
struct ScoreRule {
  float soft_cap;      // 0: none
  float capped_scale;  // 2 * log2(e) * scale / soft_cap
  float log2_unit;     // log2(e) with a cap, scale * log2(e) without
};

// Returns soft_cap * tanh(product * scale / soft_cap), with a float32's precision relative to the
// cap.
__device__ inline float SoftCap(const ScoreRule& rule, float product) {
  const float e = Exp2(__fmul_rn(product, rule.capped_scale));
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(__fadd_rn(e, 1.0f)));
  return __fmul_rn(rule.soft_cap, __fmaf_rn(-2.0f, reciprocal, 1.0f));
}

// Online-softmax state of a query row over some of its keys: the largest score, and the sum of
// 2^((score - max) * log2_unit). It is (-infinity, 0) when no key is visible.
struct Softmax {
  float max;
  float sum;
};

__device__ inline Softmax EmptySoftmax() { return {-Infinity(), 0.0f}; }

// Returns the maximum to subtract. It is 0 while no key is visible, so that masked scores give
// 2^-infinity = 0 and not NaN.
__device__ inline float Finite(float max) { return max == -Infinity() ? 0.0f : max; }

// Probabilities are 2^(score - reference). The reference starts as the first tile's maximum and is
// replaced only by a score that exceeds it by more than kSlack powers of two, so accumulators are
// rarely rescaled. FP16 can hold probabilities up to 2^8.
inline constexpr float kSlack = 8;

// The effect of a tile on the accumulators of a lane's two rows. `factors` rescale what was
// accumulated; a factor is exactly 1 when the reference stays, so a fully masked tile changes
// nothing. `offsets` are -(reference), in powers of two.
struct TileOffsets {
  float factors[2];
  float offsets[2];
};

// Reduces a tile's scores to each row's maximum over the lane's own columns. This function and
// those below are written as many independent instructions.
template <int kHalves>
__device__ inline void LaneMaxima(const float (&scores)[kTileBlocks][4], float (&max)[kHalves]) {
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    float maxima[4];
#pragma unroll
    for (int i = 0; i < 2 * kTileBlocks; ++i) {
      const float score = scores[i / 2][2 * half + i % 2];
      maxima[i % 4] = i < 4 ? score : fmaxf(maxima[i % 4], score);
    }
    max[half] = fmaxf(fmaxf(maxima[0], maxima[1]), fmaxf(maxima[2], maxima[3]));
  }
}

// Reduces the maxima over the four lanes of a row and gives them to each.
template <int kHalves>
__device__ inline void MaxOverLanes(float (&max)[kHalves]) {
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
#pragma unroll
    for (float& value : max) value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, distance));
  }
}

// Updates the references in `states` from a tile's scores. Only the first kHalves of the two rows
// are used.
template <int kHalves = 2>
__device__ inline TileOffsets TakeMaxima(const float (&scores)[kTileBlocks][4], float log2_unit,
                                         Softmax (&states)[2]) {
  float max[kHalves];
  LaneMaxima(scores, max);
  MaxOverLanes(max);
  TileOffsets out = {{1, 1}, {0, 0}};
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    Softmax& state = states[half];
    const float kept = Finite(state.max);
    const float excess = __fmul_rn(__fsub_rn(max[half], state.max), log2_unit);  // NaN: both -inf
    const bool grows = excess > kSlack;
    out.factors[half] = grows ? Exp2(-excess) : 1.0f;
    out.offsets[half] = -__fmul_rn(grows ? max[half] : kept, log2_unit);
    if (grows) state.max = max[half];
  }
  return out;
}

// Computes what TakeMaxima does for both rows, with the same bits, but reduces the maxima over the
// lanes only if a row of the warp takes a new reference. That is rare behind a chunk's first tile.
// A row takes one exactly if the maximum of one of its lanes exceeds the old one by more than
// kSlack.
__device__ inline TileOffsets TakeMaximaByVote(const float (&scores)[kTileBlocks][4],
                                               float log2_unit, Softmax (&states)[2]) {
  float max[2];
  LaneMaxima(scores, max);
  const auto excess = [&](int half) {  // NaN: both are -infinity
    return __fmul_rn(__fsub_rn(max[half], states[half].max), log2_unit);
  };
  TileOffsets out = {{1, 1}, {0, 0}};
  if (__any_sync(0xffffffff, excess(0) > kSlack || excess(1) > kSlack)) {
    MaxOverLanes(max);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float by = excess(half);
      const bool grows = by > kSlack;
      out.factors[half] = grows ? Exp2(-by) : 1.0f;
      if (grows) states[half].max = max[half];
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    out.offsets[half] = -__fmul_rn(Finite(states[half].max), log2_unit);
  }
  return out;
}

// Turns scores into probabilities in place and adds them to the states' sums. Each lane holds only
// its own share of a sum (see SumOverLanes).
template <int kHalves = 2>
__device__ inline void TakeProbabilities(float (&scores)[kTileBlocks][4], float log2_unit,
                                         const TileOffsets& tile, Softmax (&states)[2]) {
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    float sums[2];
#pragma unroll
    for (int i = 0; i < 2 * kTileBlocks; ++i) {
      float& score = scores[i / 2][2 * half + i % 2];
      score = Exp2(__fmaf_rn(score, log2_unit, tile.offsets[half]));
      sums[i % 2] = i < 2 ? score : __fadd_rn(sums[i % 2], score);
    }
    states[half].sum = __fmaf_rn(states[half].sum, tile.factors[half], __fadd_rn(sums[0], sums[1]));
  }
}

// Reduces the sum over the four lanes of a row and gives it to each. Called at the end of a chunk.
__device__ inline void SumOverLanes(Softmax& state) {
  state.sum = __fadd_rn(state.sum, __shfl_xor_sync(0xffffffff, state.sum, 1));
  state.sum = __fadd_rn(state.sum, __shfl_xor_sync(0xffffffff, state.sum, 2));
}

// Returns whether any lane of the warp has to rescale its accumulators. This is rare.
__device__ inline bool Scales(const TileOffsets& tile) {
  return __any_sync(0xffffffff, tile.factors[0] != 1 || tile.factors[1] != 1);
}

template <int kBlocks>
__device__ inline void Scale(float (&values)[kBlocks][4], const TileOffsets& tile) {
#pragma unroll
  for (int i = 0; i < 4 * kBlocks; ++i) {
    float& value = values[i / 4][i % 4];
    value = __fmul_rn(value, tile.factors[i % 4 / 2]);
  }
}

// Packs two probabilities as FP16, `low` in the lower half.
__device__ inline uint32_t PackProbabilities(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Packs the probabilities of keys [16 step, 16 step + 16) as the A fragment of the product with
// their values. They are FP16, since BF16's 8 bits would add an error as large as the rounding of
// the output.
__device__ inline void Probabilities(const float (&scores)[kTileBlocks][4], int step,
                                     uint32_t (&a)[4]) {
  a[0] = PackProbabilities(scores[2 * step][0], scores[2 * step][1]);
  a[1] = PackProbabilities(scores[2 * step][2], scores[2 * step][3]);
  a[2] = PackProbabilities(scores[2 * step + 1][0], scores[2 * step + 1][1]);
  a[3] = PackProbabilities(scores[2 * step + 1][2], scores[2 * step + 1][3]);
}

// Factors that merge a chunk into the total of the chunks before it. A chunk without visible keys
// leaves the total's bits unchanged; merging into an empty total yields the chunk.
struct MergeFactors {
  float total;
  float chunk;
};

__device__ inline MergeFactors Merge(Softmax& total, const Softmax& chunk, float log2_unit) {
  const float max = fmaxf(total.max, chunk.max);
  const float subtract = Finite(max);
  const MergeFactors factors = {Exp2(__fmul_rn(__fsub_rn(total.max, subtract), log2_unit)),
                                Exp2(__fmul_rn(__fsub_rn(chunk.max, subtract), log2_unit))};
  total = {max, __fmaf_rn(chunk.sum, factors.chunk, __fmul_rn(total.sum, factors.total))};
  return factors;
}

__device__ inline float Merged(float total, float chunk, const MergeFactors& factors) {
  return __fmaf_rn(chunk, factors.chunk, __fmul_rn(total, factors.total));
}

// Returns the factor that normalizes accumulated values into outputs.
__device__ inline float OutputFactor(const Softmax& total, float value_scale) {
  return __fdiv_rn(value_scale, total.sum);
}

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_MATH_CUH_
