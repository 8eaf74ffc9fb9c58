#include "kernels/recurrent/mamba2_inputs.h"

#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/elementwise/gate.cuh"
#include "kernels/launch.cuh"
#include "kernels/recurrent/convolution.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 128;

// A thread's eight channels of the linear's product and of the operands.
template <bool kScaled>
class MixedChannels {
 public:
  struct Loaded {
    uint4 data;
    float token_scale;
  };

  __device__ MixedChannels(const Mamba2InputsArgs& args, int64_t channel)
      : args_(args), channel_(channel), inside_(channel < args.heads.channels()) {
    if (inside_) product_.LoadConstants(args.xbc, channel);
  }

  __device__ Loaded Load(int64_t token) const {
    Loaded loaded = {};
    if (!inside_) return loaded;
    loaded.data = LoadRaw8(args_.xbc.data + token * args_.xbc.stride + channel_);
    if constexpr (kScaled) {
      loaded.token_scale = args_.xbc.token_scales != nullptr ? args_.xbc.token_scales[token] : 1;
    }
    return loaded;
  }

  __device__ void Input(const Loaded& loaded, float (&input)[8]) const {
    ProductVector<kScaled> product = product_;
    product.data = loaded.data;
    product.token_scale = loaded.token_scale;
    product.Values(input);
  }

  __device__ void Finish(int64_t token, const Loaded& /*loaded*/, const float (&sum)[8]) const {
    if (!inside_) return;
    float values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = Gate(sum[i], 1.0f);
    const int64_t inner = args_.heads.inner(), rest = args_.heads.channels() - inner;
    float* const to = channel_ < inner ? args_.out.x + token * inner + channel_
                                       : args_.out.bc + token * rest + channel_ - inner;
    Store8(to, values);
  }

 private:
  const Mamba2InputsArgs& args_;
  const int64_t channel_;
  const bool inside_;
  ProductVector<kScaled> product_;
};

// Computes the gates of the tokens [first, end).
__device__ void ComputeGates(const Mamba2InputsArgs& args, int64_t first, int64_t end) {
  const int heads = args.heads.heads;
  for (int64_t i = threadIdx.x; i < (end - first) * heads; i += kThreads) {
    const int64_t token = first + i / heads;
    const int head = static_cast<int>(i % heads);
    const Product& dt = args.dt;
    const float by_token = dt.token_scales != nullptr ? dt.token_scales[token] : 1;
    const float by_channel = dt.channel_scales != nullptr ? dt.channel_scales[head] : 1;
    const float value = static_cast<float>(dt.data[token * dt.stride + head]);
    const float a =
        __fadd_rn(__fmul_rn(__fmul_rn(value, by_token), by_channel), args.time_bias[head]);
    const float softplus = a > 20 ? a : log1pf(expf(a));  // above 20 the 1 is lost anyway
    // A NaN stays one.
    const float bounded = softplus < args.min_step ? args.min_step : softplus;
    const float step = bounded > args.max_step ? args.max_step : bounded;
    const float rate = args.rates[head];
    const float decay = expf(__fmul_rn(args.log_rates ? -expf(rate) : rate, step));
    args.out.gates[token * heads + head] = {step, decay};
  }
}

// The grid is (ConvolutionBlocks, parts of the channels and, last, the gates).
template <bool kScaled>
__global__ void __launch_bounds__(kThreads)
    Mamba2InputsKernel(const __grid_constant__ Mamba2InputsArgs args) {
  const RecurrentRows& rows = args.rows;
  const int block = static_cast<int>(blockIdx.x);
  if (blockIdx.y + 1 == gridDim.y) {
    AwaitPredecessor();
    if (block >= rows.rows) {
      const int64_t first = int64_t{block - rows.rows} * kConvolutionRun;
      ComputeGates(args, first, min(first + kConvolutionRun, int64_t{rows.row_first[rows.rows]}));
    } else if (static_cast<int>(gridDim.x) == rows.rows) {  // there are no runs
      ComputeGates(args, rows.row_first[block], rows.row_first[block + 1]);
    }
    return;
  }
  const int64_t channel = 8 * (int64_t{blockIdx.y} * kThreads + threadIdx.x);
  const RowsConvolution of = {rows, args.state, args.convolution, args.bias, args.heads.channels()};
  const ChannelConvolution<kMamba2Width, /*kHeld=*/true> convolution(of, channel);
  const MixedChannels<kScaled> channels(args, channel);
  AwaitPredecessor();
  convolution.Compute(block, channels);
}

}  // namespace

cudaError_t LaunchMamba2Inputs(const Mamba2InputsArgs& args, cudaStream_t stream) {
  if (!IsValid(args.heads) || !IsValid(args.rows) || !IsValid(args.xbc, args.heads.channels()) ||
      !IsValid(args.dt, args.heads.heads) || !IsValid(args.state, args.heads) ||
      !IsValid(args.out) || args.convolution == nullptr || !IsAligned16(args.convolution) ||
      !IsAligned16(args.bias) || args.rates == nullptr || args.time_bias == nullptr ||
      !(args.min_step >= 0) || !(args.max_step >= args.min_step)) {
    return cudaErrorInvalidValue;
  }
  if (args.rows.rows == 0 || args.rows.max_tokens == 0) return cudaSuccess;
  const dim3 grid(ConvolutionBlocks(args.rows, kMamba2Width),
                  CeilDiv(args.heads.channels() / 8, kThreads) + 1);
  return LaunchDependent(IsScaled(args.xbc) ? Mamba2InputsKernel<true> : Mamba2InputsKernel<false>,
                         grid, kThreads, 0, stream, args);
}

}  // namespace millrace::kernels
