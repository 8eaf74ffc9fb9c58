#include "kernels/recurrent/mamba2_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/activation_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr float kEpsilon = 1e-5f;

struct Case {
  Case(int tokens, int width, int group_width, bool scaled)
      : tokens(tokens),
        width(width),
        group_width(group_width),
        x(RandomNormal(static_cast<size_t>(tokens) * width, 1, 0.3f)),
        gate(tokens, width, scaled, 2),
        weight(RandomNormal(width, 3)) {}

  Mamba2Outputs Outputs() const {
    return {.x = x.get(),
            .gate = gate.view,
            .tokens = tokens,
            .width = width,
            .group_width = group_width};
  }
  Mamba2NormArgs Args(const Activation& out) const {
    return {.outputs = Outputs(), .weight = weight.get(), .epsilon = kEpsilon, .out = out};
  }

  std::vector<double> Reference() const {
    std::vector<double> out(x.size());
    const std::vector<float> values = x.Download(), weights = weight.Download();
    for (size_t first = 0; first < out.size(); first += group_width) {
      double squares = 0;
      for (size_t i = first; i < first + group_width; ++i) {
        const double gated = gate.values[i];
        out[i] = values[i] * gated / (1 + std::exp(-gated));
        squares += out[i] * out[i];
      }
      for (size_t i = first; i < first + group_width; ++i) {
        out[i] *= weights[i % width] / std::sqrt(squares / group_width + kEpsilon);
      }
    }
    return out;
  }

  int tokens, width, group_width;
  DeviceBuffer<float> x;
  TestProduct gate;
  DeviceBuffer<float> weight;
};

struct Size {
  int width;
  int group_width;
};
constexpr Size kSizes[] = {{32, 32},   {288, 96},   {8192, 32},   {256, 256},   {512, 256},
                           {768, 768}, {4096, 512}, {3072, 3072}, {8192, 1024}, {8192, 8192}};

