// Reads memory and does nothing else, to measure how fast a device can read.
#ifndef MILLRACE_KERNELS_STEP_READ_MEMORY_H_
#define MILLRACE_KERNELS_STEP_READ_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace millrace::kernels {

struct ReadMemoryArgs {
  const void* from;  // 16-byte aligned
  size_t bytes;      // a multiple of kReadMemoryBytes
  // Written only if the words' exclusive or has one value in 2^32: it keeps the loads from being
  // removed.
  uint32_t* sink;
  int ctas;  // those that give the best rate depend on the device: some for each multiprocessor
};

// What a CTA reads at a time, with eight 16-byte loads in flight for each thread.
inline constexpr size_t kReadMemoryBytes = size_t{256} * 8 * 16;

cudaError_t LaunchReadMemory(const ReadMemoryArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_STEP_READ_MEMORY_H_
