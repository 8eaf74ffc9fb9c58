// What can be known of the ops without a GPU: what a step's activations take, and what it must
// move.
#include "executors/cuda/cuda_ops.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "executors/executor_driver.h"
#include "executors/models/model.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

// The weights of a model, without memory.
class ShapesPlacer : public WeightPlacer {
 public:
  ShapesPlacer(const ModelConfig& config, kernels::Type type) : config_(config), type_(type) {}

  bool Has(const std::string&) const override { return true; }
  absl::StatusOr<EmbeddingId> Embedding(const std::string&) override {
    weights.embeddings.push_back({.table = nullptr,
                                  .stride = Padded(config_.hidden_size),
                                  .vocab = config_.vocab_size,
                                  .width = config_.hidden_size});
    return EmbeddingId{0};
  }
  absl::StatusOr<NormId> Norm(const std::string&, const NormSpec& spec) override {
    weights.norms.push_back(
        {.weight = nullptr, .epsilon = spec.epsilon, .size = config_.hidden_size});
    return static_cast<NormId>(weights.norms.size() - 1);
  }
  absl::StatusOr<LinearId> Linear(const std::vector<std::string>& names, Shard shard) override {
    const int heads = config_.heads * config_.head_size;
    const bool qkv = names.size() == 3;
    const bool down = names[0].find("ffn_down") != std::string::npos;
    const int rows = qkv ? heads + 2 * config_.kv_heads * config_.head_size : config_.hidden_size;
    const int columns = shard == Shard::kOutput ? config_.hidden_size
                        : down                  ? config_.ffn_size
                                                : heads;
    return Add(rows, columns, type_);
  }
  absl::StatusOr<LinearId> GatedLinear(const std::vector<std::string>&) override {
    return Add(2 * config_.ffn_size, config_.hidden_size, type_);
  }
  absl::StatusOr<LinearId> Head(const std::string&) override {
    return Add(config_.vocab_size, config_.hidden_size, kernels::Type::kBf16);
  }

  CudaWeights weights;

 private:
  static int64_t Padded(int columns) {
    return (columns + kernels::kColumnPadding - 1) / kernels::kColumnPadding *
           kernels::kColumnPadding;
  }
  LinearId Add(int rows, int columns, kernels::Type type) {
    const bool fp8 = type == kernels::Type::kFp8;
    weights.linears.push_back({.weight = {.data = nullptr,
                                          .type = type,
                                          .scaling = fp8 ? kernels::WeightScaling::kChannel
                                                         : kernels::WeightScaling::kNone,
                                          .rows = rows,
                                          .stride = Padded(columns),
                                          .scales = nullptr},
                               .rows = rows,
                               .columns = columns,
                               .input = fp8 ? kernels::Scaling::kToken : kernels::Scaling::kNone});
    return static_cast<LinearId>(weights.linears.size() - 1);
  }

  const ModelConfig config_;
  const kernels::Type type_;
};

ModelConfig Shape(int hidden, int ffn, int heads, int kv_heads, int head_size, int vocab) {
  ModelConfig config;
  config.architecture = "llama";
  config.layers = 3;
  config.hidden_size = hidden;
  config.ffn_size = ffn;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.head_size = head_size;
  config.rope_dimensions = head_size;
  config.rms_epsilon = 1e-5;
  config.vocab_size = vocab;
  config.context_length = 8192;
  return config;
}

// With a plan for each of two windows.
CudaOpsContext ContextOf(const CudaWeights& weights, const StepBuffers& buffers,
                         const ModelConfig& shape) {
  return {
      .weights = &weights,
      .buffers = &buffers,
      .vocab_size = shape.vocab_size,
      .attention_plans = {{.window = 0, .memory = nullptr}, {.window = 100, .memory = nullptr}}};
}

