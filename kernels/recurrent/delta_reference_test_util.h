// The gated delta rule on the host: in the kernels' order of arithmetic, and as it is defined.
#ifndef MILLRACE_KERNELS_RECURRENT_DELTA_REFERENCE_TEST_UTIL_H_
#define MILLRACE_KERNELS_RECURRENT_DELTA_REFERENCE_TEST_UTIL_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/recurrent/delta_types.h"

namespace millrace::kernels {

// A token's operands for one value head.
struct DeltaToken {
  const float* key;     // [128]
  const float* query;   // [128]
  const float* values;  // [128]
  float decay;
  float beta;
  float query_key;
};

// Returns a sum over keys as delta_rule.h states it.
template <typename T, typename A>
T SumOverKeys(const A* a, const float* b) {
  constexpr int kLanes = 8;
  std::array<T, kLanes> chains;
  for (int l = 0; l < kLanes; ++l) {
    for (int r = 0; r < kDeltaHeadSize / kLanes; ++r) {
      const int at = 32 * (r / 4) + 4 * l + r % 4;
      const T x = static_cast<T>(a[at]), y = static_cast<T>(b[at]);
      chains[l] = r == 0 ? x * y : std::fma(x, y, chains[l]);
    }
  }
  return ((chains[0] + chains[4]) + (chains[2] + chains[6])) +
         ((chains[1] + chains[5]) + (chains[3] + chains[7]));
}

// Computes the token at `position` of a sequence for the i-th value head of a key head, in the
// order of arithmetic that delta_rule.h states. `slot` is the sequence's slot, as StateParts
// lays it out. T is float for the kernels' bits, and double for their order with less error.
template <typename T>
std::array<T, kDeltaHeadSize> AdvanceByBlocks(const DeltaHeads& heads, int key_head, int i,
                                              int64_t position, const DeltaToken& token, T* slot) {
  const StateParts parts(heads);
  const int head = heads.ValueHead(key_head, i);
  const int t = static_cast<int>(position % kDeltaBlockTokens);
  const auto column_at = [&](int column) {
    return slot + parts.heads + (int64_t{head} * kDeltaHeadSize + column) * kDeltaHeadSize;
  };
  // These hold the block's tokens so far, and then this one.
  std::array<std::array<float, kDeltaHeadSize>, kDeltaBlockTokens> keys;
  std::array<const T*, kDeltaBlockTokens> deltas;
  std::array<T, kDeltaBlockTokens> decays;
  std::array<T, kDeltaHeadSize> own, out;
  for (int j = 0; j < t; ++j) {
    const T* const key =
        slot + parts.keys + (int64_t{j} * heads.key_heads + key_head) * kDeltaHeadSize;
    std::transform(key, key + kDeltaHeadSize, keys[j].begin(),
                   [](T element) { return static_cast<float>(element); });
    deltas[j] = slot + parts.deltas + j * heads.value_width() + head * kDeltaHeadSize;
    decays[j] = slot[parts.decays + int64_t{j} * heads.value_heads + head];
  }
  std::copy_n(token.key, kDeltaHeadSize, keys[t].begin());
  deltas[t] = own.data();
  decays[t] = token.decay;

  std::array<T, kDeltaBlockTokens> since;  // L(t, j)
  std::array<T, kDeltaBlockTokens> delta_weights, output_weights;
  const T beta = token.beta;
  for (int j = t; j >= 0; --j) {
    since[j] = j == t ? T{1} : since[j + 1] * decays[j + 1];
    if (j < t) {
      delta_weights[j] = -(beta * (since[j] * SumOverKeys<T>(keys[j].data(), token.key)));
    }
    const T product =
        j < t ? SumOverKeys<T>(keys[j].data(), token.query) : static_cast<T>(token.query_key);
    output_weights[j] = since[j] * product;
  }
  const T start = since[0] * decays[0];
  for (int column = 0; column < kDeltaHeadSize; ++column) {
    // A state in its first block is zeros.
    std::array<T, kDeltaHeadSize> state{};
    if (position >= kDeltaBlockTokens) {
      std::copy_n(column_at(column), kDeltaHeadSize, state.begin());
    }
    T delta = beta * std::fma(-start, SumOverKeys<T>(state.data(), token.key),
                              static_cast<T>(token.values[column]));
    T sum = start * SumOverKeys<T>(state.data(), token.query);
    for (int j = 0; j < t; ++j) {
      delta = std::fma(delta_weights[j], deltas[j][column], delta);
      sum = std::fma(output_weights[j], deltas[j][column], sum);
    }
    own[column] = delta;
    out[column] = std::fma(output_weights[t], delta, sum);
    if (t < kDeltaBlockTokens - 1) continue;
    for (int k = 0; k < kDeltaHeadSize; ++k) state[k] = start * state[k];
    for (int j = 0; j <= t; ++j) {
      const T left = since[j] * deltas[j][column];
      for (int k = 0; k < kDeltaHeadSize; ++k) {
        state[k] = std::fma(static_cast<T>(keys[j][k]), left, state[k]);
      }
    }
    std::copy(state.begin(), state.end(), column_at(column));
  }
  if (t < kDeltaBlockTokens - 1) {
    std::copy(keys[t].begin(), keys[t].end(),
              slot + parts.keys + (int64_t{t} * heads.key_heads + key_head) * kDeltaHeadSize);
    std::copy(own.begin(), own.end(),
              slot + parts.deltas + t * heads.value_width() + head * kDeltaHeadSize);
    slot[parts.decays + int64_t{t} * heads.value_heads + head] = token.decay;
  }
  return out;
}

// Computes a token by the rule's definition. `state` is [128 values][128 keys].
inline std::array<double, kDeltaHeadSize> AdvanceByDefinition(const DeltaToken& token,
                                                              double* state) {
  std::array<double, kDeltaHeadSize> out;
  for (int column = 0; column < kDeltaHeadSize; ++column) {
    double* const own = state + column * kDeltaHeadSize;
    double of_key = 0, sum = 0;
    for (int k = 0; k < kDeltaHeadSize; ++k) {
      own[k] *= token.decay;
      of_key += own[k] * token.key[k];
    }
    const double delta = token.beta * (token.values[column] - of_key);
    for (int k = 0; k < kDeltaHeadSize; ++k) {
      own[k] += token.key[k] * delta;
      sum += own[k] * token.query[k];
    }
    out[column] = sum;
  }
  return out;
}

// Appends the bits of floats, so that comparisons tell NaNs and zeros apart.
inline void AppendBits(const float* values, int64_t size, std::vector<uint32_t>& to) {
  const size_t had = to.size();
  to.resize(had + size);
  std::memcpy(to.data() + had, values, size * sizeof(float));
}

// Returns the bits of what has a meaning in the slot of a sequence that is at `position`.
inline std::vector<uint32_t> MeantBits(const DeltaHeads& heads, const float* slot,
                                       int64_t position) {
  const StateParts parts(heads);
  const int kept = static_cast<int>(position % kDeltaBlockTokens);
  std::vector<uint32_t> bits;
  AppendBits(slot, ConvolutionFloats(heads), bits);
  if (position >= kDeltaBlockTokens) {
    AppendBits(slot + parts.heads, heads.value_width() * kDeltaHeadSize, bits);
  }
  AppendBits(slot + parts.keys, int64_t{kept} * heads.key_heads * kDeltaHeadSize, bits);
  AppendBits(slot + parts.deltas, kept * heads.value_width(), bits);
  AppendBits(slot + parts.decays, int64_t{kept} * heads.value_heads, bits);
  return bits;
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_DELTA_REFERENCE_TEST_UTIL_H_
