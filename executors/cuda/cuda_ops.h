// The op vocabulary on a GPU: each op is one kernel, or a few, on one stream.
#ifndef MILLRACE_EXECUTORS_CUDA_CUDA_OPS_H_
#define MILLRACE_EXECUTORS_CUDA_CUDA_OPS_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executors/activation_arena.h"
#include "executors/cuda/device/device.h"
#include "executors/cuda/step_buffers.h"
#include "executors/cuda/weights/weights.h"
#include "executors/decoder_ops.h"
#include "executors/executor.h"
#include "executors/models/model.h"
#include "executors/models/model_state.h"
#include "executors/rank_group.h"
#include "kernels/attention/paged_attention.h"
#include "kernels/attention/rope_append.h"
#include "kernels/collective/communicator.h"
#include "kernels/collective/nccl_api.h"
#include "kernels/elementwise/embed.h"
#include "kernels/gemm/linear.h"
#include "kernels/moe/combine.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/recurrent/mamba2_norm.h"
#include "kernels/recurrent/recurrent_rows.h"
#include "kernels/types.h"

namespace millrace::cuda {

// The state of all sequences. Each group of layers has a pool of its own. In that of a paged group
// a layer's blocks lie together: those of the group's layer i begin at data + i * layer_bytes. A
// group of slots has [place][layer of the group], a place's layers in one piece: first the slots,
// then the place of padding rows, whose slot has that number, and then the checkpoints.
struct KvArena {
  struct Pool {
    uint8_t* data = nullptr;
    int64_t place_bytes = 0;  // of one layer's block, or of a place
    int64_t layer_bytes = 0;
    int layers = 0;  // one of a group of slots
  };
  kernels::Type type = kernels::Type::kBf16;
  int64_t block_elements = 0;  // of one layer
  int block_size = 0;
  int kv_heads = 0;
  int head_size = 0;
  int32_t slots = 0;  // without the padding rows'
  ModelState state;
  std::vector<Pool> pools;  // by group

  int64_t element_bytes() const { return type == kernels::Type::kBf16 ? 2 : 1; }
  // Returns the bytes of one layer's block.
  int64_t block_bytes() const { return block_elements * element_bytes(); }

