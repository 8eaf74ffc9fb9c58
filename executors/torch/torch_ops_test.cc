// Every op of the CPU executor against LibTorch's, with the same inputs and weights, in the steps
// of small models: prompts in chunks and beside each other, decoding, prompts that are scored, and
// whole texts of encoders.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "executors/executor_driver_test_util.h"
#include "executors/layer_request_test_util.h"
#include "executors/models/encoder_reference.h"
#include "executors/tiny_model_test_util.h"
#include "executors/torch/op_by_op_test_util.h"
#include "formats/families/family.h"
#include "formats/open_model.h"
#include "formats/twins/family_twins.h"
#include "gtest/gtest.h"

namespace millrace::aten {
namespace {

constexpr CommonSpec kDevice{
    .threads = 1, .kv_cache_memory = 4 << 20, .max_num_seqs = 4, .max_num_batched_tokens = 128};

template <typename... MakeTorch>
OpErrors RunBoth(const std::string& path, const MakeTorch&... make_torch) {
  OpErrors errors;
  const std::unique_ptr<Executor> executor = LoadOpByOp(path, kDevice, &errors, make_torch...);
  ExecutorDriver driver(*executor);
  const SamplingParams greedy{.temperature = 0, .top_logprobs = 0};
  const int vocab = executor->info().limits.vocab_size;
  const SlotId a = driver.Add(Prompt(50, 1, vocab), greedy);
  const SlotId b = driver.Add(Prompt(21, 2, vocab), greedy);
  const SlotId c = driver.Add(Prompt(1, 3, vocab), greedy);
  driver.Step({{a, 33}}, 1);
  driver.Step({{b, 21}, {a, 17}, {c, 1}});
  driver.Decode({a, b, c}, 3);
  return errors;
}

template <typename... MakeTorch>
OpErrors RunBothEncoders(const std::string& path, const MakeTorch&... make_torch) {
  OpErrors errors;
  const std::unique_ptr<Executor> executor = LoadOpByOp(path, kDevice, &errors, make_torch...);
  Embed(*executor, {Prompt(37, 1, 128), Prompt(1, 2, 128), Prompt(64, 3, 128)});
  return errors;
}

// Returns the largest difference allowed to an op, as a share of its largest value. Sums are in
// another order, and the CPU rounds: keys and values to float16, inputs to the linears' forms.
double Allowed(const std::string& op) {
  if (op.starts_with("Rounded ")) return 0.03;       // it rounds between its linears, too
  if (op.ends_with(" q8")) return 0.5 / 127 + 1e-3;  // half a step, of a block's largest value
  if (op.ends_with(" bf16")) return 1.0 / 256 + 1e-3;
  if (op == "Attention") return 3e-3;  // Scores spread over tens, and so do logits.
  if (op == "Sample") return 1e-3;
  return 1e-5;
}

void ExpectAlike(const OpErrors& errors, size_t ops = 9, bool quantized_experts = false) {
  EXPECT_GE(errors.size(), ops);
  for (const auto& [op, error] : errors) {
    const bool rounded = quantized_experts && op.starts_with("Mixture");
    EXPECT_LT(error, Allowed(rounded ? "Rounded " + op : op)) << op;
  }
}

class TorchOpsTest : public TinyModelTest {};

TEST_F(TorchOpsTest, EveryTypeOfWeights) {
  using enum TensorType;
  for (const TensorType type : {kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ2K, kQ3K,
                                kQ4K, kQ5K, kQ6K, kIq4Nl, kMxfp4, kIq4Xs, kIq3S, kIq2Xxs, kIq1M}) {
    SCOPED_TRACE(Traits(type).name);
    const TinyLlama model{.architecture = type == kF16 ? "qwen3" : "llama",
                          .hidden = 256,
                          .ffn = 256,
                          .rope_factors = type == kF32,
                          .linear_type = type,
                          .embedding_type = type == kBf16 ? kF32 : kQ8_0};
    ExpectAlike(RunBoth(Gguf(model)));
  }
}

TEST_F(TorchOpsTest, EveryFamily) {
  for (const FamilyTwin& twin : FamilyTwins()) {
    SCOPED_TRACE(twin.name);
    WriteTwinFolder(twin, Path("folder"));
    ExpectAlike(RunBoth(Path("folder")), 9, twin.config.contains("quantization_config"));
  }
}

TEST_F(TorchOpsTest, EveryEncoder) {
  for (const FamilyTwin& twin : EncoderTwins()) {
    SCOPED_TRACE(twin.name);
    WriteTwinFolder(twin, Path("folder"));
    const bool pre = twin.family->name == "modern-bert";  // its last norm is an op of its own
    ExpectAlike(RunBothEncoders(Path("folder")), pre ? 9 : 8);
  }
}

// Consumers share an output: all weights are of one type, and so are their inputs. The layer asks
// for features that other devices lack; LibTorch's ops have them all.
TEST_F(TorchOpsTest, ConsumersShareAnOutputAndNoFeatureIsLacking) {
  const absl::StatusOr<OpenedModel> opened =
      OpenModel(Gguf({.linear_type = TensorType::kF32, .embedding_type = TensorType::kQ8_0}));
  CheckOk(opened.status());
  ThreadPool pool(1);
  TorchWeightPlacer placer(*opened->tensors, at::kFloat, pool);
  const LayerWeights ids = PlaceLayer(placer, TinyLlama().ffn);
  const TorchWeights weights = placer.Finish();
  TorchKv kv{.block_size = 16,
             .keys = {at::zeros({16, 2, 16})},
             .values = {at::zeros({16, 2, 16})},
             .groups = {0}};
  TorchOps ops(weights, kv, pool);
  const WarmUpStep step({.state = StateLayout::OnePool(16)});
  ops.BeginStep(step.input);
  const Residual residual = ops.Embed(ids.embedding, 1);
  const LinearInput both = ops.Norm(ids.norm, residual, {ids.qkv, ids.head});
  const LinearInput one = ops.Norm(ids.norm, residual, {ids.qkv});
  const LinearInput other = ops.Norm(ids.norm, residual, {ids.head});
  EXPECT_TRUE(Values(ops.QkvLinear(ids.qkv, both)).equal(Values(ops.QkvLinear(ids.qkv, one))));
  EXPECT_TRUE(Values(ops.Head(ids.head, {}, both)).equal(Values(ops.Head(ids.head, {}, other))));

  for (const LayerFeature& feature : LayerFeatures(ids.norm)) {
    LayerRequest request{
        .norm = ids.norm,
        .attention = {
            .num_heads = 4, .num_kv_heads = 2, .head_size = 16, .rope = {.dimensions = 16}}};
    feature.ask(request);
    // These weights have other shapes; TorchOpsTest.EveryFamily has twins with such features.
    if (request.attention.head_size != 16 || request.attention.num_heads != 4 ||
        request.attention.output_gate || request.head_norms.has_value()) {
      continue;
    }
    RunLayer(ops, ids, request, step.input);
    EXPECT_TRUE(ops.TakeStatus().ok()) << feature.refusal;
  }
}

// The states of recurrent layers, at slots and in checkpoints, are copied whole, as blocks are.
TEST_F(TorchOpsTest, AMoveCopiesAState) {
  LayerConfig layer;
  layer.attention = GatedDelta{.key_heads = 1, .value_heads = 2, .key_size = 4, .value_size = 8};
  TorchKv kv{.block_size = 16, .groups = {0, 1}, .num_groups = 2};
  kv.AddLayer(LayerConfig{.attention = SoftmaxAttention{.heads = 1, .kv_heads = 1, .head_size = 8}},
              /*places=*/48, /*slots=*/3, at::kFloat);
  kv.AddLayer(layer, /*places=*/48, /*slots=*/3, at::kFloat);
  for (const at::Tensor& state : {kv.inputs[1], kv.states[1]}) {
    state.zero_();
    state.select(0, 0).fill_(5);
  }
  layer.attention = ShortConvolution{.channels = 8, .width = 3};
  kv.groups.push_back(1);
  kv.AddLayer(layer, /*places=*/48, /*slots=*/3, at::kFloat);
  kv.inputs[2].zero_();
  kv.inputs[2].select(0, 0).fill_(5);
  layer.attention = Mamba2{.heads = 2, .head_size = 8, .groups = 1, .state_size = 4, .width = 4};
  kv.groups.push_back(1);
  kv.AddLayer(layer, /*places=*/48, /*slots=*/3, at::kFloat);
  for (const at::Tensor& state : {kv.inputs[3], kv.states[3]}) {
    state.zero_();
    state.select(0, 0).fill_(5);
  }
  kv.Move({{.group = 1, .from = {0}, .to = {2}}});
  for (const at::Tensor& state :
       {kv.inputs[1], kv.states[1], kv.inputs[2], kv.inputs[3], kv.states[3]}) {
    EXPECT_TRUE(state.select(0, 2).eq(5).all().item<bool>());
    EXPECT_TRUE(state.select(0, 1).eq(0).all().item<bool>());
  }
}

// LibTorch's ops, of which one is computed otherwise: by a number that is off a little, or left
// out.
class BrokenOps : public TorchOps {
 public:
  BrokenOps(std::string broken, const TorchWeights& weights, TorchKv& kv, ThreadPool& pool)
      : TorchOps(weights, kv, pool), broken_(std::move(broken)) {}

