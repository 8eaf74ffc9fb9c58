#include "kernels/weights/dequantize.h"

#include <cuda_fp16.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

using ::testing::Eq;
using ::testing::Pointwise;

// A tensor in its file format, and its values.
struct Stored {
  std::vector<uint8_t> bytes;
  std::vector<double> values;
};

void Append(std::vector<uint8_t>* bytes, const void* data, size_t size) {
  const auto* const from = static_cast<const uint8_t*>(data);
  bytes->insert(bytes->end(), from, from + size);
}

template <typename T>
Stored MakeDense(size_t size) {
  Stored stored;
  for (const float drawn : RandomNormal(size, 1)) {
    const T value = static_cast<T>(drawn);
    Append(&stored.bytes, &value, sizeof(value));
    stored.values.push_back(static_cast<double>(static_cast<float>(value)));
  }
  return stored;
}

Stored MakeQ8_0(size_t size) {
  Stored stored;
  std::mt19937 random(2);
  for (size_t block = 0; block < size / 32; ++block) {
    const __half scale = __float2half(0.001f * static_cast<float>(random() % 1000));
    Append(&stored.bytes, &scale, 2);
    for (int i = 0; i < 32; ++i) {
      const int8_t code = static_cast<int8_t>(random());
      Append(&stored.bytes, &code, 1);
      stored.values.push_back(static_cast<double>(__half2float(scale)) * code);
    }
  }
  return stored;
}

Stored MakeQ4_1(size_t size) {
  Stored stored;
  std::mt19937 random(3);
  for (size_t block = 0; block < size / 32; ++block) {
    const __half scale = __float2half(0.01f * static_cast<float>(random() % 100));
    const __half minimum = __float2half(-0.07f * static_cast<float>(random() % 100));
    uint8_t codes[16];
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random());
    Append(&stored.bytes, &scale, 2);
    Append(&stored.bytes, &minimum, 2);
    Append(&stored.bytes, codes, 16);
    for (int i = 0; i < 32; ++i) {
      const int code = i < 16 ? codes[i] & 15 : codes[i - 16] >> 4;
      stored.values.push_back(static_cast<double>(__half2float(scale)) * code +
                              static_cast<double>(__half2float(minimum)));
    }
  }
  return stored;
}

Stored Make(StoredType type, size_t size) {
  switch (type) {
    case StoredType::kF32:
      return MakeDense<float>(size);
    case StoredType::kF16:
      return MakeDense<__half>(size);
    case StoredType::kBf16:
      return MakeDense<Bf16>(size);
    case StoredType::kQ8_0:
      return MakeQ8_0(size);
    case StoredType::kQ4_1:
      return MakeQ4_1(size);
  }
  return {};
}

template <typename Out>
void ExpectDequantized(StoredType stored_type, Type type, int64_t rows, int64_t columns,
                       int64_t stride) {
  SCOPED_TRACE(testing::Message() << "stored as " << static_cast<int>(stored_type) << ", " << rows
                                  << " x " << columns << ", stride " << stride);
  const Stored stored = Make(stored_type, rows * columns);
  const DeviceBuffer<uint8_t> source(stored.bytes);
  const DeviceBuffer<Out> out(rows * stride);
  ASSERT_EQ(LaunchDequantize({.source = source.get(),
                              .stored = stored_type,
                              .rows = rows,
                              .columns = columns,
                              .out = out.get(),
                              .type = type,
                              .stride = stride},
                             nullptr),
            cudaSuccess);
  std::vector<float> expected, got;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < stride; ++column) {
      const double value = column < columns ? stored.values[row * columns + column] : 0;
      expected.push_back(static_cast<float>(static_cast<Out>(static_cast<float>(value))));
    }
  }
  for (const Out value : out.Download()) got.push_back(static_cast<float>(value));
  EXPECT_THAT(got, Pointwise(Eq(), expected));
  EXPECT_TRUE(out.GuardsIntact());
  EXPECT_TRUE(source.GuardsIntact());
}

TEST(DequantizeTest, GivesEachStoredTypesValues) {
  for (const StoredType stored : {StoredType::kF32, StoredType::kF16, StoredType::kBf16,
                                  StoredType::kQ8_0, StoredType::kQ4_1}) {
    ExpectDequantized<Bf16>(stored, Type::kBf16, 5, 576, 640);
    ExpectDequantized<Bf16>(stored, Type::kBf16, 17, 32, 32);
    ExpectDequantized<Bf16>(stored, Type::kBf16, 4099, 128, 128);
    ExpectDequantized<float>(stored, Type::kF32, 3, 2080, 2176);
  }
}

TEST(DequantizeTest, TakesDenseRowsOfAnyWidth) {
  for (const StoredType stored : {StoredType::kF32, StoredType::kF16, StoredType::kBf16}) {
    ExpectDequantized<float>(stored, Type::kF32, 3, 1, 8);
    ExpectDequantized<Bf16>(stored, Type::kBf16, 7, 131, 136);
  }
}

TEST(DequantizeTest, RefusesWhatDoesNotFit) {
  const DeviceBuffer<uint8_t> source(4096), out(4096);
  const DequantizeArgs good = {.source = source.get(),
                               .stored = StoredType::kQ8_0,
                               .rows = 1,
                               .columns = 32,
                               .out = out.get(),
                               .type = Type::kBf16,
                               .stride = 32};
  const auto refused = [&](auto change) {
    DequantizeArgs args = good;
    change(args);
    return LaunchDequantize(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](DequantizeArgs& args) { args.source = nullptr; }));
  EXPECT_TRUE(refused([&](DequantizeArgs& args) { args.out = out.get() + 8; }));
  EXPECT_TRUE(refused([](DequantizeArgs& args) { args.rows = 0; }));
  EXPECT_TRUE(refused([](DequantizeArgs& args) { args.columns = 24; }));
  EXPECT_TRUE(refused([](DequantizeArgs& args) { args.stride = 24; }));
  EXPECT_TRUE(refused([](DequantizeArgs& args) { args.stride = 36; }));
  EXPECT_TRUE(refused([](DequantizeArgs& args) { args.type = Type::kFp8; }));
  EXPECT_EQ(LaunchDequantize(good, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace millrace::kernels