  // Returns how many blocks a group's pool has, of `num_blocks` and one for padding rows; of a
  // group of slots, how many places, `num_blocks` being checkpoints.
  int64_t Places(int group, int32_t num_blocks) const {
    return int64_t{num_blocks} + 1 + (state.layout.Paged(group) == nullptr ? slots : 0);
  }
  // Returns the bytes of the pools, of so many blocks or checkpoints of each group.
  int64_t Bytes(absl::Span<const int32_t> num_blocks) const {
    int64_t bytes = 0;
    for (size_t group = 0; group < pools.size(); ++group) {
      const Pool& pool = pools[group];
      bytes += pool.layers * Places(static_cast<int>(group), num_blocks[group]) * pool.place_bytes;
    }
    return bytes;
  }
  // Places the pools in memory of Bytes bytes.
  void Place(absl::Span<const int32_t> num_blocks, uint8_t* memory) {
    for (size_t group = 0; group < pools.size(); ++group) {
      Pool& pool = pools[group];
      pool.data = memory;
      pool.layer_bytes = Places(static_cast<int>(group), num_blocks[group]) * pool.place_bytes;
      memory += pool.layers * pool.layer_bytes;
    }
  }
  // Returns where a layer's blocks begin.
  uint8_t* LayerData(int32_t layer) const {
    const LayerPlacement& placement = state.placements[layer];
    const Pool& pool = pools[placement.group];
    return pool.data + placement.index * pool.layer_bytes;
  }
  // Returns where a recurrent layer's state at slot 0 begins. Those of other slots follow at
  // distances of place_bytes.
  uint8_t* StateData(int32_t layer) const {
    const LayerPlacement& placement = state.placements[layer];
    return pools[placement.group].data + placement.offset;
  }
};

// How a rank exchanges with others whose memory it cannot reach.
struct NcclPeers {
  std::unique_ptr<kernels::Nccl> nccl;
  uint8_t* sent;       // slot_bytes
  uint8_t* gathered;   // slot_bytes of each rank
  int64_t slot_bytes;  // at least one token's row of activations or logits
  // Sums are NCCL's own, whose order follows the size of the step.
  bool all_reduce = false;
};

// The ranks that divide the model's weights, as one of them sees them.
struct RankPeers {
  kernels::Communicator communicator;       // without by_nccl
  std::vector<const CudaWeights*> weights;  // by rank; this rank's device can read all of them
  std::optional<NcclPeers> by_nccl = std::nullopt;
  int first_rank = 0;  // of this process: its thread in `group` is 0
  // Whether this rank plays the others, too. Then it adds by one-shot alone: in two-shot a rank's
  // part of a row may be shorter than another's, which it cannot play.
  bool alone = false;
  // Where the ranks' threads meet before and behind each collective, while they launch kernel by
  // kernel; null in captures. Launching a kernel for the first time may load it, which waits for
  // the device and keeps other threads from launching: no rank may wait on the device then for a
  // collective that a peer has yet to launch.
  RankGroup* group = nullptr;
};

// The state that is made for a model once; all of it outlives the ops.
struct CudaOpsContext {
  const CudaWeights* weights;
  const StepBuffers* buffers;
  const RankPeers* peers = nullptr;  // null with one rank, and in dry runs
  KvArena kv;
  int vocab_size;
  const float2* rotations;
  RopeSpec rope;  // that they are made by; every layer that rotates has it
  void* linear_workspace;
  unsigned* linear_tile_counter;
  // Only models with mixtures of experts have these: RouteArgs::counters for the largest step, and
  // GroupedRows::offsets for kMaxAssignedGroups with tile_count behind them.
  unsigned* route_counters;
  int32_t* group_offsets;
  // The experts that each mixture has touched, in the order of the layers: MixtureUse::touched.
  unsigned long long* touched_experts;
  // The attention plans of the current step, one for each window that the model's layers have,
  // ascending.
  struct AttentionPlan {
    int32_t window;
    void* memory;
  };
  std::vector<AttentionPlan> attention_plans;
  void* attention_scratch;
  bool portable_kernels = false;
};

// Describes a step to the kernels of attention. Shapes come from `spec`, addresses from `context`,
// which has a plan for its window.
kernels::AttentionStep AttentionStepOf(const CudaStepInput& step, const CudaOpsContext& context,
                                       const AttentionSpec& spec);

// Dry runs `step`: calls every op, launches nothing and touches no device. Returns the bytes of
// activations that the step takes, or what an op refused. Weights may be without data and without
// plans; then only the refusal counts.
absl::StatusOr<size_t> ActivationBytes(const Model& model, const CudaOpsContext& context,
                                       const CudaStepInput& step);

// Returns the bytes that each kernel of a decoding step of `rows` rows must read and write at
// least, in the order of their launches; the rows have `positions` positions together. `touched` is
// Executor::DecodeBytes'. Touches no device.
std::vector<int64_t> DecodeBytes(const Model& model, const CudaOpsContext& context, int rows,
                                 int64_t positions, absl::Span<const double> touched = {});

// Describes the model's mixtures in the order of the layers, as untouched. Touches no device.
std::vector<MixtureUse> DescribeMixtures(const Model& model, const CudaOpsContext& context);

// The sum that a block adds to the residual: factor * (product + bias).
struct CudaDelta {
  kernels::Product product{};
  const float* bias = nullptr;
  float factor = 1;
  const kernels::CombineArgs* mixture = nullptr;  // in place of a product, its factor included
  // Set where ranks divide the product, which is then a partial sum: memory for the sum over the
  // ranks, in rows as the product's. It may be the product's own.
  kernels::Bf16* sum = nullptr;
};

// Returns the scaling of the input that an op makes for the linear. Experts with scales of blocks
// take BF16, from which all of their kernels quantize alike, however many rows they have.
kernels::Scaling InputScaling(const CudaLinear& linear);

class CudaRows;
struct CudaInputForm;
struct CudaLinearInput;
struct CudaProduct;
struct CudaQuery;

// The ops of a decoder as launches of kernels/. An object for a dry run counts the memory and the
// bytes of a step, launches nothing and touches no memory. After a failure nothing is launched
// until TakeStatus.
class CudaOps : public DecoderOps, public AttentionOps, public MixtureOps, public RecurrentOps {
 public:
  // For steps. Activations are placed in `memory`, of `bytes` bytes.
  CudaOps(const CudaOpsContext& context, uint8_t* memory, size_t bytes, cudaStream_t stream)
      : CudaOps(context, memory, ActivationArena(kAlignment, bytes), stream, false) {}
  // For dry runs.
  explicit CudaOps(const CudaOpsContext& context)
      : CudaOps(context, nullptr, ActivationArena(kAlignment), nullptr, true) {}

