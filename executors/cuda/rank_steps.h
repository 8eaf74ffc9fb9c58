// The steps of one rank: on the GPU that it has, or on the only one of a model that is not divided.
#ifndef MILLRACE_EXECUTORS_CUDA_RANK_STEPS_H_
#define MILLRACE_EXECUTORS_CUDA_RANK_STEPS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "executors/cuda/cuda_model.h"
#include "executors/cuda/decode_graphs.h"
#include "executors/slot_results.h"
#include "scheduler/step_plan.h"

namespace millrace::cuda {

// A kernel at a step's end, for tests: one that fails, or one that never ends.
enum class StepFault { kNone, kTrap, kHang };

// Used by one thread at a time. Lanes are numbers below kMaxStepsInFlight.
class RankSteps {
 public:
  RankSteps(std::unique_ptr<CudaModel> model, DecodeGraphs graphs)
      : model_(std::move(model)),
        graphs_(std::make_unique<DecodeGraphs>(std::move(graphs))),
        packer_(model_->info.limits) {}

  const CudaModel& model() const { return *model_; }

  // Has the rank meet the others, whose threads are the group's, while it launches a step that is
  // no graph.
  void SetGroup(RankGroup& group) { model_->peers->group = &group; }

  // Launches a step and, with `fetches`, the transfer of its results to the host. All ranks launch
  // the same steps in the same order.
  absl::Status Launch(const StepPlan& plan, int lane, bool fetches, StepFault fault);

  // Sends the masks of a step that was launched without, some being late. All are known by now.
  absl::Status SendMasks(const StepPlan& plan, int lane);

  // Returns whether the lane's step has ended or failed.
  bool Done(int lane) const { return model_->lanes[lane].Done(); }
  // Returns OK for a step that has ended, or how it failed.
  absl::Status Failure(int lane) const;
  // Returns whether a collective has given up waiting for another rank, or NCCL has failed.
  bool GaveUp() const;
  // Ends all waits of collectives for other ranks, where they go by NCCL and would last for ever.
  void AbortNccl() const;

  // Leaves what the lane's step sampled, in the order of the plan's logits.
  void Collect(const StepPlan& plan, int lane, std::vector<Sampled>* sampled) const;

  // Gives up memory that a hung kernel may still use, since freeing it would wait for the kernel.
  void Leak() {
    (void)model_.release();
    (void)graphs_.release();
  }

 private:
  // Uploads the plan as a step of `rows` rows: the plan's own, followed by padding rows.
  absl::StatusOr<PackedPlan> Upload(const StepPlan& plan, int lane, int rows);
  absl::Status Compute(const PackedPlan& packed, const DecodeGraph* graph);
  absl::Status CopyBlocks(const StepLane& lane, int count);
  absl::Status LaunchFault(StepFault fault);

  std::unique_ptr<CudaModel> model_;
  std::unique_ptr<DecodeGraphs> graphs_;
  StepPacker packer_;
  std::vector<std::optional<int32_t>> tops_[kMaxStepsInFlight];  // by row: top_logprobs
  uint32_t late_steps_[kMaxStepsInFlight] = {};                  // how many had late masks, by lane
};

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_RANK_STEPS_H_
