// Device buffers of steps, and the packing and transfer of a step's input and results.
#ifndef MILLRACE_EXECUTORS_CUDA_STEP_BUFFERS_H_
#define MILLRACE_EXECUTORS_CUDA_STEP_BUFFERS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "executors/cuda/device/device.h"
#include "executors/ops.h"
#include "executors/slot_results.h"
#include "kernels/sampling/sample.h"
#include "kernels/step/step_input.h"
#include "kernels/step/step_layout.h"
#include "kernels/types.h"
#include "plan/step_plan.h"

namespace millrace::cuda {

// Upper bound on the tokens that one sequence may ban: more than the 1,024 that a request may name
// (stop_token_ids) and a model's own end tokens together.
inline constexpr int kMaxBannedTokens = 1280;
inline constexpr int kMaxBiases = kMaxBannedTokens + static_cast<int>(kMaxLogitBiases);

// Upper bound on the one-token rows that pad a step with prompts (mixed_graphs.h). They come on top
// of max_num_seqs.
inline constexpr int kMaxPaddingRows = 128;

// The sizes of a step, in terms of the device arrays. A graph is captured for one such size.
struct CudaStepInput : StepInput {
  int rows = 0;  // some may have no tokens
  int tokens = 0;
  int wanted = 0;
  int max_row_tokens = 1;  // upper bound over the rows
  int64_t positions = 0;   // over all rows; only used to count bytes, not by kernels
};
inline const CudaStepInput& Cast(const StepInput& input) {
  return static_cast<const CudaStepInput&>(input);
}

// Device memory at fixed addresses. Slot limits.max_num_seqs is the padding slot, which the rows
// that pad a graph's batch name.
struct StepBuffers {
  // Allocates and initializes the buffers. Ignores limits.num_blocks.
  // `logits_share`: the logits of a row that a rank computes, 0 with one rank.
  static absl::StatusOr<StepBuffers> Make(const StepLimits& limits, int64_t logits_stride,
                                          int64_t logits_share = 0);
  // Returns the bytes that Make allocates.
  static size_t Bytes(const StepLimits& limits, int64_t logits_stride, int64_t logits_share = 0);
  // Returns how many rows of logits there is memory for.
  static int MaxLogitRows(const StepLimits& limits);

  // Points the padding slot's block tables at the block behind the last of each paged group, which
  // the scheduler never allocates. Call once, before the first step.
  absl::Status SetPaddingBlocks(const StepLimits& limits) const;

  // Returns the block tables of a paged group of layers.
  kernels::BlockTables tables(int group) const {
    return {arrays.block_tables + group * slots * arrays.table_stride, arrays.table_stride};
  }

  kernels::StepArrays arrays{};
  int64_t slots = 0;                // with the padding slot
  int32_t* last_tokens = nullptr;   // [slots]
  const int32_t* counts = nullptr;  // counts[i] is i, [0, max_logit_rows]
  float* logits = nullptr;          // [max_logit_rows][logits_stride]
  float* adjusted = nullptr;        // the same
  float* logit_share = nullptr;     // [max_logit_rows][the rank's], with several ranks
  int64_t logits_stride = 0;
  int max_logit_rows = 0;
  void* sample_workspace = nullptr;
  // A set of masks for each step in flight, [kMaxStepsInFlight][mask_rows][mask_words], the masked
  // rows' of a step in its lane's set.
  uint32_t* masks = nullptr;
  int mask_rows = 0;
  int mask_words = 0;
  uint32_t* masks_ready = nullptr;  // [kMaxStepsInFlight], MaskArrival's, as arrays.masks_wanted
  uint64_t mask_timeout_ns = 0;
  kernels::SampleResult* results = nullptr;  // [max_num_batched_tokens]
  kernels::SampleTop* tops = nullptr;        // [max_num_batched_tokens][kMaxSampledTop]
  DeviceMemory memory;
};

// Returns the plan's own size.
CudaStepInput SizeOf(const StepPlan& plan);

// A plan, packed into 32-bit words.
struct PackedPlan {
  kernels::PackedStep step;
  CudaStepInput input;
  size_t words = 0;         // StepLayout::end
  bool tops = false;        // whether a row requests the likeliest tokens
  int masks = 0;            // rows of the lane's masks
  bool late_masks = false;  // some of them come while the step runs
};

// The memory that a plan is packed into, with capacity for the words of any plan: the host's, and
// where its copy will lie on the device.
struct LaneWords {
  int32_t* host;
  const int32_t* device;
  int lane;  // the index, below kMaxStepsInFlight
};

// The transfer buffers of a step. Two lanes alternate: the host fills and reads one while the
// device works on the other.
class StepLane {
 public:
  // `index`: of the lane, below kMaxStepsInFlight.
  static absl::StatusOr<StepLane> Make(const StepLimits& limits, int index);