  Residual Embed(EmbeddingId table, float factor) override {
    return TorchOps::Embed(table, Is("Embed") ? 1.01f * factor : factor);
  }
  LinearInput Norm(std::optional<NormId> norm, const Residual& residual,
                   Consumers consumers) override {
    return TorchOps::Norm(Is("Norm") ? std::nullopt : norm, residual, consumers);
  }
  Qkv QkvLinear(LinearId weight, const LinearInput& x) override {
    Qkv out = TorchOps::QkvLinear(weight, x);
    if (Is("QkvLinear")) Values(out)[-1][-1].add_(0.01 * Values(out).abs().max());
    return out;
  }
  LinearInput RowLinear(LinearId weight, LinearInput x, const Addend& addend, Residual& residual,
                        std::optional<NormId> norm, Consumers consumers) override {
    Addend other = addend;
    if (Is("RowLinear")) other.factor *= 1.1f;
    return TorchOps::RowLinear(weight, std::move(x), other, residual, norm, consumers);
  }
  LinearInput GatedLinear(LinearId weight, const LinearInput& x, GateFunction f,
                          Consumers consumers) override {
    if (Is("GatedLinear"))
      f = f == GateFunction::kSilu ? GateFunction::kGeluTanh : GateFunction::kSilu;
    return TorchOps::GatedLinear(weight, x, f, consumers);
  }
  LinearInput Mixture(const MixtureWeights& weights, const MixtureSpec& spec, const LinearInput& x,
                      const Addend& addend, Residual& residual, std::optional<NormId> norm,
                      Consumers consumers) override {
    MixtureSpec other = spec;
    if (Is("Mixture")) other.router.factor *= 1.1;
    return TorchOps::Mixture(weights, other, x, addend, residual, norm, consumers);
  }
  Query RopeAppend(int32_t layer, const AttentionSpec& spec, const std::optional<HeadNorms>& norms,
                   Qkv qkv) override {
    AttentionSpec other = spec;
    if (Is("RopeAppend")) other.rope.base *= 1.1;
    return TorchOps::RopeAppend(layer, other, norms, std::move(qkv));
  }
  LinearInput Attention(int32_t layer, const AttentionSpec& spec, const Query& query,
                        Consumers consumers) override {
    AttentionSpec other = spec;
    if (Is("Attention")) other.window = 20;
    return TorchOps::Attention(layer, other, query, consumers);
  }
  LinearInput GatedDelta(int32_t layer, const GatedDeltaSpec& spec,
                         const GatedDeltaWeights& weights, const LinearInput& x,
                         Consumers consumers) override {
    GatedDeltaSpec other = spec;
    if (Is("GatedDelta")) other.time_bias = spec.a;
    return TorchOps::GatedDelta(layer, other, weights, x, consumers);
  }
  LinearInput ShortConvolution(int32_t layer, const ShortConvolutionSpec& spec, LinearId projection,
                               const LinearInput& in, Consumers consumers) override {
    ShortConvolutionSpec other = spec;
    if (Is("ShortConvolution")) other.convolution.silu = true;
    return TorchOps::ShortConvolution(layer, other, projection, in, consumers);
  }
  LinearInput Mamba2(int32_t layer, const Mamba2Spec& spec, LinearId projection,
                     const LinearInput& in, Consumers consumers) override {
    Mamba2Spec other = spec;
    if (Is("Mamba2")) other.d = spec.time_bias;
    return TorchOps::Mamba2(layer, other, projection, in, consumers);
  }
  Logits Head(LinearId weight, const LogitSpec& spec, const LinearInput& x) override {
    LogitSpec other = spec;
    if (Is("Sample")) other.factor *= 1.01f;  // which Sample applies
    Logits out = TorchOps::Head(weight, other, x);
    if (Is("Head")) Values(out)[0].mul_(1.01);
    return out;
  }

