// The op vocabulary on the CPU: every op is one fork-join over the pool, or two where rows must be
// whole before they can be normed.
#ifndef MILLRACE_EXECUTORS_CPU_CPU_OPS_H_
#define MILLRACE_EXECUTORS_CPU_CPU_OPS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "executors/cpu/activation.h"
#include "executors/cpu/kernels.h"
#include "executors/cpu/kv_arena.h"
#include "executors/cpu/sampler.h"
#include "executors/cpu/step_input.h"
#include "executors/cpu/thread_pool.h"
#include "executors/cpu/weight_placer.h"
#include "executors/encoder_ops.h"
#include "scheduler/step_plan.h"

namespace millrace::cpu {

class CpuOps : public EncoderOps {
 public:
  // All must outlive it; `activations` is for steps of up to `max_tokens` tokens, of sequences up
  // to `max_length`.
  CpuOps(const Kernels& kernels, ThreadPool& pool, const CpuWeights& weights, const KvArena& kv,
         Memory activations, Memory logits, int max_length);

  // The bytes of activations that any op of `weights` may take for steps of max_tokens tokens.
  static size_t ActivationBytes(const CpuWeights& weights, int max_tokens);
  // The bytes of the logits of one panel.
  static size_t LogitBytes(int vocab_size);

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
  // Gathers the wanted rows of x; Sample computes their logits, a panel at a time.
  Activation Head(LinearId weight, const LogitSpec& spec, const Activation& x,
                  const StepInput& input) override;
  void Sample(const Activation& logits, const StepInput& input) override;

  Activation EmbedAll(const EmbeddingTables& tables, NormId norm, const StepInput& input) override;
  void AddLinear(LinearId weight, const Activation& x, NormId norm, Activation& hidden) override;
  Activation GeluLinear(LinearId weight, const Activation& x, LinearId consumer) override;
  void Pool(const Activation& hidden, Pooling pooling, bool normalize,
            const StepInput& input) override;

  // Of the last Sample, in the order of the input's `samples`, and perhaps older ones after them.
  absl::Span<const Sampled> sampled() const { return sampled_; }
  // Of the last Pool, [rows, hidden].
  absl::Span<const float> embeddings() const { return embeddings_; }

  // Begins a step: what was derived from the last input is forgotten.
  void BeginStep() {
    for (Rotations& rotations : rotations_) rotations.tokens = 0;
  }

 private:
  // Of a step: cosines and sines of each token's position, [tokens][pairs].
  struct Rotations {
    RopeSpec spec;
    std::vector<double> frequencies;
    int tokens = 0;  // 0: not of this step yet
    std::vector<float> cosines;
    std::vector<float> sines;
  };
  struct AttentionTask {
    int row;
    int query;  // the first; token-major, a token's heads of one kv head next to each other
    int count;
  };

  struct AttentionStep;
  struct Scratch {
    std::vector<float> gate;
    std::vector<float> scores;
    std::vector<float> heads;
    std::vector<float> embedding;
    Sampler sampler;
  };

  std::unique_ptr<CpuActivation> Take(Form form, int rows, int width) {
    return std::make_unique<CpuActivation>(activations_, form, rows, width);
  }
  // Of rows [first_row, first_row + rows) of x; `out` is for the first of them.
  void Gemm(const TiledMatrix& matrix, const CpuActivation& x, int first_row, int rows, float* out,
            size_t out_stride, bool add);
  void NormHeads(const HeadNorms& norms, const AttentionSpec& spec, float* heads) const;
  const Rotations& RotationsOf(const RopeSpec& rope, const CpuStepInput& input);
  void PlanAttention(int group, const CpuStepInput& input);
  AttentionTile Tile(const AttentionStep& step, int index, Scratch& scratch) const;
  void Attend(const AttentionStep& step, int index, int thread);

  const Kernels& kernels_;
  ThreadPool& pool_;
  const CpuWeights& weights_;
  const KvArena& kv_;
  Memory activation_memory_;
  ActivationArena activations_;
  Memory logits_;

  std::vector<Rotations> rotations_;  // one for each way that layers turn
  std::vector<AttentionTask> attention_tasks_;

  size_t score_stride_;
  std::vector<Scratch> scratch_;  // of each thread

  LinearId head_{};  // of the last Head
  LogitSpec logit_spec_;
  std::vector<Sampled> sampled_;
  std::vector<float> embeddings_;
};

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_CPU_OPS_H_
