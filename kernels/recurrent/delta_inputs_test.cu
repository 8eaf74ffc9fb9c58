#include "kernels/recurrent/delta_inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/activation_test_util.h"
#include "kernels/recurrent/delta_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr double kLengthEpsilon = 1e-6;
constexpr int kPast = kConvolutionTokens - 1;

// A layer's weights, and products of `tokens` tokens. Rows of the products go on with columns that
// are not read.
struct Layer {
  Layer(const DeltaHeads& heads, int tokens, bool scaled, bool log_rates = false)
      : heads(heads),
        log_rates(log_rates),
        qkv(tokens, static_cast<int>(heads.channels()) + 64, scaled, 1),
        gate_width((2 * heads.value_heads + 15) / 16 * 16),
        beta_alpha(tokens, gate_width, scaled, 5),
        convolution(RandomNormal(kConvolutionTokens * heads.channels(), 9)),
        rates(RandomNormal(heads.value_heads, 10)),
        time_bias(RandomNormal(heads.value_heads, 11)) {
    std::vector<float> drawn = rates.Download();
    for (float& rate : drawn) rate = log_rates ? std::log(std::abs(rate)) : -std::abs(rate);
    rates.Upload(drawn);
  }

  // The operands of tokens [first, first + rows' tokens) of the products.
  DeltaInputsArgs Args(const TestRows& rows, int first, const TestState& state,
                       const TestOperands& out) const {
    const auto from = [&](Product product) {
      product.data += first * product.stride;
      if (product.token_scales != nullptr) product.token_scales += first;
      return product;
    };
    return {.heads = heads,
            .rows = rows.view(),
            .qkv = from(qkv.view),
            .beta_alpha = from(beta_alpha.view),
            .convolution = convolution.get(),
            .rates = rates.get(),
            .time_bias = time_bias.get(),
            .state = state.view(),
            .out = out.view(),
            .log_rates = log_rates};
  }

  DeltaHeads heads;
  bool log_rates;
  TestProduct qkv;
  int gate_width;  // of a linear whose rows are padded
  TestProduct beta_alpha;
  DeviceBuffer<float> convolution, rates, time_bias;
};

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The operands of a step in double.
struct Reference {
  Reference(const Layer& layer, const std::vector<TestRow>& rows, const std::vector<float>& state,
            int64_t slot_stride)
      : layer(layer), weights(layer.convolution.Download()) {
    int first = 0;
    for (const TestRow& row : rows) {
      for (int t = 0; t < row.tokens; ++t) {
        // The inputs of the token and of those before it, the oldest first.
        std::vector<std::vector<double>> inputs;
        for (int i = t - kPast; i <= t; ++i) {
          std::vector<double> input(layer.heads.channels());
          for (size_t c = 0; c < input.size(); ++c) {
            if (i >= 0) {
              input[c] = layer.qkv.values[(first + i) * Width() + c];
            } else if (row.start > 0) {
              input[c] = state[row.slot * slot_stride + (kPast + i) * layer.heads.channels() + c];
            }
          }
          inputs.push_back(input);
        }
        AddToken(first + t, inputs);
      }
      first += row.tokens;
    }
  }

  int64_t Width() const { return layer.heads.channels() + 64; }

  void AddToken(int token, const std::vector<std::vector<double>>& inputs) {
    const DeltaHeads& heads = layer.heads;
    std::vector<double> mixed(heads.channels());
    for (size_t c = 0; c < mixed.size(); ++c) {
      double sum = 0;
      for (int i = 0; i < kConvolutionTokens; ++i) {
        sum += weights[i * heads.channels() + c] * inputs[i][c];
      }
      mixed[c] = sum * Sigmoid(sum);
    }
    const auto head_at = [&](int head) {
      const auto begin = mixed.begin() + int64_t{head} * kDeltaHeadSize;
      return std::vector<double>(begin, begin + kDeltaHeadSize);
    };
    const auto normed = [](std::vector<double> head, double scale) {
      double squares = kLengthEpsilon;
      for (const double x : head) squares += x * x;
      for (double& x : head) x *= scale / std::sqrt(squares);
      return head;
    };
    for (int h = 0; h < heads.key_heads; ++h) {
      const auto query = normed(head_at(h), 1 / std::sqrt(1.0 * kDeltaHeadSize));
      const auto key = normed(head_at(heads.key_heads + h), 1);
      keys_queries.insert(keys_queries.end(), key.begin(), key.end());
      keys_queries.insert(keys_queries.end(), query.begin(), query.end());
      double product = 0;
      for (int i = 0; i < kDeltaHeadSize; ++i) product += query[i] * key[i];
      query_keys.push_back(product);
    }
    values.insert(values.end(), mixed.begin() + int64_t{2} * heads.key_heads * kDeltaHeadSize,
                  mixed.end());
    const std::vector<float> rates = layer.rates.Download(), bias = layer.time_bias.Download();
    for (int v = 0; v < heads.value_heads; ++v) {
      const double* const factors = &layer.beta_alpha.values[int64_t{token} * layer.gate_width];
      betas.push_back(Sigmoid(factors[v]));
      const double rate = layer.log_rates ? -std::exp(rates[v]) : rates[v];
      decays.push_back(
          std::exp(rate * std::log1p(std::exp(factors[heads.value_heads + v] + bias[v]))));
    }
  }

