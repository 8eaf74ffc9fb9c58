// Tests how four-bit weights are divided for long steps, and what such a step launches; without a
// GPU.
#include "executors/cuda/weights/expansion.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "executors/cuda/cuda_ops.h"
#include "executors/cuda/op_shapes_test_util.h"
#include "gtest/gtest.h"
#include "kernels/gemm/four_bit.h"

namespace millrace::cuda {
namespace {

TEST(ExpansionTest, PiecesFitTheWorkspace) {
  EXPECT_EQ(DescribeExpansion(28672, 4096).piece_rows, 28672);  // an 8B's largest
  EXPECT_EQ(DescribeExpansion(16, 128).piece_rows, 16);
  EXPECT_EQ(DescribeExpansion(57344, 8192).piece_rows, 14336);  // a 70B's largest
  for (const int64_t rows : {57344, 57360, 106496, 131072}) {
    const int64_t piece = DescribeExpansion(rows, 16384).piece_rows;
    EXPECT_EQ(piece % kernels::kFourBitRows, 0) << rows;
    EXPECT_LE(piece * 16384 * 2, int64_t{257} << 20) << rows;
    EXPECT_EQ(rows % piece % 16, 0) << rows;
  }
}

// Gives the layer's linears weights of four bits.
void MakeFourBit(CudaWeights& weights) {
  for (CudaLinear& linear : weights.linears) {
    if (linear.weight.rows == 1000) continue;  // the head
    linear.runner = FourBitLinear{
        .weight = {.data = nullptr,
                   .type = kernels::Type::kBf16,
                   .scaling = kernels::WeightScaling::kNone,
                   .groups = 1,
                   .rows = linear.weight.rows,
                   .stride = linear.weight.stride,
                   .four_bit = kernels::FourBitFormat{kernels::FourBitType::kInt4, 128}},
        .expansion = DescribeExpansion(linear.weight.rows, linear.weight.stride)};
    linear.gate = linear.rows == 1024 ? kernels::GateLayout::kInterleaved : linear.gate;
  }
}

TEST(ExpansionTest, LongStepsExpandEachWeight) {
  Layer layer(kernels::Type::kBf16);
  MakeFourBit(layer.placer.weights);
  const auto bytes = [&](int tokens) {
    layer.step.tokens = layer.step.max_row_tokens = tokens;
    layer.step.rows = layer.step.wanted = 1;
    CudaOps ops(layer.context);
    RunLayer(ops, layer.weights, layer.request, layer.step);
    EXPECT_TRUE(ops.TakeStatus().ok());
    return ops.TakeBytes();
  };
  // So many that each of these small weights is expanded.
  const std::vector<int64_t> few = bytes(kExpandFrom - 1), many = bytes(20'000);
  // Four expansions, and a gate that the product does not end in.
  EXPECT_EQ(many.size(), few.size() + 5);
  const int64_t expansion =
      kernels::FourBitFormat{kernels::FourBitType::kInt4, 128}.Bytes(1024, 256) + 1024 * 256 * 2;
  EXPECT_EQ(std::count(many.begin(), many.end(), expansion), 1);
  EXPECT_EQ(std::count(few.begin(), few.end(), expansion), 0);
}

TEST(ExpansionTest, TheWorkspaceHoldsTheLargestWeight) {
  Layer layer(kernels::Type::kBf16);
  EXPECT_EQ(ExpansionBytes(layer.placer.weights, 8192), 0);
  MakeFourBit(layer.placer.weights);
  EXPECT_EQ(ExpansionBytes(layer.placer.weights, 8192), 1024 * 256 * 2);
  EXPECT_EQ(ExpansionBytes(layer.placer.weights, kExpandFrom), 1024 * 256 * 2);
  EXPECT_EQ(ExpansionBytes(layer.placer.weights, kExpandFrom - 1), 0);
}

}  // namespace
}  // namespace millrace::cuda
