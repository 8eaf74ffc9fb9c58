#include "kernels/moe/route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "kernels/gemm/grouped_test_util.h"
#include "kernels/moe/assign.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

// A router and its tokens on the device.
struct Case {
  Case(int tokens, int hidden, int experts, int chosen, Type type)
      : tokens(tokens), hidden(hidden), experts(experts), chosen(chosen), type(type) {
    x_values = ToBf16(RandomNormal(static_cast<size_t>(tokens) * Stride(), 1));
    weights = RandomNormal(static_cast<size_t>(experts + 1) * hidden, 2, 2 / std::sqrt(hidden));
    for (float& weight : weights) {
      if (type == Type::kBf16) weight = static_cast<float>(__float2bfloat16(weight));
    }
    biases = RandomNormal(experts + 1, 3, 0.5f);
    corrections = RandomNormal(experts, 4, 0.2f);
  }
  int Rows() const { return experts + extra; }
  int64_t Stride() const { return hidden + 8; }

  // The arguments, on memory of `out`.
  struct Out {
    explicit Out(const Case& of)
        : x(of.x_values),
          floats(of.type == Type::kF32 ? of.weights : std::vector<float>(1)),
          halves(of.type == Type::kF32 ? std::vector<Bf16>(1) : ToBf16(of.weights)),
          bias(of.biases),
          correction(of.corrections),
          logits(static_cast<size_t>(of.tokens) * of.Rows()),
          ids(static_cast<size_t>(of.tokens) * of.chosen),
          scores(static_cast<size_t>(of.tokens) * of.chosen),
          counters(std::vector<unsigned>((of.tokens + 7) / 8 + 1, 0)) {}

    bool GuardsIntact() const {
      return logits.GuardsIntact() && ids.GuardsIntact() && scores.GuardsIntact() &&
             counters.GuardsIntact();
    }

    DeviceBuffer<Bf16> x;
    DeviceBuffer<float> floats;
    DeviceBuffer<Bf16> halves;
    DeviceBuffer<float> bias, correction, logits;
    DeviceBuffer<int32_t> ids;
    DeviceBuffer<float> scores;
    DeviceBuffer<unsigned> counters;
  };
  RouteArgs Args(const Out& out) const {
    return {.x = out.x.get(),
            .x_stride = Stride(),
            .weight = type == Type::kF32 ? static_cast<const void*>(out.floats.get())
                                         : static_cast<const void*>(out.halves.get()),
            .weight_type = type,
            .bias = bias ? out.bias.get() : nullptr,
            .correction = correction ? out.correction.get() : nullptr,
            .tokens = tokens,
            .hidden = hidden,
            .experts = experts,
            .rows = Rows(),
            .scores = scores,
            .chosen = chosen,
            .groups = groups,
            .chosen_groups = chosen_groups,
            .renormalize = renormalize,
            .factor = factor,
            .logits = out.logits.get(),
            .ids = out.ids.get(),
            .token_scores = out.scores.get(),
            .counters = out.counters.get()};
  }

  double Weight(int row, int column) const {
    return weights[static_cast<size_t>(row) * hidden + column];
  }

  int tokens, hidden, experts, chosen;
  Type type;
  int extra = 0;  // rows beside the experts': at most 1
  bool bias = false, correction = false, renormalize = false;
  RouterScores scores = RouterScores::kSoftmax;
  int groups = 1, chosen_groups = 1;
  float factor = 1;
  std::vector<Bf16> x_values;
  std::vector<float> weights, biases, corrections;
};

// A token's scores and values (route.h) in double, from the device's logits.
struct Reference {
  Reference(const Case& test, const float* logits) {
    const int experts = test.experts;
    double largest = logits[0], sum = 0;
    for (int e = 0; e < experts; ++e) largest = std::max<double>(largest, logits[e]);
    for (int e = 0; e < experts; ++e) sum += std::exp(logits[e] - largest);
    const bool softmax = test.scores == RouterScores::kSoftmax;
    for (int e = 0; e < experts; ++e) {
      scores.push_back(softmax ? std::exp(logits[e] - largest) / sum
                               : 1 / (1 + std::exp(-static_cast<double>(logits[e]))));
      const bool by_logit = softmax && !test.correction && test.groups == 1;
      values.push_back(by_logit ? logits[e]
                                : scores[e] + (test.correction ? test.corrections[e] : 0));
    }
    const int size = experts / test.groups;
    for (int g = 0; g < test.groups; ++g) {
      std::vector<double> own(values.begin() + g * size, values.begin() + (g + 1) * size);
      std::sort(own.rbegin(), own.rend());
      group_scores.push_back(size == 1 ? own[0] : own[0] + own[1]);
    }
  }
  std::vector<double> scores, values, group_scores;
};

