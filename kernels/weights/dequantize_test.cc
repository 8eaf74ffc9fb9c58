#include "kernels/weights/dequantize.h"

#include <cuda_fp16.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "formats/tensors/dequantize.h"
#include "formats/tensors/tensor.h"
#include "kernels/test_util.h"
#include "kernels/weights/stored_test_util.h"

namespace millrace::kernels {
namespace {

using ::testing::Eq;
using ::testing::Pointwise;

template <typename T>
StoredTensor MakeDense(size_t size) {
  StoredTensor stored;
  for (const float drawn : RandomNormal(size, 1)) {
    const T value = static_cast<T>(drawn);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(&value);
    stored.bytes.insert(stored.bytes.end(), bytes, bytes + sizeof(value));
    stored.values.push_back(static_cast<float>(value));
  }
  return stored;
}

StoredTensor Make(StoredType type, size_t size) {
  switch (type) {
    case StoredType::kF32:
      return MakeDense<float>(size);
    case StoredType::kF16:
      return MakeDense<__half>(size);
    case StoredType::kBf16:
      return MakeDense<Bf16>(size);
    default:
      return MakeQuantized(type, size, 2);
  }
}

template <typename Out>
void ExpectDequantized(StoredType stored_type, Type type, int64_t rows, int64_t columns,
                       int64_t stride) {
  SCOPED_TRACE(testing::Message() << "stored as " << static_cast<int>(stored_type) << ", " << rows
                                  << " x " << columns << ", stride " << stride);
  const StoredTensor stored = Make(stored_type, rows * columns);
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
      const float value = column < columns ? stored.values[row * columns + column] : 0;
      expected.push_back(static_cast<float>(static_cast<Out>(value)));
    }
  }
  for (const Out value : out.Download()) got.push_back(static_cast<float>(value));
  EXPECT_THAT(got, Pointwise(Eq(), expected));
  EXPECT_TRUE(out.GuardsIntact());
  EXPECT_TRUE(source.GuardsIntact());
}

constexpr StoredType kDense[] = {StoredType::kF32, StoredType::kF16, StoredType::kBf16};

TEST(DequantizeTest, GivesDenseValues) {
  for (const StoredType stored : kDense) {
    ExpectDequantized<Bf16>(stored, Type::kBf16, 5, 576, 640);
    ExpectDequantized<Bf16>(stored, Type::kBf16, 4099, 128, 128);
    ExpectDequantized<float>(stored, Type::kF32, 3, 2080, 2176);
    // rows of any width
    ExpectDequantized<float>(stored, Type::kF32, 3, 1, 8);
    ExpectDequantized<Bf16>(stored, Type::kBf16, 7, 131, 136);
  }
}

TEST(DequantizeTest, GivesTheValuesOfTheHostsReader) {
  for (const StoredType stored : kQuantizedTypes) {
    const int64_t block = Traits(TensorTypeOf(stored)).block_elements;
    ExpectDequantized<float>(stored, Type::kF32, 3, 9 * block, 9 * block + 64);
    ExpectDequantized<Bf16>(stored, Type::kBf16, 5, 2 * block, 2 * block);
    ExpectDequantized<Bf16>(stored, Type::kBf16, 17, block, block + 8);
    ExpectDequantized<Bf16>(stored, Type::kBf16, 4099, block, block);
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
  EXPECT_TRUE(refused([](DequantizeArgs& args) { args.stored = StoredType::kQ6K; }));
  EXPECT_TRUE(refused([](DequantizeArgs& args) { args.stored = StoredType::kInt4x128; }));
  EXPECT_TRUE(refused([](DequantizeArgs& args) { args.stride = 24; }));
  EXPECT_TRUE(refused([](DequantizeArgs& args) { args.stride = 36; }));
  EXPECT_TRUE(refused([](DequantizeArgs& args) { args.type = Type::kFp8; }));
  EXPECT_EQ(LaunchDequantize(good, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace millrace::kernels
