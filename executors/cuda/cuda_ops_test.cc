// Tests of the ops that need no GPU: the memory that a step's activations take, and the bytes that
// it must move.
#include "executors/cuda/cuda_ops.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "executors/cuda/cuda_model.h"
#include "executors/cuda/op_shapes_test_util.h"
#include "executors/cuda/weights/expansion.h"
#include "executors/models/model.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

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

// Returns the bytes of each kernel of a decoding step of a model with convolutions of this width.
std::vector<int64_t> BytesOfStep(const ModelConfig& shape, int rows, int convolution_width) {
  ShapesPlacer placer(shape, kernels::Type::kBf16);
  placer.convolution_width = convolution_width;
  const auto model = LoadModel(shape, shape.context_length, placer);
  CheckOk(model.status());
  const StepBuffers buffers{.max_logit_rows = 256};
  return DecodeBytes(**model, ContextOf(placer.weights, buffers, shape), rows, 0);
}

double Sum(const std::vector<int64_t>& kernels) {
  return std::accumulate(kernels.begin(), kernels.end(), 0.0);
}

// Qwen3.5-27B's gated delta rules: a decoding row reads each state once.
TEST(CudaOpsTest, TheBytesOfStates) {
  const GatedDelta delta{.key_heads = 16, .value_heads = 48, .key_size = 128, .value_size = 128};
  const ModelConfig with = ShapeWithStates(5120, 17408, delta);
  ModelConfig without = with;
  without.layers.resize(1);
  const double weights = 2 * 2.0 * 5120 * (16384 + 96 + 6144 + 3 * 17408);
  const double state = 2 * 48.0 * 128 * 128 * 4;
  for (const int rows : {1, 64}) {
    const std::vector<int64_t> all = BytesOfStep(with, rows, /*convolution_width=*/4);
    const std::vector<int64_t> one = BytesOfStep(without, rows, /*convolution_width=*/4);
    // A layer launches five linears; inputs, the rule and its norm; two more norms; and the gate.
    EXPECT_EQ(all.size(), one.size() + 2 * (5 + 3 + 2 + 1));
    EXPECT_GT(Sum(all) - Sum(one), weights + rows * state);
    EXPECT_LT(Sum(all) - Sum(one), weights + rows * (state + 2e6)) << "activations";
  }
}

// LFM2-1.2B's short convolutions: a decoding row reads and writes the inputs of two tokens.
TEST(CudaOpsTest, TheBytesOfShortConvolutions) {
  ModelConfig with = ShapeWithStates(2048, 8192, {});
  for (const int layer : {1, 2}) {
    with.layers[layer].attention = ShortConvolution{.channels = 2048, .width = 3};
  }
  ModelConfig without = with;
  without.layers.resize(1);
  const double weights = 2 * 2.0 * 2048 * (3 * 2048 + 2048 + 3 * 8192);
  const double states = 2 * 2.0 * 2 * 2048 * 4;
  for (const int rows : {1, 64}) {
    const std::vector<int64_t> all = BytesOfStep(with, rows, /*convolution_width=*/3);
    const std::vector<int64_t> one = BytesOfStep(without, rows, /*convolution_width=*/3);
    // A layer launches four linears, the convolution, two norms and the gate.
    EXPECT_EQ(all.size(), one.size() + 2 * (4 + 1 + 3));
    EXPECT_GT(Sum(all) - Sum(one), weights + rows * states);
    EXPECT_LT(Sum(all) - Sum(one), weights + rows * (states + 5e5)) << "activations";
  }
}

// A step reads the weights of the experts that it touches: as many as were counted, or are
// expected.
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

// Returns the shape with gates of attention's output, as Qwen3.5-27B's layers of attention have
// them.
ModelConfig Gated(ModelConfig shape) {
  for (LayerConfig& layer : shape.layers) layer.softmax().output_gate = true;
  return shape;
}

StepLimits LimitsOf(int most_rows, int most_tokens, int vocab) {
  return {.max_num_seqs = most_rows,
          .max_num_batched_tokens = most_tokens,
          .max_model_len = 512,
          .num_blocks = {},
          .state = StateLayout::OnePool(16),
          .vocab_size = vocab};
}

