// The choice of a token's experts from its logits, by one warp (route.h says what is computed).
#ifndef MILLRACE_KERNELS_MOE_CHOOSE_EXPERTS_CUH_
#define MILLRACE_KERNELS_MOE_CHOOSE_EXPERTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/moe/route.h"

namespace millrace::kernels {

// Returns a number that orders as the value does: at least kNanOrder, which stands for NaN. Both
// zeros are equal.
inline constexpr uint32_t kNoOrder = 0;  // below all values
inline constexpr uint32_t kNanOrder = 1;
__device__ inline uint32_t OrderOf(float value) {
  if (isnan(value)) return kNanOrder;
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The largest order among a warp's lanes, with its index; of equal orders the smallest index.
struct Best {
  uint32_t order;
  int index;

  __device__ static Best OfWarp(uint32_t order, int index) {
    const uint32_t largest = __reduce_max_sync(kFullWarp, order);
    const unsigned own = order == largest ? static_cast<unsigned>(index) : ~0u;
    return {largest, static_cast<int>(__reduce_min_sync(kFullWarp, own))};
  }
};

// Lane l holds the experts l, l + 32, ...: kPerLane of them. Everything is inlined, so that they
// lie in registers.
template <int kPerLane>
class ExpertChoice {
 public:
  __device__ explicit ExpertChoice(const RouteArgs& args)
      : args_(args), lane_(static_cast<int>(threadIdx.x) % kWarpSize) {}

  // Writes the token's ids and scores, and returns the id of slot number lane. `logit(expert)`
  // returns a logit of the token. Called by a whole warp.
  template <typename Logit>
  __device__ __forceinline__ int Choose(int64_t token, const Logit& logit) {
    ReadScores(logit);
    if (args_.groups > 1) KeepGroups();
    int expert = 0;  // of slot number lane
    float score = 0;
    for (int slot = 0; slot < args_.chosen; ++slot) {
      const Taken best = Take();
      if (lane_ == slot) expert = best.expert, score = best.score;
    }
    float sum = 0;
    for (int slot = 0; slot < args_.chosen; ++slot) sum += __shfl_sync(kFullWarp, score, slot);
    if (args_.renormalize) score = score / (sum + 1e-20f);  // sigmoids may all be 0
    if (lane_ < args_.chosen) {
      args_.ids[token * args_.chosen + lane_] = expert;
      args_.token_scores[token * args_.chosen + lane_] = score * args_.factor;
    }
    return expert;
  }

 private:
  __device__ int ExpertOf(int i) const { return lane_ + i * kWarpSize; }
  __device__ float Correction(int expert) const {
    return args_.correction != nullptr && expert < args_.experts ? args_.correction[expert] : 0;
  }

  template <typename Logit>
  __device__ __forceinline__ void ReadScores(const Logit& logit) {
    const bool softmax = args_.scores == RouterScores::kSoftmax;
    const bool by_logit = softmax && args_.correction == nullptr && args_.groups == 1;
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int expert = ExpertOf(i);
      scores_[i] = expert < args_.experts ? logit(expert) : -INFINITY;
      values_[i] = by_logit ? scores_[i] : Correction(expert);
      largest = fmaxf(largest, scores_[i]);
    }
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, distance));
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (ExpertOf(i) >= args_.experts) continue;
      scores_[i] = softmax ? expf(scores_[i] - largest) : 1 / (1 + expf(-scores_[i]));
      sum += scores_[i];
    }
    sum = WarpReduce<Add>(sum);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int expert = ExpertOf(i);
      orders_[i] = kNoOrder;
      if (expert >= args_.experts) continue;
      if (softmax) scores_[i] = scores_[i] / sum;
      if (!by_logit) {
        values_[i] = args_.correction == nullptr ? scores_[i] : scores_[i] + values_[i];
      }
      orders_[i] = OrderOf(values_[i]);
    }
  }

  // Makes the experts of all but the chosen groups ineligible.
  __device__ __forceinline__ void KeepGroups() {
    const int size = args_.experts / args_.groups;
    float own = 0;  // the score of group number lane
    for (int group = 0; group < args_.groups; ++group) {
      const float score = GroupScore(group, size);
      if (lane_ == group) own = score;
    }
    uint32_t order = lane_ < args_.groups ? OrderOf(own) : kNoOrder, kept = 0;
    for (int i = 0; i < args_.chosen_groups; ++i) {
      const Best best = Best::OfWarp(order, lane_);
      kept |= 1u << best.index;
      if (lane_ == best.index) order = kNoOrder;
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int expert = ExpertOf(i);
      if (expert < args_.experts && (kept >> (expert / size) & 1) == 0) orders_[i] = kNoOrder;
    }
  }

  // Returns the sum of a group's two largest values, or the only one.
  __device__ __forceinline__ float GroupScore(int group, int size) const {
    float first = -INFINITY, second = -INFINITY;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int expert = ExpertOf(i);
      if (expert < group * size || expert >= (group + 1) * size || isnan(values_[i])) continue;
      second = fmaxf(second, fminf(first, values_[i]));
      first = fmaxf(first, values_[i]);
    }
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      const float other_first = __shfl_xor_sync(kFullWarp, first, distance);
      const float other_second = __shfl_xor_sync(kFullWarp, second, distance);
      second = fmaxf(fmaxf(second, other_second), fminf(first, other_first));
      first = fmaxf(first, other_first);
    }
    return size == 1 ? first : first + second;
  }

  // An expert and its score.
  struct Taken {
    int expert;
    float score;
  };

  // Removes the best expert that is left, and returns it to all lanes.
  __device__ __forceinline__ Taken Take() {
    uint32_t order = kNoOrder;
    int expert = kMaxExperts;
    float score = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const bool better = orders_[i] > order;
      order = better ? orders_[i] : order;
      expert = better ? ExpertOf(i) : expert;
      score = better ? scores_[i] : score;
    }
    const Best best = Best::OfWarp(order, expert);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      orders_[i] = ExpertOf(i) == best.index ? kNoOrder : orders_[i];
    }
    return {best.index, __shfl_sync(kFullWarp, score, best.index % kWarpSize)};
  }

  const RouteArgs& args_;
  const int lane_;
  float scores_[kPerLane], values_[kPerLane];
  uint32_t orders_[kPerLane];
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_MOE_CHOOSE_EXPERTS_CUH_
