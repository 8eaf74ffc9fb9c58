// Makes a matrix's four-bit tiles (kernels/gemm/four_bit.h) of rows in device memory.
#ifndef MILLRACE_EXECUTORS_CUDA_WEIGHTS_FOUR_BIT_ROWS_H_
#define MILLRACE_EXECUTORS_CUDA_WEIGHTS_FOUR_BIT_ROWS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "executors/cuda/weights/weight_loader.h"
#include "kernels/types.h"
#include "kernels/weights/dequantize.h"

namespace millrace::cuda {

// Rows [first, first + rows) of a matrix with a four-bit form, in the arena that holds it; `first`
// is a multiple of kFourBitRows.
struct FourBitRows {
  const PendingMatrix* matrix;
  int64_t first;
  int64_t rows;
  uint8_t* arena;

  // Returns the address of their tiles.
  uint8_t* out() const;
};

// Returns the bytes of staging memory that the functions below take for so many rows.
int64_t FourBitStagingBytes(int64_t rows, int64_t stride);

// Makes the tiles of a file's dense rows [rows, the rank's columns] in a type that FourBitFormatOf
// knows.
cudaError_t TileBlocks(const FourBitRows& to, const void* source, kernels::StoredType stored,
                       uint8_t* staging, cudaStream_t stream);

// Quantizes BF16 rows [rows, stride] to kInt4Affine and makes their tiles.
cudaError_t TileQuantized(const FourBitRows& to, const kernels::Bf16* source, uint8_t* staging,
                          cudaStream_t stream);

// Makes tiles of random codes, with equal scales.
cudaError_t TileDrawn(const FourBitRows& to, uint64_t seed, uint8_t* staging, cudaStream_t stream);

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_WEIGHTS_FOUR_BIT_ROWS_H_
