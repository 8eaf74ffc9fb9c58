// Every function of all kernel tables, against plain arithmetic in double precision.
#include "executors/cpu/kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <random>
#include <vector>

#include "executors/cpu/kernels/kernels_test_util.h"
#include "formats/model/layer_config.h"
#include "formats/tensors/float16.h"
#include "gtest/gtest.h"

namespace millrace::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class KernelsTest : public TableTest {};
INSTANTIATE_TEST_SUITE_P(All, KernelsTest, ::testing::ValuesIn(Tables()), TableName);

// ---- Elementwise ----

TEST_P(KernelsTest, StoreQuantizesToTheNearest) {
  std::vector<float> x = Floats(96, 3);
  std::fill_n(x.begin() + 32, 32, 0.0f);
  std::vector<QuantizedBlock> blocks(3);
  std::memset(blocks.data(), 0x55, sizeof(QuantizedBlock) * 3);
  kernels_.store(x.data(), 96, Form::kQ8, blocks.data());
  for (int b = 0; b < 3; ++b) {
    int sum = 0, first = 0;
    for (int i = 0; i < kBlock; ++i) {
      EXPECT_NEAR(blocks[b].values[i] * blocks[b].scale, x[b * kBlock + i],
                  blocks[b].scale * 0.5001f);
      sum += blocks[b].values[i];
      if (i < 16) first += blocks[b].values[i];
    }
    EXPECT_FLOAT_EQ(blocks[b].scaled_sum, blocks[b].scale * sum);
    EXPECT_EQ(blocks[b].offset, -128 * sum);
    EXPECT_EQ(blocks[b].first_offset, -128 * first);
  }
  EXPECT_EQ(blocks[1].scale, 0);
}

TEST_P(KernelsTest, StoreMakesZerosOfWhatHasNoReciprocal) {
  for (const float tiny : {0x1p-149f, 0x1p-126f, 0x1p-122f, 0x1p-121f}) {
    std::vector<float> x(kBlock, tiny);
    x[1] = -tiny;
    x[2] = 0;
    QuantizedBlock block;
    kernels_.store(x.data(), kBlock, Form::kQ8, &block);
    const int code = tiny < 0x1p-121f ? 0 : 127;
    EXPECT_EQ(block.values[0], code) << tiny;
    EXPECT_EQ(block.values[1], -code) << tiny;
    EXPECT_EQ(block.values[2], 0) << tiny;
    EXPECT_EQ(block.offset, -128 * 29 * code) << tiny;
    EXPECT_EQ(block.first_offset, -128 * 13 * code) << tiny;
  }
}

TEST_P(KernelsTest, StoreRoundsToBf16) {
  std::vector<float> x = Floats(48, 3);  // a block and a half
  x[3] = kNan;
  x[4] = kInfinity;
  x[47] = 1 + 0x1p-8f;  // a tie
  std::vector<uint16_t> out(49, 0x5555);
  kernels_.store(x.data(), 48, Form::kBf16, out.data());
  for (int i = 0; i < 48; ++i) EXPECT_EQ(out[i], FloatToBf16(x[i])) << x[i];
  EXPECT_EQ(out[48], 0x5555);
}

TEST_P(KernelsTest, WhatIsNotFiniteStaysSo) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    std::vector<float> x = Floats(32);
    x[11] = bad;
    QuantizedBlock block;
    kernels_.store(x.data(), 32, Form::kQ8, &block);
    EXPECT_FALSE(std::isfinite(block.scale)) << bad;
  }
}

TEST_P(KernelsTest, NormAgreesWithDoubles) {
  for (const int size : {16, 40, 64, 576}) {
    const int width = (size + 15) / 16 * 16;
    std::vector<float> x = Floats(width, 2);
    std::vector<float> weight = Floats(width);
    std::fill(x.begin() + size, x.end(), 0.0f);
    std::fill(weight.begin() + size, weight.end(), 0.0f);
    double squares = 0;
    for (const float v : x) squares += double{v} * v;
    const double factor = 1 / std::sqrt(squares / size + 1e-5);
    std::vector<float> out(width, kNan);
    kernels_.norm(x.data(), weight.data(), size, width, 1e-5f, Form::kFloat, out.data());
    for (int i = 0; i < width; ++i) EXPECT_NEAR(out[i], x[i] * factor * weight[i], 1e-6) << size;
    if (size % kBlock != 0) continue;
    std::vector<QuantizedBlock> direct(size / kBlock), through(size / kBlock);
    kernels_.norm(x.data(), weight.data(), size, width, 1e-5f, Form::kQ8, direct.data());
    kernels_.store(out.data(), size, Form::kQ8, through.data());
    EXPECT_EQ(0,
              std::memcmp(direct.data(), through.data(), direct.size() * sizeof(QuantizedBlock)));
  }
}