// Expects that of all steps that the limits allow, of one row and of rows that decode, the one that
// takes most takes what the dry run says.
void ExpectLargestOfAllSteps(const ModelConfig& shape, const Model& model,
                             const CudaWeights& weights, const StepLimits& limits) {
  const absl::StatusOr<size_t> largest = DryRun(model, shape, limits, weights);
  CheckOk(largest.status());
  const StepBuffers buffers{.max_logit_rows = StepBuffers::MaxLogitRows(limits)};
  const CudaOpsContext context = ContextOf(weights, buffers, shape);
  size_t most = 0;
  const auto measure = [&](int rows, int tokens, int wanted) {
    CudaStepInput step;
    step.rows = rows;
    step.tokens = tokens;
    step.wanted = wanted;
    step.max_row_tokens = tokens / rows;
    const absl::StatusOr<size_t> bytes = ActivationBytes(model, context, step);
    CheckOk(bytes.status());
    ASSERT_LE(*bytes, *largest) << rows << " rows, " << tokens << " tokens";
    most = std::max(most, *bytes);
  };
  for (int tokens = 1; tokens <= limits.max_num_batched_tokens; ++tokens) {
    measure(1, tokens, tokens);
    measure(1, tokens, 1);
  }
  for (int rows = 2; rows <= limits.max_num_seqs; ++rows) measure(rows, rows, rows);
  EXPECT_EQ(most, *largest);
}

TEST(CudaOpsTest, NoStepTakesMoreThanTheDryRun) {
  const std::vector<ModelConfig> shapes = {Shape(576, 1536, 9, 3, 64, 49152),       // SmolLM2-135M
                                           Shape(4096, 14336, 32, 8, 128, 128256),  // Llama-3-8B
                                           Shape(8192, 28672, 64, 8, 128, 128256),  // Llama-3-70B
                                           Gated(Shape(5120, 17408, 24, 4, 256, 248320))};
  for (const ModelConfig& shape : shapes) {
    for (const kernels::Type type : {kernels::Type::kBf16, kernels::Type::kFp8}) {
      ShapesPlacer placer(shape, type);
      const auto model = LoadModel(shape, shape.context_length, placer);
      CheckOk(model.status());
      for (const int most : {64, 512, 2047}) {
        SCOPED_TRACE(StrCat(shape.hidden_size, " wide, up to ", most, " tokens"));
        ExpectLargestOfAllSteps(shape, **model, placer.weights,
                                LimitsOf(std::min(most, 300), most, shape.vocab_size));
      }
    }
  }
}

// Experts with scales of blocks keep BF16 for small tiles and FP8 for large ones, so a step may
// take more than one of more tokens. The steps that are measured know where tiles grow.
TEST(CudaOpsTest, NoStepOfAMixtureTakesMoreThanTheDryRun) {
  for (const auto& [experts, chosen] : {std::pair(128, 8), {256, 8}, {160, 8}, {60, 4}, {8, 2}}) {
    ModelConfig shape = Shape(2048, 768, 16, 4, 128, 1000);
    for (LayerConfig& layer : shape.layers) {
      layer.feed_forward =
          ExpertsFeedForward{.size = 768, .router = {.experts = experts, .chosen = chosen}};
    }
    ShapesPlacer placer(shape, kernels::Type::kFp8);
    const auto model = LoadModel(shape, shape.context_length, placer);
    CheckOk(model.status());
    for (CudaLinear& linear : placer.weights.linears) {
      auto* const of_experts = std::get_if<ExpertsLinear>(&linear.runner);
      if (of_experts == nullptr) continue;
      linear.input = kernels::Scaling::kTokenGroup;
      of_experts->chosen = chosen;
      of_experts->weight.scaling = kernels::WeightScaling::kBlock;
    }
    for (const int most : {40, 64, 100, 128, 300}) {
      SCOPED_TRACE(StrCat(experts, " experts, up to ", most, " tokens"));
      ExpectLargestOfAllSteps(shape, **model, placer.weights, LimitsOf(8, most, 1000));
    }
  }
}

// Rows of more than one token take the factors of a gated delta rule's blocks, too.
TEST(CudaOpsTest, NoStepOfStatesTakesMoreThanTheDryRun) {
  for (const auto& [key_heads, value_heads] : {std::pair(16, 16), {16, 48}, {2, 4}}) {
    const ModelConfig shape = ShapeWithStates(
        2048, 768,
        {.key_heads = key_heads, .value_heads = value_heads, .key_size = 128, .value_size = 128});
    for (const kernels::Type type : {kernels::Type::kBf16, kernels::Type::kFp8}) {
      ShapesPlacer placer(shape, type);
      const auto model = LoadModel(shape, shape.context_length, placer);
      CheckOk(model.status());
      for (const int most : {64, 300, 1500}) {
        SCOPED_TRACE(StrCat(value_heads, " value heads, up to ", most, " tokens"));
        ExpectLargestOfAllSteps(shape, **model, placer.weights,
                                LimitsOf(std::min(most, 300), most, 1000));
      }
    }
  }
}

