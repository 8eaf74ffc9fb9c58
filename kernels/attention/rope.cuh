// The arithmetic of rope.h, shared by the append kernel and by decode with fused rope. Both give
// the same bits, so every rounding is explicit.
#ifndef MILLRACE_KERNELS_ATTENTION_ROPE_CUH_
#define MILLRACE_KERNELS_ATTENTION_ROPE_CUH_

#include "kernels/attention/attention_math.cuh"
#include "kernels/attention/rope.h"
#include "kernels/device_util.cuh"
#include "kernels/types.h"

namespace millrace::kernels {

// Lanes that share a head, 8 values each. A head of 96 has 16 lanes, of which 12 work.
template <int kHeadSize>
inline constexpr int kHeadLanes = kHeadSize <= 64    ? 8
                                  : kHeadSize <= 128 ? 16
                                                     : 32;

// The first columns of a lane's two runs of 4 columns of a head. The runs are adjacent, except
// where rotation pairs the head's halves: then there is one run in either half, so that each lane
// has both elements of its pairs.
struct Runs {
  int first, second;
};

// Returns the runs of lane `lane`. Lanes below dimensions / 8 hold all rotary dimensions.
__device__ inline Runs RunsOf(int lane, int dimensions, bool halves) {
  if (halves && lane < dimensions / 8) return {4 * lane, dimensions / 2 + 4 * lane};
  return {8 * lane, 8 * lane + 4};
}

__device__ inline void Load4(const float* from, float* to) {
  const float4 values = *reinterpret_cast<const float4*>(from);
  to[0] = values.x, to[1] = values.y, to[2] = values.z, to[3] = values.w;
}

// Loads two runs of float32.
__device__ inline void LoadRuns(const float* from, Runs runs, float (&to)[8]) {
  Load4(from + runs.first, to);
  Load4(from + runs.second, to + 4);
}

// A head's two runs as stored by the linear, and their token's scale.
struct HeadRuns {
  uint2 first, second;
  float token_scale;

  __device__ void Load(const Product& product, int64_t token, int64_t column, Runs runs) {
    const Bf16* row = product.data + token * product.stride + column;
    first = *reinterpret_cast<const uint2*>(row + runs.first);
    second = *reinterpret_cast<const uint2*>(row + runs.second);
    token_scale = product.token_scales != nullptr ? product.token_scales[token] : 1;
  }

  // Applies the scales as ProductVector does and adds `bias` (of the runs' head) unless it is null.
  // The bias is loaded here because few models have one, and registers held for it would be missing
  // elsewhere.
  __device__ void Values(const float (&scales)[8], const float* bias, Runs runs,
                         float (&x)[8]) const {
    Unpack8(make_uint4(first.x, first.y, second.x, second.y), x);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = __fmul_rn(__fmul_rn(x[i], token_scale), scales[i]);
    if (bias == nullptr) return;
    float added[8];
    LoadRuns(bias, runs, added);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = __fadd_rn(x[i], added[i]);
  }
};

// Computes x / sqrt(mean(x^2) + epsilon) * weight over a head. Called by all lanes of the warp;
// lanes beyond the head's end pass zeros.
template <int kHeadSize>
__device__ inline void NormHead(const float (&weight)[8], float epsilon, float (&x)[8]) {
  float squares = 0;
#pragma unroll
  for (const float value : x) squares = __fmaf_rn(value, value, squares);
  squares = WarpReduce<Add, kHeadLanes<kHeadSize>>(squares);
  const float inverse = __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(squares, kHeadSize), epsilon)));
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = __fmul_rn(__fmul_rn(x[i], inverse), weight[i]);
}

// Rotates the lane's four pairs by four (cos, sin).
__device__ inline void Rotate(const float (&rotation)[8], bool halves, float (&x)[8]) {
  const auto rotate = [](float cosine, float sine, float& a, float& b) {
    const float rotated = __fmaf_rn(a, cosine, -__fmul_rn(b, sine));
    b = __fmaf_rn(a, sine, __fmul_rn(b, cosine));
    a = rotated;
  };
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    const float cosine = rotation[2 * pair], sine = rotation[2 * pair + 1];
    if (halves) {
      rotate(cosine, sine, x[pair], x[pair + 4]);
    } else {
      rotate(cosine, sine, x[2 * pair], x[2 * pair + 1]);
    }
  }
}

// Operations on a lane's values of q and k heads. Values of v are left as they are.
struct HeadRule {
  bool norms;
  bool rotates;  // the lane's columns
  bool halves;   // not interleaved
  float epsilon;
};

// Applies norm and rotation to a head. Called by all lanes of the warp.
template <int kHeadSize>
__device__ inline void NormAndRotate(const HeadRule& rule, bool is_value, bool is_in_head,
                                     const float (&weight)[8], const float (&rotation)[8],
                                     float (&x)[8]) {
  if (rule.norms) {  // a warp may hold heads of q, k and v, so all lanes take part in the sums
    float normed[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) normed[i] = is_in_head ? x[i] : 0;
    NormHead<kHeadSize>(weight, rule.epsilon, normed);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = is_value ? x[i] : normed[i];
  }
  if (rule.rotates && !is_value) Rotate(rotation, rule.halves, x);
}

// Packs keys (BF16) or values (FP16, to nearest even, saturated) for 16-bit pages.
__device__ inline uint4 PackForPages(const float (&x)[8], bool is_value) {
  using attention::PackHalf;
  if (!is_value) return Pack8(x);
  return make_uint4(PackHalf(x[0], x[1]), PackHalf(x[2], x[3]), PackHalf(x[4], x[5]),
                    PackHalf(x[6], x[7]));
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ATTENTION_ROPE_CUH_
