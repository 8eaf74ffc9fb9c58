// The scan of a Mamba-2 layer on the host: in the kernel's order of arithmetic, and as it is
// defined.
#ifndef MILLRACE_KERNELS_RECURRENT_MAMBA2_REFERENCE_TEST_UTIL_H_
#define MILLRACE_KERNELS_RECURRENT_MAMBA2_REFERENCE_TEST_UTIL_H_

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/recurrent/mamba2_types.h"

namespace millrace::kernels {

// A token's operands for one head.
struct Mamba2Token {
  const float* x;  // [head_size]
  const float* b;  // [state_size]
  const float* c;  // [state_size]
  Mamba2Gates gates;
};

// Returns the chains of a sum over a state, as mamba2_scan.h states them.
template <typename T>
std::array<T, 16> ChainsOverState(const T* state, const float* c, int size) {
  std::array<T, 16> chains;
  for (int l = 0; l < 16; ++l) {
    for (int r = 0; r < size / 16; ++r) {
      const int at = 64 * (r / 4) + 4 * l + r % 4;
      const T factor = static_cast<T>(c[at]);
      chains[l] = r == 0 ? state[at] * factor : std::fma(state[at], factor, chains[l]);
    }
  }
  return chains;
}

// Returns the sum of chains, as mamba2_scan.h states it.
template <typename T>
T SumOfChains(std::array<T, 16> chains) {
  for (int distance = 8; distance > 0; distance /= 2) {
    for (int l = 0; l < distance; ++l) chains[l] += chains[l + distance];
  }
  return chains[0];
}

// Takes a token in the kernel's order of arithmetic, with a head's state [head_size, state_size],
// and returns its output. T is float for the kernel's bits, and double for its order with less
// error.
template <typename T>
std::vector<T> AdvanceInOrder(const Mamba2Heads& heads, const Mamba2Token& token, float skip,
                              T* state) {
  std::vector<T> out;
  for (int p = 0; p < heads.head_size; ++p) {
    T* const row = state + int64_t{p} * heads.state_size;
    const T input = static_cast<T>(token.gates.step) * static_cast<T>(token.x[p]);
    for (int n = 0; n < heads.state_size; ++n) {
      row[n] =
          std::fma(input, static_cast<T>(token.b[n]), static_cast<T>(token.gates.decay) * row[n]);
    }
    const T sum = SumOfChains(ChainsOverState(row, token.c, heads.state_size));
    out.push_back(std::fma(static_cast<T>(skip), static_cast<T>(token.x[p]), sum));
  }
  return out;
}

// Computes a sequence's outputs, [tokens][head_size], from the definition without a state: the sum
// over earlier tokens of (c_t b_s) times the decays between them times step_s x_s.
inline std::vector<double> ScanByDefinition(const Mamba2Heads& heads,
                                            const std::vector<Mamba2Token>& tokens, float skip) {
  std::vector<double> out;
  for (size_t t = 0; t < tokens.size(); ++t) {
    std::vector<double> sums(heads.head_size);
    for (int p = 0; p < heads.head_size; ++p) sums[p] = 1.0 * skip * tokens[t].x[p];
    double decay = 1;
    for (size_t s = t + 1; s-- > 0;) {
      double product = 0;
      for (int n = 0; n < heads.state_size; ++n) product += 1.0 * tokens[t].c[n] * tokens[s].b[n];
      for (int p = 0; p < heads.head_size; ++p) {
        sums[p] += product * decay * tokens[s].gates.step * tokens[s].x[p];
      }
      decay *= tokens[s].gates.decay;
    }
    out.insert(out.end(), sums.begin(), sums.end());
  }
  return out;
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_MAMBA2_REFERENCE_TEST_UTIL_H_
