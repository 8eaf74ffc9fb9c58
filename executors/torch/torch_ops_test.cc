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

#include "executors/executor_driver.h"
#include "executors/models/encoder_reference.h"
#include "executors/tiny_model_test_util.h"
#include "executors/torch/op_by_op.h"
#include "formats/family_twins.h"
#include "gtest/gtest.h"

namespace millrace::aten {
namespace {

constexpr DeviceSpec kDevice{
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

// What an op may differ by, of its largest value. Sums are in another order, and what the CPU
// rounds shows: its keys and values to float16, what a linear reads to the linear's form.
double Allowed(const std::string& op) {
  if (op.ends_with(" q8")) return 0.5 / 127 + 1e-3;  // half a step, of a block's largest value
  if (op.ends_with(" bf16")) return 1.0 / 256 + 1e-3;
  if (op == "Attention") return 3e-3;  // Scores spread over tens, and so do logits.
  if (op == "Sample") return 1e-3;
  return 1e-5;
}

void ExpectAlike(const OpErrors& errors, size_t ops = 9) {
  EXPECT_GE(errors.size(), ops);
  for (const auto& [op, error] : errors) EXPECT_LT(error, Allowed(op)) << op;
}

class TorchOpsTest : public TinyModelTest {};

TEST_F(TorchOpsTest, EveryTypeOfWeights) {
  using enum TensorType;
  for (const TensorType type : {kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ2K, kQ3K,
                                kQ4K, kQ5K, kQ6K, kIq4Nl, kMxfp4}) {
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
    ExpectAlike(RunBoth(Path("folder")));
  }
}

TEST_F(TorchOpsTest, EveryEncoder) {
  for (const FamilyTwin& twin : EncoderTwins()) {
    SCOPED_TRACE(twin.name);
    WriteTwinFolder(twin, Path("folder"));
    ExpectAlike(RunBothEncoders(Path("folder")), 8);
  }
}

// LibTorch's ops, of which one is computed otherwise: by a number that is off a little, or left
// out.
class BrokenOps : public TorchOps {
 public:
  BrokenOps(std::string broken, const TorchWeights& weights, TorchKv& kv, cpu::ThreadPool& pool)
      : TorchOps(weights, kv, pool), broken_(std::move(broken)) {}

  Activation Embed(EmbeddingId table, float factor, const StepInput& input) override {
    return TorchOps::Embed(table, Is("Embed") ? 1.01f * factor : factor, input);
  }
  Activation Norm(std::optional<NormId> norm, const Activation& residual,
                  LinearId consumer) override {
    return TorchOps::Norm(Is("Norm") ? std::nullopt : norm, residual, consumer);
  }
  Activation Linear(LinearId weight, const Activation& x) override {
    Activation out = TorchOps::Linear(weight, x);
    if (Is("Linear")) Values(out)[-1][-1].add_(0.01 * Values(out).abs().max());
    return out;
  }
  Activation RowLinear(LinearId weight, Activation x, const Addend& addend, Activation& residual,
                       std::optional<NormId> norm, LinearId consumer) override {
    Addend other = addend;
    if (Is("RowLinear")) other.factor *= 1.1f;
    return TorchOps::RowLinear(weight, std::move(x), other, residual, norm, consumer);
  }
  Activation GatedLinear(LinearId weight, const Activation& x, GateFunction f,
                         LinearId consumer) override {
    if (Is("GatedLinear"))
      f = f == GateFunction::kSilu ? GateFunction::kGeluTanh : GateFunction::kSilu;
    return TorchOps::GatedLinear(weight, x, f, consumer);
  }
  void RopeAppend(int32_t layer, const AttentionSpec& spec, const std::optional<HeadNorms>& norms,
                  Activation& qkv, const StepInput& input) override {
    AttentionSpec other = spec;
    if (Is("RopeAppend")) other.rope.base *= 1.1;
    TorchOps::RopeAppend(layer, other, norms, qkv, input);
  }
  Activation Attention(int32_t layer, const AttentionSpec& spec, const Activation& qkv,
                       const StepInput& input, LinearId consumer) override {
    AttentionSpec other = spec;
    if (Is("Attention")) other.window = 20;
    return TorchOps::Attention(layer, other, qkv, input, consumer);
  }
  Activation Head(LinearId weight, const LogitSpec& spec, const Activation& x,
                  const StepInput& input) override {
    LogitSpec other = spec;
    if (Is("Sample")) other.factor *= 1.01f;  // which Sample applies
    Activation out = TorchOps::Head(weight, other, x, input);
    if (Is("Head")) Values(out)[0].mul_(1.01);
    return out;
  }

  Activation EmbedAll(const EmbeddingTables& tables, NormId norm, const StepInput& input) override {
    EmbeddingTables other = tables;
    if (Is("EmbedAll")) other.types = tables.positions;
    return TorchOps::EmbedAll(other, norm, input);
  }
  void AddLinear(LinearId weight, const Activation& x, NormId norm, Activation& hidden) override {
    if (Is("AddLinear")) Values(hidden) = Values(hidden) * 1.1;
    TorchOps::AddLinear(weight, x, norm, hidden);
  }
  Activation GeluLinear(LinearId weight, const Activation& x, LinearId consumer) override {
    if (!Is("GeluLinear")) return TorchOps::GeluLinear(weight, x, consumer);
    Activation out = TorchOps::Linear(weight, x);
    Values(out) = at::gelu(Values(out), "tanh");
    return out;
  }
  void Pool(const Activation& hidden, Pooling pooling, bool normalize,
            const StepInput& input) override {
    if (Is("Pool")) pooling = pooling == Pooling::kMean ? Pooling::kFirst : Pooling::kMean;
    TorchOps::Pool(hidden, pooling, normalize, input);
  }

 private:
  bool Is(std::string_view op) const { return op == broken_; }
  static at::Tensor& Values(Activation& activation) {
    return static_cast<TorchActivation&>(*activation).tensor;
  }

  const std::string broken_;
};

using Shows = std::map<std::string, std::set<std::string>>;  // by the op that is broken

// The comparison says which op it is, and blames no other: each has the same input as its twin.
template <typename Run>  // OpErrors(const MakeTorchOps& make_torch)
void ExpectShows(const Shows& shows, size_t ops, const Run& run) {
  for (const auto& entry : shows) {
    const std::string& broken = entry.first;
    SCOPED_TRACE(broken);
    const OpErrors errors =
        run([&](const TorchWeights& weights, TorchKv& kv, cpu::ThreadPool& pool) {
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
                       {"Linear", {"Linear"}},
                       {"RowLinear", {"RowLinear", "RowLinear's residual"}},
                       {"GatedLinear", {"GatedLinear"}},
                       {"RopeAppend", {"RopeAppend", "Attention"}},
                       {"Attention", {"Attention"}},
                       {"Head", {"Head"}},
                       {"Sample", {"Sample"}}};
  ExpectShows(shows, 10, [&](const MakeTorchOps& make_torch) { return RunBoth(path, make_torch); });
}

TEST_F(TorchOpsTest, AnEncodersOpThatIsComputedOtherwiseShows) {
  WriteTwinFolder(EncoderTwins()[0], Path("folder"));
  const Shows shows = {{"EmbedAll", {"EmbedAll"}},     {"Linear", {"Linear"}},
                       {"Attention", {"Attention"}},   {"AddLinear", {"AddLinear"}},
                       {"GeluLinear", {"GeluLinear"}}, {"Pool", {"Pool"}}};
  ExpectShows(shows, 8, [&](const MakeTorchOps& make_torch) {
    return RunBothEncoders(Path("folder"), make_torch);
  });
}

}  // namespace
}  // namespace millrace::aten
