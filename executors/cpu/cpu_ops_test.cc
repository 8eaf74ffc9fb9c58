// The ops themselves: inputs in several forms, what they refuse, and what a dry run measures.
#include "executors/cpu/cpu_ops.h"

#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/fault_points.h"
#include "executors/cpu/cpu_model.h"
#include "executors/layer_request_test_util.h"
#include "executors/tiny_model_test_util.h"
#include "formats/open_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::cpu {
namespace {

using ::testing::HasSubstr;

constexpr int kHidden = 128;
constexpr int kTokens = 7;
constexpr int kBlockSize = 16;

CpuSpec Device() {
  return {{.threads = 2,
           .kv_cache_memory = 1 << 20,
           .block_size = kBlockSize,
           .max_num_seqs = 4,
           .max_num_batched_tokens = 40}};
}

// A step of one row of `tokens` tokens, the last `wanted` of which have their logits scored.
struct Step {
  explicit Step(int tokens, int wanted = 1) {
    input.rows = {{.first_token = 0, .num_tokens = tokens, .block_tables = tables}};
    input.tokens = Prompt(tokens);
    input.positions.resize(tokens);
    std::iota(input.positions.begin(), input.positions.end(), 0);
    input.row_of.assign(tokens, 0);
    for (int i = tokens - wanted; i < tokens; ++i) {
      input.wanted.push_back(i);
      input.samples.push_back({.params = &greedy, .position = i + 1, .target = std::nullopt});
    }
  }

  const SamplingParams greedy{.temperature = 0};
  const std::vector<std::vector<BlockId>> tables = {{0, 1, 2}};
  CpuStepInput input;
};

// A layer whose linears read floats, and whose head reads quantized blocks: every op's output has
// the head's width, so that both may consume it.
class Layer {
 public:
  Layer(const std::string& path, int heads) : pool_(2), opened_(OpenModel(path)) {
    CheckOk(opened_.status());
    CpuWeightPlacer placer(*opened_->tensors, BestKernels(), /*weight_bits=*/0);
    ids = PlaceLayer(placer, kHidden);
    auto weights = placer.Finish(pool_);
    CheckOk(weights.status());
    weights_ = *std::move(weights);
    spec.num_heads = spec.num_kv_heads = heads;
    spec.head_size = kHidden / heads;
    spec.scale = 0.2f;
    spec.rope.dimensions = spec.head_size;
    ModelConfig config;
    config.layers.resize(1);
    config.layers[0].attention =
        SoftmaxAttention{.heads = heads, .kv_heads = heads, .head_size = spec.head_size};
    auto kv = KvArena::Make(
        config, StateOf(config, std::vector<int32_t>{heads}, CpuPages(kBlockSize, false, 64)), {4},
        /*num_slots=*/0, /*float32=*/false);
    CheckOk(kv.status());
    kv_ = *std::move(kv);
    constexpr size_t kTokenBytes = 64 << 10;
    ops = std::make_unique<CpuOps>(BestKernels(), pool_, weights_, kv_,
                                   OpsMemory{.activations = Reserve(kTokens * kTokenBytes),
                                             .logits = Reserve(CpuOps::LogitBytes(1024))},
                                   /*max_length=*/64);
  }

  LayerWeights ids;
  AttentionSpec spec;
  std::unique_ptr<CpuOps> ops;

 private:
  static Memory Reserve(size_t bytes) {
    auto memory = Memory::Reserve(bytes, "a test");
    CheckOk(memory.status());
    return *std::move(memory);
  }

