// The embedding: maps token ids to the first residual stream.
#ifndef MILLRACE_KERNELS_ELEMENTWISE_EMBED_H_
#define MILLRACE_KERNELS_ELEMENTWISE_EMBED_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/types.h"

namespace millrace::kernels {

inline constexpr int kMaxTableParts = 8;

// Computes residual[t] = factor * table[ids[t]] in float32, an exact copy where the factor is 1. An
// id outside [0, vocab) gives a row of NaN, which the sampler reports as that row's failure,
// because ids may come from the device unchecked.
struct EmbedArgs {
  const int32_t* ids;    // [tokens]
  const Bf16* table;     // [vocab, width] in rows of table_stride, 16-byte aligned
  int64_t table_stride;  // elements, a multiple of 8
  int vocab;
  int tokens;
  int width;        // a multiple of 8
  float* residual;  // [tokens, width], dense, 16-byte aligned
  float factor = 1;
  // The rows of each part, where ranks divide the table: part p, of which this device can read
  // every row, has rows [p * part_rows, (p + 1) * part_rows). 0: `table` has all rows.
  int part_rows = 0;
  const Bf16* parts[kMaxTableParts] = {};
};

cudaError_t LaunchEmbed(const EmbedArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ELEMENTWISE_EMBED_H_
