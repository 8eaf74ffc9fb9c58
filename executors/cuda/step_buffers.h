// A step's input on its way to the GPU, and where it and what comes of it lie there.
#ifndef MILLRACE_EXECUTORS_CUDA_STEP_BUFFERS_H_
#define MILLRACE_EXECUTORS_CUDA_STEP_BUFFERS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "executors/cuda/device.h"
#include "executors/ops.h"
#include "executors/slot_results.h"
#include "kernels/sampling/sample.h"
#include "kernels/step/step_input.h"
#include "kernels/types.h"
#include "scheduler/step_plan.h"

namespace millrace::cuda {

// The most tokens that one sequence may ban: more than the 1,024 that a request may name
// (stop_token_ids) and a model's own end tokens together.
inline constexpr int kMaxBannedTokens = 1280;
inline constexpr int kMaxBiases = kMaxBannedTokens + static_cast<int>(kMaxLogitBiases);

// How much of the arrays a step uses; a graph is captured for one such shape.
struct CudaStepInput : StepInput {
  int rows = 0;
  int tokens = 0;
  int wanted = 0;
  int max_row_tokens = 1;  // no row has more
  int64_t positions = 0;   // of all rows together: to count bytes, no kernel asks
};
inline const CudaStepInput& Cast(const StepInput& input) {
  return static_cast<const CudaStepInput&>(input);
}

// Device memory, at addresses that never change. Slot limits.max_num_seqs is nobody's: rows that
// fill a graph's batch up name it.
struct StepBuffers {
  // Does not look at limits.num_blocks.
  static absl::StatusOr<StepBuffers> Make(const StepLimits& limits, int64_t logits_stride);

  // All of nobody's positions lie in `block`, which no sequence may have. Before the first step.
  absl::Status SetNobodysBlock(const StepLimits& limits, BlockId block) const;

  kernels::BlockTables tables() const { return {arrays.block_tables, arrays.table_stride}; }

  kernels::StepArrays arrays{};
  int32_t* last_tokens = nullptr;   // [slots]
  const int32_t* counts = nullptr;  // counts[i] is i, [0, max_logit_rows]
  float* logits = nullptr;          // [max_logit_rows][logits_stride]
  float* adjusted = nullptr;        // the same
  int64_t logits_stride = 0;
  int max_logit_rows = 0;
  void* sample_workspace = nullptr;
  kernels::SampleResult* results = nullptr;  // [max_num_batched_tokens]
  kernels::SampleTop* tops = nullptr;        // [max_num_batched_tokens][kMaxSampledTop]
  DeviceMemory memory;
};

// A plan in words.
struct PackedPlan {
  kernels::PackedStep step;  // its `words` point behind the copies
  CudaStepInput input;
  int copies = 0;
  size_t words = 0;
  bool tops = false;  // some row wants the likeliest tokens
};

// One of the two ways to the device and back that steps take in turns: the host fills and reads the
// one while the device works on the other.
class StepLane {
 public:
  static absl::StatusOr<StepLane> Make(const StepLimits& limits);

  // Pinned, as many words as any plan packs into.
  int32_t* host_words() const { return host_.As<int32_t>(); }

  const int32_t* device_words() const { return device_.As<int32_t>(); }

  // The plan that was packed into host_words, to the device and into `arrays`. What it copies is
  // for the caller: pairs of blocks at device_words.
  absl::Status Upload(const PackedPlan& plan, const kernels::StepArrays& arrays,
                      cudaStream_t stream) const;

  // What was sampled, to the host; then Done.
  absl::Status Download(const StepBuffers& buffers, int wanted, bool tops, cudaStream_t stream);
  bool Done() const;  // or failed
  absl::Status Failure() const;
  const kernels::SampleResult& Result(int i) const {
    return results_.As<kernels::SampleResult>()[i];
  }
  const kernels::SampleTop* Tops(int i) const {
    return tops_.As<kernels::SampleTop>() + static_cast<ptrdiff_t>(i) * kernels::kMaxSampledTop;
  }

 private:
  PinnedMemory host_;
  DeviceMemory device_;
  PinnedMemory results_;
  PinnedMemory tops_;
  Event done_;
};

// Turns plans into words. Knows of each slot what is not sent again. Plans have passed a
// PlanChecker.
class StepPacker {
 public:
  explicit StepPacker(const StepLimits& limits);

  // The words that the largest plan packs into.
  static size_t MaxWords(const StepLimits& limits);

  // Fills `host`; the result's pointers are into `device`. `rows`: at least the plan's; the rest
  // are filled up. Then each of the plan's rows must have one token and want its logits.
  PackedPlan Pack(const StepPlan& plan, int rows, int32_t* host, const int32_t* device);

  // How many of a sampled position's likeliest tokens its slot asks for; nothing: not even its own
  // log-probability.
  std::optional<int32_t> TopLogprobs(SlotId slot) const { return slots_[slot].top_logprobs; }

 private:
  struct Slot {
    int num_blocks = 0;
    std::optional<int32_t> top_logprobs;
  };
  StepLimits limits_;
  std::vector<Slot> slots_;
};

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_STEP_BUFFERS_H_
