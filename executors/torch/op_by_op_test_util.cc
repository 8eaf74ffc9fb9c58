#include "executors/torch/op_by_op_test_util.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "executors/cpu/cpu_model.h"
#include "executors/executor_driver_test_util.h"
#include "executors/host/host_executor.h"
#include "executors/models/any_model.h"
#include "executors/torch/torch_ops.h"
#include "formats/open_model.h"
#include "formats/tensors/float16.h"

namespace millrace::aten {
namespace {

// A role's buffer on either side.
template <typename Role>
struct Both : Role {
  template <typename... Args>
  Both(std::unique_ptr<Role> on_cpu, std::unique_ptr<Role> on_torch, Args&&... args)
      : Role(std::forward<Args>(args)...), cpu(std::move(on_cpu)), torch(std::move(on_torch)) {}
  std::unique_ptr<Role> cpu, torch;
};

template <typename Role>
Both<Role>& Sides(const std::unique_ptr<Role>& handle) {
  return static_cast<Both<Role>&>(*handle);
}

template <typename Role>
const cpu::CpuActivation& OnCpu(const std::unique_ptr<Role>& handle) {
  return cpu::Values(handle);
}
// The first form; all have the same values.
const cpu::CpuActivation& OnCpu(const LinearInput& input) {
  return static_cast<const cpu::CpuLinearInput&>(*input).forms.front();
}

float ValueAt(const cpu::CpuActivation& x, int row, int column) {
  switch (x.form()) {
    case cpu::Form::kFloat:
      return x.Floats(row)[column];
    case cpu::Form::kBf16: {
      uint16_t bits;
      std::memcpy(&bits, x.Row(row) + column * sizeof(bits), sizeof(bits));
      return Bf16ToFloat(bits);
    }
    case cpu::Form::kQ8:
      break;
  }
  const auto* blocks = reinterpret_cast<const cpu::QuantizedBlock*>(x.Row(row));
  const cpu::QuantizedBlock& block = blocks[column / cpu::kBlock];
  return static_cast<float>(block.values[column % cpu::kBlock]) * block.scale;
}

std::string Named(const char* op, cpu::Form form) {
  return StrCat(op, form == cpu::Form::kFloat ? "" : form == cpu::Form::kBf16 ? " bf16" : " q8");
}

// The largest difference of an output's values, over the largest expected one.
struct Difference {
  void Add(double value, double expected) {
    const double off = std::abs(value - expected);
    worst = std::isnan(off) ? INFINITY : std::max(worst, off);
    largest = std::max(largest, std::abs(expected));
  }
  double Relative() const { return largest > 0 ? worst / largest : INFINITY; }

  double worst = 0;
  double largest = 0;
};

class OpByOp : public DecoderOps, public EncoderOps, public MixtureOps, public RecurrentOps {
 public:
  OpByOp(cpu::CpuOps& cpu, TorchOps& torch, OpErrors& errors)
      : cpu_(cpu), torch_(torch), errors_(errors) {}

  void BeginStep(const StepInput& input) override {
    num_samples_ = static_cast<const CpuStepInput&>(input).samples.size();
    cpu_.BeginStep(input);
    torch_.BeginStep(input);
  }