TEST_P(KernelsTest, GatesAreTheirFunctions) {
  const auto silu = [](double gate, double up) { return gate / (1 + std::exp(-gate)) * up; };
  const auto gelu = [](double gate, double up) {
    const double inner = std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate);
    return gate / 2 * (1 + std::tanh(inner)) * up;
  };
  const auto clamped = [](double gate, double up) {
    const double g = std::min(gate, 7.0);
    return g / (1 + std::exp(-1.702 * g)) * (std::clamp(up, -7.0, 7.0) + 1);
  };
  const auto erf_gelu = [](double gate, double up) {
    return gate / 2 * (1 + std::erf(gate / std::sqrt(2.0))) * up;
  };
  const auto squared_relu = [](double, double up) { return up < 0 ? 0 : up * up; };
  double (*const functions[])(double, double) = {silu, gelu, clamped, erf_gelu,
                                                 squared_relu};  // GateFunction
  std::vector<float> x = Floats(64, 8);
  x[0] = -200;
  x[1] = 200;
  x[2] = 0;
  x[16 + 3] = 9;
  x[16 + 4] = -9;
  for (int function = 0; function < 5; ++function) {
    const bool has_gate = HasGate(static_cast<GateFunction>(function));
    float out[32];
    kernels_.gates[function](x.data(), Form::kFloat, out);
    for (int i = 0; i < 32; ++i) {
      const double gate = x[i / 16 * 32 + i % 16];
      const double up = has_gate ? x[i / 16 * 32 + 16 + i % 16] : x[i];
      EXPECT_NEAR(out[i], functions[function](gate, up),
                  1e-5 * std::fabs((has_gate ? gate : up) * (std::fabs(up) + 1)) + 1e-6)
          << function << ": " << gate << ", " << up;
    }
    x[5] = std::numeric_limits<float>::quiet_NaN();
    kernels_.gates[function](x.data(), Form::kFloat, out);
    EXPECT_TRUE(std::isnan(out[5])) << function;
    x[5] = 1;
  }
}

TEST_P(KernelsTest, CapScalesAndBounds) {
  std::vector<float> x = Floats(77, 60);
  x[0] = 1e30f;
  x[1] = -1e30f;
  x[2] = std::numeric_limits<float>::quiet_NaN();
  for (const float soft_cap : {0.0f, 30.0f}) {
    std::vector<float> capped = x;
    kernels_.cap(capped.data(), 70, 0.5f, soft_cap);
    for (int i = 0; i < 77; ++i) {
      double expected = x[i];
      if (i < 70) expected *= 0.5;
      if (i < 70 && soft_cap != 0) expected = soft_cap * std::tanh(expected / soft_cap);
      if (i == 2) {
        EXPECT_TRUE(std::isnan(capped[i]));
      } else {
        EXPECT_NEAR(capped[i], expected, 1e-5 + 1e-6 * std::fabs(expected)) << x[i];
      }
    }
  }
}

TEST_P(KernelsTest, RopeTurnsPairs) {
  for (const bool interleaved : {true, false}) {
    for (const int pairs : {1, 4, 8, 11, 32}) {
      const std::vector<float> before = Floats(72);
      const std::vector<float> angles = Floats(pairs, 3);
      std::vector<float> cosines, sines;
      for (const float angle : angles) {
        cosines.push_back(std::cos(angle));
        sines.push_back(std::sin(angle));
      }
      std::vector<float> head = before;
      kernels_.rope(head.data(), cosines.data(), sines.data(), pairs, interleaved);
      for (int i = 0; i < pairs; ++i) {
        const int a = interleaved ? 2 * i : i;
        const int b = interleaved ? 2 * i + 1 : i + pairs;
        EXPECT_NEAR(head[a], before[a] * cosines[i] - before[b] * sines[i], 1e-6) << pairs;
        EXPECT_NEAR(head[b], before[b] * cosines[i] + before[a] * sines[i], 1e-6) << pairs;
      }
      for (int i = 2 * pairs; i < 72; ++i) EXPECT_EQ(head[i], before[i]);
    }
  }
}

// ---- Sampling ----

TEST_P(KernelsTest, MaximumTakesTheLowestIndexAndSeesWhatIsNotFinite) {
  for (const int count : {1, 15, 16, 17, 1000}) {
    std::vector<float> x = Floats(count);
    const int at = count / 2;
    x[at] = 5;
    x[count - 1] = 5;
    float value;
    int index;
    bool ok;
    kernels_.sampling->maximum(x.data(), count, &value, &index, &ok);
    EXPECT_EQ(value, 5);
    EXPECT_EQ(index, at);
    EXPECT_TRUE(ok);
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      x[count - 1] = bad;
      kernels_.sampling->maximum(x.data(), count, &value, &index, &ok);
      EXPECT_FALSE(ok) << bad << " of " << count;
    }
  }
}

