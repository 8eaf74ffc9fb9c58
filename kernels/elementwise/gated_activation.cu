#include "kernels/elementwise/gated_activation.h"

#include <algorithm>
#include <utility>

#include "kernels/activation_row.cuh"
#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/elementwise/cluster.cuh"
#include "kernels/elementwise/gate.cuh"
#include "kernels/kernel_table.h"
#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

template <bool kScaled>
struct GatedSource {
  GatedActivationArgs args;

  using Constants = GateVector<kScaled>;
  __device__ Constants LoadConstants(int64_t column) const {
    Constants vector;
    vector.LoadConstants(args, column);
    return vector;
  }
  __device__ void operator()(int64_t token, int64_t column, Constants vector,
                             float (&values)[8]) const {
    vector.Load(args, token, column);
    Gate(vector, values);
  }
};

// Kernel for many long rows with a scale per token. A row's maximum binds it to one CTA, or on
// sm_90 to a cluster of kParts CTAs, and a CTA of this size fills an SM. It therefore has two
// groups of threads, each with a row or a part of a row of its own, so that one computes while the
// other waits for its maximum. The channel scales lie in shared memory; CTAs that share rows load
// half of them, which takes half as long. Each thread prefetches its part of the group's next row
// while it computes the current one.
constexpr int kRowGroups = 2;
constexpr int kRowsVectors = 4;     // of a thread, in a CTA that takes whole rows
constexpr int kGroupThreads = 448;  // leaves each thread 72 registers
constexpr int kMaxRowsWidth = 8 * kRowsVectors * kGroupThreads;

// Above this many tokens one CTA per row is as fast as a cluster (measured), if a row is no longer
// than kMaxRowsWidth.
constexpr int kMaxClusterTokens = 48;

// Up to this many rows for each SM two CTAs share each row: the time until a CTA has its scales
// counts there. With more rows the two wait for one another too often (measured).
constexpr int kMostSharedRows = 6;

// Returns the maximum over a group's values to all its threads.
__device__ inline float GroupMax(float value, int group, float (&maxima)[kWarpSize]) {
  const int lane = threadIdx.x % kWarpSize;
  value = WarpReduce<Max>(value);
  if (lane == 0) maxima[threadIdx.x % kGroupThreads / kWarpSize] = value;
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kGroupThreads) : "memory");
  return WarpReduce<Max>(lane < kGroupThreads / kWarpSize ? maxima[lane] : Max::kIdentity);
}

// The grid is (rows at a time / kRowGroups, kParts), of clusters of kParts CTAs.
template <bool kScaled, int kParts>
__global__ void __launch_bounds__(kRowGroups* kGroupThreads, 1)
    GatedRowsKernel(GatedActivationArgs args) {
  constexpr int kVectors = kRowsVectors / kParts;
  extern __shared__ uint4 memory[];
  __shared__ float maxima[kRowGroups][2][kWarpSize];
  __shared__ ClusterMaxima<kParts, kGroupThreads / kWarpSize> cluster_maxima[kRowGroups];
  const Product& product = args.gate_up;
  const int part = kParts > 1 ? blockIdx.y : 0;
  const int group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  const auto column = [&](int i) { return 8 * ((part * kVectors + i) * kGroupThreads + thread); };
  if constexpr (kParts > 1) {
    if (thread == 0) cluster_maxima[group].Init();
    ClusterArrive();
  }
  // `row` is [vector][gate or up][thread] of the group's row; `scales` is [vector][part][thread]
  // and shared by all rows.
  uint4* const row = memory + group * kVectors * 2 * kGroupThreads + thread;
  float4* const scales =
      reinterpret_cast<float4*>(memory + kRowGroups * kVectors * 2 * kGroupThreads) + thread;
  // Each group loads its share of the scales before any wait, and stores it to shared memory once
  // the copies of the first row are in flight.
  constexpr int kShare = kVectors / kRowGroups;
  float4 share[kShare][4];
  if constexpr (kScaled) {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int at = column(group * kShare + i);
        const int64_t half =
            part < 2 ? GateColumn(args.layout, at) : UpColumn(args.layout, args.size, at);
        const float* from = product.channel_scales + half + part % 2 * 4;
        const bool scaled = product.channel_scales != nullptr && at < args.size;
        share[i][part] = scaled ? *reinterpret_cast<const float4*>(from) : make_float4(1, 1, 1, 1);
      }
    }
  }
  AwaitPredecessor();

  const auto row_of = [&](int64_t token) {
    return token < args.tokens ? product.data + token * product.stride : nullptr;
  };
  const auto copy = [&](int i, const Bf16* from) {
    if (from == nullptr || column(i) >= args.size) return;
    CopyAsync(row + 2 * i * kGroupThreads, from + GateColumn(args.layout, column(i)));
    CopyAsync(row + (2 * i + 1) * kGroupThreads,
              from + UpColumn(args.layout, args.size, column(i)));
  };
  const auto token_scale = [&](int64_t token) {
    return product.token_scales != nullptr && token < args.tokens ? product.token_scales[token] : 1;
  };
  // All first groups of the CTAs come before all second ones, so that no CTA has more than one row
  // more than another.
  const int64_t step = int64_t{kRowGroups} * gridDim.x;
  int64_t token = int64_t{gridDim.x} * group + blockIdx.x;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) copy(i, row_of(token));
  CommitCopies();
  float next_scale = token_scale(token);
  if constexpr (kParts > 1) ClusterWait();  // all CTAs run and have barriers
  if constexpr (kScaled) {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        scales[(4 * (group * kShare + i) + part) * kGroupThreads] = share[i][part];
      }
    }
    __syncthreads();
  }
  for (unsigned n = 0; token < args.tokens; token += step, ++n) {
    const float scale_of_row = next_scale;
    next_scale = token_scale(token + step);
    const Bf16* const next = row_of(token + step);
    WaitForCopies<0>();
    float values[kVectors][8] = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (column(i) >= args.size) continue;
      GateVector<kScaled> vector;
      vector.gate.data = row[2 * i * kGroupThreads];
      vector.up.data = row[(2 * i + 1) * kGroupThreads];
      copy(i, next);
      if constexpr (kScaled) {
        vector.gate.token_scale = vector.up.token_scale = scale_of_row;
        const float4* from = scales + 4 * i * kGroupThreads;
        Unpack(from[0], from[kGroupThreads], vector.gate.channel_scales);
        Unpack(from[2 * kGroupThreads], from[3 * kGroupThreads], vector.up.channel_scales);
      }
      Gate(vector, values[i]);
    }
    CommitCopies();
    float amax = Amax(values);
    if constexpr (kParts > 1) {
      amax = cluster_maxima[group].Exchange(n, thread / kWarpSize, part, amax);
    } else {
      // Two alternating sets of maxima: a thread that writes one set has passed the barrier after
      // the set's last read.
      amax = GroupMax(amax, group, maxima[group][n % 2]);
    }
    const float scale = Fp8Scale(amax);
    if (column(0) == 0) args.out.scales[token] = scale;
    const float inverse = Fp8Inverse(scale);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (column(i) < args.out.stride) {
        *Codes(args.out, token, column(i)) = Fp8Codes8(values[i], inverse);
      }
    }
  }
}

