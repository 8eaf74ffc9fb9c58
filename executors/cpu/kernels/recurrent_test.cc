// The functions of recurrent layers in all kernel tables, against plain arithmetic in double
// precision.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "executors/cpu/kernels/kernels.h"
#include "executors/cpu/kernels/kernels_test_util.h"
#include "gtest/gtest.h"

namespace millrace::cpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

class RecurrentTest : public TableTest {};
INSTANTIATE_TEST_SUITE_P(All, RecurrentTest, ::testing::ValuesIn(Tables()), TableName);

TEST_P(RecurrentTest, ConvolutionsAreThoseOfTheirChannels) {
  struct Case {
    int channels;
    int width;
    bool bias;
    bool silu;
  };
  for (const Case& one :
       {Case{16, 4, false, true}, Case{48, 4, true, true}, Case{416, 3, false, false},
        Case{32, 1, true, false}, Case{16, 2, true, false}, Case{48, 8, false, true}}) {
    SCOPED_TRACE(one.channels);
    const std::vector<float> weights = Floats(size_t{8} * one.channels, 2);
    const std::vector<float> bias = Floats(one.channels, 2);
    std::vector<std::vector<float>> rows;
    std::vector<const float*> inputs;
    for (int i = 0; i < one.width; ++i) {
      inputs.push_back(rows.emplace_back(Floats(one.channels, 3)).data());
    }
    std::vector<float> out(one.channels + 1, kNan);
    kernels_.convolve({.inputs = inputs.data(),
                       .weights = weights.data(),
                       .bias = one.bias ? bias.data() : nullptr,
                       .width = one.width,
                       .channels = one.channels,
                       .silu = one.silu,
                       .out = out.data()});
    for (int i = 0; i < one.channels; ++i) {
      double sum = one.bias ? bias[i] : 0;
      for (int tap = 0; tap < one.width; ++tap) {
        sum += double{inputs[tap][i]} * weights[tap * one.channels + i];
      }
      EXPECT_NEAR(out[i], one.silu ? sum * Sigmoid(sum) : sum, 2e-5) << i;
    }
    EXPECT_TRUE(std::isnan(out[one.channels]));
  }
}

TEST_P(RecurrentTest, GatesAreSigmoidsAndSilus) {
  for (const int count : {1, 16, 24, 64}) {
    std::vector<float> gate = Floats(count, 10);
    gate[0] = -200;  // exp overflows
    const std::vector<float> x = Floats(count, 3);
    for (const bool silu : {false, true}) {
      std::vector<float> gated = x;
      gated.push_back(kNan);
      kernels_.sigmoid_gate(gate.data(), count, silu, gated.data());
      for (int i = 0; i < count; ++i) {
        const double expected = x[i] * Sigmoid(gate[i]) * (silu ? gate[i] : 1.0);
        EXPECT_NEAR(gated[i], expected, 4e-6) << count << " " << i << " " << silu;
      }
      EXPECT_TRUE(std::isnan(gated[count]));
    }
  }
}

// Tokens of one head: queries and keys of unit length, as the op passes them.
struct Tokens {
  Tokens(int count, int key_size, int value_size)
      : count(count), key_size(key_size), value_size(value_size) {}

  // Returns the tile of some of the tokens, which leaves its outputs in `out`, [count][value_size].
  DeltaTile Tile(int first, int tokens, float* state, float* out) const {
    const float* const row = rows.data() + first * stride();
    return {.state = state,
            .key_size = key_size,
            .value_size = value_size,
            .tokens = tokens,
            .queries = row,
            .keys = row + key_size,
            .values = row + 2 * key_size,
            .stride = stride(),
            .decays = gates.data() + 3 * first,
            .betas = gates.data() + 3 * first + 1,
            .gate_stride = 3,
            .out = out + first * value_size,
            .out_stride = static_cast<size_t>(value_size)};
  }
  size_t stride() const { return 2 * key_size + value_size + 5; }

  int count;
  int key_size;
  int value_size;
  std::vector<float> rows;   // [count][stride()]: q, k, v
  std::vector<float> gates;  // [count][3]: decay, beta, and nothing
};

class DeltaTest : public RecurrentTest {
 protected:
  Tokens Draw(int count, int key_size, int value_size) {
    Tokens tokens(count, key_size, value_size);
    tokens.rows = Floats(count * tokens.stride());
    tokens.gates = Floats(size_t{3} * count);
    for (float& gate : tokens.gates) gate = 0.5f + 0.5f * gate;
    for (int i = 0; i < count; ++i) {
      for (const int part : {0, 1}) {
        float* const x = tokens.rows.data() + i * tokens.stride() + part * key_size;
        double squares = 0;
        for (int j = 0; j < key_size; ++j) squares += double{x[j]} * x[j];
        for (int j = 0; j < key_size; ++j) x[j] /= static_cast<float>(std::sqrt(squares));
      }
    }
    return tokens;
  }
};
INSTANTIATE_TEST_SUITE_P(All, DeltaTest, ::testing::ValuesIn(Tables()), TableName);