  ThreadPool pool_;
  absl::StatusOr<OpenedModel> opened_;
  CpuWeights weights_;
  KvArena kv_;
};

class CpuOpsTest : public TinyModelTest {
 protected:
  std::string Mixed(int heads) const {
    return Gguf({.hidden = kHidden,
                 .ffn = kHidden,
                 .heads = heads,
                 .kv_heads = heads,
                 .linear_type = TensorType::kF32,
                 .embedding_type = TensorType::kQ8_0});
  }
};

void ExpectSame(const CpuActivation& a, const CpuActivation& b) {
  ASSERT_EQ(a.form(), b.form());
  ASSERT_EQ(a.rows(), kTokens);
  ASSERT_EQ(b.rows(), kTokens);
  EXPECT_EQ(std::memcmp(a.Row(0), b.Row(0), kTokens * a.row_bytes()), 0);
}

// Each of two consumers reads from a shared output what it would read from one of its own.
TEST_F(CpuOpsTest, ConsumersOfDifferentFormsShareAnOutput) {
  for (const int heads : {4, 8}) {  // heads of whole quantized blocks, and of halves
    SCOPED_TRACE(heads);
    Layer layer(Mixed(heads), heads);
    CpuOps& ops = *layer.ops;
    const LayerWeights& ids = layer.ids;
    const Step step(kTokens);
    const auto embed = [&] {
      ops.BeginStep(step.input);
      return ops.Embed(ids.embedding, 1);
    };
    const auto norm = [&](const Residual& residual, Consumers consumers) {
      return ops.Norm(ids.norm, residual, consumers);
    };
    const std::vector<std::pair<const char*, std::function<LinearInput(Consumers)>>> outputs = {
        {"Norm", [&](Consumers consumers) { return norm(embed(), consumers); }},
        {"NormInput",
         [&](Consumers consumers) { return ops.NormInput(std::nullopt, embed(), consumers); }},
        {"RowLinear",
         [&](Consumers consumers) {
           Residual residual = embed();
           return ops.RowLinear(ids.output, norm(residual, {ids.output}), {}, residual, ids.norm,
                                consumers);
         }},
        {"GatedLinear",
         [&](Consumers consumers) {
           return ops.GatedLinear(ids.gate_up, norm(embed(), {ids.gate_up}), GateFunction::kSilu,
                                  consumers);
         }},
        {"GeluLinear",
         [&](Consumers consumers) {
           return ops.GeluLinear(ids.output, norm(embed(), {ids.output}), consumers);
         }},
        {"Attention", [&](Consumers consumers) {
           Qkv qkv = ops.QkvLinear(ids.qkv, norm(embed(), {ids.qkv}));
           const Query q = ops.RopeAppend(0, layer.spec, std::nullopt, std::move(qkv));
           return ops.Attention(0, layer.spec, q, consumers);
         }}};
    for (const auto& [name, output] : outputs) {
      SCOPED_TRACE(name);
      const LinearInput both = output({ids.qkv, ids.head});
      const LinearInput floats = output({ids.qkv});
      const LinearInput blocks = output({ids.head});
      ASSERT_EQ(ops.FormFor(ids.qkv, both).form(), Form::kFloat);
      ASSERT_EQ(ops.FormFor(ids.head, both).form(), Form::kQ8);
      ExpectSame(ops.FormFor(ids.qkv, both), ops.FormFor(ids.qkv, floats));
      ExpectSame(ops.FormFor(ids.head, both), ops.FormFor(ids.head, blocks));
      // Consumers that want one form share it.
      const LinearInput shared = output({ids.qkv, ids.down, ids.qkv});
      EXPECT_EQ(static_cast<const CpuLinearInput&>(*shared).forms.size(), 1);
      CheckOk(ops.TakeStatus());
    }
  }
}

TEST_F(CpuOpsTest, ALinearThatAnInputWasNotMadeForIsRefused) {
  Layer layer(Mixed(4), 4);
  CpuOps& ops = *layer.ops;
  const Step step(kTokens);
  ops.BeginStep(step.input);
  const LinearInput x =
      ops.Norm(layer.ids.norm, ops.Embed(layer.ids.embedding, 1), {layer.ids.qkv});
  ops.Sample(ops.Head(layer.ids.head, {}, x));
  const absl::Status status = ops.TakeStatus();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("reads an input that was not made for it"));
  CheckOk(ops.TakeStatus());  // It was taken.
}

// No feature that some device lacks is refused.
TEST_F(CpuOpsTest, HasEveryFeature) {
  const absl::StatusOr<OpenedModel> opened = OpenModel(Mixed(4));
  CheckOk(opened.status());
  ThreadPool pool(1);
  CpuWeightPlacer placer(*opened->tensors, BestKernels(), /*weight_bits=*/0);
  const LayerWeights weights = PlaceLayer(placer, kHidden);
  const KvArena kv;
  const LayerRequest plain{
      .norm = weights.norm,
      .attention = {
          .num_heads = 4, .num_kv_heads = 4, .head_size = 32, .rope = {.dimensions = 32}}};
  for (const LayerFeature& feature : LayerFeatures(weights.norm)) {
    SCOPED_TRACE(feature.refusal);
    LayerRequest request = plain;
    feature.ask(request);
    CpuOps ops(BestKernels(), pool, placer.shapes(), kv);
    RunLayer(ops, weights, request, CpuStepInput());
    CheckOk(ops.TakeStatus());
  }
}

// A dry run measures what steps take, whatever their size.
TEST_F(CpuOpsTest, ADryRunMeasuresWhatStepsTake) {
  for (const TensorType type : {TensorType::kF32, TensorType::kQ8_0}) {
    const auto model = LoadCpuModel({Gguf({.hidden = kHidden,
                                           .ffn = 320,
                                           .heads = 8,
                                           .kv_heads = 2,
                                           .linear_type = type,
                                           .embedding_type = TensorType::kQ8_0})},
                                    Device(), BestKernels());
    CheckOk(model.status());
    CpuOps dry(BestKernels(), *(*model)->pool, (*model)->weights, (*model)->kv);
    Forward((*model)->model, dry, CpuStepInput());
    ASSERT_GT(dry.token_bytes(), 0);
    for (const int tokens : {1, 2, 13, 39, 40}) {
      for (const int wanted : {1, tokens}) {
        const Step step(tokens, wanted);
        CheckOk((*model)->Run(step.input));
        EXPECT_EQ((*model)->ops->token_bytes(), dry.token_bytes()) << tokens << ", " << wanted;
      }
    }
  }
}

// A buffer that the arena has no range for lies elsewhere: the step's numbers are the same, and
// only whoever asks learns that it took too much.
TEST_F(CpuOpsTest, AStepThatTakesTooMuchRunsToItsEnd) {
  const auto model =
      LoadCpuModel({Gguf({.hidden = kHidden, .heads = 8, .kv_heads = 2})}, Device(), BestKernels());
  CheckOk(model.status());
  const Step step(13);
  const auto run = [&] {
    CheckOk((*model)->Run(step.input));
    return (*model)->ops->sampled()[0].token;
  };
  const Token whole = run();
  EXPECT_TRUE((*model)->CheckMemory().ok());
  CheckOk(ArmFaultPoints("cpu.small_arena"));
  EXPECT_EQ(run(), whole);
  const absl::Status exceeded = (*model)->CheckMemory();
  EXPECT_EQ(exceeded.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ((*model)->ops->token_bytes() * Device().max_num_batched_tokens,
            (*model)->ops->memory().activations.bytes());
  EXPECT_EQ(run(), whole);
  EXPECT_TRUE((*model)->CheckMemory().ok());
}

}  // namespace
}  // namespace millrace::cpu
