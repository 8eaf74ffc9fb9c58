#include "kernels/recurrent/delta_inputs.h"

#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/elementwise/gate.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kLaneChannels = kDeltaHeadSize / kWarpSize;
constexpr int kPast = kConvolutionTokens - 1;
constexpr int kRun = 8;  // tokens that a warp computes one after the other
static_assert(kLaneChannels == 4);

__device__ inline void Load4(const float* from, float (&to)[4]) {
  const float4 words = *reinterpret_cast<const float4*>(from);
  to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
}
__device__ inline void Store4(float* to, const float (&from)[4]) {
  *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
}

// A lane's four channels of one head.
template <bool kScaled>
class Channels {
 public:
  // Loads what is constant while steps run.
  __device__ void Begin(const DeltaInputsArgs& args, int64_t head) {
    channel_ = head * kDeltaHeadSize + threadIdx.x % kWarpSize * kLaneChannels;
#pragma unroll
    for (int i = 0; i < kConvolutionTokens; ++i) {
      Load4(args.convolution + i * args.heads.channels() + channel_, weights_[i]);
    }
    if constexpr (kScaled) {
#pragma unroll
      for (float& scale : scales_) scale = 1;
      if (args.qkv.channel_scales != nullptr) Load4(args.qkv.channel_scales + channel_, scales_);
    }
  }

  __device__ int64_t channel() const { return channel_; }

  __device__ uint2 Load(const DeltaInputsArgs& args, int64_t token) const {
    return *reinterpret_cast<const uint2*>(args.qkv.data + token * args.qkv.stride + channel_);
  }

  __device__ void Values(uint2 raw, float token_scale, float (&x)[4]) const {
    x[0] = __uint_as_float(raw.x << 16), x[1] = __uint_as_float(raw.x & 0xffff0000);
    x[2] = __uint_as_float(raw.y << 16), x[3] = __uint_as_float(raw.y & 0xffff0000);
    if constexpr (kScaled) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = __fmul_rn(__fmul_rn(x[i], token_scale), scales_[i]);
    }
  }

  // Computes a token from its input and those before it, the oldest first.
  __device__ void Convolve(const float (*inputs)[4], float (&out)[4]) const {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float sum = __fmul_rn(weights_[0][c], inputs[0][c]);
#pragma unroll
      for (int i = 1; i < kConvolutionTokens; ++i) {
        sum = __fmaf_rn(weights_[i][c], inputs[i][c], sum);
      }
      out[c] = Gate(sum, 1.0f);
    }
  }

 private:
  int64_t channel_;
  float weights_[kConvolutionTokens][4], scales_[4];
};

template <bool kScaled>
__device__ float TokenScale(const Product& product, int64_t token) {
  if constexpr (!kScaled) return 1;
  return product.token_scales != nullptr ? product.token_scales[token] : 1;
}

// Returns the sum over a head of the products of two of its vectors.
__device__ inline float HeadProduct(const float (&a)[4], const float (&b)[4]) {
  float sum = __fmul_rn(a[0], b[0]);
#pragma unroll
  for (int i = 1; i < 4; ++i) sum = __fmaf_rn(a[i], b[i], sum);
  return WarpReduce<Add>(sum);
}

__device__ inline float Value(const Product& product, int64_t token, int64_t column) {
  const float value = static_cast<float>(product.data[token * product.stride + column]);
  const float by_token = product.token_scales != nullptr ? product.token_scales[token] : 1;
  const float by_channel = product.channel_scales != nullptr ? product.channel_scales[column] : 1;
  return __fmul_rn(__fmul_rn(value, by_token), by_channel);
}

// Computes the gates of the lane's value head.
struct LaneGates {
  float decay, beta;

