#include "kernels/recurrent/mamba2_inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/activation_test_util.h"
#include "kernels/recurrent/mamba2_test_util.h"
#include "kernels/recurrent/rows_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr int kPast = kMamba2Width - 1;

// What of a layer's convolution and gates is present.
struct Kind {
  bool scaled = false;
  bool bias = true;
  bool log_rates = false;
  float min_step = 0, max_step = 100;
};

// A layer's weights, and products of `tokens` tokens. Rows of the products go on with columns that
// are not read.
struct Layer {
  Layer(const Mamba2Heads& heads, int tokens, const Kind& kind)
      : heads(heads),
        kind(kind),
        xbc(tokens, Width(), kind.scaled, 1),
        dt(tokens, GateWidth(), kind.scaled, 2),
        convolution(RandomNormal(kMamba2Width * heads.channels(), 3)),
        bias(RandomNormal(heads.channels(), 4)),
        rates(RandomNormal(heads.heads, 5)),
        time_bias(RandomNormal(heads.heads, 6)) {
    std::vector<float> drawn = rates.Download();
    for (float& rate : drawn) rate = kind.log_rates ? std::log(std::abs(rate)) : -std::abs(rate);
    rates.Upload(drawn);
  }

  int Width() const { return heads.channels() + 64; }
  int GateWidth() const { return (heads.heads + 15) / 16 * 16; }

  // The operands of tokens [first, first + rows' tokens) of the products.
  Mamba2InputsArgs Args(const TestRows& rows, int first, const TestSlots& state,
                        const TestMamba2Operands& out) const {
    const auto from = [&](Product product) {
      product.data += first * product.stride;
      if (product.token_scales != nullptr) product.token_scales += first;
      return product;
    };
    return {.heads = heads,
            .rows = rows.view(),
            .xbc = from(xbc.view),
            .dt = from(dt.view),
            .convolution = convolution.get(),
            .bias = kind.bias ? bias.get() : nullptr,
            .rates = rates.get(),
            .time_bias = time_bias.get(),
            .min_step = kind.min_step,
            .max_step = kind.max_step,
            .log_rates = kind.log_rates,
            .state = state.view(),
            .out = out.view()};
  }

  Mamba2Heads heads;
  Kind kind;
  TestProduct xbc, dt;
  DeviceBuffer<float> convolution, bias, rates, time_bias;
};

// The input of a row's token `at`, which counts from its first one; those before it are the
// state's.
double InputOf(const Layer& layer, const std::vector<float>& state, int64_t slot_stride,
               const TestRow& row, int first, int at, int channel) {
  if (at >= 0) return layer.xbc.values[int64_t{first + at} * layer.Width() + channel];
  if (row.start == 0) return 0;
  return state[row.slot * slot_stride + int64_t{kPast + at} * layer.heads.channels() + channel];
}

// The operands of a step in double.
struct Reference {
  Reference(const Layer& layer, const std::vector<TestRow>& rows, const std::vector<float>& state,
            int64_t slot_stride) {
    const Mamba2Heads& heads = layer.heads;
    const std::vector<float> weights = layer.convolution.Download();
    const std::vector<float> bias = layer.bias.Download();
    const std::vector<float> rates = layer.rates.Download(), biases = layer.time_bias.Download();
    int first = 0;
    for (const TestRow& row : rows) {
      for (int t = 0; t < row.tokens; ++t) {
        for (int c = 0; c < heads.channels(); ++c) {
          double sum = layer.kind.bias ? bias[c] : 0;
          for (int i = 0; i < kMamba2Width; ++i) {
            sum += weights[i * heads.channels() + c] *
                   InputOf(layer, state, slot_stride, row, first, t + i - kPast, c);
          }
          (c < heads.inner() ? x : bc).push_back(sum / (1 + std::exp(-sum)));
        }
        for (int h = 0; h < heads.heads; ++h) {
          const double raw = layer.dt.values[int64_t{first + t} * layer.GateWidth() + h];
          const double step = std::clamp<double>(std::log1p(std::exp(raw + biases[h])),
                                                 layer.kind.min_step, layer.kind.max_step);
          steps.push_back(step);
          decays.push_back(
              std::exp((layer.kind.log_rates ? -std::exp(1.0 * rates[h]) : rates[h]) * step));
        }
      }
      first += row.tokens;
    }
  }

