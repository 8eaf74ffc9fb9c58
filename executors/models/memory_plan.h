// The memory that a model takes of a device, as one value.
//
// An executor states it from the model's files and its settings, by a dry run that reads no weight
// and needs no device. The load takes memory by it, and what is told before a load is this value.
#ifndef MILLRACE_EXECUTORS_MODELS_MEMORY_PLAN_H_
#define MILLRACE_EXECUTORS_MODELS_MEMORY_PLAN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "executors/models/model_state.h"
#include "plan/state_layout.h"

namespace millrace {

// Bytes are those of all ranks that share the memory: of this process on the CPU, of one GPU.
struct MemoryPlan {
  int64_t weights = 0;
  int64_t activations = 0;  // of the step that takes most
  int64_t workspaces = 0;   // of steps besides: logits, tables, scratch memory of threads
  int64_t graphs = 0;       // of captured steps and their kernels

  // The state that sequences own. A device keeps `spare_blocks` of each group, and as many slots,
  // for itself.
  StateLayout state;
  StateUse use;
  int32_t spare_blocks = 0;
  // Set where more blocks of a group have no use: of models whose sequences stay for a few steps.
  std::optional<int32_t> most_blocks = std::nullopt;
  // By group, without spare ones; of one of slots, checkpoints. Empty until divided.
  std::vector<int32_t> num_blocks = {};

  // Returns all bytes but the state's.
  int64_t BesideState() const { return weights + activations + workspaces + graphs; }

  // Returns how many blocks of each group fit `bytes`, as DivideState has it.
  std::vector<int32_t> Divide(int64_t bytes) const;
  // Returns the bytes of a group, with spare blocks, or with checkpoints. Wants num_blocks.
  int64_t GroupBytes(int group) const;
  // Returns the bytes of all groups.
  int64_t StateBytes() const;
  // Returns the bytes of a group's checkpoints, of those alone. Wants num_blocks.
  int64_t CheckpointBytes(int group) const;
  // Return the bytes of state, without checkpoints, beyond which more has no use, and those below
  // which nothing runs.
  int64_t MostStateBytes() const;
  int64_t LeastStateBytes() const;
  // Returns the bytes of what the device keeps for itself.
  int64_t SpareBytes() const;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_MEMORY_PLAN_H_
