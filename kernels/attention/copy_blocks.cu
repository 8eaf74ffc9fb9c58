#include "kernels/arguments.h"
#include "kernels/attention/copy_blocks.h"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWords = 4;  // 16-byte words in flight per thread
constexpr int kPartWords = kThreads * kWords;

// The grid is (pairs * parts of a block, layers).
__global__ void CopyBlocksKernel(CopyBlocksArgs args, int parts) {
  AwaitPredecessor();
  const int2 pair = args.pairs[blockIdx.x / parts];
  char* layer = static_cast<char*>(args.arena) + blockIdx.y * args.layer_stride;
  const uint4* from = reinterpret_cast<const uint4*>(layer + pair.x * args.block_stride);
  uint4* to = reinterpret_cast<uint4*>(layer + pair.y * args.block_stride);
  const int64_t first = static_cast<int64_t>(blockIdx.x % parts) * kPartWords + threadIdx.x;
  const int64_t end = args.block_bytes / 16;

  uint4 words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    if (first + i * kThreads < end) words[i] = from[first + i * kThreads];
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    if (first + i * kThreads < end) to[first + i * kThreads] = words[i];
  }
}

}  // namespace

cudaError_t LaunchCopyBlocks(const CopyBlocksArgs& args, cudaStream_t stream) {
  constexpr int kMaxLayers = 65535;  // the grid's second dimension
  if (args.count < 0 || args.layers < 1 || args.layers > kMaxLayers || args.arena == nullptr ||
      !IsAligned16(args.arena) || args.layer_stride % 16 != 0 || args.block_stride % 16 != 0 ||
      args.block_bytes < 16 || args.block_bytes % 16 != 0 || args.block_bytes > args.block_stride ||
      (args.count > 0 && args.pairs == nullptr)) {
    return cudaErrorInvalidValue;
  }
  if (args.count == 0) return cudaSuccess;
  const int parts = static_cast<int>(CeilDiv<int64_t>(args.block_bytes / 16, kPartWords));
  return LaunchDependent(CopyBlocksKernel,
                         dim3(static_cast<unsigned>(args.count) * parts, args.layers),
                         dim3(kThreads), 0, stream, args, parts);
}

}  // namespace millrace::kernels