  std::vector<double> x, bc, steps, decays;  // [tokens, ...]
};

// A silu's value may be off by 2e-5 of itself, which the fast sigmoid takes, and by 2e-6, which
// sums of about 1 take.
void ExpectValues(const std::vector<float>& got, const std::vector<double>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], 2e-5 * std::abs(expected[i]) + 4e-6) << i;
  }
  // Nothing is written for tokens that no row has.
  for (size_t i = expected.size(); i < got.size(); ++i) ASSERT_TRUE(std::isnan(got[i])) << i;
}

// Rows shorter and longer than the convolution and than a run; slots out of order.
const std::vector<TestRow> kRows = {{1, 5, 4},  {2, 0, 0},  {0, 3, 1},  {3, 11, 8}, {4, 0, 2},
                                    {5, 64, 9}, {13, 1, 3}, {40, 0, 7}, {1, 0, 6},  {2, 2, 10}};
const std::vector<TestRow> kShortRows = {{1, 5, 2}, {3, 0, 1}, {0, 3, 0}, {2, 9, 3}};
constexpr int kSlots = 12;  // slots 5 and 11 have no row

TEST(Mamba2Inputs, MatchDouble) {
  constexpr Kind kKinds[] = {{.scaled = false},
                             {.scaled = true, .log_rates = true},
                             {.scaled = true, .bias = false, .min_step = 0.3f, .max_step = 1.5f}};
  for (const Mamba2Heads& heads : kTestMamba2Heads) {
    for (const std::vector<TestRow>& of : {kRows, kShortRows}) {
      for (const Kind& kind : kKinds) {
        SCOPED_TRACE(Name(heads) + (kind.scaled ? " scaled" : "") + (kind.bias ? " bias" : ""));
        const TestRows rows(of);
        const Layer layer(heads, rows.tokens() + TestRows::kSpareTokens, kind);
        TestSlots state(Mamba2Floats(heads), kSlots);
        state.FillRandom(7);
        const std::vector<float> before = state.memory.Download();
        const TestMamba2Operands out(heads, rows.tokens() + TestRows::kSpareTokens);
        ASSERT_EQ(LaunchMamba2Inputs(layer.Args(rows, 0, state, out), nullptr), cudaSuccess);
        const Reference reference(layer, of, before, state.stride);
        ExpectValues(out.x.Download(), reference.x);
        ExpectValues(out.bc.Download(), reference.bc);
        if (HasFatalFailure()) return;
        const std::vector<Mamba2Gates> gates = out.gates.Download();
        for (size_t i = 0; i < reference.steps.size(); ++i) {
          ASSERT_NEAR(gates[i].step, reference.steps[i], 2e-6 * (1 + reference.steps[i])) << i;
          ASSERT_NEAR(gates[i].decay, reference.decays[i], 4e-6) << i;
        }
        EXPECT_TRUE(out.GuardsIntact());

        // A row's last inputs are left in its slot; nothing else of the state changes.
        std::vector<double> left(before.begin(), before.end());
        for (size_t r = 0; r < of.size(); ++r) {
          for (int i = 0; i < kPast && of[r].tokens > 0; ++i) {
            for (int c = 0; c < heads.channels(); ++c) {
              left[of[r].slot * state.stride + int64_t{i} * heads.channels() + c] =
                  InputOf(layer, before, state.stride, of[r], rows.first(static_cast<int>(r)),
                          of[r].tokens - kPast + i, c);
            }
          }
        }
        const std::vector<float> after = state.memory.Download();
        for (size_t i = 0; i < after.size(); ++i) {
          ASSERT_NEAR(after[i], left[i], 2e-7 * std::abs(left[i])) << "state " << i;
        }
        EXPECT_TRUE(state.memory.GuardsIntact());
      }
    }
  }
}

