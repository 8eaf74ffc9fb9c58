// Models without memory for tests of ops that need no GPU: the shapes of their weights, and a layer
// that asks for one feature after another.
#ifndef MILLRACE_EXECUTORS_CUDA_OP_SHAPES_TEST_UTIL_H_
#define MILLRACE_EXECUTORS_CUDA_OP_SHAPES_TEST_UTIL_H_

#include <string>
#include <vector>

#include "executors/cuda/cuda_ops.h"
#include "executors/executor_driver_test_util.h"
#include "executors/layer_request_test_util.h"
#include "executors/models/parts.h"

namespace millrace::cuda {

// The weights of a model, without memory.
class ShapesPlacer : public DecoderPlacer {
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
  RankSpec rank() const override { return {}; }
  absl::StatusOr<ScaleBlock> BlockOf(const std::string&) const override { return ScaleBlock{}; }
  // Without shares it is a linear of the first layer.
  absl::StatusOr<LinearId> Linear(const std::vector<std::string>& names,
                                  const Shard& shard) override {
    const auto is = [&](const char* part) { return names[0].find(part) != std::string::npos; };
    const SoftmaxAttention attention = config_.layers[0].FindSoftmax() != nullptr
                                           ? config_.layers[0].softmax()
                                           : SoftmaxAttention{};
    const int heads = attention.heads * attention.head_size;
    int rows = names.size() == 3 ? heads + 2 * attention.kv_heads * attention.head_size
                                 : config_.hidden_size;
    int columns = is("ffn_down")      ? config_.layers[0].ffn_size()
                  : is("attn_output") ? heads
                                      : config_.hidden_size;
    if (!shard.rows.empty()) {
      rows = 0;
      for (const Share& share : shard.rows) rows += static_cast<int>(share.size);
    }
    if (shard.columns.has_value()) columns = static_cast<int>(shard.columns->size);
    return Add(rows, columns, type_);
  }
  absl::StatusOr<LinearId> GatedLinear(const std::vector<std::string>&,
                                       const Share& share) override {
    return Add(2 * static_cast<int>(share.size), config_.hidden_size, type_);
  }
  absl::StatusOr<VectorId> Vector(const std::string&, const Share&) override { return VectorId{0}; }
  int convolution_width = 4;
  absl::StatusOr<ConvolutionSpec> Convolution(const std::string&, bool,
                                              absl::Span<const Share>) override {
    return ConvolutionSpec{.width = convolution_width, .weights = VectorId{0}};
  }
  absl::StatusOr<LinearId> Router(const RouterNames&) override {
    const LinearId id = Add(8, config_.hidden_size, kernels::Type::kBf16);
    weights.linears.back().runner = RouterLinear{};
    return id;
  }
  absl::StatusOr<LinearId> GatedExperts(const ExpertNames&, const Share& experts,
                                        const Share& share) override {
    return Grouped(Add(2 * static_cast<int>(share.size), config_.hidden_size, type_), experts);
  }
  absl::StatusOr<LinearId> Experts(const ExpertNames&, const Share& experts,
                                   const Shard& shard) override {
    return Grouped(Add(config_.hidden_size, static_cast<int>(shard.columns->size), type_), experts);
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

  LinearId Grouped(LinearId id, const Share& experts) {
    CudaLinear& linear = weights.linears[static_cast<size_t>(id)];
    linear.runner = ExpertsLinear{.weight = {.data = nullptr,
                                             .type = linear.weight.type,
                                             .scaling = linear.weight.scaling,
                                             .groups = static_cast<int>(experts.count),
                                             .rows = linear.weight.rows,
                                             .stride = linear.weight.stride},
                                  .chosen = 2,
                                  .first_expert = 0,
                                  .all_experts = static_cast<int>(experts.total)};
    return id;
  }

  const ModelConfig config_;
  const kernels::Type type_;
};

inline ModelConfig Shape(int hidden, int ffn, int heads, int kv_heads, int head_size, int vocab) {
  ModelConfig config;
  config.architecture = "llama";
  config.hidden_size = hidden;
  SoftmaxAttention attention;
  attention.heads = heads;
  attention.kv_heads = kv_heads;
  attention.head_size = head_size;
  attention.rope.emplace().dimensions = head_size;
  config.layers.assign(3, {.attention = attention, .feed_forward = GatedFeedForward{.size = ffn}});
  config.norm_epsilon = 1e-5;
  config.vocab_size = vocab;
  config.context_length = 8192;
  return config;
}

// The same with two gated delta rules behind a layer of attention.
inline ModelConfig ShapeWithStates(int hidden, int ffn, const GatedDelta& delta) {
  ModelConfig config = Shape(hidden, ffn, 16, 4, 256, 1000);
  for (const int layer : {1, 2}) config.layers[layer].attention = delta;
  return config;
}

// With a plan for each of two windows.
inline CudaOpsContext ContextOf(const CudaWeights& weights, const StepBuffers& buffers,
                                const ModelConfig& shape) {
  return {
      .weights = &weights,
      .buffers = &buffers,
      .vocab_size = shape.vocab_size,
      .rope = RopeSpecOf(*shape.layers[0].softmax().rope, shape.context_length),
      .attention_plans = {{.window = 0, .memory = nullptr}, {.window = 100, .memory = nullptr}}};
}
// A layer's weights, as a model of hidden size 256 with four heads of 64 has them.
struct Layer {
  explicit Layer(kernels::Type type, const ModelConfig& config = Shape(256, 512, 4, 2, 64, 1000))
      : placer(config, type),
        weights(PlaceLayer(placer, config.layers[0].ffn_size())),
        request{.norm = weights.norm,
                .attention = AttentionSpecOf(config.layers[0].softmax(), config.context_length)},
        context(ContextOf(placer.weights, buffers, config)) {
    context.rope = request.attention.rope;
    step.rows = step.tokens = step.wanted = 3;
  }

  absl::Status Run() {
    CudaOps ops(context);
    RunLayer(ops, weights, request, step);
    return ops.TakeStatus();
  }

  ShapesPlacer placer;
  const StepBuffers buffers{.max_logit_rows = 256};
  const LayerWeights weights;
  LayerRequest request;
  CudaOpsContext context;
  CudaStepInput step;
};
}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_OP_SHAPES_TEST_UTIL_H_
