#include "executors/cuda/weights/packed_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "formats/tensors/float16.h"
#include "formats/tensors/tensor.h"

namespace millrace::cuda {
namespace {

using kernels::FourBitScale;

constexpr int64_t kGroups[] = {128, 64, 32};

uint16_t Bits(FourBitScale type, float scale) {
  return type == FourBitScale::kF16 ? FloatToHalf(scale) : FloatToBf16(scale);
}

float ValueOf(FourBitScale type, uint16_t bits) {
  return type == FourBitScale::kF16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
}

// Returns whether all scales are numbers of the type.
bool Holds(FourBitScale type, const PackedReader& reader) {
  if (reader.scale_type() == TensorType::kF16) return type == FourBitScale::kF16;
  if (reader.scale_type() == TensorType::kBf16) return type == FourBitScale::kBf16;
  std::vector<float> scales(reader.columns() / reader.group());
  for (int64_t row = 0; row < reader.rows(); ++row) {
    reader.ReadScales(row, {0, static_cast<int64_t>(scales.size())}, scales.data());
    for (const float scale : scales) {
      if (ValueOf(type, Bits(type, scale)) != scale) return false;
    }
  }
  return true;
}

// Returns whether the kernels may take all zero points for 8: some of their steps want scales of an
// ordinary size, too.
bool AreSymmetric(absl::Span<const PackedReader* const> parts, FourBitScale type) {
  return std::all_of(parts.begin(), parts.end(), [&](const PackedReader* part) {
    return part->symmetric() &&
           (type == FourBitScale::kF16 || part->ScalesAreBelow(kernels::kMaxLineScale));
  });
}

}  // namespace

std::optional<kernels::FourBitFormat> FormatOf(absl::Span<const PackedReader* const> parts,
                                               const Interval& columns) {
  int64_t common = std::gcd(columns.begin, columns.count);
  for (const PackedReader* part : parts) {
    common = std::gcd(common, part->group());
    if (part->order() != parts[0]->order()) return std::nullopt;
  }
  const auto* const group = std::find_if(std::begin(kGroups), std::end(kGroups),
                                         [&](int64_t size) { return common % size == 0; });
  if (group == std::end(kGroups)) return std::nullopt;
  for (const FourBitScale type : {FourBitScale::kF16, FourBitScale::kBf16}) {
    if (std::all_of(parts.begin(), parts.end(),
                    [&](const PackedReader* part) { return Holds(type, *part); })) {
      return kernels::FourBitFormat{.type = kernels::FourBitType::kInt4,
                                    .group = static_cast<int>(*group),
                                    .scale = type,
                                    .symmetric = AreSymmetric(parts, type)};
    }
  }
  return std::nullopt;
}

void PackedRows::Read(const PackedReader& part, const Interval& rows, const Interval& columns,
                      int64_t to, uint8_t* memory) const {
  std::vector<uint8_t> codes(rows.count * columns_);
  part.ReadCodes(rows, columns, codes.data());
  uint8_t* const pairs = memory + to * columns_ / 2;
  for (size_t i = 0; i < codes.size() / 2; ++i) {
    pairs[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  }
  const int64_t first = columns.begin / part.group();
  const Interval stored{first, (columns.begin + columns_ - 1) / part.group() - first + 1};
  std::vector<float> scales(stored.count), zeros(stored.count);
  const int64_t groups = columns_ / format_.group;
  for (int64_t i = 0; i < rows.count; ++i) {
    part.ReadScales(rows.begin + i, stored, scales.data());
    if (!format_.symmetric) part.ReadZeros(rows.begin + i, stored, zeros.data());
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t from = (columns.begin + g * format_.group) / part.group() - first;
      const int64_t at = (to + i) * groups + g;
      const uint16_t bits = Bits(format_.scale, scales[from]);
      std::memcpy(memory + ScalesOffset() + at * sizeof(bits), &bits, sizeof(bits));
      if (!format_.symmetric) memory[ZerosOffset() + at] = static_cast<uint8_t>(zeros[from]);
    }
  }
}

void PackedRows::MapRows(bool interleaved, uint8_t* memory) const {
  for (int64_t row = 0; row < rows_; ++row) {
    const int64_t turn = row / 16 * 8 + row % 8 + row / 8 % 2 * (rows_ / 2);
    const auto from = static_cast<int32_t>(interleaved ? turn : row);
    std::memcpy(memory + MapOffset() + row * sizeof(from), &from, sizeof(from));
  }
}

kernels::TileFourBitArgs PackedRows::TileArgs(const uint8_t* memory, int64_t stride,
                                              void* out) const {
  return {.format = format_,
          .rows = rows_,
          .columns = columns_,
          .stride = stride,
          .codes = memory,
          .scales = memory + ScalesOffset(),
          .zeros = format_.symmetric ? nullptr : memory + ZerosOffset(),
          .source_rows = reinterpret_cast<const int32_t*>(memory + MapOffset()),
          .out = out};
}

}  // namespace millrace::cuda
