#include "kernels/elementwise/gated_activation.h"

#include "kernels/activation_row.cuh"
#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
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

// Many long rows with a scale per token. A row's maximum binds it to one CTA, and one such CTA
// fills an SM: it takes rows blockIdx.x, blockIdx.x + gridDim.x …, keeps the channels' scales in
// registers, and copies its next row to shared memory while it computes one. Each thread reads what
// it copied itself.
constexpr int kRowsVectors = 2;
constexpr int kRowsThreads = 896;  // leaves a thread 72 registers
constexpr int kMaxRowsWidth = 8 * kRowsVectors * kRowsThreads;

constexpr int kMaxClusterTokens = 64;  // measured: with more, a CTA a row is as fast

__device__ inline void CopyAsync(uint4* shared, const void* from) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

template <bool kScaled>
__global__ void __launch_bounds__(kRowsThreads, 1) GatedRowsKernel(GatedActivationArgs args) {
  extern __shared__ uint4 next_row[];  // [gate or up][vector][thread]
  __shared__ float maxima[2][kWarpSize];
  const Product& product = args.gate_up;
  const auto staged = [&](int half, int i) {
    return &next_row[(half * kRowsVectors + i) * blockDim.x + threadIdx.x];
  };

  int64_t token = blockIdx.x;
  GateVector<kScaled> vectors[kRowsVectors];
#pragma unroll
  for (int i = 0; i < kRowsVectors; ++i) {
    if (RowColumn(0, i) < args.size) vectors[i].LoadConstants(args, RowColumn(0, i));
  }
  AwaitPredecessor();
#pragma unroll
  for (int i = 0; i < kRowsVectors; ++i) {
    if (RowColumn(0, i) < args.size) vectors[i].Load(args, token, RowColumn(0, i));
  }

  // Two sets of maxima, used in turn: whoever writes one has passed the barrier after its reading.
  for (int set = 0; token < args.tokens; set ^= 1) {
    const int64_t next = token + gridDim.x;
    float next_scale = 1;
    if (next < args.tokens) {
      const Bf16* row = product.data + next * product.stride;
#pragma unroll
      for (int i = 0; i < kRowsVectors; ++i) {
        const int64_t column = RowColumn(0, i);
        if (column >= args.size) continue;
        CopyAsync(staged(0, i), row + column);
        CopyAsync(staged(1, i), row + args.size + column);
      }
      if (product.token_scales != nullptr) next_scale = product.token_scales[next];
    }

    float values[kRowsVectors][8] = {};
#pragma unroll
    for (int i = 0; i < kRowsVectors; ++i) {
      if (RowColumn(0, i) < args.size) Gate(vectors[i], values[i]);
    }
    const float scale = Fp8Scale(BlockReduce<Max>(Amax(values), maxima[set]));
    if (threadIdx.x == 0) args.out.scales[token] = scale;
    WriteCodes(values, Fp8Inverse(scale), 0, token, args.out);

    WaitForCopies();
#pragma unroll
    for (int i = 0; i < kRowsVectors; ++i) {
      vectors[i].gate.data = *staged(0, i);
      vectors[i].up.data = *staged(1, i);
      vectors[i].gate.token_scale = vectors[i].up.token_scale = next_scale;
    }
    token = next;
  }
}

cudaError_t LaunchGatedRows(const GatedActivationArgs& args, int sms, cudaStream_t stream) {
  const int vectors = static_cast<int>(args.out.stride / 8);
  const int threads = CeilDiv(CeilDiv(vectors, kRowsVectors), kWarpSize) * kWarpSize;
  const int shared_bytes = 2 * kRowsVectors * threads * static_cast<int>(sizeof(uint4));
  const auto kernel = IsScaled(args.gate_up) ? GatedRowsKernel<true> : GatedRowsKernel<false>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  const int rows = CeilDiv(args.tokens, sms);
  return LaunchDependent(kernel, CeilDiv(args.tokens, rows), threads, shared_bytes, stream, args);
}

}  // namespace

cudaError_t LaunchGatedActivation(const GatedActivationArgs& args, cudaStream_t stream) {
  if (args.tokens < 0 || args.size < 8 || args.size % 8 != 0 || !IsValid(args.out, args.size) ||
      args.out.stride > kMaxRowWidth || !IsValid(args.gate_up, int64_t{2} * args.size)) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;

  if (args.out.scaling == Scaling::kToken) {
    int device = 0, sms = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) {
      error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    }
    if (error != cudaSuccess) return error;
    const bool long_rows = args.out.stride > 8 * kMaxRowThreads;
    if (long_rows && args.out.stride <= kMaxRowsWidth && args.tokens > sms) {
      return LaunchGatedRows(args, sms, stream);
    }
    if (args.tokens <= kMaxClusterTokens && MayRun(Kernel::kGatedClusters, args.portable)) {
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
