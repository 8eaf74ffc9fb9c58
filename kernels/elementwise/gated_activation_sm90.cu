// The gated activation of few rows with a scale per token, by clusters of CTAs (sm_90 and later). A
// row's maximum must be known before the row is written, which binds a row of the portable kernel
// to one SM. Here up to eight CTAs hold the row in registers and exchange maxima through
// distributed shared memory.
#include "kernels/activation_row.cuh"
#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/elementwise/cluster.cuh"
#include "kernels/elementwise/gate.cuh"
#include "kernels/elementwise/gated_activation.h"
#include "kernels/fp8.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kMaxWarps = kMaxThreads / kWarpSize;
constexpr int kMaxParts = 8;  // the portable maximum cluster size

// The grid is (tokens, parts of a row); the parts of a row form a cluster. Each thread has 8
// columns.
template <bool kScaled>
__global__ void __launch_bounds__(kMaxThreads) GatedActivationKernel(GatedActivationArgs args) {
  __shared__ float maxima[kMaxParts * kMaxWarps];  // of each warp of the cluster
  ClusterArrive();  // CTAs must run before others store to their shared memory

  const int64_t token = blockIdx.x;
  const int first_vector = blockIdx.y * blockDim.x;
  const int parts = gridDim.y;
  const int warps = blockDim.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t column = RowColumn(first_vector, 0);
  GateVector<kScaled> vector;
  if (column < args.size) vector.LoadConstants(args, column);
  AwaitPredecessor();
  if (column < args.size) vector.Load(args, token, column);
  ClusterWait();  // also keeps the compiler from moving loads down to their uses
  float values[1][8] = {};
  if (column < args.size) Gate(vector, values[0]);
  const float warp_max = WarpReduce<Max>(Amax(values));

  if (lane < parts) {
    StoreToCta(&maxima[blockIdx.y * warps + threadIdx.x / kWarpSize], lane, warp_max);
  }
  ClusterArrive();
  ClusterWait();
  float amax = 0;
  for (int i = lane; i < parts * warps; i += kWarpSize) amax = fmaxf(amax, maxima[i]);
  const float scale = Fp8Scale(WarpReduce<Max>(amax));
  if (column == 0) args.out.scales[token] = scale;
  WriteCodes(values, Fp8Inverse(scale), first_vector, token, args.out);
}

}  // namespace

cudaError_t LaunchGatedClusters(const GatedActivationArgs& args, cudaStream_t stream) {
  const int64_t vectors = args.out.stride / 8;
  const int threads = vectors <= kMaxParts * 256 ? 256 : kMaxThreads;
  const int parts = static_cast<int>(CeilDiv<int64_t>(vectors, threads));
  const auto kernel =
      IsScaled(args.gate_up) ? GatedActivationKernel<true> : GatedActivationKernel<false>;
  return LaunchDependentClusters(kernel, dim3(1, parts), dim3(args.tokens, parts), threads, 0,
                                 stream, args);
}

}  // namespace millrace::kernels
