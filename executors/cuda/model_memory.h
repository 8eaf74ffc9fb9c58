// The memory that a model takes of a GPU besides its weights: how much, and for what.
#ifndef MILLRACE_EXECUTORS_CUDA_MODEL_MEMORY_H_
#define MILLRACE_EXECUTORS_CUDA_MODEL_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "executors/cuda/cuda_model.h"
#include "executors/cuda/device/device.h"
#include "executors/cuda/weights/weights.h"
#include "executors/models/memory_plan.h"

namespace millrace::cuda {

// Returns a context for dry runs: the state that ops look at of a model, without memory.
CudaOpsContext DescribeContext(const ModelConfig& config, int max_model_len,
                               const CudaWeights& weights, const StepBuffers& buffers);

// Each takes memory for one part of the model, and gives it to the context where it has a place.
absl::Status MakeRotations(const ModelConfig& config, CudaModel& m);
absl::Status MakeRoutingMemory(CudaModel& m, CudaOpsContext& context);
absl::Status MakeAttentionMemory(const ModelConfig& config, CudaModel& m, CudaOpsContext& context);
absl::Status MakeKv(const CudaSpec& device, CudaModel& m);

// Returns Unimplemented unless all layers with pages have as many kv heads on a rank, of which it
// has `state_heads` (Model::layer_state_heads): all pages of the cache are of one size.
absl::Status CheckKvHeads(const ModelConfig& config, absl::Span<const int32_t> state_heads);

// Returns the arena of the model's state, for sequences of up to `max_model_len` positions,
// without its memory. Wants CheckKvHeads.
KvArena DescribeKv(const ModelConfig& config, const Model& model, const CudaSpec& device,
                   int32_t max_model_len);

// Returns steps of which one takes the most memory that any step does.
//
// Two steps of different tokens take the same, buffer by buffer, unless the rows of all buffers
// (LinearCapacity), the kernels of linears (kTokenBounds), the tiles of experts or the expansion of
// four-bit weights differ. Of every run of sizes in which none of these changes the largest is
// here, alone and as rows that decode, which keep more as long as attention appends for them.
std::vector<CudaStepInput> StepsToMeasure(const Model& model, const StepLimits& limits,
                                          const CudaWeights& weights);

// Returns the bytes of activations of the step that takes most, or what an op refused. Weights may
// be without data and without plans: about as many then, since plans may save some.
absl::StatusOr<size_t> MostActivationBytes(const Model& model, const StepLimits& limits,
                                           const CudaOpsContext& context);

// A rank whose weights are noted, and what its memory follows from.
struct RankToPlan {
  const CudaSpec& device;
  const ModelConfig& config;
  const StepLimits& limits;
  const Model& model;
  const CudaWeightPlacer& placer;
  int64_t logits_stride;
  int64_t logits_share;
  int64_t mailbox_bytes;  // that other ranks write
};

// Returns the memory of the rank, by dry runs. Touches no device.
absl::StatusOr<MemoryPlan> PlanRank(const RankToPlan& rank);

// Refuses, before anything is read, ranks that do not fit the memory of a device, which `sharers`
// ranks share: ResourceExhausted, with the numbers.
absl::Status CheckMemory(const CudaSpec& device, const MemoryUse& memory, const MemoryPlan& of_rank,
                         int sharers);

// Returns the bytes of a rank's captured steps and of loaded kernels: an estimate, which grows with
// layers and sizes.
int64_t GraphBytes(size_t layers, const StepLimits& limits, const CudaSpec& device);

// Returns how many blocks, or checkpoints, of each group each of `sharers` ranks on the current
// device has memory for, beside `graph_bytes` each.
absl::StatusOr<std::vector<int32_t>> CountBlocks(const CudaSpec& device, const StepLimits& limits,
                                                 const KvArena& kv, int64_t graph_bytes,
                                                 int sharers);

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_MODEL_MEMORY_H_