TEST(Mamba2Norm, MatchesDoubleAtAllSizesAndScalings) {
  for (const Size& size : kSizes) {
    for (const int tokens : {1, 3, 31, 600}) {
      if (tokens * size.width > kMaxElements) continue;
      for (const Scaling scaling : kAllScalings) {
        for (const bool scaled : {false, true}) {
          SCOPED_TRACE(std::to_string(tokens) + " x " + std::to_string(size.width) + " by " +
                       std::to_string(size.group_width) + " " + ScalingName(scaling) +
                       (scaled ? " scaled" : ""));
          const Case test(tokens, size.width, size.group_width, scaled);
          const TestActivation out(tokens, size.width, scaling);
          ASSERT_EQ(LaunchMamba2Norm(test.Args(out.view), nullptr), cudaSuccess);
          ExpectActivation(out, test.Reference());
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Mamba2Norm, RowsBitsDependOnTheRowAlone) {
  constexpr int kTokens = 515, kWidth = 1536;
  for (const Scaling scaling : kAllScalings) {
    const Case all(kTokens, kWidth, 512, true);
    const TestActivation out(kTokens, kWidth, scaling);
    ASSERT_EQ(LaunchMamba2Norm(all.Args(out.view), nullptr), cudaSuccess);
    for (const int token : {0, 31, 514}) {
      const TestActivation alone(1, kWidth, scaling);
      Mamba2NormArgs args = all.Args(alone.view);
      Mamba2Outputs& of = args.outputs;
      of.tokens = 1;
      of.x += static_cast<int64_t>(token) * kWidth;
      of.gate.data += token * of.gate.stride;
      of.gate.token_scales += token;
      ASSERT_EQ(LaunchMamba2Norm(args, nullptr), cudaSuccess);
      EXPECT_EQ(alone.RowBytes(0), out.RowBytes(token)) << ScalingName(scaling);
    }
  }
}

// Two ranks have halves of the columns of three groups, so that each has a part of the middle one.
TEST(Mamba2Norm, RanksShareGroups) {
  constexpr int kTokens = 37, kPart = 96, kAll = 2 * kPart, kGroup = 64, kRecord = 4;
  const Case all(kTokens, kAll, kGroup, false);
  const std::vector<double> expected = all.Reference();
  const std::vector<float> x = all.x.Download();
  // A rank's part of x.
  const auto part_of = [&](int rank) {
    std::vector<float> part;
    for (int t = 0; t < kTokens; ++t) {
      const auto row = x.begin() + t * kAll + rank * kPart;
      part.insert(part.end(), row, row + kPart);
    }
    return DeviceBuffer<float>(part);
  };
  const DeviceBuffer<float> parts[] = {part_of(0), part_of(1)};
  const auto outputs = [&](int rank) {
    Product gate = all.gate.view;
    gate.data += rank * kPart;
    return Mamba2Outputs{parts[rank].get(), gate, kTokens, kPart, kGroup / 2};
  };
  // In halves of groups, of which there are six: the first three are rank 0's.
  const DeviceBuffer<float> halves[] = {DeviceBuffer<float>(kTokens * 6),
                                        DeviceBuffer<float>(kTokens * 6)};
  for (const int rank : {0, 1}) {
    ASSERT_EQ(LaunchMamba2Squares({outputs(rank), 3 * rank, 6, halves[rank].get()}, nullptr),
              cudaSuccess);
  }
  // The gathered records of groups.
  std::vector<float> gathered;
  for (int t = 0; t < kTokens; ++t) {
    for (const int rank : {0, 1}) {
      const std::vector<float> own = halves[rank].Download();
      for (int group = 0; group < 3; ++group) {
        gathered.push_back(own[t * 6 + 2 * group] + own[t * 6 + 2 * group + 1]);
      }
      gathered.push_back(0);
    }
  }
  const DeviceBuffer<float> squares(gathered);
  // A part of each rank that is a part of one group: rank 0's last and rank 1's first 32 columns.
  for (const int rank : {0, 1}) {
    Mamba2Outputs of = outputs(rank);
    const int first = rank == 0 ? 64 : 0;
    std::vector<float> columns;
    const std::vector<float> part = parts[rank].Download();
    for (int t = 0; t < kTokens; ++t) {
      columns.insert(columns.end(), part.begin() + t * kPart + first,
                     part.begin() + t * kPart + first + 32);
    }
    const DeviceBuffer<float> own(columns);
    of.x = own.get();
    of.gate.data += first;
    of.width = 32;
    const TestActivation out(kTokens, 32, Scaling::kNone);
    ASSERT_EQ(LaunchMamba2Norm({.outputs = of,
                                .weight = all.weight.get() + rank * kPart + first,
                                .epsilon = kEpsilon,
                                .out = out.view,
                                .ranks = {squares.get(), 2, kRecord, 1, kGroup}},
                               nullptr),
              cudaSuccess);
    std::vector<double> reference;
    for (int t = 0; t < kTokens; ++t) {
      const auto row = expected.begin() + t * kAll + rank * kPart + first;
      reference.insert(reference.end(), row, row + 32);
    }
    ExpectActivation(out, reference);
  }
}

TEST(Mamba2Norm, RefusesWhatItCannotCompute) {
  const Case test(2, 512, 256, false);
  const TestActivation out(2, 512, Scaling::kNone);
  const Mamba2NormArgs valid = test.Args(out.view);
  ASSERT_EQ(LaunchMamba2Norm(valid, nullptr), cudaSuccess);
  const auto refuses = [&](auto&& change) {
    Mamba2NormArgs args = valid;
    change(args);
    return LaunchMamba2Norm(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refuses([](Mamba2NormArgs& a) { a.outputs.width = 8448; }));
  EXPECT_TRUE(refuses([](Mamba2NormArgs& a) { a.outputs.group_width = 16; }));
  EXPECT_TRUE(refuses([](Mamba2NormArgs& a) { a.outputs.group_width = 768; }));
  EXPECT_TRUE(refuses([](Mamba2NormArgs& a) { a.outputs.tokens = -1; }));
  EXPECT_TRUE(refuses([](Mamba2NormArgs& a) { ++a.outputs.x; }));
  EXPECT_TRUE(refuses([](Mamba2NormArgs& a) { a.weight = nullptr; }));
  EXPECT_TRUE(refuses([](Mamba2NormArgs& a) { a.outputs.gate.stride = 504; }));
  EXPECT_TRUE(refuses([](Mamba2NormArgs& a) { a.epsilon = -1; }));
  EXPECT_TRUE(refuses([](Mamba2NormArgs& a) { a.out.stride = 384; }));
}

}  // namespace
}  // namespace millrace::kernels
