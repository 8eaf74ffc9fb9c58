#include <cmath>

#include "executors/cpu/kernels/kernel_sets.h"

namespace millrace::cpu::plain {
namespace {

float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

void Convolve(const ConvolutionTile& tile) {
  for (int i = 0; i < tile.channels; ++i) {
    float sum = tile.bias == nullptr ? 0 : tile.bias[i];
    for (int tap = 0; tap < tile.width; ++tap) {
      sum += tile.inputs[tap][i] * tile.weights[tap * tile.channels + i];
    }
    tile.out[i] = tile.silu ? sum * Sigmoid(sum) : sum;
  }
}

void DeltaRule(const DeltaTile& tile) {
  for (int column = 0; column < tile.value_size; ++column) {
    float* const state = tile.state + column / kStateColumns * kStateColumns * tile.key_size +
                         column % kStateColumns;
    for (int token = 0; token < tile.tokens; ++token) {
      const float* const q = tile.queries + token * tile.stride;
      const float* const k = tile.keys + token * tile.stride;
      const float decay = tile.decays[token * tile.gate_stride];
      const float beta = tile.betas[token * tile.gate_stride];
      float seen = 0;
      for (int row = 0; row < tile.key_size; ++row) seen += state[row * kStateColumns] * k[row];
      const float delta = beta * (tile.values[token * tile.stride + column] - decay * seen);
      float out = 0;
      for (int row = 0; row < tile.key_size; ++row) {
        float& value = state[row * kStateColumns];
        value = decay * value + k[row] * delta;
        out += value * q[row];
      }
      tile.out[token * tile.out_stride + column] = out;
    }
  }
}

void StateSpace(const StateSpaceTile& tile) {
  for (int column = 0; column < tile.head_size; ++column) {
    const int first = column / kStateColumns * kStateColumns;
    const int columns =
        tile.head_size - first < kStateColumns ? tile.head_size - first : kStateColumns;
    float* const state = tile.state + first * tile.state_size + column - first;
    for (int token = 0; token < tile.tokens; ++token) {
      const float* const b = tile.b + token * tile.stride;
      const float* const c = tile.c + token * tile.stride;
      const float x = tile.x[token * tile.stride + column];
      const float decay = tile.decays[token * tile.factor_stride];
      const float input = tile.steps[token * tile.factor_stride] * x;
      float out = 0;
      for (int row = 0; row < tile.state_size; ++row) {
        float& value = state[row * columns];
        value = decay * value + b[row] * input;
        out += value * c[row];
      }
      tile.out[token * tile.out_stride + column] = out + tile.skip * x;
    }
  }
}

void SigmoidGate(const float* gate, int count, bool silu, float* x) {
  for (int i = 0; i < count; ++i) x[i] *= Sigmoid(gate[i]) * (silu ? gate[i] : 1);
}

}  // namespace millrace::cpu::plain
