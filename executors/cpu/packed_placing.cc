// The packed weights of CpuWeightPlacer.
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "executors/cpu/weight_placer.h"

namespace millrace::cpu {
namespace {

constexpr size_t kStoredBytes = 1 << 20;  // that a thread hashes at a time

}  // namespace

absl::Status CpuWeightPlacer::OpenPacked(const std::vector<const TensorInfo*>& tensors,
                                         const Share& columns) {
  for (const TensorInfo* tensor : tensors) {
    if (packed_.contains(tensor)) continue;
    MILLRACE_ASSIGN_OR_RETURN(std::optional<PackedReader> reader, checkpoint_.Packed(*tensor));
    if (!reader.has_value()) continue;
    if (!reader->order().empty() && columns.size < columns.total) {
      return absl::UnimplementedError(
          StrCat(checkpoint_.source().base_name(), ": tensor ", tensor->name,
                 " has groups of any inputs, and ranks divide its inputs; allowed: one rank, or "
                 "groups in the order of the inputs"));
    }
    packed_[tensor] = &readers_.emplace_back(*std::move(reader));
    for (const TensorInfo* stored : checkpoint_.Stored(*tensor)) stored_.push_back(stored);
  }
  return absl::OkStatus();
}

const PackedReader* CpuWeightPlacer::PackedOf(const TensorInfo& tensor) const {
  const auto found = packed_.find(&tensor);
  return found == packed_.end() ? nullptr : found->second;
}

std::optional<int> CpuWeightPlacer::OrderOf(const TensorInfo& tensor, int64_t columns,
                                            Orders* orders) const {
  const PackedReader* const reader = PackedOf(tensor);
  if (reader == nullptr || (reader->order().empty() && columns % kBlock == 0)) return std::nullopt;
  std::vector<int32_t> order = reader->order();
  if (order.empty()) {  // for the zeros behind the last column
    order.resize(columns);
    std::iota(order.begin(), order.end(), 0);
  }
  const auto found = std::find(orders->begin(), orders->end(), order);
  const auto index = static_cast<int>(found - orders->begin());
  if (found == orders->end()) orders->push_back(std::move(order));
  return index;
}

void CpuWeightPlacer::PlacePacked(const Piece& piece) const {
  const Part& part = parts_[piece.part];
  if (part.matrix == kNoMatrix) return;
  const TiledMatrix& matrix = weights_.matrices[part.matrix];
  const TensorType type = part.source.tensor->type;
  const Share& rows = part.source.rows;
  const int64_t begin = std::max(piece.begin, rows.begin);
  const int64_t end = std::min(piece.end, rows.begin + rows.count);
  if (begin >= end || part.columns.count == 0) return;
  const auto read_bytes = static_cast<int64_t>(RowBytes(type, part.columns.count));
  std::vector<uint8_t> read((end - begin) * read_bytes);
  part.packed->ReadBlocks(type, {part.source.Row(begin), end - begin},
                          {part.columns.begin, part.columns.count}, read.data());
  // The rank's columns of a row, and zeros behind them.
  std::vector<uint8_t> filled(RowBytes(type, matrix.columns));
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = i - rows.begin;
    const int64_t to = part.first_row + row / kTileRows * part.group_stride + row % kTileRows;
    std::copy_n(read.begin() + (i - begin) * read_bytes, read_bytes, filled.begin());
    TileRow(matrix.Format(to / kTileRows), matrix.columns, filled.data(),
            static_cast<int>(to % kTileRows),
            weights_.memory.data() + offsets_[part.matrix] + matrix.places[to / kTileRows].offset);
  }
}

std::vector<CpuWeightPlacer::StoredPiece> CpuWeightPlacer::StoredPieces() const {
  std::vector<StoredPiece> pieces;
  for (const TensorInfo* tensor : stored_) {
    for (size_t begin = 0; begin < tensor->bytes; begin += kStoredBytes) {
      pieces.push_back({tensor, begin, std::min<size_t>(kStoredBytes, tensor->bytes - begin)});
    }
  }
  return pieces;
}

}  // namespace millrace::cpu
