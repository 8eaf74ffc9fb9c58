// The op vocabulary through ATen: each op as its definition says, in as few calls as that takes.
#ifndef MILLRACE_EXECUTORS_TORCH_TORCH_OPS_H_
#define MILLRACE_EXECUTORS_TORCH_TORCH_OPS_H_

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "executors/decoder_ops.h"
#include "executors/encoder_ops.h"
#include "executors/host/step_input.h"
#include "executors/host/thread_pool.h"
#include "executors/torch/torch_kv.h"
#include "executors/torch/torch_sampler.h"
#include "executors/torch/torch_weights.h"

namespace millrace::aten {

// A role's buffer (ops.h): [tokens, width], of the ops' dtype, the residual stream too. One tensor
// is the linear input of all consumers, since all weights are of that dtype.
template <typename Role>
struct TorchBuffer : Role {
  template <typename... Args>
  explicit TorchBuffer(at::Tensor values, Args&&... args)
      : Role(std::forward<Args>(args)...), tensor(std::move(values)) {}
  at::Tensor tensor;
};

template <typename Role>
at::Tensor& Values(const std::unique_ptr<Role>& handle) {
  return static_cast<TorchBuffer<Role>&>(*handle).tensor;
}

// Used by one thread. Norms, rotations, softmax and gates are computed in float32 and rounded to
// the weights' type behind them, as transformers does.
class TorchOps : public DecoderOps, public EncoderOps, public MixtureOps, public RecurrentOps {
 public:
  // All must outlive it.
  TorchOps(const TorchWeights& weights, TorchKv& kv, ThreadPool& pool)
      : weights_(weights), kv_(kv), sampler_(pool) {}

  void BeginStep(const StepInput& input) override;

  Residual Embed(EmbeddingId table, float factor) override;
  LinearInput Norm(std::optional<NormId> norm, const Residual& residual,
                   Consumers consumers) override;
  Qkv QkvLinear(LinearId weight, const LinearInput& x) override;
  LinearInput RowLinear(LinearId weight, LinearInput x, const Addend& addend, Residual& residual,
                        std::optional<NormId> norm, Consumers consumers) override;
  LinearInput GatedLinear(LinearId weight, const LinearInput& x, GateFunction f,
                          Consumers consumers) override;
  LinearInput Mixture(const MixtureWeights& weights, const MixtureSpec& spec, const LinearInput& x,
                      const Addend& addend, Residual& residual, std::optional<NormId> norm,
                      Consumers consumers) override;
  Query RopeAppend(int32_t layer, const AttentionSpec& spec, const std::optional<HeadNorms>& norms,
                   Qkv qkv) override;
  LinearInput Attention(int32_t layer, const AttentionSpec& spec, const Query& query,
                        Consumers consumers) override;
  LinearInput GatedDelta(int32_t layer, const GatedDeltaSpec& spec,
                         const GatedDeltaWeights& weights, const LinearInput& x,
                         Consumers consumers) override;
  LinearInput ShortConvolution(int32_t layer, const ShortConvolutionSpec& spec, LinearId projection,
                               const LinearInput& in, Consumers consumers) override;
  LinearInput Mamba2(int32_t layer, const Mamba2Spec& spec, LinearId projection,
                     const LinearInput& in, Consumers consumers) override;
  // Gathers the wanted rows of x; Sample computes their logits, some at a time.
  Logits Head(LinearId weight, const LogitSpec& spec, const LinearInput& x) override;
  void Sample(const Logits& logits) override;

  Residual EmbedAll(const EmbeddingTables& tables, NormId norm) override;
  LinearInput NormInput(std::optional<NormId> norm, const Residual& hidden,
                        Consumers consumers) override;
  void AddLinear(LinearId weight, const LinearInput& x, std::optional<NormId> norm,
                 Residual& hidden) override;
  void NormAll(NormId norm, Residual& hidden) override;
  LinearInput GeluLinear(LinearId weight, const LinearInput& x, Consumers consumers) override;
  void Pool(const Residual& hidden, Pooling pooling, bool normalize) override;
  LinearInput PoolRows(const Residual& hidden, Pooling pooling, Consumers consumers) override;
  LinearInput RowsLinear(const HeadLayer& layer, const LinearInput& x,
                         Consumers consumers) override;
  void Output(const HeadLayer& layer, const LinearInput& x, bool normalize) override;

  // Returns the tokens of the last Sample, in the order of the input's `samples`, and perhaps older
  // ones after them.
  absl::Span<const Sampled> sampled() const { return sampler_.sampled(); }

  // Returns the embeddings of the last Pool, [rows, hidden]; nothing before the first one.
  absl::Span<const float> embeddings() const {
    if (!embeddings_.defined()) return {};
    return {embeddings_.const_data_ptr<float>(), static_cast<size_t>(embeddings_.numel())};
  }

 private:
  struct Row {
    int64_t first_token;
    int64_t num_tokens;
    int64_t start;                                        // position of the first
    absl::Span<const std::vector<BlockId>> block_tables;  // by group
    int64_t slot;
  };

  struct Rotations {
    RopeSpec spec;
    at::Tensor cosines, sines;  // [tokens, 1, pairs]
  };

  // Norms x, [..., size], over its last dimension.
  at::Tensor NormOf(NormId norm, const at::Tensor& x) const;
  at::Tensor LayerNormOf(NormId norm, const at::Tensor& x) const;
  at::Tensor PooledRows(const Residual& hidden, Pooling pooling) const;  // float32 [rows, hidden]
  at::Tensor RowsProduct(const HeadLayer& layer, const at::Tensor& x) const;
  // The biases of the scores of queries from `start` on, [heads, tokens, keys].
  at::Tensor BiasesOf(const AttentionSpec& spec, int64_t start, int64_t tokens, int64_t keys) const;
  at::Tensor Product(LinearId weight, const at::Tensor& x) const;
  at::Tensor Gated(LinearId weight, const at::Tensor& x, GateFunction function) const;
  void AddToResidual(const Addend& addend, at::Tensor y, Residual& residual) const;
  const Rotations& RotationsOf(const RopeSpec& rope);
  at::Tensor Turn(const at::Tensor& heads, const RopeSpec& rope);
  at::Tensor AttendRow(int32_t layer, const AttentionSpec& spec, const at::Tensor& query,
                       const Row& row) const;
  at::Tensor AttendSome(const AttentionSpec& spec, const at::Tensor& q, int64_t start,
                        const at::Tensor& keys, const at::Tensor& values) const;

  at::Tensor Convolve(int32_t layer, const ConvolutionSpec& spec, const at::Tensor& products,
                      const Row& row) const;
  at::Tensor DeltaRow(int32_t layer, const GatedDeltaSpec& spec, const at::Tensor& mixed,
                      const at::Tensor& betas, const at::Tensor& decays, const Row& row) const;
  at::Tensor Mamba2Row(int32_t layer, const Mamba2Spec& spec, const at::Tensor& mixed,
                       const at::Tensor& steps, const at::Tensor& decays, const Row& row) const;

  const TorchWeights& weights_;
  TorchKv& kv_;

  // The current step:
  const CpuStepInput* step_ = nullptr;
  at::Tensor positions_;            // [tokens], double
  std::vector<at::Tensor> places_;  // of each group [tokens], in the KV cache's first dimension
  std::vector<Row> rows_;
  std::vector<Rotations> rotations_;  // that a layer asked for

  at::Tensor embeddings_;  // of the last Pool, float32

  TorchSampler sampler_;
};

}  // namespace millrace::aten

#endif  // MILLRACE_EXECUTORS_TORCH_TORCH_OPS_H_
