// A model in a GPU's memory, ready to run steps.
#ifndef MILLRACE_EXECUTORS_CUDA_CUDA_MODEL_H_
#define MILLRACE_EXECUTORS_CUDA_CUDA_MODEL_H_

#include <array>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "executors/cuda/cuda_ops.h"
#include "executors/cuda/device/device.h"
#include "executors/cuda/step_buffers.h"
#include "executors/cuda/weights/weights.h"
#include "executors/device_spec.h"
#include "executors/executor.h"
#include "executors/models/memory_plan.h"
#include "executors/models/model.h"
#include "executors/nodes.h"
#include "formats/open_model.h"
#include "kernels/gemm/cublaslt_api.h"
#include "kernels/gemm/linear.h"

namespace millrace::cuda {

// A model, or one rank's part of it. Pinned in memory: the parts point to one another. Members are
// destroyed from the last up.
struct CudaModel {
  DeviceInfo device;
  Stream stream;
  Stream mask_stream;  // copies masks while steps run
  std::unique_ptr<kernels::CublasLt> cublaslt;
  std::unique_ptr<kernels::LinearPlanner> planner;
  std::unique_ptr<Model> model;
  CudaWeights weights;
  DeviceMemory rotations;
  DeviceMemory linear_workspace;
  DeviceMemory linear_tile_counter;
  DeviceMemory routing;  // of mixtures: touched experts, counters, and offsets of groups
  DeviceMemory attention;
  StepBuffers buffers;
  // With several ranks: memory that the others write, what a collective reports, and the ranks.
  PeerMemory mailbox;
  PinnedMemory failure;
  DeviceMemory exchanged;  // by NCCL, in place of the mailbox
  std::unique_ptr<RankPeers> peers;
  std::array<StepLane, kMaxStepsInFlight> lanes;
  DeviceMemory activation_memory;
  DeviceMemory kv_memory;
  KvArena kv;
  std::unique_ptr<CudaOps> ops;
  std::vector<MixtureUse> mixtures;  // untouched
  ModelInfo
      info;  // the first one's describes all ranks together; the others' have limits and kv alone
};

// Calls every op of `model` in its largest steps, on `shapes`, the weights of a CudaWeightPlacer
// that has placed nothing yet. Returns about how many bytes their activations take (plans of
// linears, which are not made yet, may save some). UNIMPLEMENTED, naming the field, for what an op
// cannot do. Touches no device.
absl::StatusOr<size_t> DryRun(const Model& model, const ModelConfig& config,
                              const StepLimits& limits, const CudaWeights& shapes);

// Returns the memory that the model takes of a GPU, of all ranks that share it; `nodes` nodes have
// the ranks. Reads no weights, and needs no GPU: without one, kernels are those for Hopper.
// UNIMPLEMENTED, naming the field, for what an op cannot do.
absl::StatusOr<MemoryPlan> PlanCudaMemory(const OpenedModel& model, const CudaSpec& device,
                                          int nodes = 1);

// Loads the ranks of a model, device.tensor_parallel_size of them or this node's part, which point
// to one another: they are destroyed together, when none of them runs. Errors name the file or the
// setting. The last rank's device becomes the calling thread's.
absl::StatusOr<std::vector<std::unique_ptr<CudaModel>>> LoadCudaRanks(const ModelSpec& model,
                                                                      const CudaSpec& device,
                                                                      Nodes* nodes = nullptr);

// Loads a model of one rank.
absl::StatusOr<std::unique_ptr<CudaModel>> LoadCudaModel(const ModelSpec& model,
                                                         const CudaSpec& device);

// Logs a line of what takes the device's memory `now`. `graph_bytes`: graphs and the kernels' code.
void LogMemory(const CudaModel& model, size_t graph_bytes, const MemoryUse& now);

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_CUDA_MODEL_H_
