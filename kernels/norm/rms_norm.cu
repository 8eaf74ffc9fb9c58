#include "kernels/norm/rms_norm.h"

#include "kernels/activation_row.cuh"
#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"
#include "kernels/moe/mixture_sum.cuh"
#include "kernels/norm/norm_rule.cuh"

namespace millrace::kernels {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kMaxVectors = 4;

// The terms of a delta.
enum class Delta : uint8_t {
  kPlain,     // the product alone
  kScaled,    // with its scales
  kWeighted,  // with its scales, delta_factor and delta_bias
  kMixture,   // the sum of a token's experts
};

// Where 8 columns of the delta come from. A thread with more vectors has fewer slots of each under
// way.
template <Delta kDelta, int kVectors>
struct DeltaVector : ProductVector<kDelta != Delta::kPlain> {};
template <int kVectors>
struct DeltaVector<Delta::kMixture, kVectors> : MixtureSum<Bf16Vector, 8 / kVectors> {};

// Adds 8 columns of the delta to x.
template <Delta kDelta, int kVectors>
__device__ void AddDelta(const DeltaVector<kDelta, kVectors>& delta, const RmsNormArgs& args,
                         int64_t column, float (&x)[8]) {
  float addend[8];
  delta.Values(addend);
  if constexpr (kDelta == Delta::kWeighted) {
    float bias[8] = {};
    if (args.delta_bias != nullptr) Load8(args.delta_bias + column, bias);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      x[j] = __fmaf_rn(args.delta_factor, __fadd_rn(addend[j], bias[j]), x[j]);
    }
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] += addend[j];
  }
}

// One CTA processes a row, which stays in registers from its only read to its write. There is a
// single barrier: it publishes the sum of squares and the largest |x * weight|. The latter times
// the row's factor is the largest result, since rounding is monotonic. With a mixture's sum there
// are registers for all of its loads at a time.
template <int kVectors, Delta kDelta, bool kTokenScale>
__global__ void __launch_bounds__(kMaxThreads, kVectors == 1 && kDelta != Delta::kMixture ? 3 : 1)
    RmsNormKernel(const __grid_constant__ RmsNormArgs args,
                  const __grid_constant__ CombineArgs mixture) {
  __shared__ float squares[kMaxThreads * kMaxVectors / kWarpSize], maxima[kWarpSize];
  const int64_t token = blockIdx.x;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int warps = blockDim.x / kWarpSize;
  float* residual = args.residual + token * args.width;

  const float tensor_scale = kTokenScale ? 1 : TensorScale(args.out);
  const float share = 1.0f / args.width;

  float x[kVectors][8] = {};
  float weight[kVectors][8];
  DeltaVector<kDelta, kVectors> delta[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t column = RowColumn(0, i);
    if (column >= args.width) continue;
    Load8(args.weight + column, weight[i]);
    if constexpr (kDelta == Delta::kMixture) {
      delta[i].Begin(mixture, token, column);
    } else {
      delta[i].LoadConstants(args.delta, column);
    }
  }
  AwaitPredecessor();
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {  // issues all loads before it waits for the first
    const int64_t column = RowColumn(0, i);
    if (column >= args.width) continue;
    Load8(residual + column, x[i]);
    if constexpr (kDelta == Delta::kMixture) {
      delta[i].Load(mixture, token, column);
    } else {
      if (args.delta.data != nullptr) delta[i].Load(args.delta, token, column);
    }
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t column = RowColumn(0, i);
    if constexpr (kDelta == Delta::kMixture) {
      if (column < args.width) {
        float sum[8] = {};
        delta[i].Add(mixture, sum);
#pragma unroll
        for (int j = 0; j < 8; ++j) x[i][j] = __fmaf_rn(mixture.factor, sum[j], x[i][j]);
        Store8(residual + column, x[i]);
      }
    } else if (column < args.width && args.delta.data != nullptr) {
      AddDelta<kDelta>(delta[i], args, column, x[i]);
      Store8(residual + column, x[i]);
    }
    const float sum = WarpReduce<Add>(SumOfSquares(x[i]));
    if (lane == 0) squares[i * warps + warp] = sum;
    if (column < args.width) MultiplyBy(weight[i], x[i]);
  }
  if constexpr (kTokenScale) {
    const float largest = WarpReduce<Max>(Amax(x));
    if (lane == 0) maxima[warp] = largest;
  }
  __syncthreads();

  const float factor = NormFactor(SumOfParts(squares, kVectors * warps), share, args.epsilon);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (RowColumn(0, i) < args.width) MultiplyBy(factor, x[i]);
  }
  if constexpr (kTokenScale) {
    const float largest = WarpReduce<Max>(lane < warps ? maxima[lane] : Max::kIdentity);
    const float scale = Fp8Scale(largest * factor);
    if (threadIdx.x == 0) args.out.scales[token] = scale;
    WriteCodes(x, Fp8Inverse(scale), 0, token, args.out);
  } else {
    WriteRow(x, tensor_scale, 0, token, gridDim.x, args.out);
  }
}