  const Layer& layer;
  std::vector<float> weights;
  std::vector<double> keys_queries, values;  // [tokens, ...]
  std::vector<double> query_keys;            // [tokens, key_heads]
  std::vector<double> decays, betas;         // [tokens, value_heads]
};

// Heads of 128 may be off by 2e-5 of an element, which the fast sigmoid takes, and 1e-6 of the
// largest one.
void ExpectHeads(const std::vector<float>& got, const std::vector<double>& expected) {
  for (size_t first = 0; first < expected.size(); first += kDeltaHeadSize) {
    double amax = 0;
    for (int i = 0; i < kDeltaHeadSize; ++i) amax = std::max(amax, std::abs(expected[first + i]));
    for (size_t i = first; i < first + kDeltaHeadSize; ++i) {
      ASSERT_NEAR(got[i], expected[i], 2e-5 * std::abs(expected[i]) + 1e-6 * amax)
          << "head " << first / kDeltaHeadSize << " element " << i - first;
    }
  }
}

void ExpectOperands(const TestOperands& operands, const Reference& reference, int tokens) {
  const DeltaHeads& heads = reference.layer.heads;
  ExpectHeads(operands.keys_queries.Download(), reference.keys_queries);
  ExpectHeads(operands.values.Download(), reference.values);
  const std::vector<DeltaGates> gates = operands.gates.Download();
  for (int t = 0; t < tokens; ++t) {
    for (int h = 0; h < heads.key_heads; ++h) {
      const DeltaGates& own = gates[t * heads.key_heads + h];
      ASSERT_NEAR(own.query_key, reference.query_keys[t * heads.key_heads + h], 2e-6);
      for (int g = 0; g < heads.group(); ++g) {
        const int64_t at = int64_t{t} * heads.value_heads + heads.ValueHead(h, g);
        ASSERT_NEAR(own.decay[g], reference.decays[at], 2e-6) << t << " " << h << " " << g;
        ASSERT_NEAR(own.beta[g], reference.betas[at], 1e-6) << t << " " << h << " " << g;
      }
    }
  }
  // Nothing is written for tokens that no row has.
  const std::vector<float> values = operands.values.Download();
  for (size_t i = reference.values.size(); i < values.size(); ++i) {
    ASSERT_TRUE(std::isnan(values[i])) << "spare " << i;
  }
  EXPECT_TRUE(operands.GuardsIntact());
}

// Rows shorter and longer than the convolution and than a run; slots out of order.
const std::vector<TestRow> kRows = {{1, 5, 4},  {2, 0, 0},  {0, 3, 1},  {3, 11, 8}, {4, 0, 2},
                                    {5, 64, 9}, {13, 1, 3}, {40, 0, 7}, {1, 0, 6},  {2, 2, 10}};
constexpr int kSlots = 12;  // slots 5 and 11 have no row

TEST(DeltaInputs, MatchDouble) {
  for (const DeltaHeads& heads : kTestHeads) {
    for (const bool scaled : {false, true}) {
      SCOPED_TRACE(Name(heads) + (scaled ? " scaled" : ""));
      const TestRows rows(kRows);
      const Layer layer(heads, rows.tokens(), scaled, /*log_rates=*/heads.interleaved != scaled);
      TestState state(heads, kSlots);
      state.FillRandom(12);
      const std::vector<float> before = state.memory.Download();
      const TestOperands operands(heads, rows.tokens() + TestRows::kSpareTokens);
      ASSERT_EQ(LaunchDeltaInputs(layer.Args(rows, 0, state, operands), nullptr), cudaSuccess);
      ExpectOperands(operands, Reference(layer, kRows, before, state.stride), rows.tokens());
      if (HasFatalFailure()) return;

      // A row's last inputs are left in its slot; nothing else of the state changes.
      std::vector<double> expected(before.begin(), before.end());
      const int64_t channels = heads.channels();
      for (size_t r = 0; r < kRows.size(); ++r) {
        for (int i = 0; i < kPast && kRows[r].tokens > 0; ++i) {
          const int at = kRows[r].tokens - kPast + i;
          for (int64_t c = 0; c < channels; ++c) {
            const int64_t slot = kRows[r].slot * state.stride;
            expected[slot + i * channels + c] =
                at >= 0              ? layer.qkv.values[(rows.first(r) + at) * (channels + 64) + c]
                : kRows[r].start > 0 ? before[slot + (kPast + at) * channels + c]
                                     : 0;
          }
        }
      }
      const std::vector<float> after = state.memory.Download();
      for (size_t i = 0; i < after.size(); ++i) {
        ASSERT_NEAR(after[i], expected[i], 2e-7 * std::abs(expected[i])) << "state " << i;
      }
      EXPECT_TRUE(state.memory.GuardsIntact());
    }
  }
}

