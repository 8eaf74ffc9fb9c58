// Merges the partial results of a row whose chunks were divided among several CTAs.
#ifndef MILLRACE_KERNELS_ATTENTION_DECODE_MERGE_CUH_
#define MILLRACE_KERNELS_ATTENTION_DECODE_MERGE_CUH_

#include "kernels/attention/attention_math.cuh"
#include "kernels/attention/attention_params.cuh"
#include "kernels/device_util.cuh"

namespace millrace::kernels::attention {

// The partial results of a query row, and the four output columns that a lane merges.
struct Partials {
  const float2* sums;
  const float* values;
  int sums_stride;  // from chunk to chunk
  int values_stride;
  int chunks;
  float log2_unit;
  float value_scale;
  Softmax first_total;  // before the first chunk
  int64_t out;          // element offset of the first column; -1 stores nothing
};

// Merges a row's chunks in ascending order. Called by all lanes of a warp. Each lane computes one
// chunk's factors, which need only the largest scores before it; the sums then follow one another.
__device__ inline void MergePartials(const Params& params, const Partials& partials) {
  const int lane = threadIdx.x % kWarpSize;
  // chunks read at once; more would take registers from the loop over tiles
  constexpr int kAhead = 16;
  const auto load_sum = [&](int chunk) {
    if (chunk >= partials.chunks) return EmptySoftmax();
    const float2 sum = __ldcg(partials.sums + chunk * partials.sums_stride);
    return Softmax{sum.x, sum.y};
  };
  const auto load = [&](int chunk) {
    if (chunk >= partials.chunks) return make_float4(0, 0, 0, 0);
    return __ldcg(
        reinterpret_cast<const float4*>(partials.values + chunk * partials.values_stride));
  };
  Softmax own = load_sum(lane);
  float4 ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) ahead[i] = load(i);
  Softmax total = partials.first_total;
  float total_values[4] = {};
  for (int begin = 0; begin < partials.chunks; begin += kWarpSize) {
    float max = own.max;  // of the chunks up to the lane's
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const float before = __shfl_up_sync(kFullWarp, max, distance);
      if (lane >= distance) max = fmaxf(max, before);
    }
    const float before = __shfl_up_sync(kFullWarp, max, 1);
    Softmax lane_total = {lane == 0 ? total.max : fmaxf(total.max, before), 0};
    const MergeFactors lane_factors = Merge(lane_total, own, partials.log2_unit);
    for (int part = 0; part < kWarpSize && begin + part < partials.chunks; part += kAhead) {
      if (begin + part > 0) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) ahead[i] = load(begin + part + i);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const float4& value = ahead[i];
        const MergeFactors factors = {__shfl_sync(kFullWarp, lane_factors.total, part + i),
                                      __shfl_sync(kFullWarp, lane_factors.chunk, part + i)};
        total.sum = Merged(total.sum, __shfl_sync(kFullWarp, own.sum, part + i), factors);
        total_values[0] = Merged(total_values[0], value.x, factors);
        total_values[1] = Merged(total_values[1], value.y, factors);
        total_values[2] = Merged(total_values[2], value.z, factors);
        total_values[3] = Merged(total_values[3], value.w, factors);
      }
    }
    total.max = fmaxf(total.max, __shfl_sync(kFullWarp, max, kWarpSize - 1));
    own = load_sum(begin + kWarpSize + lane);
  }
  if (partials.out < 0) return;
  StoreOutputs(params, partials.out, total_values, OutputFactor(total, partials.value_scale));
}

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_DECODE_MERGE_CUH_
