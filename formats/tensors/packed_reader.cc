#include "formats/tensors/packed_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "base/status.h"
#include "base/strings.h"
#include "formats/tensors/dequantize.h"

namespace millrace {
namespace {

constexpr int kWordCodes = 8;
constexpr uint32_t kOnes = 0x11111111;
constexpr uint32_t kSevens = 0x77777777;
constexpr uint32_t kEights = 0x88888888;
constexpr float kMiddle = 8;

// Which nibble of an AWQ word holds column i of its eight.
constexpr int kAwqNibbles[kWordCodes] = {0, 4, 1, 5, 2, 6, 3, 7};

template <typename T>
T Load(const uint8_t* from, int64_t index) {
  T value;
  std::memcpy(&value, from + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// The nibbles of a word as bytes, the lowest first.
void Spread(uint32_t word, uint8_t* codes) {
  uint64_t x = word;
  x = (x | x << 16) & 0x0000ffff0000ffff;
  x = (x | x << 8) & 0x00ff00ff00ff00ff;
  x = (x | x << 4) & 0x0f0f0f0f0f0f0f0f;
  std::memcpy(codes, &x, sizeof(x));
}

int Nibble(uint32_t word, int64_t index) { return static_cast<int>(word >> (4 * index) & 15); }

absl::Status Wrong(const TensorSource& source, const TensorInfo& tensor, std::string_view what) {
  return absl::InvalidArgumentError(
      StrCat(source.base_name(), ": tensor ", tensor.name, " ", what));
}

// 32 codes as the bytes of a block: elements i and i + 16 share one.
void PackNibbles(const uint8_t* codes, uint8_t* to) {
  for (int i = 0; i < kQuantBlock / 2; ++i) {
    to[i] = static_cast<uint8_t>(codes[i] | codes[i + kQuantBlock / 2] << 4);
  }
}

}  // namespace

absl::StatusOr<PackedReader> PackedReader::Open(const TensorSource& source,
                                                const PackedWeight& weight) {
  PackedReader reader(source, weight);
  if (source.has_data()) {
    MILLRACE_RETURN_IF_ERROR(reader.ReadOrder());
    MILLRACE_RETURN_IF_ERROR(reader.CheckZeros());
  }
  return reader;
}

absl::Status PackedReader::ReadOrder() {
  if (weight_->groups == nullptr) return absl::OkStatus();
  const uint8_t* const groups = source_->Data(*weight_->groups).data();
  std::vector<int64_t> next(weight_->num_groups());  // column of each group's next input
  for (size_t g = 0; g < next.size(); ++g) next[g] = static_cast<int64_t>(g) * group();
  if (weight_->scheme.packing == Packing::kPackQuantized) {
    // compressed-tensors' numbers are -1 until they are set, and mean this.
    for (int64_t k = 0; k < columns(); ++k) {
      if (Load<int32_t>(groups, k) == -1) return absl::OkStatus();
    }
  }
  order_.resize(columns());
  for (int64_t k = 0; k < columns(); ++k) {
    const auto g = Load<int32_t>(groups, k);
    if (g < 0 || g >= weight_->num_groups()) {
      return Wrong(*source_, *weight_->groups,
                   StrCat("holds ", g, " for input ", k, ", allowed: groups 0 to ",
                          weight_->num_groups() - 1));
    }
    if (next[g] == (g + 1) * group()) {
      return Wrong(*source_, *weight_->groups,
                   StrCat("has more than ", group(), " inputs in group ", g, ", allowed: ", group(),
                          " in each"));
    }
    order_[next[g]++] = static_cast<int32_t>(k);
  }
  if (std::is_sorted(order_.begin(), order_.end())) order_.clear();
  return absl::OkStatus();
}

absl::Status PackedReader::CheckZeros() const {
  if (!weight_->scheme.symmetric || weight_->zeros == nullptr) return absl::OkStatus();
  const absl::Span<const uint8_t> bytes = source_->Data(*weight_->zeros);
  const auto words = static_cast<int64_t>(bytes.size() / sizeof(uint32_t));
  const auto first = Load<uint32_t>(bytes.data(), 0);
  for (int64_t i = 0; i < words; ++i) {
    const auto word = Load<uint32_t>(bytes.data(), i);
    if (word == first && (word == kSevens || word == kEights)) continue;
    return Wrong(*source_, *weight_->zeros,
                 StrCat("holds ", absl::Hex(word, absl::kZeroPad8),
                        ", allowed for symmetric weights: all 77777777 or all 88888888"));
  }
  return absl::OkStatus();
}

void PackedReader::ReadStoredCodes(const Interval& of_weight, const Interval& columns,
                                   uint8_t* codes) const {
  const Interval rows{weight_->first_row + of_weight.begin, of_weight.count};
  const uint8_t* const words = source_->Data(*weight_->codes).data();
  const int64_t stride = weight_->codes->shape[1];
  const int64_t end = columns.begin + columns.count;
  if (weight_->scheme.packing == Packing::kAwq) {
    for (int64_t k = columns.begin; k < end; ++k) {
      uint8_t* to = codes + (k - columns.begin);
      for (int64_t n = rows.begin; n < rows.begin + rows.count; ++n, to += columns.count) {
        const auto word = Load<uint32_t>(words, k * stride + n / kWordCodes);
        *to = static_cast<uint8_t>(Nibble(word, kAwqNibbles[n % kWordCodes]));
      }
    }
    return;
  }
  // A word has 8 inputs of a row, of which the range may have some.
  const bool by_rows = weight_->scheme.packing == Packing::kPackQuantized;
  uint8_t spread[kWordCodes];
  for (int64_t k = columns.begin / kWordCodes * kWordCodes; k < end; k += kWordCodes) {
    const int64_t first = std::max(k, columns.begin);
    const int64_t count = std::min(k + kWordCodes, end) - first;
    for (int64_t i = 0; i < rows.count; ++i) {
      const int64_t n = rows.begin + i;
      const int64_t at = by_rows ? n * stride + k / kWordCodes : k / kWordCodes * stride + n;
      uint8_t* const to = codes + i * columns.count + (first - columns.begin);
      if (count == kWordCodes) {
        Spread(Load<uint32_t>(words, at), to);
      } else {
        Spread(Load<uint32_t>(words, at), spread);
        std::copy_n(spread + (first - k), count, to);
      }
    }
  }
}

void PackedReader::ReadCodes(const Interval& rows, const Interval& columns, uint8_t* codes) const {
  if (order_.empty()) return ReadStoredCodes(rows, columns, codes);
  std::vector<uint8_t> stored(rows.count * weight_->columns);
  ReadStoredCodes(rows, {0, weight_->columns}, stored.data());
  for (int64_t i = 0; i < rows.count; ++i) {
    const uint8_t* const from = stored.data() + i * weight_->columns;
    for (int64_t c = 0; c < columns.count; ++c) *codes++ = from[order_[columns.begin + c]];
  }
}

void PackedReader::ReadScales(int64_t row, const Interval& groups, float* scales) const {
  const TensorInfo& tensor = *weight_->scales;
  const absl::Span<const uint8_t> bytes = source_->Data(tensor);
  const int64_t size = Traits(tensor.type).block_bytes;
  const bool by_rows = weight_->scheme.packing == Packing::kPackQuantized;
  const int64_t stride = tensor.shape[1];
  row += weight_->first_row;
  for (int64_t g = groups.begin; g < groups.begin + groups.count; ++g) {
    const int64_t at = by_rows ? row * stride + g : g * stride + row;
    Dequantize(tensor.type, bytes.subspan(at * size, size), {scales++, 1});
  }
}

bool PackedReader::ScalesAreBelow(float bound) const {
  constexpr int64_t kPiece = 4096;
  const TensorInfo& tensor = *weight_->scales;
  const absl::Span<const uint8_t> bytes = source_->Data(tensor);
  const int64_t size = Traits(tensor.type).block_bytes;
  const auto count = static_cast<int64_t>(bytes.size()) / size;
  std::vector<float> scales(kPiece);
  for (int64_t first = 0; first < count; first += kPiece) {
    const int64_t piece = std::min(kPiece, count - first);
    Dequantize(tensor.type, bytes.subspan(first * size, piece * size),
               {scales.data(), static_cast<size_t>(piece)});
    if (!std::all_of(scales.begin(), scales.begin() + piece,
                     [bound](float scale) { return std::abs(scale) < bound; })) {
      return false;
    }
  }
  return true;
}

void PackedReader::ReadZeros(int64_t row, const Interval& groups, float* zeros) const {
  const QuantScheme& scheme = weight_->scheme;
  if (scheme.symmetric) {
    std::fill_n(zeros, groups.count, kMiddle);
    return;
  }
  row += weight_->first_row;
  const uint8_t* const words = source_->Data(*weight_->zeros).data();
  const int64_t stride = weight_->zeros->shape[1];
  const int64_t nibble =
      scheme.packing == Packing::kAwq ? kAwqNibbles[row % kWordCodes] : row % kWordCodes;
  const bool by_rows = scheme.packing == Packing::kPackQuantized;
  for (int64_t g = groups.begin; g < groups.begin + groups.count; ++g) {
    const int64_t at = by_rows ? row / kWordCodes * stride + g : g * stride + row / kWordCodes;
    const auto word = Load<uint32_t>(words, at) + (scheme.zeros_less_one ? kOnes : 0);
    *zeros++ = static_cast<float>(Nibble(word, nibble));
  }
}

void PackedReader::ReadBlocks(TensorType type, const Interval& rows, const Interval& columns,
                              uint8_t* blocks) const {
  const int64_t block = Traits(type).block_elements;
  const Interval groups{columns.begin / group(), (columns.begin + columns.count - 1) / group() -
                                                     columns.begin / group() + 1};
  std::vector<float> scales(groups.count), zeros(groups.count);
  std::vector<uint8_t> codes(rows.count * columns.count);
  ReadCodes(rows, columns, codes.data());
  uint8_t filled[kQuantBlock];
  for (int64_t i = 0; i < rows.count; ++i) {
    ReadScales(rows.begin + i, groups, scales.data());
    ReadZeros(rows.begin + i, groups, zeros.data());
    const uint8_t* const row = codes.data() + i * columns.count;
    for (int64_t c = 0; c < columns.count; c += kQuantBlock) {
      if (c % block == 0) {
        const int64_t g = (columns.begin + c) / group() - groups.begin;
        const float numbers[2] = {scales[g], -(scales[g] * zeros[g])};
        std::memcpy(blocks, numbers, sizeof(numbers));
        blocks += sizeof(numbers);
      }
      const uint8_t* from = row + c;
      if (c + kQuantBlock > columns.count) {
        std::fill(std::copy(from, row + columns.count, filled), std::end(filled), uint8_t{0});
        from = filled;
      }
      PackNibbles(from, blocks);
      blocks += kQuantBlock / 2;
    }
  }
}

void PackedReader::ReadFloats(int64_t row, float* values) const {
  std::vector<uint8_t> codes(columns());
  std::vector<float> scales(weight_->num_groups()), zeros(weight_->num_groups());
  ReadCodes({row, 1}, {0, columns()}, codes.data());
  ReadScales(row, {0, weight_->num_groups()}, scales.data());
  ReadZeros(row, {0, weight_->num_groups()}, zeros.data());
  for (int64_t c = 0; c < columns(); ++c) {
    const int64_t g = c / group();
    const float value = scales[g] * (static_cast<float>(codes[c]) - zeros[g]);
    values[order_.empty() ? c : order_[c]] = value;
  }
}

}  // namespace millrace
