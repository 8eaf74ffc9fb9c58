// Tests that four-bit weights multiply alike whether a kernel unpacks them or they are expanded to
// BF16 for a plan of linear.h, as executors do for few and for many tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/elementwise/gated_activation.h"
#include "kernels/gemm/four_bit.h"
#include "kernels/gemm/grouped_linear.h"
#include "kernels/gemm/grouped_test_util.h"
#include "kernels/gemm/linear.h"
#include "kernels/gemm/linear_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels::sm90 {
namespace {

constexpr int kMostTokens = 4096;

// A weight of one group, its linear's output by both ways, and gated ones.
class Products {
 public:
  Products(const GroupedForm& form, int64_t rows, int64_t columns)
      : rows_(rows),
        problem_(form, 1, rows, columns, kMostTokens, true),
        expanded_(rows * problem_.stride()),
        workspace_(planner_.options().workspace_bytes),
        counter_(std::vector<unsigned>{0}) {}

  // Returns what the kernel that unpacks makes of the first `tokens` rows.
  std::vector<Bf16> Unpacked(int tokens, bool gated) const {
    const int64_t stride = gated ? GatedStride() : rows_;
    const DeviceBuffer<Bf16> output(tokens * stride);
    const GroupedWeight weight = problem_.Weight();
    EXPECT_EQ(LaunchGroupedLinear({.weight = weight,
                                   .rows = nullptr,
                                   .tokens = tokens,
                                   .slots = 1,
                                   .input = problem_.Input(),
                                   .gate = gated ? GroupedGate::kSilu : GroupedGate::kNone,
                                   .rounds_factors = gated,
                                   .output = output.get(),
                                   .output_type = Type::kBf16,
                                   .output_stride = stride,
                                   .config = DenseFourBitConfig(weight, tokens)},
                                  nullptr),
              cudaSuccess);
    EXPECT_TRUE(output.GuardsIntact());
    return output.Download();
  }

  // Returns the same with weights that are expanded `piece` rows at a time.
  std::vector<Bf16> Expanded(int tokens, int64_t piece, bool gated) {
    const DeviceBuffer<Bf16> output(LinearCapacity(tokens) * rows_);
    const GroupedWeight weight = problem_.Weight();
    for (int64_t first = 0; first < rows_; first += piece) {
      const int64_t rows = std::min(piece, rows_ - first);
      const auto* const tiles = static_cast<const uint8_t*>(weight.data);
      EXPECT_EQ(
          LaunchDequantizeFourBit({.format = *weight.four_bit,
                                   .tiles = tiles + weight.four_bit->Bytes(first, weight.stride),
                                   .rows = rows,
                                   .stride = weight.stride,
                                   .out = expanded_.get()},
                                  nullptr),
          cudaSuccess);
      Multiply(tokens, rows, output.get() + first);
    }
    EXPECT_TRUE(output.GuardsIntact() && expanded_.GuardsIntact());
    std::vector<Bf16> values = gated ? Gated(output, tokens) : output.Download();
    values.resize(tokens * (gated ? GatedStride() : rows_));
    return values;
  }

 private:
  int64_t GatedStride() const { return (rows_ / 2 + 127) / 128 * 128; }

  void Multiply(int tokens, int64_t rows, Bf16* output) {
    std::string error;
    const int64_t stride = problem_.stride();
    const LinearPlan* const plan = planner_.Plan({.rows = rows,
                                                  .stride = stride,
                                                  .weight = Type::kBf16,
                                                  .input = Type::kBf16,
                                                  .output = Type::kBf16},
                                                 &error);
    EXPECT_EQ(LaunchLinear({.plan = plan,
                            .weight = {.data = expanded_.get(),
                                       .type = Type::kBf16,
                                       .scaling = WeightScaling::kNone,
                                       .rows = rows,
                                       .stride = stride,
                                       .scales = nullptr},
                            .input = problem_.Input(),
                            .tokens = tokens,
                            .output = output,
                            .output_stride = rows_,
                            .workspace = workspace_.get(),
                            .tile_counter = counter_.get()},
                           nullptr),
              cudaSuccess)
        << error;
  }

  std::vector<Bf16> Gated(const DeviceBuffer<Bf16>& product, int tokens) const {
    const DeviceBuffer<Bf16> output(tokens * GatedStride());
    EXPECT_EQ(LaunchGatedActivation({.gate_up = {product.get(), rows_, nullptr, nullptr},
                                     .tokens = tokens,
                                     .size = static_cast<int>(rows_ / 2),
                                     .out = Bf16Rows(output.get(), GatedStride()),
                                     .layout = GateLayout::kInterleaved},
                                    nullptr),
              cudaSuccess);
    return output.Download();
  }

  const int64_t rows_;
  LinearPlanner planner_{Library(), {}};
  const GroupedProblem problem_;
  const DeviceBuffer<Bf16> expanded_;
  const DeviceBuffer<uint8_t> workspace_;
  const DeviceBuffer<unsigned> counter_;
};

// Every row has the same bits at every number of tokens.
TEST(ExpandBitsTest, ExpandedWeightsGiveTheBitsOfTheKernelsThatUnpack) {
  struct Size {
    int64_t rows, columns, piece;
  };
  for (const GroupedForm& form : kGroupedForms) {
    if (!form.four_bit.has_value()) continue;
    for (const Size& size : {Size{64, 128, 64}, {208, 2880, 64}, {1024, 4096, 384}}) {
      Products products(form, size.rows, size.columns);
      for (const bool gated : {false, true}) {
        SCOPED_TRACE(testing::Message() << form.name << ", " << size.rows << " x " << size.columns
                                        << (gated ? ", gated" : ""));
        const std::vector<Bf16> all = products.Expanded(kMostTokens, size.rows, gated);
        const auto expect_same = [&](const std::vector<Bf16>& some, int tokens, const char* how) {
          EXPECT_EQ(std::memcmp(some.data(), all.data(), some.size() * sizeof(Bf16)), 0)
              << tokens << " tokens, " << how;
        };
        for (const int tokens : {1, 2, 8, 9, 16, 17, 33, 64, 65, 192, 255, 600}) {
          expect_same(products.Unpacked(tokens, gated), tokens, "unpacked");
        }
        for (const int tokens : {129, 160, 192, 256, 512, 1000, 3000}) {
          expect_same(products.Expanded(tokens, size.rows, gated), tokens, "expanded");
          expect_same(products.Expanded(tokens, size.piece, gated), tokens, "in pieces");
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace::kernels::sm90
