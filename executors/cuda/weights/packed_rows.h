// Brings packed weights (GPTQ, AWQ, pack-quantized) into the plain rows from which the device's
// kernels make tiles (kernels/gemm/four_bit.h).
#ifndef MILLRACE_EXECUTORS_CUDA_WEIGHTS_PACKED_ROWS_H_
#define MILLRACE_EXECUTORS_CUDA_WEIGHTS_PACKED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "formats/tensors/packed_reader.h"
#include "kernels/gemm/four_bit.h"

namespace millrace::cuda {

// Returns the format that holds columns `columns` of all `parts` without loss: what a fused linear
// is made of. Scales keep their 16 bits; those stored in F32 are taken where all of them are
// numbers of FP16, or all of BF16. A group of the file that is larger than the format's has its
// scale repeated.
//
// nullopt where no format does: groups or columns that are no multiples of 32, parts whose columns
// stand in different orders (PackedReader::order), or whose scales no type holds.
// PackedReader::ReadFloats gives such rows for BF16.
std::optional<kernels::FourBitFormat> FormatOf(absl::Span<const PackedReader* const> parts,
                                               const Interval& columns);

// How plain rows lie in one piece of memory, pinned on the host or on the device: codes, scales,
// zero points (but of symmetric formats) and the map of rows.
class PackedRows {
 public:
  // `columns` is a multiple of format.group.
  PackedRows(const kernels::FourBitFormat& format, int64_t rows, int64_t columns)
      : format_(format), rows_(rows), columns_(columns) {}

  size_t bytes() const { return MapOffset() + rows_ * sizeof(int32_t); }

  // Fills rows [to, to + rows.count) with rows and columns of a part, one that FormatOf was given.
  // `columns` has as many as this.
  void Read(const PackedReader& part, const Interval& rows, const Interval& columns, int64_t to,
            uint8_t* memory) const;

  // Fills the map of rows: in sequence, or by turns 8 of the first half and 8 of the second
  // (GateLayout::kInterleaved), where the number of rows is a multiple of 16.
  void MapRows(bool interleaved, uint8_t* memory) const;

  // Returns what makes tiles of such rows in the device's memory.
  kernels::TileFourBitArgs TileArgs(const uint8_t* memory, int64_t stride, void* out) const;

 private:
  int64_t Groups() const { return rows_ * (columns_ / format_.group); }
  size_t ScalesOffset() const { return Aligned(rows_ * columns_ / 2); }
  size_t ZerosOffset() const { return Aligned(ScalesOffset() + Groups() * sizeof(uint16_t)); }
  size_t MapOffset() const { return Aligned(ZerosOffset() + (format_.symmetric ? 0 : Groups())); }
  static size_t Aligned(size_t offset) { return (offset + 15) / 16 * 16; }

  kernels::FourBitFormat format_;
  int64_t rows_;
  int64_t columns_;
};

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_WEIGHTS_PACKED_ROWS_H_