  LaneWords words() const { return {host_.As<int32_t>(), device_.As<int32_t>(), index_}; }

  // Copies the masks of the plan, all of which are known by now, to the lane's set.
  absl::Status SendMasks(const StepPlan& plan, const StepBuffers& buffers,
                         cudaStream_t stream) const;
  // Signals the kernels that wait for the set's masks. Called after SendMasks, with its stream.
  absl::Status SignalMasks(uint32_t count, const StepBuffers& buffers, cudaStream_t stream) const;

  // Copies the plan packed in words() to the device and expands it into the buffers. The caller
  // performs the plan's block copies, whose pairs lie at StepLayout::copies, by group.
  absl::Status Upload(const PackedPlan& plan, const StepBuffers& buffers,
                      cudaStream_t stream) const;

  // Starts copying the sampled results to the host. Done returns true when they have arrived.
  absl::Status Download(const StepBuffers& buffers, int wanted, bool tops, cudaStream_t stream);
  bool Done() const;  // also true after a failure
  absl::Status Failure() const;
  const kernels::SampleResult& Result(int i) const {
    return results_.As<kernels::SampleResult>()[i];
  }
  const kernels::SampleTop* Tops(int i) const {
    return tops_.As<kernels::SampleTop>() + static_cast<ptrdiff_t>(i) * kernels::kMaxSampledTop;
  }

 private:
  int index_ = 0;
  PinnedMemory host_;
  PinnedMemory masks_;
  PinnedMemory masks_ready_;
  DeviceMemory device_;
  PinnedMemory results_;
  PinnedMemory tops_;
  Event done_;
};

// Packs plans into words. It remembers per slot which values are on the device and need not be sent
// again. Plans must have passed a PlanChecker.
class StepPacker {
 public:
  explicit StepPacker(const StepLimits& limits);

  // Returns the number of words of the largest plan.
  static size_t MaxWords(const StepLimits& limits);

  // Packs `plan` into `words.host`. The result's pointers refer to the device's words.
  //
  // `size` is the size of the result, at least the plan's own in every dimension. The tokens that
  // the plan lacks become padding rows of one token, which its missing rows must suffice for; the
  // remaining rows are empty. The logits that the plan lacks are those of padding tokens.
  PackedPlan Pack(const StepPlan& plan, const CudaStepInput& size, const LaneWords& words);

  // Returns the slot's number of top log-probabilities, or nullopt if it requests not even the
  // sampled token's.
  std::optional<int32_t> TopLogprobs(SlotId slot) const { return slots_[slot].top_logprobs; }

 private:
  struct Slot {
    int num_blocks = 0;  // in each of its tables
    std::optional<int32_t> top_logprobs;
  };
  // Returns the slot's row of all groups' block tables.
  int32_t TableRow(int group, SlotId slot) const {
    return group * (limits_.max_num_seqs + 1) + slot;
  }
  // Returns the number on the device of a block, or of a place of a group of slots: behind the
  // slots lies that of padding rows.
  int32_t Place(int group, BlockId block) const {
    const bool checkpoint = limits_.state.Paged(group) == nullptr && block >= limits_.max_num_seqs;
    return checkpoint ? block + 1 : block;
  }
  void PackMoves(const StepPlan& plan, int32_t* out) const;
  void PackAppends(const StepPlan& plan, int32_t* out);
  void PackRows(const StepPlan& plan, const CudaStepInput& size, const kernels::StepLayout& at,
                int32_t* host) const;
  void PackWanted(const StepPlan& plan, const CudaStepInput& size, const kernels::StepLayout& at,
                  const LaneWords& words, PackedPlan* packed) const;

  StepLimits limits_;
  std::vector<Slot> slots_;
};

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_STEP_BUFFERS_H_
