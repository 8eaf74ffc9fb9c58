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
#include "executors/cuda/mixed_graphs.h"
#include "executors/slot_results.h"
#include "plan/step_plan.h"

namespace millrace::cuda {

// A kernel at a step's end, for tests: one that fails, or one that never ends.
enum class StepFault { kNone, kTrap, kHang };

// Used by one thread at a time. Lanes are numbers below kMaxStepsInFlight.
class RankSteps {
 public:
  // Steps with prompts of up to `graph_tokens` tokens run as graphs.
  RankSteps(std::unique_ptr<CudaModel> model, DecodeGraphs graphs, int graph_tokens)
      : model_(std::move(model)),
        graphs_(std::make_unique<DecodeGraphs>(std::move(graphs))),
        mixed_graphs_(std::make_unique<MixedGraphs>()),
        graph_tokens_(graph_tokens),
        packer_(model_->info.limits) {}

  const CudaModel& model() const { return *model_; }

  // Has the rank meet the others, whose threads are the group's, while it launches a step that is
  // no graph.
  void SetGroup(RankGroup& group) { model_->peers->group = &group; }

  // Counts a step that is about to be launched. Returns whether all ranks are to capture its graph
  // before: all of them return the same. If one cannot, all of them give the graph up.
  bool CountStep(const StepPlan& plan);
  // Captures the step's graph while the device may be at earlier steps. Returns whether it could.
  bool CaptureGraph(const StepPlan& plan);
  void GiveUpGraph(const StepPlan& plan);
  // Returns whether the step would be launched as a graph now.
  bool HasGraph(const StepPlan& plan) const { return WayOf(plan).graph != nullptr; }

  // Launches a step and, with `fetches`, the transfer of its results to the host. All ranks launch
  // the same steps in the same order. Where a lone rank's step takes more memory than there is, a
  // part of its kernels is launched, and it ends like any other: Exceeded says so. With several
  // ranks that is an error like all others, since each may have stopped at another collective.
  absl::Status Launch(const StepPlan& plan, int lane, bool fetches, StepFault fault);

  // Sends the masks of a step that was launched without, some being late. All are known by now.
  absl::Status SendMasks(const StepPlan& plan, int lane);

  // Returns whether the lane's step has ended or failed.
  bool Done(int lane) const { return model_->lanes[lane].Done(); }
  // Returns OK for a step that has ended, or how it failed.
  absl::Status Failure(int lane) const;
  // Returns ResourceExhausted if the lane's step, of a lone rank, took more memory than there is:
  // its results are void, and the next step may follow.
  const absl::Status& Exceeded(int lane) const { return exceeded_[lane]; }
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
    (void)mixed_graphs_.release();
  }

 private:
  // The size that a step is launched with, and its graph if it has one.
  struct Way {
    CudaStepInput size;
    const StepGraph* graph = nullptr;
  };
  Way WayOf(const StepPlan& plan) const;
  // Returns the size of a mixed graph for the step, nullopt where a step has none.
  std::optional<CudaStepInput> MixedSize(const StepPlan& plan) const;
  // Uploads the plan, padded to `size`.
  absl::StatusOr<PackedPlan> Upload(const StepPlan& plan, int lane, const CudaStepInput& size);
  absl::Status Compute(const PackedPlan& packed, const StepGraph* graph);
  absl::Status CopyBlocks(const StepPlan& plan, const kernels::PackedStep& step);
  absl::Status LaunchFault(StepFault fault);

  std::unique_ptr<CudaModel> model_;
  std::unique_ptr<DecodeGraphs> graphs_;
  std::unique_ptr<MixedGraphs> mixed_graphs_;
  int graph_tokens_;
  StepPacker packer_;
  std::vector<std::optional<int32_t>> tops_[kMaxStepsInFlight];  // by row: top_logprobs
  uint32_t late_steps_[kMaxStepsInFlight] = {};                  // how many had late masks, by lane
  absl::Status exceeded_[kMaxStepsInFlight];                     // of the lanes' steps
};

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_RANK_STEPS_H_