// The rule as its paper has it, [key_size][value_size].
std::vector<double> Reference(const Tokens& tokens, std::vector<double> state) {
  std::vector<double> outs;
  for (int i = 0; i < tokens.count; ++i) {
    const float* const q = tokens.rows.data() + i * tokens.stride();
    const float* const k = q + tokens.key_size;
    const float* const v = k + tokens.key_size;
    const double decay = tokens.gates[3 * i];
    const double beta = tokens.gates[3 * i + 1];
    for (double& value : state) value *= decay;
    for (int column = 0; column < tokens.value_size; ++column) {
      const auto at = [&](int row) -> double& { return state[row * tokens.value_size + column]; };
      double seen = 0;
      for (int row = 0; row < tokens.key_size; ++row) seen += at(row) * k[row];
      double out = 0;
      for (int row = 0; row < tokens.key_size; ++row) {
        at(row) += beta * k[row] * (v[column] - seen);
        out += at(row) * q[row];
      }
      outs.push_back(out);
    }
  }
  return outs;
}

TEST_P(DeltaTest, StatesAreUpdatedTokenByToken) {
  for (const auto& [key_size, value_size] : {std::pair(16, 32), {48, 64}, {128, 128}}) {
    SCOPED_TRACE(key_size);
    const Tokens tokens = Draw(70, key_size, value_size);
    std::vector<float> state = Floats(static_cast<size_t>(key_size) * value_size);
    std::vector<double> plain(state.size());
    for (int row = 0; row < key_size; ++row) {
      for (int column = 0; column < value_size; ++column) {
        const int block = column / kStateColumns * kStateColumns * key_size;
        plain[row * value_size + column] =
            state[block + row * kStateColumns + column % kStateColumns];
      }
    }
    const std::vector<double> expected = Reference(tokens, plain);
    std::vector<float> out(expected.size(), kNan);
    kernels_.delta_rule(tokens.Tile(0, tokens.count, state.data(), out.data()));
    for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], expected[i], 5e-6) << i;
  }
}

// Neither how tokens are cut into tiles nor where outputs go changes a bit.
TEST_P(DeltaTest, CutsChangeNothing) {
  const Tokens tokens = Draw(33, 64, 64);
  const std::vector<float> first = Floats(64 * 64);
  std::vector<float> state = first;
  std::vector<float> whole(33 * 64, kNan);
  kernels_.delta_rule(tokens.Tile(0, tokens.count, state.data(), whole.data()));
  for (const int chunk : {1, 7, 32}) {
    std::vector<float> again = first;
    std::vector<float> out(whole.size(), kNan);
    for (int begin = 0; begin < tokens.count; begin += chunk) {
      const int count = std::min(chunk, tokens.count - begin);
      kernels_.delta_rule(tokens.Tile(begin, count, again.data(), out.data()));
    }
    EXPECT_EQ(out, whole) << chunk;
    EXPECT_EQ(again, state) << chunk;
  }
  Tokens in_place = tokens;
  DeltaTile tile = in_place.Tile(0, tokens.count, (state = first).data(), whole.data());
  tile.out = in_place.rows.data() + 2 * tokens.key_size;
  tile.out_stride = tokens.stride();
  kernels_.delta_rule(tile);
  for (int i = 0; i < tokens.count; ++i) {
    const float* const row = in_place.rows.data() + i * tokens.stride() + 2 * tokens.key_size;
    EXPECT_TRUE(std::equal(row, row + 64, whole.begin() + i * 64)) << i;
  }
}

// Tokens of one head of Mamba-2: b, c and x, and their decays and steps.
struct StateSpaceTokens {
  StateSpaceTile Tile(int first, int tokens, float* state, float* out) const {
    const float* const row = rows.data() + first * stride();
    return {.state = state,
            .state_size = state_size,
            .head_size = head_size,
            .tokens = tokens,
            .b = row,
            .c = row + state_size,
            .x = row + 2 * state_size,
            .stride = stride(),
            .decays = factors.data() + 3 * first,
            .steps = factors.data() + 3 * first + 1,
            .factor_stride = 3,
            .skip = 0.75f,
            .out = out + first * head_size,
            .out_stride = static_cast<size_t>(head_size)};
  }
  size_t stride() const { return 2 * state_size + head_size + 5; }

  int count;
  int state_size;
  int head_size;
  std::vector<float> rows;     // [count][stride()]
  std::vector<float> factors;  // [count][3]: decay, step, and nothing
};

class StateSpaceTest : public RecurrentTest {
 protected:
  StateSpaceTokens Draw(int count, int state_size, int head_size) {
    StateSpaceTokens tokens{count, state_size, head_size, {}, Floats(size_t{3} * count)};
    tokens.rows = Floats(count * tokens.stride());
    for (float& factor : tokens.factors) factor = 0.5f + 0.5f * factor;
    return tokens;
  }
};
INSTANTIATE_TEST_SUITE_P(All, StateSpaceTest, ::testing::ValuesIn(Tables()), TableName);

