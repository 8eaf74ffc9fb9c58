// The memory that a model takes of a GPU besides its weights: how much, and for what.
#ifndef MILLRACE_EXECUTORS_CUDA_MODEL_MEMORY_H_
#define MILLRACE_EXECUTORS_CUDA_MODEL_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "executors/cuda/cuda_model.h"

namespace millrace::cuda {

// Returns a context for dry runs: the state that ops look at of a model, without memory.
CudaOpsContext DescribeContext(const ModelConfig& config, int max_model_len,
                               const CudaWeights& weights, const StepBuffers& buffers);

// Each takes memory for one part of the model, and gives it to the context where it has a place.
absl::Status MakeRotations(const ModelConfig& config, CudaModel& m);
absl::Status MakeRoutingMemory(CudaModel& m, CudaOpsContext& context);
absl::Status MakeAttentionMemory(const ModelConfig& config, CudaModel& m, CudaOpsContext& context);
absl::Status MakeKv(const CudaSpec& device, CudaModel& m);

// Returns the arena of the model's KV cache without its memory.
KvArena DescribeKv(const ModelConfig& config, const Model& model, const CudaSpec& device);

// Returns the largest steps of their kinds that a rank runs.
std::vector<CudaStepInput> LargestSteps(const Model& model, const ModelConfig& config,
                                        const StepLimits& limits, RankSpec rank);

// Bytes that a rank needs.
struct MemoryNeeds {
  size_t weights;
  size_t activations;
  size_t steps;      // logits and steps
  size_t expansion;  // the workspace that four-bit weights are expanded in
};

// Refuses, before anything is read, ranks that do not fit the current device, which `sharers` ranks
// share: ResourceExhausted, with the numbers.
absl::Status CheckMemory(const CudaSpec& device, const KvArena& kv, const MemoryNeeds& of_rank,
                         int sharers);

// Returns how many blocks each of `sharers` ranks on the current device has memory for.
absl::StatusOr<int32_t> CountBlocks(const CudaSpec& device, const KvArena& kv, int sharers);

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_MODEL_MEMORY_H_
