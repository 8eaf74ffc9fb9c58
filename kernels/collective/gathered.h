// The kernels before and behind an all-gather by NCCL, where ranks cannot write into one another's
// memory: the partial sums as they go over the wire, and the sum of what came. The sum has the bits
// of LaunchAllReduce (all_reduce.h), which sends the same values and adds them in the same order.
#ifndef MILLRACE_KERNELS_COLLECTIVE_GATHERED_H_
#define MILLRACE_KERNELS_COLLECTIVE_GATHERED_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/types.h"

namespace millrace::kernels {

// packed[token][column] = BF16(partial), dense. Reads `partial`, writes `packed`.
struct PackProductArgs {
  Product partial;  // [tokens, width]
  Bf16* packed;     // [tokens, width], 16-byte aligned
  int tokens;
  int width;  // a multiple of 8
};
cudaError_t LaunchPackProduct(const PackProductArgs& args, cudaStream_t stream);

// sum[token][column] = BF16(parts[0] + parts[1] + ... + parts[ranks - 1]), added in this order in
// float32.
struct SumPartsArgs {
  const Bf16* parts;   // [ranks, tokens, width], 16-byte aligned
  Bf16* sum;           // [tokens, width] in rows of sum_stride elements, 16-byte aligned
  int64_t sum_stride;  // at least width, a multiple of 8
  int ranks;
  int tokens;
  int width;  // a multiple of 8
};
cudaError_t LaunchSumParts(const SumPartsArgs& args, cudaStream_t stream);

// The embedding of a table that is divided by rows, in two launches. The first one copies those
// rows that this rank has; what is of other ranks it leaves as it is. The second one takes, of what
// all ranks sent, each token's row from the rank that has it, as LaunchEmbed does from a table.
struct EmbedShareArgs {
  const int32_t* ids;    // [tokens]
  const Bf16* table;     // [part_rows, width] in rows of table_stride: this rank's
  int64_t table_stride;  // elements, a multiple of 8
  int part_rows;         // of each rank; the last one may have fewer that count
  int rank;
  int vocab;
  int tokens;
  int width;   // a multiple of 8
  Bf16* rows;  // [tokens, width], 16-byte aligned
};
cudaError_t LaunchEmbedShare(const EmbedShareArgs& args, cudaStream_t stream);

struct PickRowsArgs {
  const int32_t* ids;  // [tokens]
  const Bf16* parts;   // [ranks, tokens, width], 16-byte aligned
  int part_rows;
  int vocab;
  int tokens;
  int width;        // a multiple of 8
  float* residual;  // [tokens, width], 16-byte aligned
  float factor;
};
cudaError_t LaunchPickRows(const PickRowsArgs& args, cudaStream_t stream);

// gathered[row][rank] = records[rank][row]: the layout of LaunchAllGather.
struct InterleaveArgs {
  const void* records;  // [ranks, rows, record_bytes], 8-byte aligned
  void* gathered;       // [rows, ranks, record_bytes], 8-byte aligned
  int ranks;
  int rows;
  int record_bytes;  // a multiple of 8
};
cudaError_t LaunchInterleave(const InterleaveArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_COLLECTIVE_GATHERED_H_
