#include "formats/tensors/tensor_source.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

namespace millrace {
namespace {

constexpr int kCodeBytes = 16;  // of a block of MXFP4

// Rows [first, first + count) of a scattered tensor.
struct Rows {
  uint64_t first;
  uint64_t count;
  uint64_t columns;  // elements of a row, or blocks
};

// Element by element, of the same size everywhere. The outer loop is that of the columns, as the
// rows are the neighbours in the file.
template <typename Element>
void GatherElements(const uint8_t* from, const Scattered& steps, const Rows& rows, uint8_t* out) {
  for (uint64_t column = 0; column < rows.columns; ++column) {
    const uint8_t* element = from + rows.first * steps.row_step + column * steps.column_step;
    uint8_t* to = out + column * sizeof(Element);
    for (uint64_t row = 0; row < rows.count; ++row) {
      std::memcpy(to, element, sizeof(Element));
      element += steps.row_step;
      to += rows.columns * sizeof(Element);
    }
  }
}

// Repacks the blocks of MXFP4: Scattered::BlockScales has both forms.
void GatherBlocks(const uint8_t* from, const uint8_t* scales, const Scattered& steps,
                  const Rows& rows, uint8_t* out) {
  for (uint64_t row = rows.first; row < rows.first + rows.count; ++row) {
    for (uint64_t column = 0; column < rows.columns; ++column) {
      const uint8_t* codes = from + row * steps.row_step + column * steps.column_step;
      *out++ = scales[row * steps.scales->row_step + column];
      for (int i = 0; i < kCodeBytes / 2; ++i) {
        const uint8_t first = codes[i];
        const uint8_t second = codes[i + kCodeBytes / 2];
        *out++ = static_cast<uint8_t>((first & 0x0f) | (second << 4));
        *out++ = static_cast<uint8_t>((first >> 4) | (second & 0xf0));
      }
    }
  }
}

// Elements of a row, or blocks of its type.
uint64_t ColumnsOf(const TensorInfo& tensor) {
  return std::accumulate(tensor.shape.begin() + 1, tensor.shape.end(), int64_t{1},
                         std::multiplies<int64_t>()) /
         Traits(tensor.type).block_elements;
}

}  // namespace

absl::Span<const uint8_t> TensorSource::Extent(const TensorInfo& tensor) const {
  uint64_t bytes = tensor.bytes;
  if (tensor.scattered.has_value()) {
    const Scattered& steps = *tensor.scattered;
    bytes = (tensor.shape[0] - 1) * steps.row_step + (ColumnsOf(tensor) - 1) * steps.column_step +
            (steps.scales.has_value() ? kCodeBytes : Traits(tensor.type).block_bytes);
  }
  return FileBytes(tensor.file).subspan(tensor.offset, bytes);
}

void TensorSource::Read(const TensorInfo& tensor, uint64_t begin, absl::Span<uint8_t> out) const {
  if (out.empty()) return;
  if (!tensor.scattered.has_value()) {
    std::memcpy(out.data(), Data(tensor).subspan(begin, out.size()).data(), out.size());
    return;
  }
  const Scattered& steps = *tensor.scattered;
  const TensorTypeTraits& traits = Traits(tensor.type);
  const uint64_t columns = ColumnsOf(tensor);
  const uint64_t row_bytes = columns * traits.block_bytes;
  const Rows rows{begin / row_bytes, out.size() / row_bytes, columns};
  const uint8_t* from = FileBytes(tensor.file).data() + tensor.offset;
  if (steps.scales.has_value()) {
    const uint8_t* scales = FileBytes(steps.scales->file).data() + steps.scales->offset;
    GatherBlocks(from, scales, steps, rows, out.data());
  } else if (traits.block_bytes == 1) {
    GatherElements<uint8_t>(from, steps, rows, out.data());
  } else if (traits.block_bytes == 2) {
    GatherElements<uint16_t>(from, steps, rows, out.data());
  } else {
    GatherElements<uint32_t>(from, steps, rows, out.data());
  }
}

absl::Span<const uint8_t> TensorSource::Bytes(const TensorInfo& tensor, uint64_t begin,
                                              uint64_t size, std::vector<uint8_t>* buffer) const {
  if (!tensor.scattered.has_value()) return Data(tensor).subspan(begin, size);
  buffer->resize(size);
  Read(tensor, begin, absl::MakeSpan(*buffer));
  return *buffer;
}

}  // namespace millrace