// A decoding step's kernels, and what they must read and write: nearly all of it weights and pages.
TEST(CudaOpsTest, TheBytesOfADecodingStep) {
  const ModelConfig shape = Shape(4096, 14336, 32, 8, 128, 128256);  // Llama-3-8B
  const double layer = 4096.0 * (6144 + 4096 + 2 * 14336 + 14336);
  const double head = 4096.0 * 128256;
  for (const kernels::Type type : {kernels::Type::kBf16, kernels::Type::kFp8}) {
    const bool fp8 = type == kernels::Type::kFp8;
    ShapesPlacer placer(shape, type);
    const auto model = LoadModel(shape, shape.context_length, placer);
    CheckOk(model.status());
    const StepBuffers buffers{.max_logit_rows = 256};
    const CudaOpsContext context = ContextOf(placer.weights, buffers, shape);
    const double weights = shape.layers * layer * (fp8 ? 1 : 2) + 2 * head;
    for (const int rows : {1, 64, 128}) {
      const int64_t positions = 1000 * rows;
      const std::vector<int64_t> kernels = DecodeBytes(**model, context, rows, positions);
      const int appends = rows == 128;  // of fewer rows it is attention's
      EXPECT_EQ(kernels.size(), 7u + shape.layers * (8 + fp8 + appends));
      const double bytes = std::accumulate(kernels.begin(), kernels.end(), 0.0);
      const double pages = positions * 2.0 * 8 * 128 * 2 * shape.layers;
      EXPECT_GT(bytes, weights + pages);
      EXPECT_LT(bytes, weights + pages + rows * 2.2e7) << "activations and logits";
    }
  }
}

// A plan for each window of the layers, and of the pages what the window shows.
TEST(CudaOpsTest, WindowsHavePlansOfTheirOwn) {
  ModelConfig shape = Shape(4096, 14336, 32, 8, 128, 128256);
  const StepBuffers buffers{.max_logit_rows = 256};
  const auto bytes = [&](const std::vector<int>& windows) {
    shape.windows = windows;
    ShapesPlacer placer(shape, kernels::Type::kBf16);
    const auto model = LoadModel(shape, shape.context_length, placer);
    CheckOk(model.status());
    return DecodeBytes(**model, ContextOf(placer.weights, buffers, shape), 8, 8000);
  };
  const auto sum = [](const std::vector<int64_t>& of) {
    return std::accumulate(of.begin(), of.end(), int64_t{0});
  };
  const std::vector<int64_t> none = bytes({}), all = bytes({100, 100, 100}),
                             one = bytes({0, 100, 0});
  EXPECT_EQ(all.size(), none.size());
  EXPECT_EQ(one.size(), none.size() + 1);
  const int64_t hidden = 8 * (1000 - 100) * 2 * 8 * 128 * 2;
  EXPECT_EQ(sum(none) - sum(all), 3 * hidden);
  EXPECT_EQ(sum(none) - sum(one), hidden);
}

// The arena is made for the largest step: no smaller one may take more.
TEST(CudaOpsTest, NoStepTakesMoreActivationsThanTheLargest) {
  const std::vector<ModelConfig> shapes = {Shape(576, 1536, 9, 3, 64, 49152),        // SmolLM2-135M
                                           Shape(2048, 8192, 32, 8, 64, 128256),     // Llama-3.2-1B
                                           Shape(4096, 14336, 32, 8, 128, 128256),   // Llama-3-8B
                                           Shape(4096, 12288, 32, 8, 128, 151936),   // Qwen3-8B
                                           Shape(8192, 28672, 64, 8, 128, 128256)};  // Llama-3-70B
  for (const ModelConfig& shape : shapes) {
    for (const kernels::Type type : {kernels::Type::kBf16, kernels::Type::kFp8}) {
      ShapesPlacer placer(shape, type);
      const auto model = LoadModel(shape, shape.context_length, placer);
      CheckOk(model.status());
      const StepBuffers buffers{.max_logit_rows = 256};
      const CudaOpsContext context = ContextOf(placer.weights, buffers, shape);
      const auto bytes = [&](int rows, int row_tokens) {
        CudaStepInput step;
        step.rows = rows;
        step.tokens = step.wanted = rows * row_tokens;
        step.max_row_tokens = row_tokens;
        return ActivationBytes(**model, context, step);
      };
      for (const int most : {64, 512, 2047, 8192}) {
        const size_t largest = bytes(1, most);
        for (int tokens = std::max(2, most - 300); tokens < most; ++tokens) {
          ASSERT_LE(bytes(1, tokens), largest)
              << shape.hidden_size << " wide, " << tokens << " of " << most << " tokens";
        }
      }
      // Rows that decode: those for which attention appends keep more.
      const int few = 512 / shape.kv_heads;
      for (const auto& [least, most] : {std::pair(2, few), std::pair(few + 1, 300)}) {
        const size_t largest = bytes(most, 1);
        for (int rows = least; rows < most; ++rows) {
          ASSERT_LE(bytes(rows, 1), largest)
              << shape.hidden_size << " wide, " << rows << " of " << most << " rows";
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace::cuda
