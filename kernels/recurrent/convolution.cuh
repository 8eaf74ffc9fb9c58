// The causal convolution of a step's rows, each channel's own, with its state: shared by the
// kernels that begin a layer with one.
//
// A thread has eight neighbouring channels. Of the blocks of a grid the first ones have a row each:
// they compute its first width - 1 tokens, which need the state, and they alone read and write the
// state. The others have runs of the step's tokens, and compute those whose inputs all lie in the
// token's own row. So a token's sum is one chain over its inputs, wherever they come from.
#ifndef MILLRACE_KERNELS_RECURRENT_CONVOLUTION_CUH_
#define MILLRACE_KERNELS_RECURRENT_CONVOLUTION_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/recurrent/recurrent_rows.h"

namespace millrace::kernels {

inline constexpr int kConvolutionRun = 8;  // tokens that a block computes one after the other

// A layer's convolution. Its part of a slot is the first one: the inputs of the last width - 1
// tokens, [width - 1][channels], the oldest first.
struct RowsConvolution {
  RecurrentRows rows;
  RecurrentState state;
  const float* weights;  // [width][channels], the oldest token's first; 16-byte aligned
  const float* bias;     // [channels], 16-byte aligned; null for none
  int channels;          // a multiple of 8
};

// Returns the blocks that compute a step's rows.
inline int ConvolutionBlocks(const RecurrentRows& rows, int width) {
  const int runs = rows.max_row_tokens >= width ? CeilDiv(rows.max_tokens, kConvolutionRun) : 0;
  return rows.rows + runs;
}

// A thread's eight channels. `Layer` makes inputs of what it loads, and takes sums:
//   struct Loaded;                                        // of a token
//   Loaded Load(int64_t token);
//   void Input(const Loaded& loaded, float (&input)[8]);
//   void Finish(int64_t token, const Loaded& loaded, const float (&sum)[8]);
// All threads of a CTA call these together, also those whose channels are beyond the last one. With
// kHeld a thread keeps its weights in registers.
template <int kWidth, bool kHeld>
class ChannelConvolution {
 public:
  // Loads what is constant while steps run.
  __device__ ChannelConvolution(const RowsConvolution& of, int64_t channel)
      : of_(of), channel_(channel), inside_(channel < of.channels) {
    if (!inside_) return;
    if constexpr (kHeld) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) Load8(of.weights + i * of.channels + channel, weights_[i]);
    }
    if (of.bias != nullptr) Load8(of.bias + channel, bias_);
  }

  template <typename Layer>
  __device__ void Compute(int block, const Layer& layer) const {
    if (block >= of_.rows.rows) {
      ComputeRun(int64_t{block - of_.rows.rows} * kConvolutionRun, layer);
    } else if constexpr (kPast > 0) {
      BeginRow(block, layer);
    }
  }

 private:
  static constexpr int kPast = kWidth - 1;

  // Inputs of consecutive tokens, the newest last.
  using Window = float[kWidth][8];

  // Computes tokens [first, first + kConvolutionRun) of the step, except the first ones of rows.
  template <typename Layer>
  __device__ void ComputeRun(int64_t first, const Layer& layer) const {
    const RecurrentRows& rows = of_.rows;
    const int64_t tokens = rows.row_first[rows.rows];
    if (first >= tokens) return;
    const int64_t end = min(first + kConvolutionRun, tokens);
    Window window;
#pragma unroll
    for (int i = 0; i < kPast; ++i) {
      layer.Input(layer.Load(max(first - kPast + i, int64_t{0})), window[i + 1]);
    }
    auto loaded = layer.Load(first);
#pragma unroll 1
    for (int64_t token = first; token < end; ++token) {
      const auto next = layer.Load(min(token + 1, end - 1));
      // The first of the inputs is of the same row if it is the same sequence's kPast before.
      const bool inside = token >= kPast && rows.slots[token - kPast] == rows.slots[token] &&
                          rows.positions[token - kPast] == rows.positions[token] - kPast;
      Push(layer, loaded, window);
      if (inside) Finish(layer, token, loaded, window);
      loaded = next;
    }
  }

  // Computes the first tokens of a row and updates the state.
  template <typename Layer>
  __device__ void BeginRow(int row, const Layer& layer) const {
    const RecurrentRows& rows = of_.rows;
    const int64_t first = rows.row_first[row];
    const int tokens = static_cast<int>(rows.row_first[row + 1] - first);
    if (tokens <= 0) return;
    float* const state =
        of_.state.data + int64_t{rows.row_slot[row]} * of_.state.slot_stride + channel_;
    Window window = {};
    if (inside_ && rows.row_start[row] != 0) {
#pragma unroll
      for (int i = 0; i < kPast; ++i) Load8(state + int64_t{i} * of_.channels, window[i + 1]);
    }
    const int begun = min(tokens, kPast);
    auto loaded = layer.Load(first);
#pragma unroll 1
    for (int t = 0; t < begun; ++t) {
      const auto next = layer.Load(first + min(t + 1, begun - 1));
      Push(layer, loaded, window);
      Finish(layer, first + t, loaded, window);
      loaded = next;
    }
    if (tokens > kPast) {
#pragma unroll
      for (int i = 0; i < kPast; ++i) {
        layer.Input(layer.Load(first + tokens - kPast + i), window[i + 1]);
      }
    }
    if (!inside_) return;
#pragma unroll
    for (int i = 0; i < kPast; ++i) Store8(state + int64_t{i} * of_.channels, window[i + 1]);
  }

  template <typename Layer>
  __device__ void Push(const Layer& layer, const typename Layer::Loaded& loaded,
                       Window& window) const {
#pragma unroll
    for (int i = 0; i < kPast; ++i) {
#pragma unroll
      for (int c = 0; c < 8; ++c) window[i][c] = window[i + 1][c];
    }
    layer.Input(loaded, window[kPast]);
  }

  template <typename Layer>
  __device__ void Finish(const Layer& layer, int64_t token, const typename Layer::Loaded& loaded,
                         const Window& window) const {
    float sum[8] = {};
    if (inside_) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        float weights[8];
        WeightsOf(i, weights);
#pragma unroll
        for (int c = 0; c < 8; ++c) {
          sum[c] = i == 0 ? __fmul_rn(weights[c], window[0][c])
                          : __fmaf_rn(weights[c], window[i][c], sum[c]);
        }
      }
#pragma unroll
      for (int c = 0; c < 8; ++c) sum[c] = __fadd_rn(sum[c], bias_[c]);
    }
    layer.Finish(token, loaded, sum);
  }

  __device__ void WeightsOf(int i, float (&weights)[8]) const {
    if constexpr (kHeld) {
#pragma unroll
      for (int c = 0; c < 8; ++c) weights[c] = weights_[i][c];
    } else {
      Load8(of_.weights + int64_t{i} * of_.channels + channel_, weights);
    }
  }

  const RowsConvolution& of_;
  const int64_t channel_;
  const bool inside_;
  float weights_[kHeld ? kWidth : 1][8];
  float bias_[8] = {};
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_CONVOLUTION_CUH_