TEST_P(KernelsTest, ExpSumAgreesWithDoubles) {
  for (const int count : {1, 31, 5000}) {
    std::vector<float> x = Floats(count, 30);
    x[0] = 30;
    if (count > 2) x[2] = -kInfinity;
    std::vector<float> p(count + 1, kNan);
    const double sum = kernels_.sampling->exp_sum(x.data(), count, 30, 0.5f, p.data());
    double expected = 0;
    for (int i = 0; i < count; ++i) {
      const float exponent = (x[i] - 30) * 0.5f;  // rounded, as the kernel sees it
      const double e = std::exp(double{exponent});
      EXPECT_NEAR(p[i], e, 3e-7 * e + 1e-30);
      expected += e;
    }
    EXPECT_NEAR(sum, expected, 1e-6 * expected);
    EXPECT_TRUE(std::isnan(p[count]));
  }
}

TEST_P(KernelsTest, SelectAndCountAboveAgree) {
  for (const int count : {1, 16, 333}) {
    const std::vector<float> x = Floats(count);
    for (const float threshold : {-2.0f, 0.0f, x[0], 2.0f}) {
      std::vector<int32_t> expected;
      int above = 0;
      for (int i = 0; i < count; ++i) {
        if (x[i] >= threshold) expected.push_back(i);
        above += x[i] > threshold;
      }
      std::vector<int32_t> found(count + 16, -1);
      EXPECT_EQ(kernels_.sampling->select(x.data(), count, threshold, found.data(), count),
                expected.size());
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), found.begin()));
      EXPECT_EQ(kernels_.sampling->count_above(x.data(), count, threshold), above);
      std::vector<int32_t> few(4, -1);
      EXPECT_EQ(kernels_.sampling->select(x.data(), count, threshold, few.data(), 3),
                expected.size());
      EXPECT_EQ(few[3], -1) << "wrote beyond its capacity";
    }
  }
}

// ---- All of them ----

template <typename T>
void Append(const T* values, size_t count, std::vector<uint8_t>* bytes) {
  const auto* from = reinterpret_cast<const uint8_t*>(values);
  bytes->insert(bytes->end(), from, from + count * sizeof(T));
}

// Runs every function on the same numbers and returns the results' bytes.
std::vector<uint8_t> Everything(const Kernels& kernels) {
  std::mt19937 random(9);
  std::uniform_real_distribution<float> draw(-6, 6);
  std::vector<float> x(333), weight(336);
  for (float& value : x) value = draw(random);
  for (float& value : weight) value = draw(random);
  x.resize(336);
  std::vector<uint8_t> all;
  for (const Form form : {Form::kFloat, Form::kBf16, Form::kQ8}) {
    const int width = form == Form::kQ8 ? 320 : 336;
    std::vector<uint8_t> out(336 * sizeof(float));
    kernels.store(x.data(), width, form, out.data());
    Append(out.data(), out.size(), &all);
    kernels.norm(x.data(), weight.data(), width - 3, width, 1e-5f, form, out.data());
    Append(out.data(), out.size(), &all);
    for (const auto gate : kernels.gates) {
      gate(x.data(), form, out.data());
      Append(out.data(), out.size(), &all);
    }
  }
  for (const float soft_cap : {0.0f, 5.0f}) {
    std::vector<float> capped = x;
    kernels.cap(capped.data(), 333, 0.7f, soft_cap);
    Append(capped.data(), capped.size(), &all);
  }
  for (const bool interleaved : {false, true}) {
    for (const int pairs : {3, 16, 45}) {
      std::vector<float> head(x.begin(), x.begin() + 96);
      kernels.rope(head.data(), &weight[0], &weight[100], pairs, interleaved);
      Append(head.data(), head.size(), &all);
    }
  }
  std::vector<uint16_t> keys(48 * kTileRows), values(48);
  kernels.append(x.data(), weight.data(), 48, keys.data(), values.data());
  Append(keys.data(), keys.size(), &all);
  Append(values.data(), values.size(), &all);
  std::vector<float> p(333);
  const double sum = kernels.sampling->exp_sum(x.data(), 333, 6, 0.9f, p.data());
  Append(&sum, 1, &all);
  Append(p.data(), p.size(), &all);
  return all;
}

TEST(KernelTablesTest, InstructionSetsGiveTheSameBits) {
  const std::vector<const Kernels*> tables = VectorTables();
  if (tables.size() < 2) GTEST_SKIP() << "fewer than two vector instruction sets here";
  for (size_t i = 1; i < tables.size(); ++i) {
    EXPECT_EQ(Everything(*tables[i]), Everything(*tables[0])) << tables[i]->name;
  }
}

}  // namespace
}  // namespace millrace::cpu
