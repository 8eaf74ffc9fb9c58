// Four-bit weights: their layout on the device, and the kernels that make it and that undo it.
//
// A weight [rows, stride] is divided into blocks of 64 rows and 128 columns, row block by row
// block, each block one contiguous piece: 4096 bytes of codes in the order in which the threads of
// a warp group hold wgmma's 64 x 16 matrices (four_bit.cuh), then the scales, row by row. A kernel
// copies blocks with plain bulk copies and needs no shuffle. Rows are padded to whole blocks with
// zeros.
//
// A weight's value is rounded once: bf16(scale * (code - zero)) for kInt4, bf16(scale * code +
// minimum) for kInt4Affine, and bf16(scale * code) for kMxfp4, whose products are exact but for
// overflow and underflow. How many steps that takes is FourBitSteps. Source of the idea: Marlin
// (arXiv:2408.11743), which orders codes by tensor-core fragments.
#ifndef MILLRACE_KERNELS_GEMM_FOUR_BIT_H_
#define MILLRACE_KERNELS_GEMM_FOUR_BIT_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/types.h"

namespace millrace::kernels {

enum class FourBitType : uint8_t {
  kInt4,        // integers 0 to 15, a scale and a zero point for each group of columns
  kMxfp4,       // E2M1 with an E8M0 scale for each 32 columns (OCP Microscaling 1.0)
  kInt4Affine,  // integers 0 to 15, a scale and a minimum, both BF16, for each 32 columns
};

// The type of kInt4's scales in the file. FP16 has 11 significant bits, BF16 a wider range: the
// kernels take both as they are.
enum class FourBitScale : uint8_t { kF16, kBf16 };

// The steps by which a code becomes a weight, of which all but the last are exact.
enum class FourBitSteps : uint8_t {
  kLine,  // code * scale + minimum: kInt4Affine, and kInt4 with BF16 scales whose zeros are all 8
  kFactors,  // (code - 8) * A, rounded, times C, of which the tile kernel finds two BF16 for each
             // FP16 scale that give its weights
  kBf16,     // (code - zero) * scale
  kF16       // a product each for the first 8 and the last 3 bits of an FP16 scale
};

// Scales are smaller than this in size, as the kernels multiply them by 128 first.
inline constexpr float kMaxFourBitScale = 0x1p120f;

// The same for kLine, whose weights are held by 2^24, so that the power of two by which a code is
// multiplied belongs to its scale: one step saves a fifth of what unpacking costs. Sums are
// multiplied by 2^24 in the end, exactly. A weight smaller than 2^-102 loses bits.
inline constexpr float kMaxLineScale = 0x1p18f;
inline constexpr float kLineUnit = 0x1p24f;

inline constexpr int kFourBitRows = 64;      // of a block
inline constexpr int kFourBitColumns = 128;  // of a block
inline constexpr int kFourBitCodeBytes = kFourBitRows * kFourBitColumns / 2;

struct FourBitFormat {
  FourBitType type;
  int group;  // columns that share a scale: 32, 64 or 128 for kInt4, else 32
  FourBitScale scale = FourBitScale::kF16;  // of kInt4
  bool symmetric = false;                   // kInt4: whether all zero points are 8

  constexpr bool IsValid() const {
    return type == FourBitType::kInt4 ? group == 32 || group == 64 || group == 128
                                      : group == 32 && !symmetric;
  }
  // Returns the steps of kInt4 and kInt4Affine; kMxfp4 has none.
  constexpr FourBitSteps Steps() const {
    if (type == FourBitType::kInt4Affine) return FourBitSteps::kLine;
    if (scale == FourBitScale::kF16) return symmetric ? FourBitSteps::kFactors : FourBitSteps::kF16;
    return symmetric ? FourBitSteps::kLine : FourBitSteps::kBf16;
  }
  // Returns what sums of products with the values in a kernel's registers are to be multiplied by.
  constexpr float Unit() const {
    return type != FourBitType::kMxfp4 && Steps() == FourBitSteps::kLine ? kLineUnit : 1;
  }
  friend constexpr bool operator==(const FourBitFormat&, const FourBitFormat&) = default;

  // Bytes of a group's scale: kInt4 and kInt4Affine 4 (two numbers of 16 bits: four_bit.cuh),
  // kMxfp4 1.
  constexpr int ScaleBytes() const { return type == FourBitType::kMxfp4 ? 1 : 4; }
  constexpr int BlockBytes() const {
    return kFourBitCodeBytes + kFourBitRows * (kFourBitColumns / group) * ScaleBytes();
  }
  constexpr int64_t Bytes(int64_t rows, int64_t stride) const {
    return (rows + kFourBitRows - 1) / kFourBitRows * (stride / kFourBitColumns) * BlockBytes();
  }
};

// Writes a weight's blocks from plain rows. Columns [columns, stride) and padding rows get scale 0.
struct TileFourBitArgs {
  FourBitFormat format;
  int64_t rows;          // of the result
  int64_t columns;       // a multiple of format.group
  int64_t stride;        // of the result; a multiple of kColumnPadding, at least `columns`
  const uint8_t* codes;  // [source rows][columns / 2], the lower four bits are the even column's
  // [source rows][columns / group]: kInt4 16 bits (format.scale), kInt4Affine BF16, kMxfp4 8 bits
  const void* scales;
  const uint8_t* zeros;  // kInt4: as scales, each 0 to 16; null: 8, as where `format` is symmetric
  // The source row of each row, [rows]; -1 gives zeros. Null: row for row. So a gate's rows and its
  // other factor's become GateLayout::kInterleaved.
  const int32_t* source_rows;
  void* out;                     // format.Bytes(rows, stride), 16-byte aligned
  const Bf16* minima = nullptr;  // kInt4Affine: as scales
};
cudaError_t LaunchTileFourBit(const TileFourBitArgs& args, cudaStream_t stream);

// Writes the values of a tiled weight to plain BF16 rows: for prompts that multiply by BF16, and
// the twin that tests compare with.
struct DequantizeFourBitArgs {
  FourBitFormat format;
  const void* tiles;  // format.Bytes(rows, stride), 16-byte aligned
  int64_t rows;
  int64_t stride;  // a multiple of kColumnPadding
  Bf16* out;       // [rows, stride], 16-byte aligned
};
cudaError_t LaunchDequantizeFourBit(const DequantizeFourBitArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_FOUR_BIT_H_
