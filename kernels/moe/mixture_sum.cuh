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
// Up to kInFlight slots' loads are under way at a time: one after the other they take as long as
// all the rest of a kernel of one token.
template <typename Vector, int kInFlight = 8>
class MixtureSum {
 public:
  // Loads what is constant while steps run, and finds where the first slots' rows lie. Called
  // before the predecessor is awaited.
  __device__ void Begin(const CombineArgs& args, int64_t token, int64_t column) {
    if (args.shared.data != nullptr) shared_.LoadConstants(args.shared, column);
    pair_ = token * args.slots;
    at_ = pair_ * args.y_stride + column;
    asm volatile("" : "+l"(pair_), "+l"(at_));  // or the compiler would do it behind the wait
  }

  // Begins to load the first slots. Called after the predecessor is awaited, before Add.
  __device__ void Load(const CombineArgs& args, int64_t token, int64_t column) {
    LoadSlots(args, 0);
    if (args.shared.data == nullptr) return;
    shared_.Load(args.shared, token, column);
    if (args.shared_logits != nullptr) {
      shared_logit_ = args.shared_logits[token * args.shared_logit_stride];
    }
  }

  __device__ void Add(const CombineArgs& args, float (&sum)[8]) {
    AddSlots(sum);
    for (int first = kInFlight; first < args.slots; first += kInFlight) {
      LoadSlots(args, first);
      AddSlots(sum);
    }
    if (args.shared.data == nullptr) return;
    float factors[8];
    shared_.Values(factors);
    const float gate = args.shared_logits != nullptr ? 1 / (1 + expf(-shared_logit_)) : 1;
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] = __fmaf_rn(gate, factors[j], sum[j]);
  }

 private:
  __device__ void LoadSlots(const CombineArgs& args, int first) {
    const int slots = args.slots - first;
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) adds_[i] = i < slots;
    if (args.ids != nullptr) {
      int experts[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        experts[i] = adds_[i] ? args.ids[pair_ + first + i] - args.first_expert : -1;
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        adds_[i] = experts[i] >= 0 && experts[i] < args.experts;
      }
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (!adds_[i]) continue;
      rows_[i].Load(args.y, at_ + (first + i) * args.y_stride);
      scores_[i] = args.scores[pair_ + first + i];
    }
  }

  __device__ void AddSlots(float (&sum)[8]) const {
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (!adds_[i]) continue;
      float values[8];
      rows_[i].Values(values);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] = __fmaf_rn(scores_[i], values[j], sum[j]);
    }
  }

  int64_t pair_, at_;  // the first slot's, and where its columns lie in y
  Vector rows_[kInFlight];
  float scores_[kInFlight];
  bool adds_[kInFlight];
  float shared_logit_;
  ProductVector<true> shared_;
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_MOE_MIXTURE_SUM_CUH_