  // Returns whether the last step failed for want of memory in the arena. CUDA's own want of memory
  // is none of that, and may be one rank's alone.
  bool exceeded() const { return exceeded_; }
  // Returns the most bytes that activations have taken.
  size_t activation_bytes() const { return activations_.peak(); }
  // Returns the bytes that a dry run has counted, as DecodeBytes does.
  std::vector<int64_t> TakeBytes() { return std::exchange(bytes_, {}); }
  // For a measuring run: DecodeBytes's `touched`, which must outlive the run.
  void SetTouched(absl::Span<const double> touched) { touched_ = touched; }
  // The mixtures that a measuring run has described: see DescribeMixtures.
  std::vector<MixtureUse> TakeMixtures() { return std::exchange(mixtures_, {}); }

  const CudaOpsContext& context() const { return c_; }

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
  // May leave rotating and appending to the Attention of what it returns.
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
  // Gathers the wanted rows of x; Sample computes their logits, some rows at a time.
  Logits Head(LinearId weight, const LogitSpec& spec, const LinearInput& x) override;
  void Sample(const Logits& logits) override;

 private:
  static constexpr size_t kAlignment = 256;

  CudaOps(const CudaOpsContext& context, uint8_t* memory, ActivationArena activations,
          cudaStream_t stream, bool measures);