  Residual Embed(EmbeddingId table, float factor) override {
    return Pair("Embed", cpu_.Embed(table, factor), torch_.Embed(table, factor));
  }
  LinearInput Norm(std::optional<NormId> norm, const Residual& residual,
                   Consumers consumers) override {
    return Pair("Norm", cpu_.Norm(norm, Sides(residual).cpu, consumers),
                torch_.Norm(norm, Sides(residual).torch, consumers));
  }
  Qkv QkvLinear(LinearId weight, const LinearInput& x) override {
    return Pair("QkvLinear", cpu_.QkvLinear(weight, Sides(x).cpu),
                torch_.QkvLinear(weight, Sides(x).torch));
  }
  LinearInput RowLinear(LinearId weight, LinearInput x, const Addend& addend, Residual& residual,
                        std::optional<NormId> norm, Consumers consumers) override {
    Both<ResidualBuffer>& sum = Sides(residual);
    LinearInput on_cpu =
        cpu_.RowLinear(weight, std::move(Sides(x).cpu), addend, sum.cpu, norm, consumers);
    LinearInput on_torch =
        torch_.RowLinear(weight, std::move(Sides(x).torch), addend, sum.torch, norm, consumers);
    Compare("RowLinear's residual", sum);
    return Pair("RowLinear", std::move(on_cpu), std::move(on_torch));
  }
  LinearInput GatedLinear(LinearId weight, const LinearInput& x, GateFunction f,
                          Consumers consumers) override {
    return Pair("GatedLinear", cpu_.GatedLinear(weight, Sides(x).cpu, f, consumers),
                torch_.GatedLinear(weight, Sides(x).torch, f, consumers));
  }
  LinearInput Mixture(const MixtureWeights& weights, const MixtureSpec& spec, const LinearInput& x,
                      const Addend& addend, Residual& residual, std::optional<NormId> norm,
                      Consumers consumers) override {
    Both<ResidualBuffer>& sum = Sides(residual);
    LinearInput on_cpu =
        cpu_.Mixture(weights, spec, Sides(x).cpu, addend, sum.cpu, norm, consumers);
    LinearInput on_torch =
        torch_.Mixture(weights, spec, Sides(x).torch, addend, sum.torch, norm, consumers);
    Compare("Mixture's residual", sum);
    return Pair("Mixture", std::move(on_cpu), std::move(on_torch));
  }
  // Compares q alone, which is all that LibTorch's leaves.
  Query RopeAppend(int32_t layer, const AttentionSpec& spec, const std::optional<HeadNorms>& norms,
                   Qkv qkv) override {
    return Pair("RopeAppend", cpu_.RopeAppend(layer, spec, norms, std::move(Sides(qkv).cpu)),
                torch_.RopeAppend(layer, spec, norms, std::move(Sides(qkv).torch)));
  }
  LinearInput Attention(int32_t layer, const AttentionSpec& spec, const Query& query,
                        Consumers consumers) override {
    return Pair("Attention", cpu_.Attention(layer, spec, Sides(query).cpu, consumers),
                torch_.Attention(layer, spec, Sides(query).torch, consumers));
  }
  LinearInput GatedDelta(int32_t layer, const GatedDeltaSpec& spec,
                         const GatedDeltaWeights& weights, const LinearInput& x,
                         Consumers consumers) override {
    return Pair("GatedDelta", cpu_.GatedDelta(layer, spec, weights, Sides(x).cpu, consumers),
                torch_.GatedDelta(layer, spec, weights, Sides(x).torch, consumers));
  }
  LinearInput ShortConvolution(int32_t layer, const ShortConvolutionSpec& spec, LinearId projection,
                               const LinearInput& in, Consumers consumers) override {
    return Pair("ShortConvolution",
                cpu_.ShortConvolution(layer, spec, projection, Sides(in).cpu, consumers),
                torch_.ShortConvolution(layer, spec, projection, Sides(in).torch, consumers));
  }
  LinearInput Mamba2(int32_t layer, const Mamba2Spec& spec, LinearId projection,
                     const LinearInput& in, Consumers consumers) override {
    return Pair("Mamba2", cpu_.Mamba2(layer, spec, projection, Sides(in).cpu, consumers),
                torch_.Mamba2(layer, spec, projection, Sides(in).torch, consumers));
  }
  Logits Head(LinearId weight, const LogitSpec& spec, const LinearInput& x) override {
    return Pair("Head", cpu_.Head(weight, spec, Sides(x).cpu),
                torch_.Head(weight, spec, Sides(x).torch), weight, spec);
  }
  void Sample(const Logits& logits) override {
    cpu_.Sample(Sides(logits).cpu);
    torch_.Sample(Sides(logits).torch);
    double& worst = errors_["Sample"];
    for (size_t i = 0; i < num_samples_; ++i) {
      const Sampled& a = cpu_.sampled()[i];
      const Sampled& b = torch_.sampled()[i];
      if (a.token != b.token || a.logprob.has_value() != b.logprob.has_value()) {
        worst = INFINITY;
      } else if (a.logprob.has_value()) {
        worst = std::max(worst, std::abs(double{*a.logprob} - *b.logprob));
      }
    }
  }

  Residual EmbedAll(const EmbeddingTables& tables, NormId norm) override {
    return Pair("EmbedAll", cpu_.EmbedAll(tables, norm), torch_.EmbedAll(tables, norm));
  }
  LinearInput NormInput(std::optional<NormId> norm, const Residual& hidden,
                        Consumers consumers) override {
    return Pair("NormInput", cpu_.NormInput(norm, Sides(hidden).cpu, consumers),
                torch_.NormInput(norm, Sides(hidden).torch, consumers));
  }
  void NormAll(NormId norm, Residual& hidden) override {
    cpu_.NormAll(norm, Sides(hidden).cpu);
    torch_.NormAll(norm, Sides(hidden).torch);
    Compare("NormAll", Sides(hidden));
  }
  void AddLinear(LinearId weight, const LinearInput& x, std::optional<NormId> norm,
                 Residual& hidden) override {
    cpu_.AddLinear(weight, Sides(x).cpu, norm, Sides(hidden).cpu);
    torch_.AddLinear(weight, Sides(x).torch, norm, Sides(hidden).torch);
    Compare("AddLinear", Sides(hidden));
  }
  LinearInput GeluLinear(LinearId weight, const LinearInput& x, Consumers consumers) override {
    return Pair("GeluLinear", cpu_.GeluLinear(weight, Sides(x).cpu, consumers),
                torch_.GeluLinear(weight, Sides(x).torch, consumers));
  }
  void Pool(const Residual& hidden, Pooling pooling, bool normalize) override {
    cpu_.Pool(Sides(hidden).cpu, pooling, normalize);
    torch_.Pool(Sides(hidden).torch, pooling, normalize);
    CompareEmbeddings("Pool");
  }
  // CPU's rows are as many as the step's tokens, of which only the first count: Output compares.
  LinearInput PoolRows(const Residual& hidden, Pooling pooling, Consumers consumers) override {
    return std::make_unique<Both<LinearInputBuffer>>(
        cpu_.PoolRows(Sides(hidden).cpu, pooling, consumers),
        torch_.PoolRows(Sides(hidden).torch, pooling, consumers));
  }
  LinearInput RowsLinear(const HeadLayer& layer, const LinearInput& x,
                         Consumers consumers) override {
    return std::make_unique<Both<LinearInputBuffer>>(
        cpu_.RowsLinear(layer, Sides(x).cpu, consumers),
        torch_.RowsLinear(layer, Sides(x).torch, consumers));
  }
  void Output(const HeadLayer& layer, const LinearInput& x, bool normalize) override {
    cpu_.Output(layer, Sides(x).cpu, normalize);
    torch_.Output(layer, Sides(x).torch, normalize);
    CompareEmbeddings("Output");
  }