// A sequence between others, cut anywhere, gives the bits of one row.
TEST(DeltaInputs, CutsAndNeighboursChangeNoBit) {
  constexpr int kTokens = 70;
  const DeltaHeads heads{2, 6};
  const Layer layer(heads, kTokens, true);
  TestState state(heads, 3);
  state.memory.Poison();
  const TestRows rows({{kTokens, 0, 1}});
  const TestOperands whole(heads, kTokens);
  ASSERT_EQ(LaunchDeltaInputs(layer.Args(rows, 0, state, whole), nullptr), cudaSuccess);
  const std::vector<float> left = state.memory.Download();
  const auto bytes = [&](const TestOperands& of, int first, int tokens) {
    std::vector<uint32_t> all =
        Bits(of.keys_queries.Download(), int64_t{first} * heads.key_heads * 256,
             int64_t{tokens} * heads.key_heads * 256);
    const std::vector<uint32_t> values =
        Bits(of.values.Download(), first * heads.value_width(), tokens * heads.value_width());
    all.insert(all.end(), values.begin(), values.end());
    const std::vector<DeltaGates> gates = of.gates.Download();
    for (int i = first * heads.key_heads; i < (first + tokens) * heads.key_heads; ++i) {
      for (int g = 0; g < heads.group(); ++g) {
        all.push_back(Bits({gates[i].decay[g]}, 0, 1)[0]);
        all.push_back(Bits({gates[i].beta[g]}, 0, 1)[0]);
      }
      all.push_back(Bits({gates[i].query_key}, 0, 1)[0]);
    }
    return all;
  };
  for (const int cut : {1, 2, 3, 4, 5, 7, 8, 9, 35, 69}) {
    SCOPED_TRACE("steps of " + std::to_string(cut));
    state.memory.Poison();
    for (int first = 0; first < kTokens; first += cut) {
      const int tokens = std::min(cut, kTokens - first);
      // Two neighbours take the tokens before it: one of them one, the other the rest.
      const int before = std::min(first, 5);
      const TestRows step(
          {{std::min(before, 1), 0, 0}, {std::max(before - 1, 0), 9, 2}, {tokens, first, 1}});
      const TestOperands part(heads, step.tokens());
      ASSERT_EQ(LaunchDeltaInputs(layer.Args(step, first - before, state, part), nullptr),
                cudaSuccess);
      ASSERT_EQ(bytes(part, before, tokens), bytes(whole, first, tokens)) << "token " << first;
    }
    const int64_t size = ConvolutionFloats(heads);
    EXPECT_EQ(Bits(state.memory.Download(), state.stride, size), Bits(left, state.stride, size));
  }
}

TEST(DeltaInputs, RefuseWhatTheyCannotCompute) {
  const DeltaHeads heads{2, 4};
  const TestRows rows({{4, 0, 0}});
  const Layer layer(heads, 4, false);
  const TestState state(heads, 1);
  const TestOperands operands(heads, rows.tokens());
  const DeltaInputsArgs valid = layer.Args(rows, 0, state, operands);
  ASSERT_EQ(LaunchDeltaInputs(valid, nullptr), cudaSuccess);
  const auto refuses = [&](auto&& change) {
    DeltaInputsArgs args = valid;
    change(args);
    return LaunchDeltaInputs(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refuses([](DeltaInputsArgs& a) { a.heads.value_heads = 5; }));
  EXPECT_TRUE(refuses([](DeltaInputsArgs& a) { a.qkv.stride = a.heads.channels() - 8; }));
  EXPECT_TRUE(refuses([](DeltaInputsArgs& a) { a.beta_alpha.data = nullptr; }));
  EXPECT_TRUE(refuses([](DeltaInputsArgs& a) { ++a.convolution; }));
  EXPECT_TRUE(refuses([](DeltaInputsArgs& a) { a.rates = nullptr; }));
  EXPECT_TRUE(refuses([](DeltaInputsArgs& a) { a.time_bias = nullptr; }));
  EXPECT_TRUE(refuses([](DeltaInputsArgs& a) { a.state.data = nullptr; }));
  EXPECT_TRUE(refuses([](DeltaInputsArgs& a) { ++a.out.values; }));
  EXPECT_TRUE(refuses([](DeltaInputsArgs& a) { a.rows.positions = nullptr; }));
  EXPECT_TRUE(refuses([](DeltaInputsArgs& a) { a.length_epsilon = 0; }));
}

}  // namespace
}  // namespace millrace::kernels