  __device__ LaneGates(const DeltaInputsArgs& args, int64_t token, int value_head) {
    const float b = Value(args.beta_alpha, token, value_head);
    const float a =
        __fadd_rn(Value(args.beta_alpha, token, int64_t{args.heads.value_heads} + value_head),
                  args.time_bias[value_head]);
    const float step = a > 20 ? a : log1pf(expf(a));  // softplus; above 20 the 1 is lost anyway
    const float rate = args.rates[value_head];
    decay = expf(__fmul_rn(args.log_rates ? -expf(rate) : rate, step));
    beta = __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-b)));
  }
};

// A key head's key and query, and the gates of its value heads (kHeads = 2), or one value head
// (kHeads = 1), by one warp.
template <bool kScaled, int kHeads>
class Work {
 public:
  __device__ Work(const DeltaInputsArgs& args, int head) : args_(args), head_(head) {
    const int keys = args.heads.key_heads;
    if constexpr (kHeads == 2) {
      heads_[0].Begin(args, head);         // the query
      heads_[1].Begin(args, keys + head);  // the key
    } else {
      heads_[0].Begin(args, 2 * keys + head);
    }
  }

  // Computes tokens [first, first + kRun) of the step, except the first three of each row.
  __device__ void ComputeRun(int64_t first) const {
    const RecurrentRows& rows = args_.rows;
    const int64_t tokens = rows.row_first[rows.rows];
    if (first >= tokens) return;
    uint2 raw[kHeads][kPast + kRun];
    float token_scales[kPast + kRun];
    bool inside[kRun];
#pragma unroll
    for (int i = 0; i < kPast + kRun; ++i) {
      const int64_t token = min(max(first + i - kPast, int64_t{0}), tokens - 1);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) raw[h][i] = heads_[h].Load(args_, token);
      token_scales[i] = TokenScale<kScaled>(args_.qkv, token);
    }
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const int64_t token = first + i;
      // The token three before is of the same row if it is the same sequence's three before.
      inside[i] = token < tokens && token >= kPast &&
                  rows.slots[token - kPast] == rows.slots[token] &&
                  rows.positions[token - kPast] == rows.positions[token] - kPast;
    }
    float x[kHeads][kPast + kRun][4];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < kPast + kRun; ++i) {
        heads_[h].Values(raw[h][i], token_scales[i], x[h][i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      if (inside[i]) Finish(first + i, x, i);
    }
  }

  // Computes the first three tokens of a row, which need the state, and updates the state.
  __device__ void BeginRow(int row) const {
    const RecurrentRows& rows = args_.rows;
    const int64_t first = rows.row_first[row];
    const int tokens = static_cast<int>(rows.row_first[row + 1] - first);
    if (tokens <= 0) return;
    const bool begins = rows.row_start[row] == 0;
    float* const state = args_.state.data + rows.row_slot[row] * args_.state.slot_stride;
    // Inputs of the state, and then of the row's first tokens; and those that the row leaves.
    float x[kHeads][2 * kPast][4], kept[kHeads][kPast][4];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < kPast; ++i) {
        const float* const from = state + i * args_.heads.channels() + heads_[h].channel();
        Load4(from, x[h][i]);
        const int64_t token = first + min(i, tokens - 1);
        heads_[h].Values(heads_[h].Load(args_, token), TokenScale<kScaled>(args_.qkv, token),
                         x[h][kPast + i]);
        const int64_t last = first + max(tokens - kPast + i, 0);
        heads_[h].Values(heads_[h].Load(args_, last), TokenScale<kScaled>(args_.qkv, last),
                         kept[h][i]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < kPast; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if (begins) x[h][i][c] = 0;
        }
      }
#pragma unroll
      for (int i = 0; i < kPast; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if (tokens == 1) kept[h][i][c] = x[h][i + 1][c];
          if (tokens == 2) kept[h][i][c] = x[h][i + 2][c];
        }
        Store4(state + i * args_.heads.channels() + heads_[h].channel(), kept[h][i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kPast; ++i) {
      if (i < tokens) Finish(first + i, x, i);
    }
  }

 private:
  // Computes a token whose inputs begin at x[...][at].
  template <int kInputs>
  __device__ void Finish(int64_t token, const float (&x)[kHeads][kInputs][4], int at) const {
    const int lane = threadIdx.x % kWarpSize;
    if constexpr (kHeads == 1) {
      float value[4];
      heads_[0].Convolve(&x[0][at], value);
      Store4(args_.out.values + (token * args_.heads.value_heads + head_) * kDeltaHeadSize +
                 kLaneChannels * lane,
             value);
    } else {
      DeltaGates* const gates = args_.out.gates + token * args_.heads.key_heads + head_;
      if (lane < args_.heads.group()) {
        const LaneGates own(args_, token, args_.heads.ValueHead(head_, lane));
        gates->decay[lane] = own.decay;
        gates->beta[lane] = own.beta;
      }
      float query[4], key[4];
      heads_[0].Convolve(&x[0][at], query);
      heads_[1].Convolve(&x[1][at], key);
      constexpr float kQueryScale = 0.08838834764831845f;  // 1 / sqrt(kDeltaHeadSize)
      const float query_factor = __fmul_rn(
          rsqrtf(__fadd_rn(HeadProduct(query, query), args_.length_epsilon)), kQueryScale);
      const float key_factor = rsqrtf(__fadd_rn(HeadProduct(key, key), args_.length_epsilon));
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        query[c] = __fmul_rn(query[c], query_factor);
        key[c] = __fmul_rn(key[c], key_factor);
      }
      const float product = HeadProduct(query, key);
      float* const to = args_.out.keys_queries +
                        (token * args_.heads.key_heads + head_) * 2 * kDeltaHeadSize +
                        kLaneChannels * lane;
      Store4(to, key);
      Store4(to + kDeltaHeadSize, query);
      if (lane == 0) gates->query_key = product;
    }
  }

  const DeltaInputsArgs& args_;
  const int head_;
  Channels<kScaled> heads_[kHeads];
};

