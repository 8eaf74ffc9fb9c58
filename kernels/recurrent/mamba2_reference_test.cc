// The order of arithmetic of the Mamba-2 scan against its definition.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/recurrent/mamba2_reference_test_util.h"
#include "kernels/recurrent/mamba2_scan.h"
#include "kernels/recurrent/mamba2_types.h"

namespace millrace::kernels {
namespace {

constexpr int kTokens = 120;

// A head's operands. `gate` sets how long its memory is.
class Sequence {
 public:
  Sequence(const Mamba2Heads& heads, float gate, uint32_t seed) : random_(seed) {
    for (int t = 0; t < kTokens; ++t) {
      x_.push_back(Draw(heads.head_size));
      b_.push_back(Draw(heads.state_size));
      c_.push_back(Draw(heads.state_size));
      const float step = std::exp(draw_(random_));
      gates_.push_back({step, std::exp(-step * std::exp(gate))});
    }
  }

  std::vector<Mamba2Token> tokens() const {
    std::vector<Mamba2Token> tokens;
    for (int t = 0; t < kTokens; ++t) {
      tokens.push_back({x_[t].data(), b_[t].data(), c_[t].data(), gates_[t]});
    }
    return tokens;
  }

 private:
  std::vector<float> Draw(int size) {
    std::vector<float> values(size);
    for (float& value : values) value = draw_(random_);
    return values;
  }

  std::mt19937 random_;
  std::normal_distribution<float> draw_;
  std::vector<std::vector<float>> x_, b_, c_;
  std::vector<Mamba2Gates> gates_;
};

// Returns the length of the differences of outputs over that of the outputs.
template <typename T>
double ErrorOfOrder(const Mamba2Heads& heads, const std::vector<Mamba2Token>& tokens, float skip) {
  const std::vector<double> expected = ScanByDefinition(heads, tokens, skip);
  std::vector<T> state(int64_t{heads.head_size} * heads.state_size);
  double differences = 0, squares = 0;
  size_t at = 0;
  for (const Mamba2Token& token : tokens) {
    for (const T value : AdvanceInOrder(heads, token, skip, state.data())) {
      const double reference = expected[at++];
      differences += (value - reference) * (value - reference);
      squares += reference * reference;
    }
  }
  return std::sqrt(differences / squares);
}

TEST(Mamba2Reference, TheOrderComputesTheScan) {
  for (const int state_size : {128, 256}) {
    for (const float gate : {-6.0f, -1.0f, 3.0f}) {
      SCOPED_TRACE("state " + std::to_string(state_size) + ", gate " + std::to_string(gate));
      const Mamba2Heads heads = {1, 32, 1, state_size};
      const Sequence sequence(heads, gate, 7);
      EXPECT_LT(ErrorOfOrder<double>(heads, sequence.tokens(), 0.7f), 1e-12);
      EXPECT_LT(ErrorOfOrder<float>(heads, sequence.tokens(), 0.7f), 1e-6);
    }
  }
}

// The kernel's exchange among 16 lanes that have a chain of each of 16 sums: lane l ends with sum
// l, in the bits of SumOfChains.
TEST(Mamba2Reference, ScatteredSumsHaveTheBitsOfSums) {
  std::mt19937 random(3);
  std::normal_distribution<float> draw;
  std::array<std::array<float, 16>, 16> chains;  // [lane][sum]
  for (auto& lane : chains) {
    for (float& chain : lane) chain = draw(random);
  }
  auto sums = chains;
  for (int half = 8; half > 0; half /= 2) {
    const auto before = sums;
    for (int lane = 0; lane < 16; ++lane) {
      const int kept = (lane & half) != 0 ? half : 0;
      for (int i = 0; i < half; ++i) {
        sums[lane][i] = before[lane][i + kept] + before[lane ^ half][i + kept];
      }
    }
  }
  for (int lane = 0; lane < 16; ++lane) {
    std::array<float, 16> own;
    for (int l = 0; l < 16; ++l) own[l] = chains[l][lane];
    EXPECT_EQ(sums[lane][0], SumOfChains(own)) << lane;
  }
}

TEST(Mamba2Reference, PartsOfASlotFollowOneAnother) {
  constexpr Mamba2Heads kNano = {64, 64, 8, 128};
  EXPECT_EQ(kNano.channels(), 64 * 64 + 2 * 8 * 128);
  EXPECT_EQ(Mamba2HeadsAt(kNano), 3 * 6144);
  EXPECT_EQ(Mamba2Floats(kNano), 3 * 6144 + 64 * 64 * 128);
}

TEST(Mamba2Reference, HeadsAreDividedWhereTheyAreFew) {
  constexpr Mamba2Heads kNano = {64, 64, 8, 128};
  EXPECT_EQ(DefaultMamba2Block(kNano, 1), 32);
  EXPECT_EQ(DefaultMamba2Block(kNano, 2), 64);
  EXPECT_EQ(DefaultMamba2Block({48, 96, 1, 128}, 8), 32);
}

}  // namespace
}  // namespace millrace::kernels
