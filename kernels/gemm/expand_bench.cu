// Prompts of linears with four-bit weights: the kernel that multiplies them as they are, beside
// expanding them to BF16 and multiplying that, at once or in pieces of rows. Launches wait for one
// another in a replayed graph; weights are cold, and the expanded one has one place.
//
//   kernels_expand_bench [tokens]...
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/bench_util.h"
#include "kernels/gemm/four_bit.h"
#include "kernels/gemm/grouped_linear.h"
#include "kernels/gemm/linear.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr FourBitFormat kFormat = {FourBitType::kInt4Affine, 32};
constexpr int kTokens[] = {96, 128, 160, 192, 224, 256, 320, 384, 512, 768, 1024, 2048, 4096};
constexpr int64_t kMostTokens = 4096;

struct Shape {
  int64_t rows, columns;
  bool gated;
};
// Llama-3-8B, and two linears of a 3B and of a 70B.
constexpr Shape kShapes[] = {{6144, 4096, false},  {4096, 4096, false}, {28672, 4096, true},
                             {4096, 14336, false}, {16384, 3072, true}, {3072, 8192, false},
                             {10240, 8192, false}};

class Linear {
 public:
  Linear(LinearPlanner& planner, const Shape& shape)
      : planner_(planner),
        shape_(shape),
        bytes_(kFormat.Bytes(shape.rows, shape.columns)),
        copies_(RotatedInputs(static_cast<double>(bytes_))),
        tiles_(bytes_ * copies_),
        expanded_(shape.rows * shape.columns),
        input_(kMostTokens * shape.columns),
        output_(kMostTokens * shape.rows),
        workspace_(planner.options().workspace_bytes),
        counter_(std::vector<unsigned>{0}) {
    FillUniform(tiles_.get(), tiles_.size(), 1, 8);
    FillUniform(input_.get(), input_.size(), 2);
  }

  int copies() const { return copies_; }
  double bytes() const { return static_cast<double>(bytes_); }

  cudaError_t FourBit(int copy, int tokens, cudaStream_t stream) const {
    GroupedWeight weight{};
    weight.data = tiles_.get() + copy * bytes_;
    weight.type = Type::kBf16;
    weight.scaling = WeightScaling::kNone;
    weight.groups = 1;
    weight.rows = shape_.rows;
    weight.stride = shape_.columns;
    weight.four_bit = kFormat;
    return LaunchGroupedLinear({.weight = weight,
                                .rows = nullptr,
                                .tokens = tokens,
                                .slots = 1,
                                .input = Bf16Rows(input_.get(), shape_.columns),
                                .gate = shape_.gated ? GroupedGate::kSilu : GroupedGate::kNone,
                                .output = output_.get(),
                                .output_type = Type::kBf16,
                                .output_stride = shape_.gated ? shape_.rows / 2 : shape_.rows,
                                .config = DenseFourBitConfig(weight, tokens)},
                               stream);
  }
  cudaError_t Expand(int copy, int64_t first, int64_t rows, cudaStream_t stream) const {
    return LaunchDequantizeFourBit(
        {.format = kFormat,
         .tiles = tiles_.get() + copy * bytes_ + kFormat.Bytes(first, shape_.columns),
         .rows = rows,
         .stride = shape_.columns,
         .out = expanded_.get()},
        stream);
  }
  // Multiplies the expanded rows from `first` on.
  cudaError_t Multiply(int64_t first, int64_t rows, int tokens, cudaStream_t stream) const {
    std::string error;
    const LinearPlan* const plan =
        planner_.Plan({.rows = rows,
                       .stride = shape_.columns,
                       .weight = Type::kBf16,
                       .input = Type::kBf16,
                       .output = Type::kBf16,
                       .epilogue = shape_.gated ? Epilogue::kGate : Epilogue::kStore},
                      &error);
    return LaunchLinear({.plan = plan,
                         .weight = {.data = expanded_.get(),
                                    .type = Type::kBf16,
                                    .scaling = WeightScaling::kNone,
                                    .rows = rows,
                                    .stride = shape_.columns,
                                    .scales = nullptr},
                         .input = Bf16Rows(input_.get(), shape_.columns),
                         .tokens = tokens,
                         .output = output_.get() + first,
                         .output_stride = shape_.rows,
                         .workspace = workspace_.get(),
                         .tile_counter = counter_.get(),
                         .capacity = LinearCapacity(tokens)},
                        stream);
  }
  cudaError_t Both(int copy, int64_t piece, int tokens, cudaStream_t stream) const {
    cudaError_t error = cudaSuccess;
    for (int64_t first = 0; first < shape_.rows && error == cudaSuccess; first += piece) {
      error = Expand(copy, first, piece, stream);
      if (error == cudaSuccess) error = Multiply(first, piece, tokens, stream);
    }
    return error;
  }

 private:
  LinearPlanner& planner_;
  const Shape shape_;
  const int64_t bytes_;
  const int copies_;
  DeviceBuffer<uint8_t> tiles_;
  DeviceBuffer<Bf16> expanded_, input_, output_;
  DeviceBuffer<uint8_t> workspace_;
  DeviceBuffer<unsigned> counter_;
};

int Main(int argc, char** argv) {
  std::vector<int> wanted;
  for (int i = 1; i < argc; ++i) wanted.push_back(std::atoi(argv[i]));
  std::string error;
  const std::unique_ptr<CublasLt> library = CublasLt::Open(&error);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 1;
  }
  LinearPlanner planner(*library, {});
  Bench bench("prompts of four-bit weights (peer: the kernel that multiplies four bits)");
  for (const Shape& shape : kShapes) {
    const Linear linear(planner, shape);
    const std::string name = std::to_string(shape.rows) + " x " + std::to_string(shape.columns);
    const double expanded = 2.0 * static_cast<double>(shape.rows * shape.columns);
    bench.Row("expand", name,
              bench.Microseconds(
                  linear.copies(),
                  [&](int i, cudaStream_t s) { return linear.Expand(i, 0, shape.rows, s); }),
              linear.bytes() + expanded);
    for (const int tokens : kTokens) {
      if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), tokens) == wanted.end()) {
        continue;
      }
      const std::string with_tokens = name + ", M " + std::to_string(tokens);
      const double four_bit = bench.Microseconds(
          linear.copies(), [&](int i, cudaStream_t s) { return linear.FourBit(i, tokens, s); });
      for (int pieces = 1; pieces <= 8; pieces *= 2) {
        if (pieces > 1 && (tokens % 512 != 0 || shape.rows / pieces < 2048)) continue;
        const double us = bench.Microseconds(linear.copies(), [&](int i, cudaStream_t s) {
          return linear.Both(i, shape.rows / pieces, tokens, s);
        });
        bench.Row("expand and multiply" + (pieces > 1 ? ", " + std::to_string(pieces) : ""),
                  with_tokens, us, linear.bytes(), four_bit);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace millrace::kernels

int main(int argc, char** argv) { return millrace::kernels::Main(argc, argv); }