// Four-bit weights are expanded from some number of tokens on, which leaves the gate's product to
// another kernel.
TEST(CudaOpsTest, NoStepOfFourBitWeightsTakesMoreThanTheDryRun) {
  const ModelConfig shape = Shape(4096, 14336, 32, 8, 128, 1000);
  ShapesPlacer placer(shape, kernels::Type::kBf16);
  const auto model = LoadModel(shape, shape.context_length, placer);
  CheckOk(model.status());
  for (CudaLinear& linear : placer.weights.linears) {
    if (linear.rows == shape.vocab_size) continue;  // the head
    linear.runner = FourBitLinear{
        .weight = {.data = nullptr,
                   .type = kernels::Type::kBf16,
                   .groups = 1,
                   .rows = linear.weight.rows,
                   .stride = linear.weight.stride,
                   .four_bit =
                       kernels::FourBitFormat{.type = kernels::FourBitType::kInt4, .group = 128}},
        .expansion = DescribeExpansion(linear.weight.rows, linear.weight.stride)};
    if (linear.rows == 2 * shape.layers[0].ffn_size()) {
      linear.gate = kernels::GateLayout::kInterleaved;
    }
  }
  for (const int most : {64, 600, 1000}) {
    SCOPED_TRACE(StrCat("up to ", most, " tokens"));
    ExpectLargestOfAllSteps(shape, **model, placer.weights, LimitsOf(64, most, 1000));
  }
}

// A step that finds no memory in the arena launches nothing and fails alone.
TEST(CudaOpsTest, AStepWithoutMemoryLaunchesNothing) {
  Layer layer(kernels::Type::kBf16);
  CudaOps ops(layer.context, nullptr, /*bytes=*/0, nullptr);
  ops.BeginStep(layer.step);
  const Residual residual = ops.Embed(layer.weights.embedding, 1);
  (void)ops.Norm(layer.weights.norm, residual, {layer.weights.output});
  EXPECT_EQ(ops.TakeStatus().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(ops.exceeded());
  // CUDA has no memory for a kernel: the step does not fail alone.
  ops.BeginStep(layer.step);
  ops.Fail(absl::ResourceExhaustedError("CUDA error: out of memory"));
  (void)ops.Embed(layer.weights.embedding, 1);
  EXPECT_EQ(ops.TakeStatus().message(), "CUDA error: out of memory");
  EXPECT_FALSE(ops.exceeded());
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

// Gates are applied where attention's output is quantized; where it is not, by one launch more.
// Either way a step reads them once.
TEST(CudaOpsTest, GatesAreAppliedWhereTheOutputIsQuantized) {
  const ModelConfig plain = Shape(256, 512, 4, 2, 64, 1000);
  for (const kernels::Type type : {kernels::Type::kBf16, kernels::Type::kFp8}) {
    for (const int rows : {3, 300}) {  // of which attention appends the keys, and does not
      const auto kernels = [&](const ModelConfig& shape) {
        ShapesPlacer placer(shape, type);
        const auto model = LoadModel(shape, shape.context_length, placer);
        CheckOk(model.status());
        const StepBuffers buffers{.max_logit_rows = 256};
        return DecodeBytes(**model, ContextOf(placer.weights, buffers, shape), rows, 1000);
      };
      const std::vector<int64_t> gated = kernels(Gated(plain)), other = kernels(plain);
      const bool fp8 = type == kernels::Type::kFp8;
      EXPECT_EQ(gated.size(), other.size() + (fp8 ? 0 : plain.num_layers())) << rows;
      const int64_t gates = rows * 4 * 64 * 2;  // written by the linear, and read
      const int64_t output = fp8 ? 0 : rows * 4 * 64 * 4;
      const int64_t weights = 4 * 64 * 256 * (fp8 ? 1 : 2);
      const auto sum = [](const std::vector<int64_t>& of) {
        return std::accumulate(of.begin(), of.end(), int64_t{0});
      };
      EXPECT_GE(sum(gated) - sum(other), plain.num_layers() * (2 * gates + output + weights));
    }
  }
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
