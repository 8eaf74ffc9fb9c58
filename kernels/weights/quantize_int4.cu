#include "kernels/weights/quantize_int4.h"

#include <cuda_runtime.h>

#include <limits>

#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/weights/int4_rule.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 128;

// A thread for each group.
__global__ void __launch_bounds__(kThreads) QuantizeInt4Kernel(QuantizeInt4Args args) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= args.rows * (args.stride / kInt4Group)) return;
  float x[kInt4Group];
#pragma unroll
  for (int i = 0; i < kInt4Group; i += 8) {
    float values[8];
    Load8(args.source + index * kInt4Group + i, values);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[i + j] = values[j];
  }
  const Int4Group group = QuantizeInt4(x);
  reinterpret_cast<uint4*>(args.codes)[index] =
      make_uint4(group.codes[0], group.codes[1], group.codes[2], group.codes[3]);
  args.scales[index] = group.scale;
  args.minima[index] = group.minimum;
}

}  // namespace

cudaError_t LaunchQuantizeInt4(const QuantizeInt4Args& args, cudaStream_t stream) {
  if (args.source == nullptr || args.codes == nullptr || args.scales == nullptr ||
      args.minima == nullptr || !IsAligned16(args.source) || !IsAligned16(args.codes) ||
      args.rows < 1 || args.stride < kColumnPadding || args.stride % kColumnPadding != 0) {
    return cudaErrorInvalidValue;
  }
  const int64_t ctas = CeilDiv<int64_t>(args.rows * (args.stride / kInt4Group), kThreads);
  if (ctas > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;
  QuantizeInt4Kernel<<<static_cast<unsigned>(ctas), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace millrace::kernels
