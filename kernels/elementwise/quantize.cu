#include "kernels/elementwise/quantize.h"

#include "kernels/activation_row.cuh"
#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

template <typename T>
struct RowsSource {
  const T* data;
  int64_t stride;

  struct Constants {};
  __device__ Constants LoadConstants(int64_t) const { return {}; }
  __device__ void operator()(int64_t token, int64_t column, Constants, float (&values)[8]) const {
    Load8(data + token * stride + column, values);
  }
};

constexpr int kNarrowThreads = 128;
constexpr int kNarrowRows = kNarrowThreads / kWarpSize;  // of a CTA

// A warp for each row of up to kVectors * 32 vectors of eight columns: many CTAs of few threads
// would take longer to start than to run (32,768 rows of 768 columns).
template <int kVectors>
__global__ void __launch_bounds__(kNarrowThreads)
    NarrowRowsKernel(RowsSource<Bf16> source, int tokens, int width, Activation out) {
  const int lane = threadIdx.x % kWarpSize;
  const int64_t token = int64_t{blockIdx.x} * kNarrowRows + threadIdx.x / kWarpSize;
  const float tensor_scale = TensorScale(out);
  AwaitPredecessor();
  if (token >= tokens) return;
  float values[kVectors][8] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int column = 8 * (i * kWarpSize + lane);
    if (column < width) source(token, column, {}, values[i]);
  }
  float scale = tensor_scale;
  if (out.scaling == Scaling::kToken) {
    scale = Fp8Scale(WarpReduce<Max>(Amax(values)));
    if (lane == 0) out.scales[token] = scale;
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int column = 8 * (i * kWarpSize + lane);
    if (out.type == Type::kFp8 && out.scaling == Scaling::kTokenGroup) {
      scale = Fp8Scale(WarpReduce<Max, kColumnPadding / 8>(Amax(values[i])));
      if (column < out.stride && column % kColumnPadding == 0) {
        out.scales[column / kColumnPadding * PaddedTokens(tokens) + token] = scale;
      }
    }
    if (column >= out.stride) continue;
    if (out.type == Type::kBf16) {
      Store8(static_cast<Bf16*>(out.data) + token * out.stride + column, values[i]);
    } else {
      *Codes(out, token, column) = Fp8Codes8(values[i], Fp8Inverse(scale));
    }
  }
}

}  // namespace

cudaError_t LaunchQuantize(const QuantizeArgs& args, cudaStream_t stream) {
  if (args.tokens < 0 || args.width < 8 || args.width % 8 != 0 || !IsValid(args.out, args.width) ||
      args.out.stride > kMaxRowWidth || args.in == nullptr || !IsAligned16(args.in) ||
      args.in_stride < args.width || args.in_stride % 8 != 0 ||
      (args.in_type != Type::kBf16 && args.in_type != Type::kF32)) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;
  if (args.in_type == Type::kF32) {
    return LaunchWriteRows(RowsSource<float>{static_cast<const float*>(args.in), args.in_stride},
                           args.tokens, args.width, args.out, stream);
  }
  const RowsSource<Bf16> source = {static_cast<const Bf16*>(args.in), args.in_stride};
  const auto vectors = static_cast<int>(args.out.stride / 8);
  if (args.tokens <= kFewRows || vectors > 8 * kWarpSize) {
    return LaunchWriteRows(source, args.tokens, args.width, args.out, stream);
  }
  const auto kernel = vectors <= 2 * kWarpSize   ? NarrowRowsKernel<2>
                      : vectors <= 4 * kWarpSize ? NarrowRowsKernel<4>
                                                 : NarrowRowsKernel<8>;
  return LaunchDependent(kernel, dim3(CeilDiv(args.tokens, kNarrowRows)), dim3(kNarrowThreads), 0,
                         stream, source, args.tokens, args.width, args.out);
}

}  // namespace millrace::kernels
