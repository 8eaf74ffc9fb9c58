// The order of arithmetic of delta_rule.h against the rule's definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/recurrent/delta_reference_test_util.h"

namespace millrace::kernels {
namespace {

constexpr DeltaHeads kHeads{1, 1};
constexpr int kTokens = 101;

// A sequence's operands. Keys and queries have the lengths that the layer gives them; each decay is
// that of a gate of about `gate`, and neighbouring keys are as much alike as `likeness` says.
class Sequence {
 public:
  Sequence(float gate, float likeness, uint32_t seed) : random_(seed) {
    std::array<float, kDeltaHeadSize> common;
    for (float& element : common) element = draw_(random_);
    for (int t = 0; t < kTokens; ++t) {
      Token& token = tokens_.emplace_back();
      for (int k = 0; k < kDeltaHeadSize; ++k) {
        token.key[k] = likeness * common[k] + (1 - likeness) * draw_(random_);
        token.query[k] = likeness * common[k] + (1 - likeness) * draw_(random_);
        token.values[k] = draw_(random_);
      }
      Scale(token.key, 1);
      Scale(token.query, 1 / std::sqrt(static_cast<float>(kDeltaHeadSize)));
      token.decay = std::exp(-std::exp(gate + draw_(random_)));
      token.beta = 1 / (1 + std::exp(-draw_(random_)));
      token.query_key = SumOverKeys<float>(token.key.data(), token.query.data());
    }
  }

  DeltaToken token(int t) const {
    const Token& of = tokens_[t];
    return {.key = of.key.data(),
            .query = of.query.data(),
            .values = of.values.data(),
            .decay = of.decay,
            .beta = of.beta,
            .query_key = of.query_key};
  }

 private:
  using Vector = std::array<float, kDeltaHeadSize>;
  struct Token {
    Vector key, query, values;
    float decay, beta, query_key;
  };

  static void Scale(Vector& vector, float length) {
    double squares = 0;
    for (const float element : vector) squares += static_cast<double>(element) * element;
    for (float& element : vector) element *= length / static_cast<float>(std::sqrt(squares));
  }

  std::mt19937 random_;
  std::normal_distribution<float> draw_;
  std::vector<Token> tokens_;
};

// The length of differences over that of their reference.
class Error {
 public:
  template <typename T>
  void Add(const T* values, const double* reference, int64_t size) {
    for (int64_t i = 0; i < size; ++i) {
      differences_ += (values[i] - reference[i]) * (values[i] - reference[i]);
      squares_ += reference[i] * reference[i];
    }
  }
  double value() const { return std::sqrt(differences_ / squares_); }

 private:
  double differences_ = 0, squares_ = 0;
};

// Computes the sequence by blocks and returns the larger of the errors of its outputs and of the
// states at the ends of blocks.
template <typename T>
double ErrorOfBlocks(const Sequence& sequence) {
  std::vector<T> slot(StateFloats(kHeads), T{std::nanf("")});  // nothing of it may be read
  std::vector<double> state(int64_t{kDeltaHeadSize} * kDeltaHeadSize);
  Error of_outputs, of_states;
  for (int t = 0; t < kTokens; ++t) {
    const DeltaToken token = sequence.token(t);
    const auto out = AdvanceByBlocks<T>(kHeads, 0, 0, t, token, slot.data());
    const auto expected = AdvanceByDefinition(token, state.data());
    of_outputs.Add(out.data(), expected.data(), kDeltaHeadSize);
    if (t % kDeltaBlockTokens < kDeltaBlockTokens - 1) continue;
    of_states.Add(slot.data() + StateParts(kHeads).heads, state.data(),
                  static_cast<int64_t>(state.size()));
  }
  return std::max(of_outputs.value(), of_states.value());
}

// Gates from long memory to almost none, where a block's decay is below the least float32, and keys
// from independent ones to almost equal ones, whose deltas correct one another most.
TEST(DeltaReference, BlocksComputeTheRule) {
  for (const float gate : {-8.0f, -1.0f, 4.0f}) {
    for (const float likeness : {0.0f, 0.95f}) {
      SCOPED_TRACE("gate " + std::to_string(gate) + ", likeness " + std::to_string(likeness));
      const Sequence sequence(gate, likeness, 7);
      EXPECT_LT(ErrorOfBlocks<double>(sequence), 1e-7);  // of the product of a token's own
      EXPECT_LT(ErrorOfBlocks<float>(sequence), 1e-6);
    }
  }
}

TEST(DeltaReference, PartsOfASlotFollowOneAnother) {
  constexpr DeltaHeads kGroups{2, 6};
  const StateParts parts(kGroups);
  EXPECT_EQ(parts.heads, 3 * (2 * 2 + 6) * 128);
  EXPECT_EQ(parts.keys - parts.heads, 6 * 128 * 128);
  EXPECT_EQ(parts.deltas - parts.keys, 7 * 2 * 128);
  EXPECT_EQ(parts.decays - parts.deltas, 7 * 6 * 128);
  EXPECT_EQ(parts.size, parts.decays + 44);  // 7 * 6, up to a multiple of four
  EXPECT_EQ(StateFloats(kGroups), parts.size);
}

}  // namespace
}  // namespace millrace::kernels
