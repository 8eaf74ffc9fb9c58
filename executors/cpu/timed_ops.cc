#include "executors/cpu/timed_ops.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/status.h"
#include "base/strings.h"
#include "executors/cpu/cpu_model.h"
#include "executors/models/model_state.h"

namespace millrace::cpu {
namespace {

constexpr int kDecodeContext = 192;
constexpr int kRepeat = 9;

enum Op {
  kEmbed,
  kNorm,
  kLinear,
  kRowLinear,
  kGated,
  kMixture,
  kRope,
  kAttention,
  kDelta,
  kConvolution,
  kMamba2,
  kHead,
  kSample,
  kNumOps
};
constexpr const char* kNames[kNumOps] = {
    "embed",     "norm",  "qkv",         "row_linear", "gated", "mixture", "rope",
    "attention", "delta", "convolution", "mamba2",     "head",  "sample"};

class TimedOps : public DecoderOps, public AttentionOps, public MixtureOps, public RecurrentOps {
 public:
  TimedOps(CpuOps& ops, const CpuWeights& weights) : ops_(ops), weights_(weights), times_(kNumOps) {
    for (int op = 0; op < kNumOps; ++op) times_[op].name = kNames[op];
  }

  std::vector<OpTime> Take() {
    std::vector<OpTime> times = times_;
    for (OpTime& time : times_) time = {.name = time.name};
    return times;
  }

  void BeginStep(const StepInput& input) override { ops_.BeginStep(input); }
  Residual Embed(EmbeddingId table, float factor) override {
    return Time(kEmbed, [&] { return ops_.Embed(table, factor); });
  }
  LinearInput Norm(std::optional<NormId> norm, const Residual& residual,
                   Consumers consumers) override {
    return Time(kNorm, [&] { return ops_.Norm(norm, residual, consumers); });
  }
  Qkv QkvLinear(LinearId weight, const LinearInput& x) override {
    Count(kLinear, weight, ops_.FormFor(weight, x));
    return Time(kLinear, [&] { return ops_.QkvLinear(weight, x); });
  }
  LinearInput RowLinear(LinearId weight, LinearInput x, const Addend& addend, Residual& residual,
                        std::optional<NormId> norm, Consumers consumers) override {
    Count(kRowLinear, weight, ops_.FormFor(weight, x));
    return Time(kRowLinear, [&] {
      return ops_.RowLinear(weight, std::move(x), addend, residual, norm, consumers);
    });
  }
  LinearInput GatedLinear(LinearId weight, const LinearInput& x, GateFunction f,
                          Consumers consumers) override {
    Count(kGated, weight, ops_.FormFor(weight, x));
    return Time(kGated, [&] { return ops_.GatedLinear(weight, x, f, consumers); });
  }
  LinearInput Mixture(const MixtureWeights& weights, const MixtureSpec& spec, const LinearInput& x,
                      const Addend& addend, Residual& residual, std::optional<NormId> norm,
                      Consumers consumers) override {
    LinearInput out = Time(kMixture, [&] {
      return ops_.Mixture(weights, spec, x, addend, residual, norm, consumers);
    });
    CountMixture(weights);
    return out;
  }
  Query RopeAppend(int32_t layer, const AttentionSpec& spec, const std::optional<HeadNorms>& norms,
                   Qkv qkv) override {
    return Time(kRope, [&] { return ops_.RopeAppend(layer, spec, norms, std::move(qkv)); });
  }
  LinearInput Attention(int32_t layer, const AttentionSpec& spec, const Query& query,
                        Consumers consumers) override {
    return Time(kAttention, [&] { return ops_.Attention(layer, spec, query, consumers); });
  }
  LinearInput GatedDelta(int32_t layer, const GatedDeltaSpec& spec,
                         const GatedDeltaWeights& weights, const LinearInput& x,
                         Consumers consumers) override {
    for (const LinearId linear : {weights.qkvz, weights.beta_alpha}) {
      Count(kDelta, linear, ops_.FormFor(linear, x));
    }
    return Time(kDelta, [&] { return ops_.GatedDelta(layer, spec, weights, x, consumers); });
  }
  LinearInput ShortConvolution(int32_t layer, const ShortConvolutionSpec& spec, LinearId projection,
                               const LinearInput& in, Consumers consumers) override {
    Count(kConvolution, projection, ops_.FormFor(projection, in));
    return Time(kConvolution,
                [&] { return ops_.ShortConvolution(layer, spec, projection, in, consumers); });
  }
  LinearInput Mamba2(int32_t layer, const Mamba2Spec& spec, LinearId projection,
                     const LinearInput& in, Consumers consumers) override {
    Count(kMamba2, projection, ops_.FormFor(projection, in));
    return Time(kMamba2, [&] { return ops_.Mamba2(layer, spec, projection, in, consumers); });
  }
  Logits Head(LinearId weight, const LogitSpec& spec, const LinearInput& x) override {
    return Time(kHead, [&] { return ops_.Head(weight, spec, x); });
  }
  void Sample(const Logits& logits) override {
    Count(kSample, logits->head, Values(logits));
    Time(kSample, [&] { ops_.Sample(logits); });
  }