// Checks a token's choice: but for differences below the arithmetic's error it is the best one.
void ExpectChoice(const Case& test, const float* logits, const int32_t* ids, const float* scores) {
  constexpr double kSlack = 2e-6;
  const Reference reference(test, logits);
  const std::set<int32_t> chosen(ids, ids + test.chosen);
  ASSERT_EQ(chosen.size(), static_cast<size_t>(test.chosen)) << "an expert is chosen twice";
  ASSERT_TRUE(*chosen.begin() >= 0 && *chosen.rbegin() < test.experts);
  const int size = test.experts / test.groups;
  std::set<int> groups;
  for (const int id : chosen) groups.insert(id / size);
  ASSERT_LE(static_cast<int>(groups.size()), test.chosen_groups);
  // Every eligible expert that was not chosen is no better than the last one. A group is certainly
  // eligible if enough others are certainly worse.
  double total = 0;
  for (int slot = 0; slot < test.chosen; ++slot) {
    total += reference.scores[ids[slot]];
    if (slot > 0) {
      ASSERT_GE(reference.values[ids[slot - 1]], reference.values[ids[slot]] - kSlack);
    }
  }
  const double last = reference.values[ids[test.chosen - 1]];
  for (int e = 0; e < test.experts; ++e) {
    const double own = reference.group_scores[e / size];
    int better = 0;  // groups that may be
    for (int g = 0; g < test.groups; ++g) {
      better += g != e / size && reference.group_scores[g] >= own - kSlack;
    }
    if (better < test.chosen_groups && chosen.count(e) == 0) {
      ASSERT_LE(reference.values[e], last + kSlack) << "expert " << e;
    }
    int certainly_better = 0;
    for (int g = 0; g < test.groups; ++g) {
      certainly_better += reference.group_scores[g] > own + kSlack;
    }
    if (certainly_better >= test.chosen_groups) {
      ASSERT_EQ(chosen.count(e), 0u) << "expert " << e << " of a group that is not eligible";
    }
  }
  for (int slot = 0; slot < test.chosen; ++slot) {
    const double expected =
        reference.scores[ids[slot]] / (test.renormalize ? total : 1) * test.factor;
    ASSERT_NEAR(scores[slot], expected, 1e-5 * expected + 1e-12) << "slot " << slot;
  }
}

