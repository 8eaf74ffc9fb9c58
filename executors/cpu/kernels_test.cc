// Every function of both kernel tables, against plain arithmetic in double precision.
#include "executors/cpu/kernels.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "executors/cpu/memory.h"
#include "executors/cpu/weight_tiles.h"
#include "formats/gguf_test_util.h"
#include "gtest/gtest.h"

namespace millrace::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<const Kernels*> Tables() {
  std::vector<const Kernels*> tables = {&PlainKernels()};
  if (Avx512Kernels() != nullptr) tables.push_back(Avx512Kernels());
  return tables;
}

class KernelsTest : public ::testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& kernels_ = *GetParam();
  std::mt19937 random_{7};

  std::vector<float> Floats(size_t count, float spread = 1) {
    std::uniform_real_distribution<float> draw(-spread, spread);
    std::vector<float> floats(count);
    for (float& x : floats) x = draw(random_);
    return floats;
  }
};

INSTANTIATE_TEST_SUITE_P(All, KernelsTest, ::testing::ValuesIn(Tables()),
                         [](const auto& info) { return info.index == 0 ? "plain" : "avx512"; });

// ---- Linears ----

struct Matrix {
  TiledMatrix tiled;
  std::vector<float> values;  // [rows][columns], what the tensor's bytes stand for
  Memory memory;
};

Matrix MakeMatrix(TensorType type, int64_t rows, int64_t columns, const Kernels& kernels,
                  const std::vector<float>& values) {
  Matrix matrix;
  matrix.tiled = DescribeTiles(type, rows, columns, kernels);
  matrix.memory = *Memory::Reserve(matrix.tiled.tiles * matrix.tiled.tile_bytes, "a test");
  matrix.tiled.data = matrix.memory.data();
  const std::string bytes = EncodeTensor(type, values);
  const uint8_t* data = reinterpret_cast<const uint8_t*>(bytes.data());
  matrix.values = DecodeTensor(type, absl::MakeConstSpan(data, bytes.size()));
  for (int64_t row = 0; row < rows; ++row) {
    TileRow(matrix.tiled, data + row * (bytes.size() / rows), static_cast<int>(row % kTileRows),
            matrix.memory.data() + row / kTileRows * matrix.tiled.tile_bytes);
  }
  return matrix;
}

// Activations as a linear reads them, and the numbers that they then stand for.
struct Input {
  std::vector<uint8_t> bytes;
  size_t stride;
  std::vector<float> values;
};

Input MakeInput(const Kernels& kernels, Form form, int tokens, int columns,
                const std::vector<float>& x) {
  Input input;
  const int padded = (columns + kBlock - 1) / kBlock * kBlock;
  input.stride =
      form == Form::kFloat ? padded * sizeof(float) : columns / kBlock * sizeof(QuantizedBlock);
  input.bytes.resize(input.stride * tokens + 64);
  for (int token = 0; token < tokens; ++token) {
    const float* row = &x[static_cast<size_t>(token) * columns];
    uint8_t* out = &input.bytes[input.stride * token];
    if (form == Form::kFloat) {
      std::memcpy(out, row, columns * sizeof(float));
      input.values.insert(input.values.end(), row, row + columns);
      continue;
    }
    kernels.store(row, columns, form, out);
    for (int i = 0; i < columns; ++i) {
      QuantizedBlock block;
      std::memcpy(&block, out + i / kBlock * sizeof(block), sizeof(block));
      input.values.push_back(static_cast<float>(block.values[i % kBlock]) * block.scale);
    }
  }
  return input;
}

std::vector<float> Multiply(const Matrix& matrix, const Input& input, int tokens, bool add) {
  const size_t stride = matrix.tiled.tiles * kTileRows;
  std::vector<float> out(stride * tokens,
                         add ? 1.0f : kNan);  // poisoned where it is to be overwritten
  for (int64_t tile = 0; tile < matrix.tiled.tiles; ++tile) {
    matrix.tiled.gemm({.weights = matrix.tiled.Tile(tile),
                       .depth = matrix.tiled.depth,
                       .x = input.bytes.data(),
                       .x_stride = input.stride,
                       .rows = tokens,
                       .out = &out[tile * kTileRows],
                       .out_stride = stride,
                       .add = add});
  }
  return out;
}

TEST_P(KernelsTest, LinearsAgreeWithDoubles) {
  for (const TensorType type :
       {TensorType::kF32, TensorType::kF16, TensorType::kQ8_0, TensorType::kQ4_1}) {
    const bool quantized = type == TensorType::kQ8_0 || type == TensorType::kQ4_1;
    for (const int columns : {32, 96, 160, quantized ? 576 : 77}) {
      constexpr int kRows = 37;  // the last tile has 5
      const Matrix matrix = MakeMatrix(type, kRows, columns, kernels_, Floats(kRows * columns));
      for (const int tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 63, 65}) {
        const Input input =
            MakeInput(kernels_, matrix.tiled.input, tokens, columns, Floats(tokens * columns));
        for (const bool add : {false, true}) {
          const std::vector<float> out = Multiply(matrix, input, tokens, add);
          for (int token = 0; token < tokens; ++token) {
            for (int row = 0; row < kRows; ++row) {
              double sum = add ? 1 : 0;
              double magnitude = 1;
              for (int i = 0; i < columns; ++i) {
                const double product = double{matrix.values[row * columns + i]} *
                                       input.values[static_cast<size_t>(token) * columns + i];
                sum += product;
                magnitude += std::fabs(product);
              }
              ASSERT_NEAR(out[token * matrix.tiled.tiles * kTileRows + row], sum, 1e-6 * magnitude)
                  << Traits(type).name << " [" << kRows << ", " << columns << "] x " << tokens
                  << ", row " << row;
            }
          }
        }
      }
    }
  }
}