 private:
  template <typename Call>
  std::invoke_result_t<Call> Time(Op op, const Call& call) {
    struct Stop {
      ~Stop() {
        seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      }
      double& seconds;
      std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
    } stop{times_[op].seconds};
    return call();
  }

  void Count(Op op, LinearId weight, const CpuActivation& x) {
    const TiledMatrix& matrix = weights_.Matrix(weight);
    times_[op].weight_bytes += static_cast<double>(matrix.bytes);
    times_[op].operations += 2.0 * static_cast<double>(matrix.rows * matrix.columns) * x.rows();
  }

  // Counts the experts that tokens went to, and each token's products.
  void CountMixture(const MixtureWeights& weights) {
    for (const LinearId linear : {weights.gate_up, weights.down}) {
      for (const auto& [expert, rows] : ops_.routed_rows()) {
        const TiledMatrix& matrix = weights_.Matrix(CpuWeights::Expert(linear, expert));
        times_[kMixture].weight_bytes += static_cast<double>(matrix.bytes);
        times_[kMixture].operations +=
            2.0 * static_cast<double>(matrix.rows * matrix.columns) * rows;
      }
    }
  }

  CpuOps& ops_;
  const CpuWeights& weights_;
  std::vector<OpTime> times_;
};

}  // namespace

absl::StatusOr<std::vector<OpTime>> TimeOps(const std::string& model, const CpuSpec& device,
                                            int tokens, int sequences) {
  MILLRACE_ASSIGN_OR_RETURN(std::unique_ptr<CpuModel> loaded,
                            LoadCpuModel({model}, device, BestKernels()));
  const auto* const decoder = std::get_if<std::unique_ptr<Model>>(&loaded->model);
  if (decoder == nullptr) {
    return absl::UnimplementedError("the model is an encoder; allowed: models that generate");
  }
  const int each = tokens / sequences;
  const int context = each == 1 ? kDecodeContext : 0;
  const int blocks = (context + each + device.block_size - 1) / device.block_size;
  const StepLimits& limits = loaded->info.limits;
  const int groups = limits.state.num_groups();
  for (int group = 0; group < groups; ++group) {
    if (limits.state.Paged(group) == nullptr) continue;
    if (limits.num_blocks[group] >= sequences * blocks) continue;
    return absl::InvalidArgumentError(
        StrCat("kv_cache_memory is ", device.kv_cache_memory, " bytes, which are ",
               DivisionText(limits.state, limits.num_blocks), "; needed: ", sequences * blocks,
               " of each, for ", sequences, " sequences of ", context + each, " tokens"));
  }
  std::vector<std::vector<std::vector<BlockId>>> tables(sequences);
  for (int s = 0; s < sequences; ++s) {
    std::vector<BlockId> table(blocks);
    std::iota(table.begin(), table.end(), s * blocks);
    tables[s].assign(groups, table);
  }
  const SamplingParams greedy{.temperature = 0};
  const auto add_row = [&](int s, int first, int count, CpuStepInput* input) {
    const int row = static_cast<int>(input->rows.size());
    input->rows.push_back({static_cast<int>(input->tokens.size()), count, tables[s], s});
    for (int i = 0; i < count; ++i) {
      input->tokens.push_back((s * 7919 + (first + i) * 104729) % loaded->info.limits.vocab_size);
      input->positions.push_back(first + i);
      input->row_of.push_back(row);
    }
    input->wanted.push_back(static_cast<int>(input->tokens.size()) - 1);
    input->samples.push_back({&greedy, first + count, std::nullopt});
  };
  CpuStepInput input;
  for (int s = 0; s < sequences; ++s) {
    if (context > 0) {
      CpuStepInput prompt;
      add_row(s, 0, context, &prompt);
      MILLRACE_RETURN_IF_ERROR(loaded->Run(prompt));
    }
    add_row(s, context, each, &input);
  }
  TimedOps timed(*loaded->ops, loaded->weights);
  std::vector<std::vector<OpTime>> runs;
  for (int i = 0; i < kRepeat; ++i) {
    (*decoder)->Forward(timed, input);
    runs.push_back(timed.Take());
  }
  for (int op = 0; op < kNumOps; ++op) {
    std::vector<double> seconds;
    for (const std::vector<OpTime>& run : runs) seconds.push_back(run[op].seconds);
    std::sort(seconds.begin(), seconds.end());
    runs[0][op].seconds = seconds[kRepeat / 2];
  }
  return runs[0];
}

}  // namespace millrace::cpu
