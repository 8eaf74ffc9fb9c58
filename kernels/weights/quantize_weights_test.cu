#include "kernels/weights/quantize_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/fp8.cuh"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

Quantized Quantize(const std::vector<Bf16>& source, int64_t rows, int64_t stride,
                   WeightScaling scaling, size_t scale_count) {
  const DeviceBuffer<Bf16> from(source);
  const DeviceBuffer<uint8_t> out(source.size());
  const DeviceBuffer<float> scales(scale_count);
  EXPECT_EQ(LaunchQuantizeWeights({.source = from.get(),
                                   .rows = rows,
                                   .stride = stride,
                                   .out = out.get(),
                                   .scaling = scaling,
                                   .scales = scales.get()},
                                  nullptr),
            cudaSuccess);
  Quantized quantized = {.codes = out.Download(), .scales = scales.Download()};
  EXPECT_TRUE(out.GuardsIntact());
  EXPECT_TRUE(scales.GuardsIntact());
  return quantized;
}

// Returns the index of each element's scale.
size_t ScaleIndex(WeightScaling scaling, int64_t row, int64_t column, int64_t stride) {
  switch (scaling) {
    case WeightScaling::kNone:
    case WeightScaling::kTensor:
      return 0;
    case WeightScaling::kChannel:
      return row;
    case WeightScaling::kBlock:
      return row / 128 * BlockScaleStride(stride) + column / 128;
  }
  return 0;
}

// Checks that scales and codes are exactly those of the rule in fp8.cuh, applied on the host.
void ExpectQuantized(int64_t rows, int64_t stride, WeightScaling scaling, size_t scale_count) {
  SCOPED_TRACE(testing::Message() << rows << " x " << stride << ", scaling "
                                  << static_cast<int>(scaling));
  std::vector<Bf16> source = ToBf16(RandomNormal(rows * stride, 11));
  for (int64_t i = 0; i < stride; ++i) source[i] = __float2bfloat16(0);  // a row of zeros
  source[stride * (rows - 1) + 5] = __float2bfloat16(-30);
  const Quantized got = Quantize(source, rows, stride, scaling, scale_count);
  std::vector<float> magnitudes(scale_count, 0), scales(scale_count, 0);
  for (int64_t i = 0; i < rows * stride; ++i) {
    float& magnitude = magnitudes[ScaleIndex(scaling, i / stride, i % stride, stride)];
    magnitude = std::max(magnitude, std::fabs(static_cast<float>(source[i])));
  }
  for (int64_t i = 0; i < rows * stride; ++i) {
    const size_t index = ScaleIndex(scaling, i / stride, i % stride, stride);
    scales[index] = Fp8Scale(magnitudes[index]);
    ASSERT_EQ(got.codes[i], Fp8Code(static_cast<float>(source[i]), Fp8Inverse(scales[index])))
        << "element " << i;
  }
  EXPECT_EQ(got.scales, scales);
}

TEST(QuantizeWeightsTest, RoundsByOneScaleOfTheTensor) {
  ExpectQuantized(16, 128, WeightScaling::kTensor, 1);
  ExpectQuantized(4100, 640, WeightScaling::kTensor, 1);
}

TEST(QuantizeWeightsTest, RoundsByAScaleOfEachChannel) {
  ExpectQuantized(17, 128, WeightScaling::kChannel, 17);
  ExpectQuantized(4100, 640, WeightScaling::kChannel, 4100);
  ExpectQuantized(3, 14336, WeightScaling::kChannel, 3);
}

TEST(QuantizeWeightsTest, RoundsByAScaleOfEachBlock) {
  ExpectQuantized(128, 128, WeightScaling::kBlock, 4);
  ExpectQuantized(300, 640, WeightScaling::kBlock, 3 * 8);
  ExpectQuantized(256, 1024, WeightScaling::kBlock, 2 * 8);
}

TEST(QuantizeWeightsTest, RefusesWhatDoesNotFit) {
  const DeviceBuffer<uint8_t> memory(4096);
  QuantizeWeightsArgs args = {.source = reinterpret_cast<const Bf16*>(memory.get()),
                              .rows = 1,
                              .stride = 128,
                              .out = memory.get() + 1024,
                              .scaling = WeightScaling::kNone,
                              .scales = reinterpret_cast<float*>(memory.get() + 2048)};
  EXPECT_EQ(LaunchQuantizeWeights(args, nullptr), cudaErrorInvalidValue);
  args.scaling = WeightScaling::kChannel;
  args.stride = 64;
  EXPECT_EQ(LaunchQuantizeWeights(args, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace millrace::kernels
