// Tests of the ops that need no GPU: the memory that a step's activations take, and the bytes that
// it must move.
#include "executors/cuda/cuda_ops.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "executors/cuda/cuda_model.h"
#include "executors/executor_driver_test_util.h"
#include "executors/layer_request_test_util.h"
#include "executors/models/model.h"
#include "executors/models/parts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

using ::testing::HasSubstr;

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
  absl::StatusOr<LinearId> Linear(const std::vector<std::string>& names, const Shard&) override {
    const auto is = [&](const char* part) { return names[0].find(part) != std::string::npos; };
    const SoftmaxAttention& attention = config_.layers[0].softmax();
    const int heads = attention.heads * attention.head_size;
    const int rows = names.size() == 3 ? heads + 2 * attention.kv_heads * attention.head_size
                                       : config_.hidden_size;
    const int columns = is("ffn_down")      ? config_.layers[0].ffn_size()
                        : is("attn_output") ? heads
                                            : config_.hidden_size;
    return Add(rows, columns, type_);
  }
  absl::StatusOr<LinearId> GatedLinear(const std::vector<std::string>&,
                                       const Share& share) override {
    return Add(2 * static_cast<int>(share.size), config_.hidden_size, type_);
  }
  absl::StatusOr<VectorId> Vector(const std::string&, const Share&) override { return VectorId{0}; }
  absl::StatusOr<LinearId> Router(const RouterNames&) override {
    return Add(8, config_.hidden_size, kernels::Type::kBf16);
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
    linear.chosen = 2;
    linear.grouped = {.data = nullptr,
                      .type = linear.weight.type,
                      .scaling = linear.weight.scaling,
                      .groups = static_cast<int>(experts.count),
                      .rows = linear.weight.rows,
                      .stride = linear.weight.stride};
    return id;
  }

  const ModelConfig config_;
  const kernels::Type type_;
};

