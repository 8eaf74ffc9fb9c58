#include "executors/torch/op_by_op.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "executors/cpu/cpu_model.h"
#include "executors/cpu/host_executor.h"
#include "executors/executor_driver.h"
#include "executors/models/any_model.h"
#include "executors/torch/torch_ops.h"
#include "formats/float16.h"
#include "formats/open_model.h"

namespace millrace::aten {
namespace {

struct Both : ActivationBuffer {
  Both(Activation on_cpu, Activation on_torch)
      : cpu(std::move(on_cpu)), torch(std::move(on_torch)) {}
  Activation cpu, torch;
};

const Both& Cast(const Activation& both) { return static_cast<const Both&>(*both); }
Both& Cast(Activation& both) { return static_cast<Both&>(*both); }
const cpu::CpuActivation& OnCpu(const Activation& activation) {
  return static_cast<const cpu::CpuActivation&>(*activation);
}
at::Tensor& OnTorch(Activation& activation) {
  return static_cast<TorchActivation&>(*activation).tensor;
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

class OpByOp : public EncoderOps {
 public:
  OpByOp(cpu::CpuOps& cpu, TorchOps& torch, OpErrors& errors)
      : cpu_(cpu), torch_(torch), errors_(errors) {}

  Activation Embed(EmbeddingId table, float factor, const StepInput& input) override {
    return Pair("Embed", cpu_.Embed(table, factor, input), torch_.Embed(table, factor, input));
  }
  Activation Norm(std::optional<NormId> norm, const Activation& residual,
                  LinearId consumer) override {
    return Pair("Norm", cpu_.Norm(norm, Cast(residual).cpu, consumer),
                torch_.Norm(norm, Cast(residual).torch, consumer));
  }
  Activation Linear(LinearId weight, const Activation& x) override {
    return Pair("Linear", cpu_.Linear(weight, Cast(x).cpu), torch_.Linear(weight, Cast(x).torch));
  }
  Activation RowLinear(LinearId weight, Activation x, const Addend& addend, Activation& residual,
                       std::optional<NormId> norm, LinearId consumer) override {
    Both& sum = Cast(residual);
    Activation on_cpu =
        cpu_.RowLinear(weight, std::move(Cast(x).cpu), addend, sum.cpu, norm, consumer);
    Activation on_torch =
        torch_.RowLinear(weight, std::move(Cast(x).torch), addend, sum.torch, norm, consumer);
    Compare("RowLinear's residual", sum);
    return Pair("RowLinear", std::move(on_cpu), std::move(on_torch));
  }
  Activation GatedLinear(LinearId weight, const Activation& x, GateFunction f,
                         LinearId consumer) override {
    return Pair("GatedLinear", cpu_.GatedLinear(weight, Cast(x).cpu, f, consumer),
                torch_.GatedLinear(weight, Cast(x).torch, f, consumer));
  }
  void RopeAppend(int32_t layer, const AttentionSpec& spec, const std::optional<HeadNorms>& norms,
                  Activation& qkv, const StepInput& input) override {
    cpu_.RopeAppend(layer, spec, norms, Cast(qkv).cpu, input);
    torch_.RopeAppend(layer, spec, norms, Cast(qkv).torch, input);
    Compare("RopeAppend", Cast(qkv));  // Of q alone, which is what LibTorch's leaves.
  }
  Activation Attention(int32_t layer, const AttentionSpec& spec, const Activation& qkv,
                       const StepInput& input, LinearId consumer) override {
    return Pair("Attention", cpu_.Attention(layer, spec, Cast(qkv).cpu, input, consumer),
                torch_.Attention(layer, spec, Cast(qkv).torch, input, consumer));
  }
  Activation Head(LinearId weight, const LogitSpec& spec, const Activation& x,
                  const StepInput& input) override {
    return Pair("Head", cpu_.Head(weight, spec, Cast(x).cpu, input),
                torch_.Head(weight, spec, Cast(x).torch, input));
  }
  void Sample(const Activation& logits, const StepInput& input) override {
    cpu_.Sample(Cast(logits).cpu, input);
    torch_.Sample(Cast(logits).torch, input);
    double& worst = errors_["Sample"];
    for (size_t i = 0; i < static_cast<const cpu::CpuStepInput&>(input).samples.size(); ++i) {
      const Sampled& a = cpu_.sampled()[i];
      const Sampled& b = torch_.sampled()[i];
      if (a.token != b.token || a.logprob.has_value() != b.logprob.has_value()) {
        worst = INFINITY;
      } else if (a.logprob.has_value()) {
        worst = std::max(worst, std::abs(double{*a.logprob} - *b.logprob));
      }
    }
  }

  Activation EmbedAll(const EmbeddingTables& tables, NormId norm, const StepInput& input) override {
    return Pair("EmbedAll", cpu_.EmbedAll(tables, norm, input),
                torch_.EmbedAll(tables, norm, input));
  }
  void AddLinear(LinearId weight, const Activation& x, NormId norm, Activation& hidden) override {
    cpu_.AddLinear(weight, Cast(x).cpu, norm, Cast(hidden).cpu);
    torch_.AddLinear(weight, Cast(x).torch, norm, Cast(hidden).torch);
    Compare("AddLinear", Cast(hidden));
  }
  Activation GeluLinear(LinearId weight, const Activation& x, LinearId consumer) override {
    return Pair("GeluLinear", cpu_.GeluLinear(weight, Cast(x).cpu, consumer),
                torch_.GeluLinear(weight, Cast(x).torch, consumer));
  }
  void Pool(const Activation& hidden, Pooling pooling, bool normalize,
            const StepInput& input) override {
    cpu_.Pool(Cast(hidden).cpu, pooling, normalize, input);
    torch_.Pool(Cast(hidden).torch, pooling, normalize, input);
    const absl::Span<const float> expected = cpu_.embeddings();
    const absl::Span<const float> values = torch_.embeddings();
    Difference difference;
    for (size_t i = 0; i < std::min(values.size(), expected.size()); ++i) {
      difference.Add(values[i], expected[i]);
    }
    double& worst = errors_["Pool"];
    worst = std::max(worst, values.size() == expected.size() ? difference.Relative() : INFINITY);
  }

 private:
  Activation Pair(const char* op, Activation on_cpu, Activation on_torch) {
    auto both = std::make_unique<Both>(std::move(on_cpu), std::move(on_torch));
    Compare(op, *both);
    return both;
  }

  void Compare(const char* op, Both& both) {
    const cpu::CpuActivation& expected = OnCpu(both.cpu);
    at::Tensor values = OnTorch(both.torch).clone();
    auto rows = values.accessor<float, 2>();
    Difference difference;
    for (int row = 0; row < expected.rows(); ++row) {
      for (int column = 0; column < values.size(1); ++column) {
        const float value = ValueAt(expected, row, column);
        difference.Add(rows[row][column], value);
        rows[row][column] = value;
      }
    }
    OnTorch(both.torch) = values;
    double& worst = errors_[Named(op, expected.form())];
    const bool shapes = values.size(0) == expected.rows() && values.size(1) <= expected.width();
    worst = std::max(worst, shapes ? difference.Relative() : INFINITY);
  }

  cpu::CpuOps& cpu_;
  TorchOps& torch_;
  OpErrors& errors_;
};

class OpByOpModel : public cpu::HostModel {
 public:
  OpByOpModel(const std::string& path, const DeviceSpec& device, OpErrors& errors,
              const MakeTorchOps& make_torch)
      : errors_(errors) {
    at::set_num_threads(device.threads);
    auto loaded = cpu::LoadCpuModel({path}, device, cpu::BestKernels());
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
    for (int i = 0; i < config.layers; ++i) {
      const int64_t tokens = cpu_->info.limits.num_blocks * kv_.block_size;
      kv_.keys.push_back(at::empty({tokens, config.kv_heads, config.head_size}));
      kv_.values.push_back(at::empty({tokens, config.kv_heads, config.head_size}));
    }
    torch_ = make_torch(weights_, kv_, *cpu_->pool);
  }

  const ModelInfo& info() const override { return cpu_->info; }

  void Copy(const BlockCopy&) override {
    CheckOk(absl::UnimplementedError("op by op, no blocks are copied"));
  }

  absl::StatusOr<absl::Span<const Sampled>> Run(const cpu::CpuStepInput& input) override {
    cpu_->ops->BeginStep();
    torch_->BeginStep(input);
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

std::unique_ptr<Executor> LoadOpByOp(const std::string& path, const DeviceSpec& device,
                                     OpErrors* errors, const MakeTorchOps& make_torch) {
  return cpu::MakeHostExecutor(std::make_unique<OpByOpModel>(path, device, *errors, make_torch));
}

}  // namespace millrace::aten