// Up to this many tokens with scales a CTA has half of the threads, which shortens its barrier.
// With more tokens it has as many threads as possible, since the number of loads in flight decides.
// A mixture's loads are many, so it always has all threads.
constexpr int kFewTokens = 512;

}  // namespace

bool IsValid(const RmsNormArgs& args) {
  const bool delta_valid = args.delta.data == nullptr || IsValid(args.delta, args.width);
  const bool mixture_valid =
      args.mixture == nullptr ||
      (IsValid(*args.mixture) && args.mixture->y_type == Type::kBf16 &&
       args.delta.data == nullptr && args.mixture->residual == args.residual &&
       args.mixture->tokens == args.tokens && args.mixture->width == args.width);
  return args.tokens >= 0 && mixture_valid && args.width >= 8 && args.width % 8 == 0 &&
         args.epsilon >= 0 && IsValid(args.out, args.width) &&
         args.out.stride <= kMaxThreads * kMaxVectors * 8 && delta_valid &&
         args.residual != nullptr && IsAligned16(args.residual) && args.weight != nullptr &&
         IsAligned16(args.weight) && IsAligned16(args.delta_bias);
}

cudaError_t LaunchRmsNorm(const RmsNormArgs& args, cudaStream_t stream) {
  if (!IsValid(args)) return cudaErrorInvalidValue;
  if (args.tokens == 0) return cudaSuccess;

  const int vectors = static_cast<int>(args.out.stride / 8);
  const auto launch_with = [&](auto kernel, int per_thread) {
    const int threads = CeilDiv(CeilDiv(vectors, per_thread), kWarpSize) * kWarpSize;
    return LaunchDependent(kernel, args.tokens, threads, 0, stream, args,
                           args.mixture == nullptr ? CombineArgs{} : *args.mixture);
  };
  const auto launch = [&]<Delta kDelta, bool kTokenScale>() {
    const bool few = kDelta != Delta::kPlain && kDelta != Delta::kMixture &&
                     args.tokens <= kFewTokens && vectors > kMaxThreads / 2;
    if (vectors <= kMaxThreads && !few) {
      return launch_with(RmsNormKernel<1, kDelta, kTokenScale>, 1);
    }
    if (vectors <= 2 * kMaxThreads) return launch_with(RmsNormKernel<2, kDelta, kTokenScale>, 2);
    return launch_with(RmsNormKernel<4, kDelta, kTokenScale>, 4);
  };
  const auto launch_delta = [&]<Delta kDelta>() {
    return args.out.scaling == Scaling::kToken ? launch.template operator()<kDelta, true>()
                                               : launch.template operator()<kDelta, false>();
  };
  if (args.mixture != nullptr) return launch_delta.operator()<Delta::kMixture>();
  if (args.delta.data != nullptr && (args.delta_factor != 1 || args.delta_bias != nullptr)) {
    return launch_delta.operator()<Delta::kWeighted>();
  }
  return IsScaled(args.delta) ? launch_delta.operator()<Delta::kScaled>()
                              : launch_delta.operator()<Delta::kPlain>();
}

}  // namespace millrace::kernels
