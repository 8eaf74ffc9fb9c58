#include "executors/cuda/weights/four_bit_rows.h"

#include "kernels/gemm/four_bit.h"
#include "kernels/weights/fill.h"
#include "kernels/weights/quantize_int4.h"
#include "kernels/weights/split_blocks.h"

namespace millrace::cuda {
namespace {

constexpr int64_t kGroup = 32;  // the smallest
constexpr int64_t kAlignment = 256;

// The parts of the staging memory: codes, scales and minima.
struct Staging {
  Staging(uint8_t* memory, int64_t rows, int64_t columns)
      : codes(memory),
        scales(codes + RoundUp(rows * columns / 2, kAlignment)),
        minima(reinterpret_cast<kernels::Bf16*>(
            scales + RoundUp(rows * columns / kGroup * 2, kAlignment))) {}

  uint8_t* codes;
  uint8_t* scales;
  kernels::Bf16* minima;
};

cudaError_t Tile(const FourBitRows& to, int64_t columns, const Staging& from, cudaStream_t stream) {
  const kernels::FourBitFormat& format = *to.matrix->four_bit;
  const bool affine = format.type == kernels::FourBitType::kInt4Affine;
  return kernels::LaunchTileFourBit({.format = format,
                                     .rows = to.rows,
                                     .columns = columns,
                                     .stride = to.matrix->stride,
                                     .codes = from.codes,
                                     .scales = from.scales,
                                     .zeros = nullptr,
                                     .source_rows = nullptr,
                                     .out = to.out(),
                                     .minima = affine ? from.minima : nullptr},
                                    stream);
}

}  // namespace

uint8_t* FourBitRows::out() const {
  return arena + matrix->data_offset + matrix->four_bit->Bytes(first, matrix->stride);
}

int64_t FourBitStagingBytes(int64_t rows, int64_t stride) {
  return RoundUp(rows * stride / 2, kAlignment) +
         2 * RoundUp(rows * stride / kGroup * 2, kAlignment);
}

cudaError_t TileBlocks(const FourBitRows& to, const void* source, kernels::StoredType stored,
                       uint8_t* staging, cudaStream_t stream) {
  const int64_t columns = to.matrix->column_share.count;
  const Staging parts(staging, to.rows, columns);
  const bool affine = to.matrix->four_bit->type == kernels::FourBitType::kInt4Affine;
  const cudaError_t error = kernels::LaunchSplitBlocks({.source = source,
                                                        .stored = stored,
                                                        .rows = to.rows,
                                                        .columns = columns,
                                                        .codes = parts.codes,
                                                        .scales = parts.scales,
                                                        .minima = affine ? parts.minima : nullptr},
                                                       stream);
  return error != cudaSuccess ? error : Tile(to, columns, parts, stream);
}

cudaError_t TileQuantized(const FourBitRows& to, const kernels::Bf16* source, uint8_t* staging,
                          cudaStream_t stream) {
  const int64_t stride = to.matrix->stride;
  const Staging parts(staging, to.rows, stride);
  const cudaError_t error =
      kernels::LaunchQuantizeInt4({.source = source,
                                   .rows = to.rows,
                                   .stride = stride,
                                   .codes = parts.codes,
                                   .scales = reinterpret_cast<kernels::Bf16*>(parts.scales),
                                   .minima = parts.minima},
                                  stream);
  return error != cudaSuccess ? error : Tile(to, stride, parts, stream);
}

cudaError_t TileDrawn(const FourBitRows& to, uint64_t seed, uint8_t* staging, cudaStream_t stream) {
  const int64_t columns = to.matrix->columns;
  const Staging parts(staging, to.rows, columns);
  // Codes of FP8 are bytes that use all bits.
  cudaError_t error = kernels::LaunchFill({.out = parts.codes,
                                           .type = kernels::Type::kFp8,
                                           .rows = to.rows,
                                           .columns = columns / 2,
                                           .stride = columns / 2,
                                           .seed = seed,
                                           .low = -448,
                                           .high = 448},
                                          stream);
  if (error != cudaSuccess) return error;
  // Both bytes of a scale are equal: 0.001 in FP16, 2^-9 in E8M0, 0.0007 with a minimum of -0.0057
  // in BF16.
  const kernels::FourBitType type = to.matrix->four_bit->type;
  const int scale = type == kernels::FourBitType::kMxfp4  ? 118
                    : type == kernels::FourBitType::kInt4 ? 0x14
                                                          : 0x3a;
  const size_t scales = to.rows * columns / kGroup * 2;
  error = cudaMemsetAsync(parts.scales, scale, scales, stream);
  if (error == cudaSuccess) error = cudaMemsetAsync(parts.minima, 0xbb, scales, stream);
  return error != cudaSuccess ? error : Tile(to, columns, parts, stream);
}

}  // namespace millrace::cuda
