// All-reduce of partial sums over the ranks of a Communicator, plain, or fused with the residual's
// addition, the RMS norm and the quantization that follow a row-parallel linear.
//
// The sum is the same on every rank and in every repeat, and the same with each method:
//   sum = BF16(p[0] + p[1] + ... + p[ranks - 1])
// added in this order in float32, where p[r] is rank r's partial sum in BF16; one that carries
// scales is multiplied in float32 and rounded once. Subnormals are kept. A NaN makes NaN what it is
// added to, and nothing else.
#ifndef MILLRACE_KERNELS_COLLECTIVE_ALL_REDUCE_H_
#define MILLRACE_KERNELS_COLLECTIVE_ALL_REDUCE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/collective/communicator.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/types.h"

namespace millrace::kernels {

enum class AllReduceMethod : uint8_t {
  // Every rank sends all of its data to every peer, and each adds for itself: one trip. The
  // capacity is slot_bytes.
  kOneShot,
  // Every rank adds one part of each row and sends the result to every peer (reduce-scatter and
  // all-gather): two trips, but only 2 / ranks of the bytes. The capacity is about slot_bytes *
  // ranks / 2.
  kTwoShot,
};

// Returns the method that is faster for `bytes` of BF16 on each of `ranks` ranks. Either gives the
// same bits. Two ranks send as much with both, and one-shot makes one trip less. With more the
// second trip pays where the data weigh more than it (H100 in a server of four: between 0.5 and 1
// MiB, vLLM pull request 24532).
AllReduceMethod BestAllReduce(int ranks, int64_t bytes);

// Returns how many bytes of a slot an all-reduce of [tokens, width] needs at most. All arguments
// are positive, and width is a multiple of 8.
int64_t AllReduceSlotBytes(AllReduceMethod method, int ranks, int tokens, int width);

// sum[token][column] as above. Reads `partial` and writes `sum`, which may be the same memory.
struct AllReduceArgs {
  Communicator communicator;
  AllReduceMethod method;
  Product partial;     // [tokens, width]: this rank's part
  Bf16* sum;           // [tokens, width] in rows of sum_stride elements, 16-byte aligned
  int64_t sum_stride;  // at least width, a multiple of 8
  int tokens;
  int width;  // a multiple of 8; tokens * width at most 2^31 - 8
};

// Does what LaunchRmsNorm does when its delta is the sum, with the same bits: `norm` is that
// kernel's descriptor, but norm.delta is this rank's part of the delta. All options of that kernel
// hold, except that the mixture must be null.
struct AllReduceNormArgs {
  Communicator communicator;
  AllReduceMethod method;
  RmsNormArgs norm;
};

// Return cudaErrorInvalidValue, and launch nothing, if the arguments violate the constraints above
// or exceed the slots' capacity. Without tokens they do nothing, so it must be so on every rank.
cudaError_t LaunchAllReduce(const AllReduceArgs& args, cudaStream_t stream);
cudaError_t LaunchAllReduceNorm(const AllReduceNormArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_COLLECTIVE_ALL_REDUCE_H_
