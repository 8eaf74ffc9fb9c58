// The op vocabulary on a GPU: each op is one kernel, or a few, on one stream.
#ifndef MILLRACE_EXECUTORS_CUDA_CUDA_OPS_H_
#define MILLRACE_EXECUTORS_CUDA_CUDA_OPS_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "executors/activation_arena.h"
#include "executors/cuda/device.h"
#include "executors/cuda/step_buffers.h"
#include "executors/cuda/weights.h"
#include "executors/models/model.h"
#include "executors/ops.h"
#include "kernels/attention/paged_attention.h"
#include "kernels/gemm/linear.h"
#include "kernels/types.h"

namespace millrace::cuda {

// The paged cache of all layers: layer l's pages begin at data + l * layer_bytes.
struct KvArena {
  uint8_t* data = nullptr;
  kernels::Type type = kernels::Type::kBf16;
  int64_t layer_bytes = 0;
  int64_t block_elements = 0;  // of one layer
  int block_size = 0;
  int kv_heads = 0;
  int head_size = 0;
  int layers = 0;

  int64_t element_bytes() const { return type == kernels::Type::kBf16 ? 2 : 1; }
  // Of one layer.
  int64_t block_bytes() const { return block_elements * element_bytes(); }
};

// What is made for a model once; all of it outlives the ops.
struct CudaOpsContext {
  const CudaWeights* weights;
  const StepBuffers* buffers;
  KvArena kv;
  int vocab_size;
  const float2* rotations;
  void* linear_workspace;
  unsigned* linear_ticket;
  // Of each window that the model's layers have, ascending: its attention's plan of the step at
  // hand.
  struct AttentionPlan {
    int32_t window;
    void* memory;
  };
  std::vector<AttentionPlan> attention_plans;
  void* attention_scratch;
  bool portable_kernels = false;
};

// What the kernels of attention are told of a step. Shapes come from `spec`, addresses from
// `context`, which has a plan for its window.
kernels::AttentionStep AttentionStepOf(const CudaStepInput& step, const CudaOpsContext& context,
                                       const AttentionSpec& spec);

// The bytes of activations that a step takes. Touches no device.
size_t ActivationBytes(const Model& model, const CudaOpsContext& context,
                       const CudaStepInput& step);

// The bytes that each kernel of a decoding step of `rows` rows must read and write at least, in the
// order of their launches; the rows have `positions` positions together. Touches no device.
std::vector<int64_t> DecodeBytes(const Model& model, const CudaOpsContext& context, int rows,
                                 int64_t positions);

// What a model asks for that has no kernel here (a factor, a norm of an addend, a linear of the
// residual itself, a soft cap …) was refused when it was loaded: see Check in cuda_model.cc.
//
// Used by one thread at a time. One that measures launches nothing and touches no memory.
class CudaOps : public Ops {
 public:
  CudaOps(const CudaOpsContext& context, ActivationArena& activations, cudaStream_t stream,
          bool measures = false)
      : c_(context),
        activations_(activations),
        stream_(stream),
        measures_(measures),
        attention_turns_(context.attention_plans.size()) {}

  // What failed first since the last call, naming the op.
  absl::Status TakeStatus() { return std::exchange(status_, absl::OkStatus()); }
  // Of one that measures: see DecodeBytes.
  std::vector<int64_t> TakeBytes() { return std::exchange(bytes_, {}); }

  const CudaOpsContext& context() const { return c_; }

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
  // Gathers the wanted rows of x; Sample computes their logits, some rows at a time.
  Activation Head(LinearId weight, const LogitSpec& spec, const Activation& x,
                  const StepInput& input) override;
  void Sample(const Activation& logits, const StepInput& input) override;

 private:
  class Buffer;

  // All buffers of a step have the same number of rows, LinearRoom(tokens): where they lie, first
  // fit, is then the same at every size, and the largest step is the one that takes most.
  std::unique_ptr<Buffer> TakeRows(size_t row_bytes, int tokens);
  // Of what `consumer` consumes.
  std::unique_ptr<Buffer> TakeInput(LinearId consumer, int tokens);
  kernels::LinearArgs ArgsOf(const CudaLinear& linear, const Buffer& x) const;
  void Multiply(const kernels::LinearArgs& args, int64_t out_bytes);
  std::unique_ptr<Buffer> Multiply(const CudaLinear& linear, const Buffer& x);
  kernels::KvPages Pages(int32_t layer) const;
  // Whether `consumer` makes its input itself, of what the op before has (kernels::InputRow).
  bool MakesInput(LinearId consumer, int tokens) const;
  std::unique_ptr<Buffer> AddNorm(const CudaNorm& norm, const Buffer& residual,
                                  const kernels::Product& delta, LinearId consumer);
  // `bytes`: of each kernel that `launch` launches.
  template <typename Launch>
  void Run(std::string_view op, std::initializer_list<int64_t> bytes, const Launch& launch);

  const CudaOpsContext c_;
  ActivationArena& activations_;
  cudaStream_t stream_;
  bool measures_;
  absl::Status status_;
  std::vector<int64_t> bytes_;
  LinearId head_{};  // of the last Head
  // Of each of the context's plans, how many of the step's layers have used it.
  std::vector<uint32_t> attention_turns_;
};

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_CUDA_OPS_H_