  Residual EmbedAll(const EmbeddingTables& tables, NormId norm) override {
    EmbeddingTables other = tables;
    if (Is("EmbedAll")) other.types = tables.positions;
    return TorchOps::EmbedAll(other, norm);
  }
  LinearInput NormInput(std::optional<NormId> norm, const Residual& hidden,
                        Consumers consumers) override {
    LinearInput out = TorchOps::NormInput(norm, hidden, consumers);
    if (Is("NormInput")) Values(out) = Values(out) * 1.01;
    return out;
  }
  void AddLinear(LinearId weight, const LinearInput& x, std::optional<NormId> norm,
                 Residual& hidden) override {
    if (Is("AddLinear")) Values(hidden) = Values(hidden) * 1.1;
    TorchOps::AddLinear(weight, x, norm, hidden);
  }
  LinearInput GeluLinear(LinearId weight, const LinearInput& x, Consumers consumers) override {
    LinearInput out = TorchOps::GeluLinear(weight, x, consumers);
    if (Is("GeluLinear")) {
      const Qkv product = TorchOps::QkvLinear(weight, x);
      Values(out) = at::gelu(Values(product), "tanh");
    }
    return out;
  }
  void Pool(const Residual& hidden, Pooling pooling, bool normalize) override {
    if (Is("Pool")) pooling = pooling == Pooling::kMean ? Pooling::kFirst : Pooling::kMean;
    TorchOps::Pool(hidden, pooling, normalize);
  }

