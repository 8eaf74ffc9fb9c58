// All-gather of small records over the ranks of a Communicator, by the mechanism of the all-reduce:
// for sums of squares of norms that run across the heads of all ranks.
#ifndef MILLRACE_KERNELS_COLLECTIVE_ALL_GATHER_H_
#define MILLRACE_KERNELS_COLLECTIVE_ALL_GATHER_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/collective/communicator.h"

namespace millrace::kernels {

// gathered[row][rank] = rank's records[row]. A record may hold any bits: 32 bits of it travel with
// 32 bits that say that they are there (NCCL's LL protocol), so a record takes twice its size of a
// slot: 2 * rows * record_bytes is at most slot_bytes. `records` is read, `gathered` written.
struct AllGatherArgs {
  Communicator communicator;
  const void* records;  // [rows, record_bytes], 8-byte aligned
  void* gathered;       // [rows, ranks, record_bytes], 8-byte aligned
  int rows;
  int record_bytes;  // a multiple of 8
};

// Returns cudaErrorInvalidValue, and launches nothing, if `args` violates the constraints above.
cudaError_t LaunchAllGather(const AllGatherArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_COLLECTIVE_ALL_GATHER_H_
