// NCCL, for ranks that cannot write into one another's memory: those of other processes, and GPUs
// without peer access. The library is opened when the first communicator is made, so that the
// program starts on machines that have none. NVLink multicast stays off (NCCL_NVLS_ENABLE=0).
#ifndef MILLRACE_KERNELS_COLLECTIVE_NCCL_API_H_
#define MILLRACE_KERNELS_COLLECTIVE_NCCL_API_H_

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "kernels/types.h"

namespace millrace::kernels {

// The identity of a communicator (ncclUniqueId). One rank makes it and sends it to the others.
using NcclId = std::array<char, 128>;

// One rank's end of a communicator. Launches are by one thread at a time, and for the device that
// was current when the rank joined. All ranks launch the same calls, with the same sizes, in the
// same order. They may be captured in a graph, but not a rank's very first ones, which connect it.
class Nccl {
 public:
  // Makes an id. False, with the reason in *error, where there is no NCCL of version 2.
  static bool MakeId(NcclId* id, std::string* error);
  // Joins the others on the current device, and waits until all have come: each rank on a thread of
  // its own. Null, with the reason in *error.
  static std::unique_ptr<Nccl> Join(const NcclId& id, int ranks, int rank, std::string* error);
  ~Nccl();  // aborts what has not ended
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  int ranks() const { return ranks_; }
  int rank() const { return rank_; }

  // gathered[r] = rank r's `send`, `bytes` each. cudaErrorUnknown: error() says why.
  cudaError_t AllGather(const void* send, void* gathered, size_t bytes, cudaStream_t stream);
  // sum = the sum over all ranks, in an order that follows `count` and the wiring.
  cudaError_t AllReduce(const Bf16* send, Bf16* sum, size_t count, cudaStream_t stream);

  // Returns why a call failed or what has gone wrong since; empty if nothing has.
  std::string error() const;

  // Ends what runs and all that follows. May be called from any thread, and several times.
  void Abort();

 private:
  Nccl(void* communicator, int ranks, int rank)
      : communicator_(communicator), ranks_(ranks), rank_(rank) {}

  cudaError_t Check(int result);

  std::atomic<void*> communicator_;  // null: aborted
  const int ranks_;
  const int rank_;
  std::atomic<int> result_{0};  // of the first call that failed
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_COLLECTIVE_NCCL_API_H_