// The grid is (rows, and then runs of tokens; warps' heads: first key heads, then value heads). A
// row's own CTA alone reads and writes its state.
template <bool kScaled>
__global__ void __launch_bounds__(kThreads)
    DeltaInputsKernel(const __grid_constant__ DeltaInputsArgs args) {
  const int work = blockIdx.y * kWarps + threadIdx.x / kWarpSize;
  const int row = blockIdx.x;
  const auto compute = [&](const auto& of) {
    AwaitPredecessor();
    if (row < args.rows.rows) {
      of.BeginRow(row);
    } else {
      of.ComputeRun(int64_t{row - args.rows.rows} * kRun);
    }
  };
  if (work < args.heads.key_heads) {
    compute(Work<kScaled, 2>(args, work));
  } else if (work < args.heads.key_heads + args.heads.value_heads) {
    compute(Work<kScaled, 1>(args, work - args.heads.key_heads));
  } else {
    AwaitPredecessor();
  }
}

}  // namespace

cudaError_t LaunchDeltaInputs(const DeltaInputsArgs& args, cudaStream_t stream) {
  if (!IsValid(args.heads) || !IsValid(args.rows) || !IsValid(args.qkv, args.heads.channels()) ||
      !IsValid(args.beta_alpha, int64_t{2} * args.heads.value_heads) ||
      !IsValid(args.state, args.heads) || !IsValid(args.out) || args.convolution == nullptr ||
      !IsAligned16(args.convolution) || args.rates == nullptr || args.time_bias == nullptr ||
      !(args.length_epsilon > 0)) {
    return cudaErrorInvalidValue;
  }
  if (args.rows.rows == 0 || args.rows.max_tokens == 0) return cudaSuccess;
  const int runs = args.rows.max_row_tokens > kPast ? CeilDiv(args.rows.max_tokens, kRun) : 0;
  const dim3 grid(args.rows.rows + runs,
                  CeilDiv(args.heads.key_heads + args.heads.value_heads, kWarps));
  return LaunchDependent(IsScaled(args.qkv) ? DeltaInputsKernel<true> : DeltaInputsKernel<false>,
                         grid, kThreads, 0, stream, args);
}

}  // namespace millrace::kernels