void ExpectRouted(const Case& test) {
  const Case::Out out(test);
  for (int repeat = 0; repeat < 2; ++repeat) {  // the counters are as before
    ASSERT_EQ(LaunchRoute(test.Args(out), nullptr), cudaSuccess);
  }
  const std::vector<float> logits = out.logits.Download(), scores = out.scores.Download();
  const std::vector<int32_t> ids = out.ids.Download();
  for (const unsigned counter : out.counters.Download()) ASSERT_EQ(counter, 0u);
  EXPECT_TRUE(out.GuardsIntact());
  for (int token = 0; token < test.tokens; ++token) {
    SCOPED_TRACE("token " + std::to_string(token));
    if (token < 10 || token % 97 == 0) {
      for (int row = 0; row < test.Rows(); ++row) {
        double sum = test.bias ? test.biases[row] : 0, magnitude = 1e-3;
        for (int c = 0; c < test.hidden; ++c) {
          const double product =
              static_cast<float>(test.x_values[token * test.Stride() + c]) * test.Weight(row, c);
          sum += product;
          magnitude += std::abs(product);
        }
        ASSERT_NEAR(logits[static_cast<size_t>(token) * test.Rows() + row], sum, 1e-6 * magnitude)
            << "row " << row;
      }
    }
    ExpectChoice(test, &logits[static_cast<size_t>(token) * test.Rows()],
                 &ids[static_cast<size_t>(token) * test.chosen],
                 &scores[static_cast<size_t>(token) * test.chosen]);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(RouteTest, ChoosesTheBestExperts) {
  struct Size {
    int hidden, experts, chosen;
  };
  for (const Size& size : {Size{64, 8, 2},
                           {72, 5, 1},
                           {2880, 32, 4},
                           {2048, 60, 4},
                           {2048, 128, 8},
                           {2048, 256, 8},
                           {512, 512, 16},
                           {4096, 8, 8}}) {
    for (const Type type : {Type::kBf16, Type::kF32}) {
      for (const int tokens : {1, 7, 8, 33, 64, 65, 200}) {
        for (const bool sigmoid : {false, true}) {
          SCOPED_TRACE(testing::Message() << size.hidden << ", " << size.chosen << " of "
                                          << size.experts << ", " << tokens << " tokens, FP32 "
                                          << (type == Type::kF32) << ", sigmoid " << sigmoid);
          Case test(tokens, size.hidden, size.experts, size.chosen, type);
          test.scores = sigmoid ? RouterScores::kSigmoid : RouterScores::kSoftmax;
          test.bias = tokens % 2 == 1;
          test.extra = tokens % 2;  // a shared expert's gate
          test.renormalize = tokens > 8;
          test.factor = sigmoid ? 2.5f : 1;
          ExpectRouted(test);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(RouteTest, ChoosesGroupsFirst) {
  for (const bool correction : {false, true}) {
    for (const bool sigmoid : {false, true}) {
      for (const int groups : {2, 8, 32}) {
        Case test(50, 512, 256, 8, Type::kF32);
        test.scores = sigmoid ? RouterScores::kSigmoid : RouterScores::kSoftmax;
        test.correction = correction;
        test.groups = groups;
        test.chosen_groups = std::max(1, groups / 2);
        test.renormalize = true;
        SCOPED_TRACE(testing::Message()
                     << groups << " groups, correction " << correction << ", sigmoid " << sigmoid);
        ExpectRouted(test);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Experts with equal rows have equal logits: the first ones are chosen, in their order.
TEST(RouteTest, TakesTheFirstOfEqualExperts) {
  for (const bool sigmoid : {false, true}) {
    for (const int experts : {16, 128, 512}) {
      for (const int groups : {1, 4}) {
        Case test(70, 256, experts, 6, Type::kF32);
        for (size_t i = 256; i < test.weights.size(); ++i) test.weights[i] = test.weights[i % 256];
        test.scores = sigmoid ? RouterScores::kSigmoid : RouterScores::kSoftmax;
        test.groups = groups;
        test.chosen_groups = groups == 1 ? 1 : 2;
        const Case::Out out(test);
        ASSERT_EQ(LaunchRoute(test.Args(out), nullptr), cudaSuccess);
        const std::vector<int32_t> ids = out.ids.Download();
        for (size_t i = 0; i < ids.size(); ++i) {
          ASSERT_EQ(ids[i], static_cast<int32_t>(i % 6)) << experts << " experts, " << groups;
        }
      }
    }
  }
}

TEST(RouteTest, BitsDependOnTheTokenAlone) {
  for (const Type type : {Type::kBf16, Type::kF32}) {
    Case all(517, 2880, 128, 8, type);
    all.correction = true;
    all.extra = 1;
    const Case::Out out(all);
    ASSERT_EQ(LaunchRoute(all.Args(out), nullptr), cudaSuccess);
    const std::vector<float> logits = out.logits.Download(), scores = out.scores.Download();
    const std::vector<int32_t> ids = out.ids.Download();
    for (const int tokens : {1, 9, 64, 300}) {
      for (const int first : {0, 5, 200}) {
        Case part = all;
        part.tokens = tokens;
        const Case::Out own(part);
        RouteArgs args = part.Args(own);
        args.x = out.x.get() + first * all.Stride();
        ASSERT_EQ(LaunchRoute(args, nullptr), cudaSuccess);
        const std::vector<float> own_logits = own.logits.Download();
        EXPECT_TRUE(std::equal(own_logits.begin(), own_logits.end(),
                               logits.begin() + static_cast<size_t>(first) * all.Rows()));
        const std::vector<int32_t> own_ids = own.ids.Download();
        EXPECT_TRUE(std::equal(own_ids.begin(), own_ids.end(), ids.begin() + first * 8));
        const std::vector<float> own_scores = own.scores.Download();
        EXPECT_TRUE(std::equal(own_scores.begin(), own_scores.end(), scores.begin() + first * 8));
      }
    }
  }
}

TEST(RouteTest, MakesTheAssignmentOfFewPairs) {
  for (const int tokens : {1, 2, 9, 64}) {
    for (const int experts : {16, 128, 512}) {
      const Case test(tokens, 256, experts, 8, Type::kBf16);
      const Case::Out out(test);
      // All experts, and a rank's.
      for (const auto& [first, groups] :
           {std::pair(0, experts), std::pair(experts / 4, experts / 2)}) {
        const int tile_rows = first == 0 ? 8 : 16;
        const DeviceRows rows(tokens * 8, groups, tile_rows);
        const DeviceBuffer<unsigned long long> touched(std::vector<unsigned long long>{0});
        const AssignArgs assign = {.ids = out.ids.get(),
                                   .first_expert = first,
                                   .rows = rows.view,
                                   .touched = touched.get()};
        RouteArgs args = test.Args(out);
        args.assign = &assign;
        ASSERT_EQ(LaunchRoute(args, nullptr), cudaSuccess);
        const std::vector<int32_t> ids = out.ids.Download();
        const HostRows expected(ids, first, groups, tile_rows);
        std::vector<int32_t> order = rows.order.Download();
        order.resize(expected.order.size());
        ASSERT_EQ(order, expected.order) << tokens << " tokens, " << experts;
        ASSERT_EQ(rows.offsets.Download(), expected.offsets);
        ASSERT_EQ(rows.tile_count.Download()[0], static_cast<int32_t>(expected.tiles.size()));
        const std::vector<GroupTile> tiles = rows.tiles.Download();
        ASSERT_EQ(std::memcmp(tiles.data(), expected.tiles.data(),
                              expected.tiles.size() * sizeof(GroupTile)),
                  0);
        ASSERT_EQ(touched.Download()[0], expected.Touched());
        for (const unsigned counter : out.counters.Download()) ASSERT_EQ(counter, 0u);
        EXPECT_TRUE(out.GuardsIntact() && rows.order.GuardsIntact() && rows.tiles.GuardsIntact());
      }
    }
  }
}

// The terms of a norm's residual.
enum class Addend : uint8_t { kNone, kPlain, kScaled, kWeighted };

TEST(RouteTest, NormsAsLaunchRmsNorm) {
  // With and without a cluster of blocks, which depends on the number of experts.
  struct Size {
    int hidden, experts;
  };
  for (const Size& size : {Size{64, 128},
                           {2048, 128},
                           {2880, 128},
                           {4096, 128},
                           {2880, 16},
                           {2048, 160},
                           {2048, 512}}) {
    const int hidden = size.hidden, experts = size.experts;
    const int stride = (hidden + kColumnPadding - 1) / kColumnPadding * kColumnPadding;
    const Case test(1, hidden, experts, 8, hidden == 2880 ? Type::kF32 : Type::kBf16);
    const DeviceBuffer<float> weight(RandomNormal(hidden, 5)), bias(RandomNormal(hidden, 6));
    const DeviceBuffer<float> channel_scales(RandomNormal(hidden, 7)),
        token_scale(std::vector<float>{0.7f});
    const DeviceBuffer<Bf16> delta(ToBf16(RandomNormal(hidden, 8)));
    for (const Addend addend :
         {Addend::kNone, Addend::kPlain, Addend::kScaled, Addend::kWeighted}) {
      SCOPED_TRACE(testing::Message() << hidden << " columns, " << experts << " experts, addend "
                                      << static_cast<int>(addend));
      const bool scaled = addend > Addend::kPlain, weighted = addend == Addend::kWeighted;
      struct Result {
        std::vector<float> residual, logits, scores;
        std::vector<uint16_t> x;
        std::vector<int32_t> ids;
        bool operator==(const Result&) const = default;
      };
      const auto route = [&](bool fused) {
        const Case::Out out(test);
        const DeviceBuffer<float> residual(RandomNormal(hidden, 9));
        const DeviceBuffer<Bf16> x(stride);
        const RmsNormArgs norm = {
            .residual = residual.get(),
            .delta = {.data = addend == Addend::kNone ? nullptr : delta.get(),
                      .stride = hidden,
                      .token_scales = scaled ? token_scale.get() : nullptr,
                      .channel_scales = scaled ? channel_scales.get() : nullptr},
            .weight = weight.get(),
            .epsilon = 1e-5f,
            .tokens = 1,
            .width = hidden,
            .out = Bf16Rows(x.get(), stride),
            .delta_factor = weighted ? 0.9f : 1,
            .delta_bias = weighted ? bias.get() : nullptr};
        RouteArgs args = test.Args(out);
        args.x = x.get();
        args.x_stride = stride;
        if (fused) {
          args.norm = &norm;
        } else {
          EXPECT_EQ(LaunchRmsNorm(norm, nullptr), cudaSuccess);
        }
        EXPECT_EQ(LaunchRoute(args, nullptr), cudaSuccess);
        std::vector<uint16_t> bits(stride);
        const std::vector<Bf16> row = x.Download();
        std::memcpy(bits.data(), row.data(), bits.size() * sizeof(bits[0]));
        EXPECT_TRUE(residual.GuardsIntact() && x.GuardsIntact() && out.GuardsIntact());
        return Result{residual.Download(), out.logits.Download(), out.scores.Download(), bits,
                      out.ids.Download()};
      };
      EXPECT_TRUE(route(true) == route(false));
    }
  }
}

TEST(RouteTest, RefusesNormsOfManyTokensOrOfAnotherRow) {
  const Case test(2, 256, 16, 2, Type::kBf16);
  const Case::Out out(test);
  const DeviceBuffer<float> residual(RandomNormal(512, 9)), weight(RandomNormal(256, 5));
  RmsNormArgs norm = {.residual = residual.get(),
                      .delta = {},
                      .weight = weight.get(),
                      .epsilon = 1e-5f,
                      .tokens = 1,
                      .width = 256,
                      .out = Bf16Rows(out.x.get(), 256)};
  RouteArgs args = test.Args(out);
  args.x_stride = 256;
  args.norm = &norm;
  EXPECT_EQ(LaunchRoute(args, nullptr), cudaErrorInvalidValue);
  args.tokens = 1;
  EXPECT_EQ(LaunchRoute(args, nullptr), cudaSuccess);
  args.x += 256;
  EXPECT_EQ(LaunchRoute(args, nullptr), cudaErrorInvalidValue);
}

TEST(RouteTest, KeepsNanInItsToken) {
  Case test(9, 512, 64, 4, Type::kF32);
  test.x_values[3 * test.Stride() + 100] = __float2bfloat16(std::nanf(""));
  const Case::Out out(test);
  ASSERT_EQ(LaunchRoute(test.Args(out), nullptr), cudaSuccess);
  const std::vector<int32_t> ids = out.ids.Download();
  const std::vector<float> scores = out.scores.Download(), logits = out.logits.Download();
  for (int token = 0; token < 9; ++token) {
    if (token != 3) {
      ExpectChoice(test, &logits[token * 64], &ids[token * 4], &scores[token * 4]);
      continue;
    }
    for (int slot = 0; slot < 4; ++slot) {
      EXPECT_EQ(ids[token * 4 + slot], slot);  // valid, and each once
      EXPECT_TRUE(std::isnan(scores[token * 4 + slot]));
    }
  }
}

TEST(RouteTest, RefusesWhatItCannotDo) {
  const Case test(4, 64, 16, 2, Type::kF32);
  const Case::Out out(test);
  const auto refused = [&](auto change) {
    RouteArgs args = test.Args(out);
    change(args);
    return LaunchRoute(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_FALSE(refused([](RouteArgs&) {}));
  EXPECT_TRUE(refused([](RouteArgs& a) { a.hidden = 60; }));
  EXPECT_TRUE(refused([](RouteArgs& a) { a.x_stride = 56; }));
  EXPECT_TRUE(refused([](RouteArgs& a) { a.experts = 513, a.rows = 513; }));
  EXPECT_TRUE(refused([](RouteArgs& a) { a.rows = 15; }));
  EXPECT_TRUE(refused([](RouteArgs& a) { a.chosen = 0; }));
  EXPECT_TRUE(refused([](RouteArgs& a) { a.chosen = 17; }));
  EXPECT_TRUE(refused([](RouteArgs& a) { a.groups = 3; }));
  EXPECT_TRUE(refused([](RouteArgs& a) { a.groups = 16, a.chosen_groups = 1; }));
  EXPECT_TRUE(refused([](RouteArgs& a) { a.weight_type = Type::kFp8; }));
  EXPECT_TRUE(refused([](RouteArgs& a) { a.counters = nullptr; }));
  EXPECT_TRUE(refused([](RouteArgs& a) { a.tokens = -1; }));
  const DeviceRows rows(8, 16, 8);
  AssignArgs assign = {.ids = out.ids.get(), .first_expert = 0, .rows = rows.view};
  EXPECT_FALSE(refused([&](RouteArgs& a) { a.assign = &assign; }));
  assign.rows.pairs = 7;
  EXPECT_TRUE(refused([&](RouteArgs& a) { a.assign = &assign; }));
  CheckCuda(cudaDeviceSynchronize(), "route");
}

}  // namespace
}  // namespace millrace::kernels