  // Takes memory of the arena. If there is none, the step fails: ResourceExhausted, and exceeded.
  CudaRows Allocate(size_t bytes, int tokens);
  // All buffers of a step have the same number of rows, LinearCapacity(tokens), so that what steps
  // take changes with their tokens only where that does or where kernels change (StepsToMeasure).
  CudaRows TakeRows(size_t row_bytes, int tokens);
  CudaInputForm TakeForm(const CudaLinear& consumer, kernels::Scaling scaling, int tokens,
                         int rows_of_token = 1);
  std::unique_ptr<CudaLinearInput> TakeInput(Consumers consumers, int tokens);
  // Returns the form of `x` that was made for `consumer`.
  const CudaInputForm& FormFor(const CudaLinear& consumer, const LinearInput& x);
  kernels::LinearArgs ArgsOf(const CudaLinear& linear, const CudaInputForm& x) const;
  void Multiply(const kernels::LinearArgs& args, int64_t out_bytes);
  CudaProduct Multiply(const CudaLinear& linear, const LinearInput& x);
  // Multiplies rows by a weight that is expanded (expansion.h). `out`:
  // [tokens][linear.weight.rows].
  void MultiplyExpanded(const CudaLinear& linear, const CudaInputForm& in, kernels::Bf16* out);
  // Multiplies `tokens` rows x. `out` says where the rows of the product go, and in which type.
  void MultiplyFourBit(const FourBitLinear& linear, const kernels::Activation& x, int tokens,
                       std::optional<GateFunction> gate, const kernels::Activation& out);
  // The same of a mixture's experts: pair p of `rows` reads row p / slots. Where experts read
  // sorted rows, x is sorted, and the output may be.
  void MultiplyExperts(const CudaLinear& linear, const kernels::Activation& x, int tokens,
                       int slots, const kernels::GroupedRows& rows,
                       std::optional<GateFunction> gate, const kernels::Activation& out,
                       bool sorted_output = false);
  // Gathers x, a row for `slots` pairs, into a row for each pair, in the order of the experts.
  CudaInputForm SortByExpert(const CudaLinear& experts, const kernels::Activation& x, int slots,
                             const kernels::GroupedRows& rows);
  // Quantizes `rows` rows of x in BF16.
  void Quantize(const kernels::Activation& x, int rows, int width, const kernels::Activation& out);
  // Multiplies the experts' gate and up, x in InputScaling's form. `out` is as `down` reads it, but
  // for rows that are yet to be sorted where down alone wants that.
  void MultiplyGate(const CudaLinear& gate_up, const kernels::Activation& x,
                    const kernels::GroupedRows& rows, GateFunction function, const CudaLinear& down,
                    const kernels::Activation& out);
  // The bytes of the weights of those of the mixture's experts that have one of `tokens` tokens.
  int64_t TouchedBytes(const ExpertsLinear& linear, int tokens) const;
  struct Routes;
  Routes Route(const MixtureWeights& weights, const RouterConfig& spec, const LinearInput& x);
  void CheckMixture(const MixtureWeights& weights, const RouterConfig& spec, GateFunction function);
  void DescribeMixture(const CudaLinear& gate_up, const CudaLinear& down);
  // A layer's pages, and the block tables of its group. A dry run has neither.
  struct LayerKv {
    kernels::KvPages pages{};
    kernels::BlockTables tables{};
  };
  LayerKv KvOf(int32_t layer) const;
  // Returns whether the only consumer makes its input itself, of what the op before has
  // (kernels::InputRow).
  bool MakesInput(Consumers consumers, int tokens) const;
  // Returns whether the first consumer is a router that computes the norm before it.
  bool RouterNorms(Consumers consumers, int tokens) const;
  // Adds delta, which may be empty, to the residual; returns Norm(norm, residual, consumers).
  LinearInput AddNorm(NormId norm, const Residual& residual, const CudaDelta& delta,
                      Consumers consumers);
  // Adds delta to the residual, [tokens, width]; its product is normed first if there is a norm.
  void AddDelta(const CudaDelta& delta, std::optional<NormId> norm, int width,
                const Residual& residual);
  // Adds delta, a mixture's partial sums included, to the residual of the ranks.
  LinearInput AddMixture(const kernels::CombineArgs& combine, const Addend& addend,
                         Residual& residual, std::optional<NormId> norm, Consumers consumers);

  // Whether ranks divide the weights (cuda_rank_ops.cc).
  bool divided() const { return c_.weights->rank.size > 1; }
  // Runs a collective of all ranks.
  template <typename Launch>
  void RunTogether(std::string_view op, std::initializer_list<int64_t> bytes, const Launch& launch);
  // Waits for the other ranks' threads where they meet.
  void Meet();
  // Returns delta with the sum over the ranks for its partial sums, if ranks divide them.
  CudaDelta SumRanks(const CudaDelta& delta, int tokens, int width);
  // Returns whether one launch adds the ranks' parts of delta and norms the residual.
  bool ReducesInNorm(const CudaDelta& delta, int tokens, int width) const;
  // Launches the sum over the ranks with the norm behind it.
  cudaError_t LaunchReduceNorm(const kernels::RmsNormArgs& args);
  // The same by NCCL (cuda_nccl_ops.cc). GatherByNccl puts `bytes` of every rank's `sent` side by
  // side.
  const NcclPeers* by_nccl() const {
    return c_.peers != nullptr && c_.peers->by_nccl.has_value() ? &*c_.peers->by_nccl : nullptr;
  }
  void GatherByNccl(const NcclPeers& by, const void* sent, int64_t bytes);
  void GatherRecordsByNccl(const NcclPeers& by, const void* records, int rows, int record_bytes,
                           void* gathered);
  void SumByNccl(const NcclPeers& by, const CudaDelta& delta, int tokens, int width);
  void EmbedByNccl(const NcclPeers& by, const CudaEmbedding& embedding,
                   const kernels::EmbedArgs& args);
  // Gathers the ranks' records of each token, of `record` floats, an even number: [tokens, record]
  // becomes [tokens, ranks, record].
  void GatherRecords(const float* own, int record, int tokens, float* all);
  // Gives `args` the sums of squares of all ranks' heads, and returns their memory.
  CudaRows GatherSquares(const HeadNorms& norms, kernels::RopeAppendArgs& args);
  // The rows of a step that this rank samples, out of those that are computed together.
  struct RowShare {
    int first;
    int count;
  };
  // Brings together the ranks' logits of the rows, out of `rows`, that this rank samples: all of
  // them, or a share. They begin where StepBuffers::logits does.
  RowShare DealLogits(const CudaLinear& head, int rows);
  // Tells all ranks what each has sampled of its share of the `rows` rows from the step's row
  // `first` on.
  void ShareSamples(int first, int rows, const RowShare& share);