ModelConfig Shape(int hidden, int ffn, int heads, int kv_heads, int head_size, int vocab) {
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

// With a plan for each of two windows.
CudaOpsContext ContextOf(const CudaWeights& weights, const StepBuffers& buffers,
                         const ModelConfig& shape) {
  return {
      .weights = &weights,
      .buffers = &buffers,
      .vocab_size = shape.vocab_size,
      .rope = RopeSpecOf(*shape.layers[0].softmax().rope, shape.context_length),
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
    const double weights = shape.num_layers() * layer * (fp8 ? 1 : 2) + 2 * head;
    for (const int rows : {1, 64, 128}) {
      const int64_t positions = 1000 * rows;
      const std::vector<int64_t> kernels = DecodeBytes(**model, context, rows, positions);
      const int appends = rows == 128;  // of fewer rows it is attention's
      EXPECT_EQ(kernels.size(), 7u + shape.num_layers() * (8 + fp8 + appends));
      const double bytes = std::accumulate(kernels.begin(), kernels.end(), 0.0);
      const double pages = positions * 2.0 * 8 * 128 * 2 * shape.num_layers();
      EXPECT_GT(bytes, weights + pages);
      EXPECT_LT(bytes, weights + pages + rows * 2.2e7) << "activations and logits";
    }
  }
}

// Of experts, the weights of those that are touched: as many as were counted, or are expected.
TEST(CudaOpsTest, TheBytesOfTouchedExperts) {
  ModelConfig shape = Shape(256, 512, 4, 2, 64, 1000);
  for (size_t i = 1; i < shape.layers.size(); ++i) {  // the first is dense
    shape.layers[i].feed_forward =
        ExpertsFeedForward{.size = 512, .router = {.experts = 8, .chosen = 2}};
  }
  ShapesPlacer placer(shape, kernels::Type::kBf16);
  const auto model = LoadModel(shape, shape.context_length, placer);
  CheckOk(model.status());
  const StepBuffers buffers{.max_logit_rows = 256};
  const CudaOpsContext context = ContextOf(placer.weights, buffers, shape);
  const int64_t expert = 3 * 256 * 512 * 2;
  const std::vector<MixtureUse> mixtures = DescribeMixtures(**model, context);
  ASSERT_EQ(mixtures.size(), 2u);
  for (const MixtureUse& mixture : mixtures) {
    EXPECT_EQ(mixture.experts, 8);
    EXPECT_EQ(mixture.expert_bytes, expert);
    EXPECT_EQ(mixture.touched, 0);
  }
  const auto bytes = [&](const std::vector<double>& touched) {
    const std::vector<int64_t> kernels = DecodeBytes(**model, context, 1, 100, touched);
    return std::accumulate(kernels.begin(), kernels.end(), int64_t{0});
  };
  EXPECT_EQ(bytes({}), bytes({2, 2}));  // a token's
  EXPECT_EQ(bytes({8, 2}) - bytes({2, 2}), 6 * expert);
  EXPECT_EQ(bytes({2, 2.5}) - bytes({2, 2}), expert / 2);
}

// A plan for each window of the layers, and of the pages what the window shows.
TEST(CudaOpsTest, WindowsHavePlansOfTheirOwn) {
  ModelConfig shape = Shape(4096, 14336, 32, 8, 128, 128256);
  const StepBuffers buffers{.max_logit_rows = 256};
  const auto bytes = [&](const std::vector<int>& windows) {
    for (size_t i = 0; i < windows.size(); ++i) shape.layers[i].softmax().window = windows[i];
    ShapesPlacer placer(shape, kernels::Type::kBf16);
    const auto model = LoadModel(shape, shape.context_length, placer);
    CheckOk(model.status());
    return DecodeBytes(**model, ContextOf(placer.weights, buffers, shape), 8, 8000);
  };
  const auto sum = [](const std::vector<int64_t>& of) {
    return std::accumulate(of.begin(), of.end(), int64_t{0});
  };
  const std::vector<int64_t> none = bytes({0, 0, 0}), all = bytes({100, 100, 100}),
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
        const absl::StatusOr<size_t> taken = ActivationBytes(**model, context, step);
        CheckOk(taken.status());
        return *taken;
      };
      for (const int most : {64, 512, 2047, 8192}) {
        const size_t largest = bytes(1, most);
        for (int tokens = std::max(2, most - 300); tokens < most; ++tokens) {
          ASSERT_LE(bytes(1, tokens), largest)
              << shape.hidden_size << " wide, " << tokens << " of " << most << " tokens";
        }
      }
      // Rows that decode: those for which attention appends keep more.
      const int few = 512 / shape.layers[0].softmax().kv_heads;
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

// Experts with scales of blocks keep BF16 for small tiles and FP8 for large ones, so a step may take
// more than one of more tokens. The largest steps know where tiles grow.
TEST(CudaOpsTest, NoStepOfAMixtureTakesMoreThanTheDryRun) {
  for (const auto& [experts, chosen] : {std::pair(128, 8), {160, 8}, {60, 4}, {8, 2}}) {
    ModelConfig shape = Shape(2048, 768, 16, 4, 128, 1000);
    for (LayerConfig& layer : shape.layers) {
      layer.feed_forward =
          ExpertsFeedForward{.size = 768, .router = {.experts = experts, .chosen = chosen}};
    }
    ShapesPlacer placer(shape, kernels::Type::kFp8);
    const auto model = LoadModel(shape, shape.context_length, placer);
    CheckOk(model.status());
    for (CudaLinear& linear : placer.weights.linears) {
      if (!linear.grouped.has_value()) continue;
      linear.input = kernels::Scaling::kTokenGroup;
      linear.grouped->scaling = kernels::WeightScaling::kBlock;
    }
    for (const int most : {40, 64, 100, 128, 300}) {
      const StepLimits limits{.max_num_seqs = 8,
                              .max_num_batched_tokens = most,
                              .max_model_len = 512,
                              .num_blocks = 0,
                              .block_size = 16,
                              .vocab_size = 1000};
      const absl::StatusOr<size_t> largest = DryRun(**model, shape, limits, placer.weights);
      CheckOk(largest.status());
      const StepBuffers buffers{.max_logit_rows = StepBuffers::MaxLogitRows(limits)};
      const CudaOpsContext context = ContextOf(placer.weights, buffers, shape);
      for (int tokens = 1; tokens <= most; ++tokens) {
        CudaStepInput step;
        step.rows = 1;
        step.tokens = step.wanted = step.max_row_tokens = tokens;
        const absl::StatusOr<size_t> bytes = ActivationBytes(**model, context, step);
        CheckOk(bytes.status());
        ASSERT_LE(*bytes, *largest)
            << experts << " experts, " << tokens << " of " << most << " tokens";
      }
    }
  }
}

// A layer's weights, as a model of hidden size 256 with four heads of 64 has them.
struct Layer {
  explicit Layer(kernels::Type type, const ModelConfig& config = Shape(256, 512, 4, 2, 64, 1000))
      : placer(config, type),
        weights(PlaceLayer(placer, config.layers[0].ffn_size())),
        request{.norm = weights.norm,
                .attention = AttentionSpecs(config, config.context_length)[0]},
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

// Every feature that the GPU lacks is refused by name.
TEST(CudaOpsTest, RefusesWhatItLacks) {
  const std::set<std::string> has = {"embedding factor is 2",
                                     "norm before a block is absent",
                                     "norm of what a block adds is an RMS norm",
                                     "residual factor is 0.5",
                                     "norm of q and k is across heads",
                                     "logit factor is 0.25",
                                     "logit soft cap is 20"};
  EXPECT_TRUE(Layer(kernels::Type::kBf16).Run().ok());
  for (const LayerFeature& feature : LayerFeatures(Layer(kernels::Type::kBf16).weights.norm)) {
    Layer layer(kernels::Type::kBf16);
    feature.ask(layer.request);
    const absl::Status status = layer.Run();
    if (has.contains(feature.refusal)) {
      EXPECT_TRUE(status.ok()) << status;
      continue;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << feature.refusal;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(StrCat("the model's ", feature.refusal, "; allowed on the GPU: ")));
  }
  // The first refusal counts.
  Layer layer(kernels::Type::kBf16);
  layer.request.gate = GateFunction::kGeluTanh;
  layer.request.attention.soft_cap = 3;
  EXPECT_THAT(std::string(layer.Run().message()), HasSubstr("attention soft cap is 3"));
}

TEST(CudaOpsTest, RefusesMixturesThatItsKernelsDoNotTake) {
  const auto message = [](const RouterConfig& router, int tokens = 3, int hidden = 256) {
    ModelConfig shape = Shape(hidden, 512, 4, 2, 64, 1000);
    for (LayerConfig& layer : shape.layers) {
      layer.feed_forward = ExpertsFeedForward{.size = 512, .router = router};
    }
    ShapesPlacer placer(shape, kernels::Type::kBf16);
    const auto model = LoadModel(shape, shape.context_length, placer);
    CheckOk(model.status());
    CudaStepInput step;
    step.rows = 1;
    step.tokens = step.max_row_tokens = step.wanted = tokens;
    const StepBuffers buffers{.max_logit_rows = 256};
    return std::string(ActivationBytes(**model, ContextOf(placer.weights, buffers, shape), step)
                           .status()
                           .message());
  };
  EXPECT_EQ(message({.experts = 8, .chosen = 2}), "");
  EXPECT_THAT(message({.experts = kernels::kMaxExperts + 1, .chosen = 2}),
              HasSubstr(StrCat("number of experts is ", kernels::kMaxExperts + 1,
                               "; allowed on the GPU: up to ", kernels::kMaxExperts)));
  EXPECT_THAT(message({.experts = 256, .chosen = kernels::kMaxChosen + 1}),
              HasSubstr(StrCat("number of experts of a token is ", kernels::kMaxChosen + 1)));
  EXPECT_THAT(message({.experts = 256, .chosen = 2, .groups = kernels::kMaxExpertGroups + 1}),
              HasSubstr(StrCat("number of groups of experts is ", kernels::kMaxExpertGroups + 1)));
  EXPECT_THAT(message({.experts = 8, .chosen = 8}, kernels::kMaxPairs / 8 + 1),
              HasSubstr("number of experts of a step's tokens is"));
}

TEST(CudaOpsTest, RefusesWidthsThatItsKernelsDoNotTake) {
  const auto message = [](const ModelConfig& config) {
    return std::string(Layer(kernels::Type::kBf16, config).Run().message());
  };
  EXPECT_EQ(message(Shape(256, 512, 4, 2, 64, 1000)), "");
  EXPECT_THAT(message(Shape(252, 512, 4, 2, 64, 1000)),
              HasSubstr("hidden size is 252; allowed on the GPU: multiples of 8 up to 16384"));
  EXPECT_THAT(message(Shape(16392, 512, 4, 2, 64, 1000)), HasSubstr("hidden size is 16392"));
  EXPECT_THAT(
      message(Shape(256, 500, 4, 2, 64, 1000)),
      HasSubstr("feed-forward size is 500; allowed on the GPU: multiples of 8 up to 32768"));
  EXPECT_THAT(message(Shape(256, 32776, 4, 2, 64, 1000)), HasSubstr("size is 32776"));
  EXPECT_THAT(message(Shape(256, 512, 4, 2, 64, 300000)),
              HasSubstr("vocabulary size is 300000; allowed on the GPU: up to 262144"));
}

TEST(CudaOpsTest, RefusesEncoders) {
  ModelConfig config = Shape(256, 512, 4, 4, 64, 1000);
  config.architecture = "bert";
  config.encoder.emplace();
  ShapesPlacer placer(config, kernels::Type::kBf16);
  const absl::Status status = LoadModel(config, config.context_length, placer).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("bert, is an encoder; allowed"));
}

// Addends that the norm's kernel cannot add are added by a launch of their own.
TEST(CudaOpsTest, TheNormAddsFactorsAndBiasesButNotNorms) {
  for (const bool has_bias : {false, true}) {
    Layer layer(kernels::Type::kBf16);
    const LayerWeights& ids = layer.weights;
    const float bias = 0;
    if (has_bias) {
      layer.placer.weights.linears[static_cast<size_t>(ids.output)].bias = &bias;
    }
    CudaOps ops(layer.context);
    ops.BeginStep(layer.step);
    Residual residual = ops.Embed(ids.embedding, 1);
    const auto launches = [&](const Addend& addend, std::optional<NormId> norm) {
      LinearInput x = ops.Norm(ids.norm, residual, {ids.output});
      (void)ops.TakeBytes();
      (void)ops.RowLinear(ids.output, std::move(x), addend, residual, norm, {ids.gate_up});
      return ops.TakeBytes().size();
    };
    EXPECT_EQ(launches({}, ids.norm), 2);
    EXPECT_EQ(launches({.norm = std::nullopt, .factor = 0.5f}, ids.norm), 2);
    EXPECT_EQ(launches({.norm = ids.norm}, ids.norm), 3);
    EXPECT_EQ(launches({.norm = ids.norm}, std::nullopt), 3);
    EXPECT_EQ(launches({}, std::nullopt), 3);
    EXPECT_TRUE(ops.TakeStatus().ok());
  }
}

// Attention appends the keys of few rows, but not where norms are across heads.
TEST(CudaOpsTest, NormsAcrossHeadsAppendByThemselves) {
  const auto launches = [](bool across_heads) {
    Layer layer(kernels::Type::kBf16);
    layer.request.head_norms = {
        .q = layer.weights.norm, .k = layer.weights.norm, .across_heads = across_heads};
    CudaOps ops(layer.context);
    RunLayer(ops, layer.weights, layer.request, layer.step);
    EXPECT_TRUE(ops.TakeStatus().ok());
    return ops.TakeBytes().size();
  };
  EXPECT_EQ(launches(true), launches(false) + 1);
}

// An output is made once for each form that its consumers want, and no launch is added where they
// want one.
TEST(CudaOpsTest, ConsumersShareTheFormsOfAnOutput) {
  Layer layer(kernels::Type::kFp8);  // but for the head, which reads BF16
  const LayerWeights& ids = layer.weights;
  CudaOps ops(layer.context);
  const auto launches = [&](const auto& op) {
    (void)ops.TakeBytes();
    const LinearInput input = op();
    return ops.TakeBytes().size();
  };
  ops.BeginStep(layer.step);
  Residual residual = ops.Embed(ids.embedding, 1);
  const auto norm = [&](Consumers consumers) { return ops.Norm(ids.norm, residual, consumers); };
  EXPECT_EQ(launches([&] { return norm({ids.qkv}); }), 1);
  EXPECT_EQ(launches([&] { return norm({ids.qkv, ids.gate_up, ids.qkv}); }), 1);
  EXPECT_EQ(launches([&] { return norm({ids.qkv, ids.head}); }), 2);
  const auto row_linear = [&](Consumers consumers) {
    return ops.RowLinear(ids.output, norm({ids.output}), {}, residual, ids.norm, consumers);
  };
  EXPECT_EQ(launches([&] { return row_linear({ids.gate_up}); }), 3);  // with the norm before
  EXPECT_EQ(launches([&] { return row_linear({ids.gate_up, ids.head}); }), 4);
  EXPECT_EQ(launches([&] { return ops.Norm(std::nullopt, residual, {ids.qkv, ids.head}); }), 2);
  EXPECT_TRUE(ops.TakeStatus().ok());
  // The head reads BF16, which nobody made.
  (void)ops.Head(ids.head, {}, norm({ids.qkv}));
  EXPECT_EQ(ops.TakeStatus().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace millrace::cuda
