// Copies whole blocks of the paged cache, or states at slots, in all layers: for the copy-on-write
// of a forked sequence, and for checkpoints.
#ifndef MILLRACE_KERNELS_ATTENTION_COPY_BLOCKS_H_
#define MILLRACE_KERNELS_ATTENTION_COPY_BLOCKS_H_

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <cstdint>

namespace millrace::kernels {

// Block b of layer l is the block_bytes bytes at arena + l * layer_stride + b * block_stride. For
// each pair, block `x` is copied to block `y` in every layer. Pairs are copied in no particular
// order, so no destination may be another pair's source or destination.
struct CopyBlocksArgs {
  void* arena;           // 16-byte aligned
  int64_t layer_stride;  // bytes, a multiple of 16
  int64_t block_stride;  // bytes, a multiple of 16
  int64_t block_bytes;   // a multiple of 16, at most block_stride
  int layers;
  const int2* pairs;  // [count], on the device
  int count;
};

cudaError_t LaunchCopyBlocks(const CopyBlocksArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ATTENTION_COPY_BLOCKS_H_
