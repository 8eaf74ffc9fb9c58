// The op vocabulary through ATen: each op as its definition says, in as few calls as that takes.
#ifndef MILLRACE_EXECUTORS_TORCH_TORCH_OPS_H_
#define MILLRACE_EXECUTORS_TORCH_TORCH_OPS_H_

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "executors/cpu/step_input.h"
#include "executors/cpu/thread_pool.h"
#include "executors/encoder_ops.h"
#include "executors/torch/torch_kv.h"
#include "executors/torch/torch_sampler.h"
#include "executors/torch/torch_weights.h"

namespace millrace::aten {

// [tokens, width], of the ops' dtype; the residual stream too.
struct TorchActivation : ActivationBuffer {
  explicit TorchActivation(at::Tensor values) : tensor(std::move(values)) {}
  at::Tensor tensor;
};

// Of one thread. Norms, rotations, softmax and gates are computed in float32 and rounded to the
// weights' type behind them, as transformers does.
class TorchOps : public EncoderOps {
 public:
  // All must outlive it.
  TorchOps(const TorchWeights& weights, TorchKv& kv, cpu::ThreadPool& pool)
      : weights_(weights), kv_(kv), sampler_(pool) {}

  Activation Embed(EmbeddingId table, float factor, const StepInput& input) override;
  Activation Norm(std::optional<NormId> norm, const Activation& residual,
                  LinearId consumer) override;
  Activation Linear(LinearId weight, const Activation& x) override;
  Activation RowLinear(LinearId weight, Activation x, const Addend& addend, Activation& residual,
                       std::optional<NormId> norm, LinearId consumer) override;
  Activation GatedLinear(LinearId weight, const Activation& x, GateFunction f,
                         LinearId consumer) override;
  void RopeAppend(int32_t layer, const AttentionSpec& spec, const std::optional<HeadNorms>& norms,
                  Activation& qkv, const StepInput& input) override;
  Activation Attention(int32_t layer, const AttentionSpec& spec, const Activation& qkv,
                       const StepInput& input, LinearId consumer) override;
  // Gathers the wanted rows of x; Sample computes their logits, some at a time.
  Activation Head(LinearId weight, const LogitSpec& spec, const Activation& x,
                  const StepInput& input) override;
  void Sample(const Activation& logits, const StepInput& input) override;

  Activation EmbedAll(const EmbeddingTables& tables, NormId norm, const StepInput& input) override;
  void AddLinear(LinearId weight, const Activation& x, NormId norm, Activation& hidden) override;
  Activation GeluLinear(LinearId weight, const Activation& x, LinearId consumer) override;
  void Pool(const Activation& hidden, Pooling pooling, bool normalize,
            const StepInput& input) override;

  // Of the last Sample, in the order of the input's `samples`, and perhaps older ones after them.
  absl::Span<const Sampled> sampled() const { return sampler_.sampled(); }

  // Of the last Pool, [rows, hidden]; nothing before the first one.
  absl::Span<const float> embeddings() const {
    if (!embeddings_.defined()) return {};
    return {embeddings_.const_data_ptr<float>(), static_cast<size_t>(embeddings_.numel())};
  }

  // Begins a step.
  void BeginStep(const cpu::CpuStepInput& input);

 private:
  struct Row {
    int64_t first_token;
    int64_t num_tokens;
    int64_t start;      // position of the first
    at::Tensor blocks;  // [blocks of its positions]
  };

  struct Rotations {
    RopeSpec spec;
    at::Tensor cosines, sines;  // [tokens, 1, pairs]
  };

  // x, [..., size], normed over its last dimension.
  at::Tensor NormOf(NormId norm, const at::Tensor& x) const;
  at::Tensor LayerNormOf(NormId norm, const at::Tensor& x) const;
  at::Tensor Product(LinearId weight, const at::Tensor& x) const;
  const Rotations& RotationsOf(const RopeSpec& rope);
  at::Tensor Turn(const at::Tensor& heads, const RopeSpec& rope);
  at::Tensor AttendRow(int32_t layer, const AttentionSpec& spec, const at::Tensor& qkv,
                       const Row& row) const;
  at::Tensor AttendSome(const AttentionSpec& spec, const at::Tensor& q, int64_t start,
                        const at::Tensor& keys, const at::Tensor& values) const;

  const TorchWeights& weights_;
  TorchKv& kv_;

  // Of the step:
  at::Tensor positions_;  // [tokens], double
  at::Tensor places_;     // [tokens], in the KV cache's first dimension
  std::vector<Row> rows_;
  std::vector<Rotations> rotations_;  // that a layer asked for
  LinearId head_{};                   // of the last Head
  LogitSpec logit_spec_;
  at::Tensor embeddings_;  // of the last Pool, float32

  TorchSampler sampler_;
};

}  // namespace millrace::aten

#endif  // MILLRACE_EXECUTORS_TORCH_TORCH_OPS_H_
