#include "kernels/step/read_memory.h"

#include <cuda_runtime.h>

#include "kernels/arguments.h"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 8;
constexpr size_t kWords = size_t{kThreads} * kInFlight;  // of 16 bytes, that a CTA reads at a time
static_assert(kWords * sizeof(uint4) == kReadMemoryBytes);

__global__ void __launch_bounds__(kThreads) ReadMemory(ReadMemoryArgs args) {
  const auto* const from = static_cast<const uint4*>(args.from);
  const size_t size = args.bytes / sizeof(uint4);
  uint32_t bits = 0;
  for (size_t first = blockIdx.x * kWords; first < size; first += gridDim.x * kWords) {
    uint4 words[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) words[i] = from[first + i * kThreads + threadIdx.x];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) bits ^= words[i].x ^ words[i].y ^ words[i].z ^ words[i].w;
  }
  if (bits == 0x9e3779b9) *args.sink = bits;
}

}  // namespace

cudaError_t LaunchReadMemory(const ReadMemoryArgs& args, cudaStream_t stream) {
  if (args.from == nullptr || !IsAligned16(args.from) || args.bytes % kReadMemoryBytes != 0 ||
      args.sink == nullptr || args.ctas < 1) {
    return cudaErrorInvalidValue;
  }
  ReadMemory<<<args.ctas, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace millrace::kernels
