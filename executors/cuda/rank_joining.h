// How the ranks of a model come together: by memory that they write into one another's, or by NCCL.
#ifndef MILLRACE_EXECUTORS_CUDA_RANK_JOINING_H_
#define MILLRACE_EXECUTORS_CUDA_RANK_JOINING_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "executors/cuda/cuda_model.h"
#include "executors/device_spec.h"
#include "executors/nodes.h"

namespace millrace::cuda {

// Calls `body` with every rank, each on a thread of its own, and returns the error of the first
// rank that has one. Opening a GPU takes most of a start's time, and no rank waits for another
// there.
absl::Status OnAllRanks(int size, const std::function<absl::Status(int)>& body);

// Returns whether ranks exchange by NCCL, since they cannot write into one another's memory.
absl::StatusOr<bool> NeedsNccl(const CudaSpec& device, absl::Span<const int> devices,
                               const Nodes* nodes);

// Lets a rank play all others: what it sends to a peer arrives in its own memory, as if the peer
// had sent it.
void PlayPeers(RankPeers& peers);

struct RankJoining {
  const CudaSpec& device;
  Nodes* nodes;        // null: this process has all ranks
  int first_rank;      // of this process
  int64_t slot_bytes;  // that a rank sends at once
  bool by_nccl;
};

// Gives each rank of this process, on its device, what it needs to meet all others; nothing where
// there is one rank. All nodes call it.
absl::Status JoinRanks(const RankJoining& joining, absl::Span<const int> devices,
                       absl::Span<const std::unique_ptr<CudaModel>> ranks);

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_RANK_JOINING_H_