TEST_P(KernelsTest, ALinearsRowDoesNotDependOnTheOthers) {
  for (const TensorType type :
       {TensorType::kF32, TensorType::kF16, TensorType::kQ8_0, TensorType::kQ4_1}) {
    constexpr int kColumns = 224;
    constexpr int kTokens = 65;
    const Matrix matrix = MakeMatrix(type, 48, kColumns, kernels_, Floats(48 * kColumns));
    const std::vector<float> x = Floats(kTokens * kColumns);
    const std::vector<float> all = Multiply(
        matrix, MakeInput(kernels_, matrix.tiled.input, kTokens, kColumns, x), kTokens, false);
    for (int tokens = 1; tokens <= 17; ++tokens) {
      const std::vector<float> some = Multiply(
          matrix, MakeInput(kernels_, matrix.tiled.input, tokens, kColumns, x), tokens, false);
      EXPECT_EQ(some, std::vector<float>(all.begin(), all.begin() + some.size()))
          << Traits(type).name << ", " << tokens << " tokens";
    }
  }
}

TEST_P(KernelsTest, UntileGivesBackEveryRow) {
  for (const TensorType type :
       {TensorType::kF32, TensorType::kF16, TensorType::kQ8_0, TensorType::kQ4_1}) {
    const Matrix matrix = MakeMatrix(type, 21, 96, kernels_, Floats(21 * 96));
    std::vector<float> row(96);
    for (int64_t r = 0; r < 21; ++r) {
      UntileRow(matrix.tiled, r, row.data());
      EXPECT_EQ(row, std::vector<float>(&matrix.values[r * 96], &matrix.values[r * 96] + 96))
          << Traits(type).name;
    }
  }
}

// ---- Elementwise ----

TEST_P(KernelsTest, StoreQuantizesToTheNearest) {
  std::vector<float> x = Floats(96, 3);
  std::fill_n(x.begin() + 32, 32, 0.0f);
  for (const Form form : {Form::kQ8ForQ4, Form::kQ8ForQ8}) {
    std::vector<QuantizedBlock> blocks(3);
    std::memset(blocks.data(), 0x55, sizeof(QuantizedBlock) * 3);
    kernels_.store(x.data(), 96, form, blocks.data());
    for (int b = 0; b < 3; ++b) {
      int sum = 0;
      for (int i = 0; i < kBlock; ++i) {
        EXPECT_NEAR(blocks[b].values[i] * blocks[b].scale, x[b * kBlock + i],
                    blocks[b].scale * 0.5001f);
        sum += blocks[b].values[i];
      }
      if (form == Form::kQ8ForQ4) {
        EXPECT_FLOAT_EQ(std::bit_cast<float>(blocks[b].correction), blocks[b].scale * sum);
      } else {
        EXPECT_EQ(static_cast<int32_t>(blocks[b].correction), -128 * sum);
      }
    }
    EXPECT_EQ(blocks[1].scale, 0);
  }
}

TEST_P(KernelsTest, WhatIsNotFiniteStaysSo) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    std::vector<float> x = Floats(32);
    x[11] = bad;
    QuantizedBlock block;
    kernels_.store(x.data(), 32, Form::kQ8ForQ4, &block);
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
    kernels_.norm(x.data(), weight.data(), size, width, 1e-5f, Form::kQ8ForQ8, direct.data());
    kernels_.store(out.data(), size, Form::kQ8ForQ8, through.data());
    EXPECT_EQ(0,
              std::memcmp(direct.data(), through.data(), direct.size() * sizeof(QuantizedBlock)));
  }
}

TEST_P(KernelsTest, GateIsSiluTimesUp) {
  std::vector<float> x = Floats(64, 8);
  x[0] = -200;
  x[1] = 200;
  x[2] = 0;
  float out[32];
  kernels_.gate(x.data(), Form::kFloat, out);
  for (int i = 0; i < 32; ++i) {
    const double gate = x[i / 16 * 32 + i % 16];
    const double up = x[i / 16 * 32 + 16 + i % 16];
    EXPECT_NEAR(out[i], gate / (1 + std::exp(-gate)) * up, 1e-5 * std::fabs(gate * up) + 1e-6)
        << gate;
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
    kernels_.maximum(x.data(), count, &value, &index, &ok);
    EXPECT_EQ(value, 5);
    EXPECT_EQ(index, at);
    EXPECT_TRUE(ok);
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      x[count - 1] = bad;
      kernels_.maximum(x.data(), count, &value, &index, &ok);
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
    const double sum = kernels_.exp_sum(x.data(), count, 30, 0.5f, p.data());
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
      EXPECT_EQ(kernels_.select(x.data(), count, threshold, found.data(), count), expected.size());
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), found.begin()));
      EXPECT_EQ(kernels_.count_above(x.data(), count, threshold), above);
      std::vector<int32_t> few(4, -1);
      EXPECT_EQ(kernels_.select(x.data(), count, threshold, few.data(), 3), expected.size());
      EXPECT_EQ(few[3], -1) << "wrote beyond its capacity";
    }
  }
}

}  // namespace
}  // namespace millrace::cpu