 private:
  bool Is(std::string_view op) const { return op == broken_; }

  const std::string broken_;
};

using Shows = std::map<std::string, std::set<std::string>>;  // by the op that is broken

// The comparison says which op it is, and blames no other: each has the same input as its twin.
template <typename Run>  // OpErrors(const MakeTorchOps& make_torch)
void ExpectShows(const Shows& shows, size_t ops, const Run& run) {
  for (const auto& entry : shows) {
    const std::string& broken = entry.first;
    SCOPED_TRACE(broken);
    const OpErrors errors = run([&](const TorchWeights& weights, TorchKv& kv, ThreadPool& pool) {
      return std::make_unique<BrokenOps>(broken, weights, kv, pool);
    });
    EXPECT_EQ(errors.size(), ops);
    for (const auto& [op, error] : errors) {
      EXPECT_EQ(error >= Allowed(op), entry.second.contains(op)) << op << ": " << error;
    }
  }
}

TEST_F(TorchOpsTest, AnOpThatIsComputedOtherwiseShows) {
  const std::string path = Gguf(TinyLlama());
  // RowLinear ends in a norm, and what RopeAppend appends is what Attention reads.
  const Shows shows = {{"Embed", {"Embed"}},
                       {"Norm", {"Norm", "RowLinear"}},
                       {"QkvLinear", {"QkvLinear"}},
                       {"RowLinear", {"RowLinear", "RowLinear's residual"}},
                       {"GatedLinear", {"GatedLinear"}},
                       {"RopeAppend", {"RopeAppend", "Attention"}},
                       {"Attention", {"Attention"}},
                       {"Head", {"Head"}},
                       {"Sample", {"Sample"}}};
  ExpectShows(shows, 10, [&](const MakeTorchOps& make_torch) { return RunBoth(path, make_torch); });
}

TEST_F(TorchOpsTest, AMixtureThatIsComputedOtherwiseShows) {
  for (const FamilyTwin& twin : FamilyTwins()) {
    if (twin.name == "qwen2moe") WriteTwinFolder(twin, Path("folder"));
  }
  ExpectShows({{"Mixture", {"Mixture", "Mixture's residual"}}}, 11,
              [&](const MakeTorchOps& make_torch) { return RunBoth(Path("folder"), make_torch); });
}

TEST_F(TorchOpsTest, ARecurrenceThatIsComputedOtherwiseShows) {
  WriteTwinFolder(FamilyTwinOf("qwen3_5"), Path("folder"));
  ExpectShows({{"GatedDelta", {"GatedDelta"}}}, 11,
              [&](const MakeTorchOps& make_torch) { return RunBoth(Path("folder"), make_torch); });
}

TEST_F(TorchOpsTest, AShortConvolutionThatIsComputedOtherwiseShows) {
  WriteTwinFolder(FamilyTwinOf("lfm2"), Path("folder"));
  ExpectShows({{"ShortConvolution", {"ShortConvolution"}}}, 11,
              [&](const MakeTorchOps& make_torch) { return RunBoth(Path("folder"), make_torch); });
}

TEST_F(TorchOpsTest, AMamba2MixerThatIsComputedOtherwiseShows) {
  WriteTwinFolder(FamilyTwinOf("granitehybrid_dense"), Path("folder"));
  ExpectShows({{"Mamba2", {"Mamba2"}}}, 11,
              [&](const MakeTorchOps& make_torch) { return RunBoth(Path("folder"), make_torch); });
}

TEST_F(TorchOpsTest, AnEncodersOpThatIsComputedOtherwiseShows) {
  WriteTwinFolder(EncoderTwins()[0], Path("folder"));
  const Shows shows = {{"EmbedAll", {"EmbedAll"}},
                       {"NormInput", {"NormInput"}},
                       {"QkvLinear", {"QkvLinear"}},
                       {"Attention", {"Attention"}},
                       {"AddLinear", {"AddLinear"}},
                       {"GeluLinear", {"GeluLinear"}},
                       {"Pool", {"Pool"}}};
  ExpectShows(shows, 8, [&](const MakeTorchOps& make_torch) {
    return RunBothEncoders(Path("folder"), make_torch);
  });
}

}  // namespace
}  // namespace millrace::aten