int GatedRowsBytes(bool scaled, int parts) {
  return (kRowGroups * 2 + (scaled ? 4 : 0)) * kRowsVectors / parts * kGroupThreads *
         static_cast<int>(sizeof(uint4));
}

template <int kParts>
cudaError_t LaunchGatedRows(const GatedActivationArgs& args, int sms, cudaStream_t stream) {
  const bool scaled = IsScaled(args.gate_up);
  const int shared_bytes = GatedRowsBytes(scaled, kParts);
  const auto kernel = scaled ? GatedRowsKernel<true, kParts> : GatedRowsKernel<false, kParts>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  return LaunchDependentClusters(kernel, dim3(1, kParts),
                                 dim3(std::min(args.tokens, sms / kParts), kParts),
                                 kRowGroups * kGroupThreads, shared_bytes, stream, args);
}

// Sets `takes` to whether the two-group kernel is faster and the device has the shared memory for
// it.
cudaError_t TakesGatedRows(const GatedActivationArgs& args, int* sms, bool* takes) {
  int device = 0, shared_bytes = 0;
  cudaError_t error = cudaGetDevice(&device);
  for (const auto& [attribute, value] :
       {std::pair(cudaDevAttrMultiProcessorCount, sms),
        std::pair(cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared_bytes)}) {
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(value, attribute, device);
  }
  constexpr int kStaticBytes = 1024;
  *takes = args.out.stride > 8 * kMaxRowThreads && args.out.stride <= kMaxRowsWidth &&
           args.tokens > *sms &&
           GatedRowsBytes(IsScaled(args.gate_up), 1) + kStaticBytes <= shared_bytes;
  return error;
}

}  // namespace

cudaError_t LaunchGatedActivation(const GatedActivationArgs& args, cudaStream_t stream) {
  if (args.tokens < 0 || args.size < 8 || args.size % 8 != 0 || !IsValid(args.out, args.size) ||
      args.out.stride > kMaxRowWidth || !IsValid(args.gate_up, int64_t{2} * args.size)) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;

  if (args.out.scaling == Scaling::kToken) {
    int sms = 0;
    bool takes_rows = false;
    const cudaError_t error = TakesGatedRows(args, &sms, &takes_rows);
    if (error != cudaSuccess) return error;
    const bool may_cluster = MayRun(Kernel::kGatedClusters, args.portable);
    if (takes_rows) {
      const bool shares = may_cluster && args.tokens <= kMostSharedRows * sms;
      return shares ? LaunchGatedRows<2>(args, sms, stream) : LaunchGatedRows<1>(args, sms, stream);
    }
    const bool clusters = args.tokens <= kMaxClusterTokens || args.out.stride > kMaxRowsWidth;
    if (clusters && may_cluster) {
      return LaunchGatedClusters(args, stream);
    }
  }
  const auto launch = [&](const auto& source) {
    return LaunchWriteRows(source, args.tokens, args.size, args.out, stream);
  };
  return IsScaled(args.gate_up) ? launch(GatedSource<true>{args})
                                : launch(GatedSource<false>{args});
}

}  // namespace millrace::kernels
