#include "kernels/recurrent/short_convolution.h"

#include "kernels/activation_row.cuh"
#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"
#include "kernels/recurrent/convolution.cuh"

namespace millrace::kernels {
namespace {

constexpr int kPartThreads = 128;  // of CTAs that share a token's row
constexpr int kMaxThreads = kMaxShortConvolutionChannels / 8;

// A thread's eight channels of b, c and x, and of the output.
template <bool kScaled>
class GatedChannels {
 public:
  struct Loaded {
    uint4 b, c, x;
    float token_scale;
  };

  __device__ GatedChannels(const ShortConvolutionArgs& args, int64_t channel)
      : args_(args),
        channel_(channel),
        inside_(channel < args.channels),
        tensor_scale_(TensorScale(args.out)) {
    if (!inside_) return;
    b_.LoadConstants(args.bcx, channel);
    c_.LoadConstants(args.bcx, args.channels + channel);
    x_.LoadConstants(args.bcx, 2 * args.channels + channel);
  }

  __device__ Loaded Load(int64_t token) const {
    Loaded loaded = {};
    if (!inside_) return loaded;
    const Bf16* const row = args_.bcx.data + token * args_.bcx.stride + channel_;
    loaded.b = LoadRaw8(row);
    loaded.c = LoadRaw8(row + args_.channels);
    loaded.x = LoadRaw8(row + 2 * args_.channels);
    if constexpr (kScaled) {
      loaded.token_scale = args_.bcx.token_scales != nullptr ? args_.bcx.token_scales[token] : 1;
    }
    return loaded;
  }

  __device__ void Input(const Loaded& loaded, float (&input)[8]) const {
    float x[8];
    Values(b_, loaded.b, loaded.token_scale, 0, input);
    Values(x_, loaded.x, loaded.token_scale, 2, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) input[i] = __fmul_rn(input[i], x[i]);
  }

  __device__ void Finish(int64_t token, const Loaded& loaded, const float (&sum)[8]) const {
    float values[1][8] = {};
    if (inside_) {
      Values(c_, loaded.c, loaded.token_scale, 1, values[0]);
#pragma unroll
      for (int i = 0; i < 8; ++i) values[0][i] = __fmul_rn(values[0][i], sum[i]);
    }
    // All have left the maxima of the token before.
    if (args_.out.scaling == Scaling::kToken) __syncthreads();
    WriteRow(values, tensor_scale_, static_cast<int>(blockIdx.y * blockDim.x), token,
             args_.rows.max_tokens, args_.out);
  }

 private:
  // `part` is 0 of b, 1 of c and 2 of x.
  __device__ void Values(ProductVector<kScaled> vector, const uint4& data, float token_scale,
                         int part, float (&to)[8]) const {
    vector.data = data;
    vector.token_scale = token_scale;
    vector.Values(to);
    // Few models have biases, which registers are not kept for.
    if (args_.bcx_bias == nullptr || !inside_) return;
    float bias[8];
    Load8(args_.bcx_bias + part * args_.channels + channel_, bias);
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = __fadd_rn(to[i], bias[i]);
  }

  const ShortConvolutionArgs& args_;
  const int64_t channel_;
  const bool inside_;
  const float tensor_scale_;
  ProductVector<kScaled> b_, c_, x_;
};

// The grid is (ConvolutionBlocks, parts of a token's row).
template <int kWidth, bool kScaled>
__global__ void __launch_bounds__(kMaxThreads)
    ShortConvolutionKernel(const __grid_constant__ ShortConvolutionArgs args) {
  const int64_t channel = RowColumn(static_cast<int>(blockIdx.y * blockDim.x), 0);
  const RowsConvolution of = {args.rows, args.state, args.weights, args.bias, args.channels};
  // Weights of more tokens do not fit into registers beside the inputs.
  constexpr bool kHeld = kWidth <= (kScaled ? 2 : 3);
  const ChannelConvolution<kWidth, kHeld> convolution(of, channel);
  const GatedChannels<kScaled> channels(args, channel);
  AwaitPredecessor();
  convolution.Compute(static_cast<int>(blockIdx.x), channels);
}

template <int kWidth = 1>
cudaError_t LaunchWidth(const ShortConvolutionArgs& args, cudaStream_t stream) {
  if constexpr (kWidth < kMaxShortConvolutionWidth) {
    if (args.width > kWidth) return LaunchWidth<kWidth + 1>(args, stream);
  }
  // A scale per token needs the row's maximum, so one CTA takes the whole row.
  const int vectors = static_cast<int>(args.out.stride / 8);
  const int threads =
      args.out.scaling == Scaling::kToken ? CeilDiv(vectors, kWarpSize) * kWarpSize : kPartThreads;
  const dim3 grid(ConvolutionBlocks(args.rows, kWidth), CeilDiv(vectors, threads));
  return LaunchDependent(IsScaled(args.bcx) ? ShortConvolutionKernel<kWidth, true>
                                            : ShortConvolutionKernel<kWidth, false>,
                         grid, threads, 0, stream, args);
}

}  // namespace

cudaError_t LaunchShortConvolution(const ShortConvolutionArgs& args, cudaStream_t stream) {
  if (args.channels < 8 || args.channels > kMaxShortConvolutionChannels || args.channels % 8 != 0 ||
      args.width < 1 || args.width > kMaxShortConvolutionWidth || !IsValid(args.rows) ||
      !IsValid(args.bcx, int64_t{3} * args.channels) || !IsValid(args.out, args.channels) ||
      args.out.stride > kMaxShortConvolutionChannels || args.weights == nullptr ||
      !IsAligned16(args.weights) || !IsAligned16(args.bias) || !IsAligned16(args.bcx_bias)) {
    return cudaErrorInvalidValue;
  }
  if (args.width > 1 && !IsValid(args.state, ShortConvolutionFloats(args.width, args.channels))) {
    return cudaErrorInvalidValue;
  }
  if (args.rows.rows == 0 || args.rows.max_tokens == 0) return cudaSuccess;
  return LaunchWidth(args, stream);
}

}  // namespace millrace::kernels
