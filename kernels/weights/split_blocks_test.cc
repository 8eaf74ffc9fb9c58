#include "kernels/weights/split_blocks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "formats/tensors/dequantize.h"
#include "formats/tensors/tensor.h"
#include "kernels/gemm/four_bit.h"
#include "kernels/test_util.h"
#include "kernels/weights/stored_test_util.h"

namespace millrace::kernels {
namespace {

constexpr StoredType kSplitTypes[] = {StoredType::kQ4_0, StoredType::kMxfp4, StoredType::kQ4_1,
                                      StoredType::kQ4K};

float Rounded(double value) { return __bfloat162float(__double2bfloat16(value)); }

// The weights by the format's definition, from what the host's reader says of the blocks.
std::vector<float> Expected(StoredType stored, const StoredTensor& tensor) {
  const TensorType type = TensorTypeOf(stored);
  const bool affine = FourBitFormatOf(stored)->type == FourBitType::kInt4Affine;
  std::vector<float> values;
  for (size_t block = 0; block < tensor.values.size() / 32; ++block) {
    const QuantizedElements read =
        ReadBlock(type, tensor.bytes.data(), static_cast<int64_t>(block));
    for (int i = 0; i < 32; ++i) {
      const double scale = static_cast<double>(read.scales[0]);
      const double minimum = -static_cast<double>(read.minima[0]);
      values.push_back(affine ? Rounded(static_cast<double>(Rounded(scale)) * read.codes[i] +
                                        static_cast<double>(Rounded(minimum)))
                              : Rounded(scale * CodeValue(type, read.codes[i])));
    }
  }
  return values;
}

// Splits, tiles and reads back.
void ExpectSplit(StoredType stored, int64_t rows, int64_t columns) {
  SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(stored) << ", " << rows << " x "
                                  << columns);
  const FourBitFormat format = *FourBitFormatOf(stored);
  const bool affine = format.type == FourBitType::kInt4Affine;
  const int64_t stride = (columns + 127) / 128 * 128;
  const StoredTensor tensor = MakeQuantized(stored, rows * columns, 31);
  const size_t groups = rows * columns / 32;
  const DeviceBuffer<uint8_t> source(tensor.bytes), codes(rows * columns / 2);
  const DeviceBuffer<uint8_t> scales(groups * (format.type == FourBitType::kMxfp4 ? 1 : 2));
  const DeviceBuffer<Bf16> minima(groups), out(rows * stride);
  const DeviceBuffer<uint8_t> tiles(format.Bytes(rows, stride));
  ASSERT_EQ(LaunchSplitBlocks({.source = source.get(),
                               .stored = stored,
                               .rows = rows,
                               .columns = columns,
                               .codes = codes.get(),
                               .scales = scales.get(),
                               .minima = affine ? minima.get() : nullptr},
                              nullptr),
            cudaSuccess);
  ASSERT_EQ(LaunchTileFourBit({.format = format,
                               .rows = rows,
                               .columns = columns,
                               .stride = stride,
                               .codes = codes.get(),
                               .scales = scales.get(),
                               .zeros = nullptr,
                               .source_rows = nullptr,
                               .out = tiles.get(),
                               .minima = affine ? minima.get() : nullptr},
                              nullptr),
            cudaSuccess);
  ASSERT_EQ(LaunchDequantizeFourBit({.format = format,
                                     .tiles = tiles.get(),
                                     .rows = rows,
                                     .stride = stride,
                                     .out = out.get()},
                                    nullptr),
            cudaSuccess);
  const std::vector<Bf16> values = out.Download();
  const std::vector<float> expected = Expected(stored, tensor);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < stride; ++column) {
      ASSERT_EQ(static_cast<float>(values[row * stride + column]),
                column < columns ? expected[row * columns + column] : 0)
          << row << ", " << column;
    }
  }
  EXPECT_TRUE(source.GuardsIntact() && codes.GuardsIntact() && scales.GuardsIntact() &&
              minima.GuardsIntact());
}

TEST(SplitBlocksTest, GivesFourBitWeights) {
  for (const StoredType stored : kSplitTypes) {
    const int64_t block = Traits(TensorTypeOf(stored)).block_elements;
    ExpectSplit(stored, 1, block);
    ExpectSplit(stored, 67, 5 * block);
    ExpectSplit(stored, 4100, 2 * block);
    ExpectSplit(stored, 3, 12288);
  }
}

TEST(SplitBlocksTest, RefusesWhatDoesNotFit) {
  const DeviceBuffer<uint8_t> memory(8192);
  const SplitBlocksArgs good = {.source = memory.get(),
                                .stored = StoredType::kQ4K,
                                .rows = 1,
                                .columns = 256,
                                .codes = memory.get() + 2048,
                                .scales = memory.get() + 4096,
                                .minima = reinterpret_cast<Bf16*>(memory.get() + 6144)};
  const auto refused = [&](auto change) {
    SplitBlocksArgs args = good;
    change(args);
    return LaunchSplitBlocks(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](SplitBlocksArgs& args) { args.source = nullptr; }));
  EXPECT_TRUE(refused([](SplitBlocksArgs& args) { args.rows = 0; }));
  EXPECT_TRUE(refused([](SplitBlocksArgs& args) { args.columns = 128; }));
  EXPECT_TRUE(refused([](SplitBlocksArgs& args) { args.codes += 4; }));
  EXPECT_TRUE(refused([](SplitBlocksArgs& args) { args.minima = nullptr; }));
  EXPECT_TRUE(refused([](SplitBlocksArgs& args) { args.stored = StoredType::kQ4_0; }));
  EXPECT_TRUE(refused([](SplitBlocksArgs& args) { args.stored = StoredType::kQ5K; }));
  EXPECT_EQ(LaunchSplitBlocks(good, nullptr), cudaSuccess);
  EXPECT_FALSE(FourBitFormatOf(StoredType::kQ8_0).has_value());
}

}  // namespace
}  // namespace millrace::kernels