 private:
  void CompareEmbeddings(const char* op) {
    const absl::Span<const float> expected = cpu_.embeddings();
    const absl::Span<const float> values = torch_.embeddings();
    Difference difference;
    for (size_t i = 0; i < std::min(values.size(), expected.size()); ++i) {
      difference.Add(values[i], expected[i]);
    }
    double& worst = errors_[op];
    worst = std::max(worst, values.size() == expected.size() ? difference.Relative() : INFINITY);
  }

  template <typename Role, typename... Args>
  std::unique_ptr<Role> Pair(const char* op, std::unique_ptr<Role> on_cpu,
                             std::unique_ptr<Role> on_torch, const Args&... args) {
    auto both = std::make_unique<Both<Role>>(std::move(on_cpu), std::move(on_torch), args...);
    Compare(op, *both);
    return both;
  }

  template <typename Role>
  void Compare(const char* op, Both<Role>& both) {
    const cpu::CpuActivation& expected = OnCpu(both.cpu);
    at::Tensor values = Values(both.torch).clone();
    auto rows = values.accessor<float, 2>();
    Difference difference;
    for (int row = 0; row < expected.rows(); ++row) {
      for (int column = 0; column < values.size(1); ++column) {
        const float value = ValueAt(expected, row, column);
        difference.Add(rows[row][column], value);
        rows[row][column] = value;
      }
    }
    Values(both.torch) = values;
    double& worst = errors_[Named(op, expected.form())];
    const bool shapes = values.size(0) == expected.rows() && values.size(1) <= expected.width();
    worst = std::max(worst, shapes ? difference.Relative() : INFINITY);
  }

  cpu::CpuOps& cpu_;
  TorchOps& torch_;
  OpErrors& errors_;
  size_t num_samples_ = 0;  // of the step at hand
};

class OpByOpModel : public HostModel {
 public:
  OpByOpModel(const std::string& path, const CommonSpec& device, OpErrors& errors,
              const MakeTorchOps& make_torch)
      : errors_(errors) {
    at::set_num_threads(device.threads);
    auto loaded = cpu::LoadCpuModel({path}, CpuSpec{device}, cpu::BestKernels());
    CheckOk(loaded.status());
    cpu_ = *std::move(loaded);
    const absl::StatusOr<OpenedModel> opened = OpenModel(path);
    CheckOk(opened.status());
    const ModelConfig& config = opened->config;
    // Both placers number what is asked for in the order of the asking, so that the family which
    // asked the first serves both.
    TorchWeightPlacer placer(*opened->tensors, at::kFloat, *cpu_->pool);
    CheckOk(LoadAnyModel(config, cpu_->info.limits.max_model_len, placer).status());
    weights_ = placer.Finish();
    kv_.block_size = device.block_size;
    kv_.groups.assign(config.layers.size(), 0);  // nothing is released
    for (const LayerConfig& layer : config.layers) {
      const int64_t tokens = cpu_->info.limits.num_blocks[0] * kv_.block_size;
      kv_.AddLayer(layer, tokens, cpu_->info.limits.max_num_seqs, at::kFloat);
    }
    torch_ = make_torch(weights_, kv_, *cpu_->pool);
  }

  const ModelInfo& info() const override { return cpu_->info; }

  absl::Status Move(absl::Span<const StateMove>) override {
    return absl::UnimplementedError("op by op, no blocks are copied");
  }

  absl::StatusOr<absl::Span<const Sampled>> Run(const CpuStepInput& input) override {
    OpByOp both(*cpu_->ops, *torch_, errors_);
    Forward(cpu_->model, both, input);
    return cpu_->ops->sampled();
  }

  absl::Span<const float> embeddings() const override { return cpu_->ops->embeddings(); }

 private:
  OpErrors& errors_;
  std::unique_ptr<cpu::CpuModel> cpu_;
  TorchWeights weights_;
  TorchKv kv_;
  std::unique_ptr<TorchOps> torch_;
};

}  // namespace

std::unique_ptr<Executor> LoadOpByOp(const std::string& path, const CommonSpec& device,
                                     OpErrors* errors, const MakeTorchOps& make_torch) {
  return MakeHostExecutor(std::make_unique<OpByOpModel>(path, device, *errors, make_torch));
}

}  // namespace millrace::aten
