// Reads weights of four bits, whatever tensors a checkpoint holds them in.
#ifndef MILLRACE_FORMATS_TENSORS_PACKED_READER_H_
#define MILLRACE_FORMATS_TENSORS_PACKED_READER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "formats/tensors/packed_weight.h"
#include "formats/tensors/tensor.h"
#include "formats/tensors/tensor_source.h"

namespace millrace {

// Consecutive elements of a dimension, [begin, begin + count).
struct Interval {
  int64_t begin = 0;
  int64_t count = 0;
};

// A weight in one form for every device. Its columns stand in an order in which group g is columns
// [g * group(), (g + 1) * group()), and element w[n][c] is scale * (code - zero) in float32, with
// the scale and the zero of row n and group g. Thread-safe.
class PackedReader {
 public:
  // Opens a packed weight; `source` and `weight` outlive the reader. Checks the numbers on which
  // the order and the zeros depend, if the source has data. INVALID_ARGUMENT, naming the tensor,
  // where a group does not have its number of inputs, or a symmetric weight has other zeros.
  static absl::StatusOr<PackedReader> Open(const TensorSource& source, const PackedWeight& weight);

  int64_t rows() const { return weight_->rows; }
  int64_t columns() const { return weight_->columns; }
  int64_t group() const { return weight_->group; }
  bool symmetric() const { return weight_->scheme.symmetric; }     // all zeros are 8
  TensorType scale_type() const { return weight_->scales->type; }  // F16, BF16 or F32

  // Returns the input that each column reads; empty: column k reads input k (GPTQ's desc_act is
  // off, or changed nothing).
  const std::vector<int32_t>& order() const { return order_; }

  // Reads codes, [rows.count][columns.count], each from 0 to 15.
  void ReadCodes(const Interval& rows, const Interval& columns, uint8_t* codes) const;

  // Read the scales and zeros of one row, [groups.count] each. Zeros are whole numbers from 0 to
  // 15.
  void ReadScales(int64_t row, const Interval& groups, float* scales) const;
  void ReadZeros(int64_t row, const Interval& groups, float* zeros) const;

  // Returns whether all scales are finite and smaller than `bound` in size; where a shared expert's
  // gate and up are stored as one, those of both.
  bool ScalesAreBelow(float bound) const;

  // Reads the elements as blocks of `type`, kInt4x32 or kInt4x128, which hold them without loss (of
  // F32 scales to float32's rounding): [rows.count][RowBytes(type, columns.count)]. columns.begin
  // is a multiple of the block, and so is group().
  void ReadBlocks(TensorType type, const Interval& rows, const Interval& columns,
                  uint8_t* blocks) const;

  // Reads a row in the order of the inputs, [columns()].
  void ReadFloats(int64_t row, float* values) const;

 private:
  PackedReader(const TensorSource& source, const PackedWeight& weight)
      : source_(&source), weight_(&weight) {}

  absl::Status ReadOrder();
  absl::Status CheckZeros() const;
  void ReadStoredCodes(const Interval& of_weight, const Interval& columns, uint8_t* codes) const;

  const TensorSource* source_;
  const PackedWeight* weight_;
  std::vector<int32_t> order_;
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TENSORS_PACKED_READER_H_