TEST_P(StateSpaceTest, StatesAreUpdatedTokenByToken) {
  for (const auto& [state_size, head_size] : {std::pair(16, 32), {48, 16}, {128, 80}, {128, 64}}) {
    SCOPED_TRACE(head_size);
    const StateSpaceTokens tokens = Draw(50, state_size, head_size);
    std::vector<float> state(static_cast<size_t>(state_size) * head_size, 0.0f);
    std::vector<float> out(tokens.count * head_size, kNan);
    kernels_.state_space(tokens.Tile(0, tokens.count, state.data(), out.data()));
    for (int column = 0; column < head_size; ++column) {
      std::vector<double> plain(state_size);
      for (int i = 0; i < tokens.count; ++i) {
        const float* const b = tokens.rows.data() + i * tokens.stride();
        const double x = b[2 * state_size + column];
        double expected = 0.75 * x;
        for (int row = 0; row < state_size; ++row) {
          plain[row] = tokens.factors[3 * i] * plain[row] + b[row] * tokens.factors[3 * i + 1] * x;
          expected += plain[row] * b[state_size + row];
        }
        EXPECT_NEAR(out[i * head_size + column], expected, 2e-5) << i << " " << column;
      }
    }
  }
}

// Neither how tokens are cut into tiles nor where outputs go changes a bit.
TEST_P(StateSpaceTest, CutsChangeNothing) {
  constexpr int kTokens = 33;
  constexpr int kHead = 48;
  const StateSpaceTokens tokens = Draw(kTokens, 64, kHead);
  const std::vector<float> first = Floats(64 * kHead);
  std::vector<float> state = first;
  std::vector<float> whole(kTokens * kHead, kNan);
  kernels_.state_space(tokens.Tile(0, kTokens, state.data(), whole.data()));
  for (const int chunk : {1, 7, 32}) {
    std::vector<float> again = first;
    std::vector<float> out(whole.size(), kNan);
    for (int begin = 0; begin < kTokens; begin += chunk) {
      const int count = std::min(chunk, kTokens - begin);
      kernels_.state_space(tokens.Tile(begin, count, again.data(), out.data()));
    }
    EXPECT_EQ(out, whole) << chunk;
    EXPECT_EQ(again, state) << chunk;
  }
  StateSpaceTokens in_place = tokens;
  StateSpaceTile tile = in_place.Tile(0, kTokens, (state = first).data(), whole.data());
  tile.out = in_place.rows.data() + 2 * tokens.state_size;
  tile.out_stride = tokens.stride();
  kernels_.state_space(tile);
  for (int i = 0; i < kTokens; ++i) {
    const float* const row = in_place.rows.data() + i * tokens.stride() + 2 * tokens.state_size;
    EXPECT_TRUE(std::equal(row, row + kHead, whole.begin() + i * kHead)) << i;
  }
}

TEST(RecurrentTablesTest, VectorTablesGiveTheSameBits) {
  std::vector<std::vector<float>> outputs;
  for (const Kernels* kernels : VectorTables()) {
    std::vector<float> x(8 * 64);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 37 % 101) / 50.0f - 1;
    const float* inputs[4];
    for (int i = 0; i < 4; ++i) inputs[i] = x.data() + i * 64;
    std::vector<float> out(3 * 64, 0.25f);
    kernels->convolve({.inputs = inputs,
                       .weights = x.data() + 4 * 64,
                       .bias = x.data() + 2 * 64,
                       .width = 4,
                       .channels = 64,
                       .silu = true,
                       .out = out.data()});
    kernels->sigmoid_gate(x.data(), 64, true, out.data() + 64);
    std::vector<float> state(64 * 64, 0.125f);
    const float gates[] = {0.75f, 0.5f};
    kernels->delta_rule({.state = state.data(),
                         .key_size = 64,
                         .value_size = 64,
                         .tokens = 2,
                         .queries = x.data(),
                         .keys = x.data() + 64,
                         .values = x.data() + 128,
                         .stride = 192,
                         .decays = gates,
                         .betas = gates + 1,
                         .gate_stride = 0,
                         .out = out.data() + 128,
                         .out_stride = 0});
    out.insert(out.end(), state.begin(), state.end());
    std::vector<float> heads(48, 0.25f);
    kernels->state_space({.state = state.data(),
                          .state_size = 64,
                          .head_size = 48,
                          .tokens = 2,
                          .b = x.data(),
                          .c = x.data() + 64,
                          .x = x.data() + 128,
                          .stride = 192,
                          .decays = gates,
                          .steps = gates + 1,
                          .factor_stride = 0,
                          .skip = 0.5f,
                          .out = heads.data(),
                          .out_stride = 0});
    out.insert(out.end(), state.begin(), state.end());
    out.insert(out.end(), heads.begin(), heads.end());
    outputs.push_back(std::move(out));
  }
  for (const std::vector<float>& out : outputs) EXPECT_EQ(out, outputs[0]);
}

}  // namespace
}  // namespace millrace::cpu
