#include "kernels/moe/combine.h"

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"
#include "kernels/moe/mixture_sum.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 128;
// The grid is (tokens, parts of a row); a thread has eight columns.
template <typename Vector>
__global__ void __launch_bounds__(kThreads) CombineKernel(CombineArgs args) {
  const int64_t token = blockIdx.x;
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * 8;
  MixtureSum<Vector> mixture;
  if (column < args.width) mixture.Begin(args, token, column);
  AwaitPredecessor();
  if (column >= args.width) return;
  float values[8], sum[8] = {};
  mixture.Load(args, token, column);
  if (args.partial != nullptr) {
    mixture.Add(args, sum);
    *reinterpret_cast<uint4*>(args.partial + token * args.width + column) = Pack8(sum);
    return;
  }
  float* const residual = args.residual + token * args.width + column;
  Load8(residual, values);
  mixture.Add(args, sum);
#pragma unroll
  for (int j = 0; j < 8; ++j) values[j] = __fmaf_rn(args.factor, sum[j], values[j]);
  Store8(residual, values);
}

}  // namespace

bool IsValid(const CombineArgs& args) {
  const bool rows = args.y != nullptr && IsAligned16(args.y) && args.y_stride >= args.width &&
                    args.y_stride % 8 == 0 && args.scores != nullptr &&
                    (args.y_type == Type::kBf16 || args.y_type == Type::kF32);
  const bool shared = args.shared.data == nullptr ? args.shared_logits == nullptr
                                                  : IsValid(args.shared, args.width);
  const bool out = args.partial != nullptr ? IsAligned16(args.partial)
                                           : args.residual != nullptr && IsAligned16(args.residual);
  return rows && shared && out && args.tokens >= 0 && args.slots >= 1 && args.slots <= kMaxChosen &&
         args.width >= 8 && args.width % 8 == 0;
}

cudaError_t LaunchCombine(const CombineArgs& args, cudaStream_t stream) {
  if (!IsValid(args)) return cudaErrorInvalidValue;
  if (args.tokens == 0) return cudaSuccess;
  const dim3 grid(args.tokens, CeilDiv(args.width / 8, kThreads));
  return LaunchDependent(
      args.y_type == Type::kBf16 ? CombineKernel<Bf16Vector> : CombineKernel<FloatVector>, grid,
      dim3(kThreads), 0, stream, args);
}

}  // namespace millrace::kernels