  void CheckHiddenSize(int size);
  void CheckAttention(const AttentionSpec& spec);
  // Multiplies attention's output by the sigmoids of the query's gates.
  void GateHeads(const AttentionSpec& spec, const CudaQuery& query, const CudaRows& heads,
                 const kernels::Activation& out);
  void CheckDelta(const GatedDeltaSpec& spec, const GatedDeltaWeights& weights);
  // The memory between a gated delta rule's linears and its norm.
  struct DeltaMemory;
  // Computes the operands of the rule, out of the products of the layer's linears.
  void MakeDeltaOperands(int32_t layer, const GatedDeltaSpec& spec, const CudaProduct& qkvz,
                         const CudaProduct& beta_alpha, const DeltaMemory& memory);
  // Computes the rule. The outputs take the place of the values.
  void RunDelta(int32_t layer, const GatedDeltaSpec& spec, const DeltaMemory& memory);
  void CheckMamba2(const Mamba2Spec& spec, LinearId projection);
  // The memory between a Mamba-2 layer's linear and its norm.
  struct Mamba2Memory;
  // Computes the operands of the scan, out of the product of the layer's linear.
  void MakeMamba2Operands(int32_t layer, const Mamba2Spec& spec, const CudaProduct& product,
                          const Mamba2Memory& memory);
  // Computes the scan. The outputs take the place of x.
  void RunMamba2(int32_t layer, const Mamba2Spec& spec, const Mamba2Memory& memory);
  // Gathers the sums of squares of the outputs, where ranks share groups, into `memory`.
  kernels::Mamba2RankSquares GatherMamba2Squares(const Mamba2Spec& spec,
                                                 const kernels::Mamba2Outputs& outputs,
                                                 CudaRows& memory);
  // A recurrent layer's states. A dry run has none.
  kernels::RecurrentState StatesOf(int32_t layer) const;
  // `bytes`: of each kernel that `launch` launches.
  template <typename Launch>
  void Run(std::string_view op, std::initializer_list<int64_t> bytes, const Launch& launch);
  // Refuses a model whose `field` is `came`, unless that is supported.
  template <typename Came, typename... Allowed>
  void Require(bool supported, std::string_view field, const Came& came, const Allowed&... allowed);

  const CudaOpsContext c_;
  uint8_t* const memory_;
  ActivationArena activations_;
  cudaStream_t stream_;
  const bool measures_;
  std::vector<int64_t> bytes_;
  absl::Span<const double> touched_;
  std::vector<MixtureUse> mixtures_;

  // The current step:
  const CudaStepInput* step_ = nullptr;
  bool exceeded_ = false;
  // How many of its layers have used each of the context's plans.
  std::vector<uint32_t> attention_turns_;
  size_t mixture_ = 0;  // the number of the next mixture
};

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_CUDA_OPS_H_
