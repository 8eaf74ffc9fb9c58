// The sum of a token's experts, for the kernels that add it to the residual stream.
#ifndef MILLRACE_KERNELS_MOE_MIXTURE_SUM_CUH_
#define MILLRACE_KERNELS_MOE_MIXTURE_SUM_CUH_

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/moe/combine.h"
#include "kernels/types.h"

namespace millrace::kernels {

// Eight columns of a row of y.
struct Bf16Vector {
  uint4 raw;
  __device__ void Load(const void* from, int64_t at) {
    raw = LoadRaw8(static_cast<const Bf16*>(from) + at);
  }
  __device__ void Values(float (&to)[8]) const { Unpack8(raw, to); }
};
struct FloatVector {
  float4 low, high;
  __device__ void Load(const void* from, int64_t at) {
    const float4* const words =
        reinterpret_cast<const float4*>(static_cast<const float*>(from) + at);
    low = words[0], high = words[1];
  }
  __device__ void Values(float (&to)[8]) const { Unpack(low, high, to); }
};

// Computes columns [column, column + 8) of what LaunchCombine adds to a token, before its factor.
template <typename Vector>
class MixtureSum {
 public:
  // Loads what is constant while steps run, and may come before the predecessor is awaited.
  __device__ void LoadConstants(const CombineArgs& args, int64_t column) {
    if (args.shared.data != nullptr) shared_.LoadConstants(args.shared, column);
  }

  __device__ void Add(const CombineArgs& args, int64_t token, int64_t column, float (&sum)[8]) {
    AddSlots(args, token, column, sum);
    if (args.shared.data == nullptr) return;
    float gate = 1, factors[8];
    shared_.Load(args.shared, token, column);
    shared_.Values(factors);
    if (args.shared_logits != nullptr) {
      gate = 1 / (1 + expf(-args.shared_logits[token * args.shared_logit_stride]));
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] = __fmaf_rn(gate, factors[j], sum[j]);
  }

 private:
  static constexpr int kInFlight = 4;  // slots whose loads are under way at a time

  __device__ static bool HasRow(const CombineArgs& args, int64_t pair) {
    if (args.ids == nullptr) return true;
    const int expert = args.ids[pair] - args.first_expert;
    return expert >= 0 && expert < args.experts;
  }

  __device__ static void AddSlots(const CombineArgs& args, int64_t token, int64_t column,
                                  float (&sum)[8]) {
    for (int first = 0; first < args.slots; first += kInFlight) {
      Vector rows[kInFlight];
      float scores[kInFlight];
      bool adds[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int64_t pair = token * args.slots + first + i;
        adds[i] = first + i < args.slots && HasRow(args, pair);
        if (!adds[i]) continue;
        rows[i].Load(args.y, pair * args.y_stride + column);
        scores[i] = args.scores[pair];
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (!adds[i]) continue;
        float values[8];
        rows[i].Values(values);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[j] = __fmaf_rn(scores[i], values[j], sum[j]);
      }
    }
  }

  ProductVector<true> shared_;
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_MOE_MIXTURE_SUM_CUH_