// A sequence between others, cut anywhere, gives the bits of one row.
TEST(Mamba2Inputs, CutsAndNeighboursChangeNoBit) {
  constexpr int kTokens = 70;
  const Mamba2Heads heads = {4, 64, 2, 128};
  const Layer layer(heads, kTokens + TestRows::kSpareTokens, {.scaled = true});
  TestSlots state(Mamba2Floats(heads), 3);
  state.memory.Poison();
  const TestRows rows({{kTokens, 0, 1}});
  const TestMamba2Operands whole(heads, kTokens);
  ASSERT_EQ(LaunchMamba2Inputs(layer.Args(rows, 0, state, whole), nullptr), cudaSuccess);
  const std::vector<float> left = state.memory.Download();
  const auto bits = [&](const TestMamba2Operands& of, int first, int tokens) {
    const int64_t inner = heads.inner(), rest = 2 * heads.state_width();
    std::vector<uint32_t> all = Bits(of.x.Download(), first * inner, tokens * inner);
    const std::vector<uint32_t> bc = Bits(of.bc.Download(), first * rest, tokens * rest);
    all.insert(all.end(), bc.begin(), bc.end());
    const std::vector<Mamba2Gates> gates = of.gates.Download();
    for (int i = first * heads.heads; i < (first + tokens) * heads.heads; ++i) {
      all.push_back(Bits({gates[i].step}, 0, 1)[0]);
      all.push_back(Bits({gates[i].decay}, 0, 1)[0]);
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
      const TestMamba2Operands part(heads, step.tokens());
      ASSERT_EQ(LaunchMamba2Inputs(layer.Args(step, first - before, state, part), nullptr),
                cudaSuccess);
      ASSERT_EQ(bits(part, before, tokens), bits(whole, first, tokens)) << "token " << first;
    }
    const int64_t size = Mamba2HeadsAt(heads);
    EXPECT_EQ(Bits(state.memory.Download(), state.stride, size), Bits(left, state.stride, size));
  }
}

TEST(Mamba2Inputs, RefuseWhatTheyCannotCompute) {
  const Mamba2Heads heads = {2, 64, 1, 128};
  const TestRows rows({{4, 0, 0}});
  const Layer layer(heads, rows.tokens() + TestRows::kSpareTokens, {});
  const TestSlots state(Mamba2Floats(heads), 1);
  const TestMamba2Operands out(heads, rows.tokens());
  const Mamba2InputsArgs valid = layer.Args(rows, 0, state, out);
  ASSERT_EQ(LaunchMamba2Inputs(valid, nullptr), cudaSuccess);
  const auto refuses = [&](auto&& change) {
    Mamba2InputsArgs args = valid;
    change(args);
    return LaunchMamba2Inputs(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refuses([](Mamba2InputsArgs& a) { a.heads.groups = 3; }));
  EXPECT_TRUE(refuses([](Mamba2InputsArgs& a) { a.xbc.stride = a.heads.channels() - 8; }));
  EXPECT_TRUE(refuses([](Mamba2InputsArgs& a) { a.dt.data = nullptr; }));
  EXPECT_TRUE(refuses([](Mamba2InputsArgs& a) { ++a.convolution; }));
  EXPECT_TRUE(refuses([](Mamba2InputsArgs& a) { ++a.bias; }));
  EXPECT_TRUE(refuses([](Mamba2InputsArgs& a) { a.rates = nullptr; }));
  EXPECT_TRUE(refuses([](Mamba2InputsArgs& a) { a.time_bias = nullptr; }));
  EXPECT_TRUE(refuses([](Mamba2InputsArgs& a) { a.min_step = a.max_step + 1; }));
  EXPECT_TRUE(refuses([](Mamba2InputsArgs& a) { a.state.data = nullptr; }));
  EXPECT_TRUE(refuses([](Mamba2InputsArgs& a) { ++a.out.x; }));
  EXPECT_TRUE(refuses([](Mamba2InputsArgs& a) { a.rows.positions = nullptr; }));
}

}  // namespace
}  // namespace millrace::kernels
