// How CpuWeightPlacer's Finish reads the weights and deals them to the ranks.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/types/span.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/cpu/weight_placer.h"
#include "executors/weights/quantize.h"
#include "formats/tensors/dequantize.h"
#include "formats/tensors/float16.h"

namespace millrace::cpu {
namespace {

// Bytes of the file: few enough to stay in a core's cache between hashing and re-tiling.
constexpr int64_t kPieceBytes = 256 << 10;

int64_t RowBytes(const TensorInfo& tensor) {
  return static_cast<int64_t>(tensor.bytes) / tensor.shape[0];
}

}  // namespace

std::vector<CpuWeightPlacer::Piece> CpuWeightPlacer::Pieces() const {
  std::vector<Piece> pieces;
  for (size_t part = 0; part < parts_.size(); ++part) {
    const Checkpoint::Part& source = parts_[part].source;
    const int64_t rows =
        std::max<int64_t>(1, kPieceBytes / (RowBytes(*source.tensor) * kTileRows)) * kTileRows;
    for (int64_t begin = 0, end; begin < source.rows.total; begin = end) {
      end = std::min({begin + rows, source.RunEnd(begin), source.rows.total});
      pieces.push_back({part, begin, end});
    }
  }
  return pieces;
}

absl::Span<const uint8_t> CpuWeightPlacer::ReadPiece(const Piece& piece,
                                                     std::vector<uint8_t>* gathered) const {
  const Checkpoint::Part& source = parts_[piece.part].source;
  const int64_t row_bytes = RowBytes(*source.tensor);
  return checkpoint_.source().Bytes(*source.tensor, source.Row(piece.begin) * row_bytes,
                                    (piece.end - piece.begin) * row_bytes, gathered);
}

void CpuWeightPlacer::PlacePiece(const Piece& piece, absl::Span<const uint8_t> bytes) const {
  const Part& part = parts_[piece.part];
  if (part.matrix == kNoMatrix) return;
  const TensorInfo& tensor = *part.source.tensor;
  const Share& rows = part.source.rows;
  const int64_t row_bytes = RowBytes(tensor);
  const TiledMatrix& matrix = weights_.matrices[part.matrix];
  uint8_t* data = weights_.memory.data() + offsets_[part.matrix];
  // The rank's columns of a row, and zeros behind them.
  const TensorTypeTraits& traits = Traits(tensor.type);
  const auto stored_bytes = [&](int64_t columns) {
    return columns / traits.block_elements * traits.block_bytes;
  };
  std::vector<uint8_t> filled(stored_bytes(matrix.columns));
  std::vector<float> floats(matrix.columns);
  std::vector<uint8_t> blocks;
  const int64_t end = std::min(piece.end, rows.begin + rows.count);
  for (int64_t i = std::max(piece.begin, rows.begin); i < end; ++i) {
    const int64_t row = i - rows.begin;
    const int64_t to = part.first_row + row / kTileRows * part.group_stride + row % kTileRows;
    const TileFormat& format = matrix.Format(to / kTileRows);
    absl::Span<const uint8_t> stored =
        bytes.subspan((i - piece.begin) * row_bytes, row_bytes)
            .subspan(stored_bytes(part.columns.begin), stored_bytes(part.columns.count));
    if (part.columns.count < part.columns.size) {
      std::copy(stored.begin(), stored.end(), filled.begin());
      stored = filled;
    }
    if (format.type != tensor.type) {
      Dequantize(tensor.type, stored, absl::MakeSpan(floats));
    }
    if (part.fp8 != nullptr) {
      part.fp8->Apply(part.source.Row(i), part.columns.begin,
                      absl::MakeSpan(floats).first(part.columns.count));
    }
    if (format.type == TensorType::kF32 && tensor.type != TensorType::kF32) {
      stored = {reinterpret_cast<const uint8_t*>(floats.data()), floats.size() * sizeof(float)};
    } else if (format.type == TensorType::kBf16 && tensor.type != TensorType::kBf16) {
      blocks.resize(floats.size() * sizeof(uint16_t));
      for (size_t column = 0; column < floats.size(); ++column) {
        const uint16_t rounded = FloatToBf16(floats[column]);
        std::memcpy(&blocks[column * sizeof(rounded)], &rounded, sizeof(rounded));
      }
      stored = blocks;
    } else if (format.type != tensor.type) {
      blocks.resize(matrix.columns / kBlock * Traits(format.type).block_bytes);
      QuantizeRow(format.type, floats, blocks.data());
      stored = blocks;
    }
    TileRow(format, matrix.columns, stored.data(), static_cast<int>(to % kTileRows),
            data + matrix.places[to / kTileRows].offset);
  }
}

// A tree of two levels, as pieces are hashed in parallel: over each tensor's name, type and shape
// and its pieces' digests, in the order of placement.
Sha256Digest CpuWeightPlacer::Digest(const std::vector<Piece>& pieces,
                                     const std::vector<StoredPiece>& stored,
                                     const std::vector<Sha256Digest>& digests) const {
  Sha256 hasher;
  if (weight_bits_ != 0) hasher.Update(StrCat("to ", weight_bits_, " bits\n"));
  const auto describe = [&](const TensorInfo& tensor) {
    hasher.Update(
        StrCat(tensor.name, " ", Traits(tensor.type).name, ShapeString(tensor.shape), "\n"));
  };
  for (const TensorInfo* tensor : vectors_) {
    describe(*tensor);
    std::vector<uint8_t> gathered;
    const absl::Span<const uint8_t> bytes =
        checkpoint_.source().Bytes(*tensor, 0, tensor->bytes, &gathered);
    hasher.Update(bytes.data(), bytes.size());
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Part& part = parts_[pieces[i].part];
    if (part.packed != nullptr) continue;
    if (pieces[i].begin == 0) describe(*part.source.tensor);
    hasher.Update(digests[i].data(), digests[i].size());
  }
  for (size_t i = 0; i < stored.size(); ++i) {
    if (stored[i].begin == 0) describe(*stored[i].tensor);
    hasher.Update(digests[pieces.size() + i].data(), digests[pieces.size() + i].size());
  }
  return hasher.Finish();
}

absl::Status CpuWeightPlacer::TakeMemory() {
  if (weight_bits_ != 0 && !quantized_) {
    return absl::InvalidArgumentError(
        StrCat("quantization is int", weight_bits_, ", but ", checkpoint_.source().base_name(),
               " has no float weights in rows of multiples of ", kBlock, "; allowed: none"));
  }
  MILLRACE_ASSIGN_OR_RETURN(weights_.memory, Memory::Reserve(bytes_, "the weights"));
  for (size_t i = 0; i < weights_.matrices.size(); ++i) {
    weights_.matrices[i].data = weights_.memory.data() + offsets_[i];
  }
  return absl::OkStatus();
}

absl::StatusOr<CpuWeights> CpuWeightPlacer::Finish(ThreadPool& pool) {
  CpuWeightPlacer* const only[] = {this};
  MILLRACE_ASSIGN_OR_RETURN(std::vector<CpuWeights> weights, FinishRanks(only, pool, nullptr));
  return std::move(weights[0]);
}

absl::StatusOr<std::vector<CpuWeights>> CpuWeightPlacer::FinishRanks(
    absl::Span<CpuWeightPlacer* const> ranks, ThreadPool& pool, LoadProgress* progress) {
  const CpuWeightPlacer& first = *ranks[0];
  const TensorSource& source = first.checkpoint_.source();
  for (CpuWeightPlacer* rank : ranks) MILLRACE_RETURN_IF_ERROR(rank->TakeMemory());
  const std::vector<Piece> pieces = first.Pieces();
  const std::vector<StoredPiece> stored = first.StoredPieces();
  std::vector<Sha256Digest> digests(pieces.size() + stored.size());
  std::vector<Sha256> hashers(pool.num_threads());
  const auto bytes_of = [&](const Piece& piece) {
    return (piece.end - piece.begin) * RowBytes(*first.parts_[piece.part].source.tensor);
  };
  if (progress != nullptr) {
    int64_t total = 0;
    for (const Piece& piece : pieces) total += bytes_of(piece);
    progress->SetTotal(0, total);
  }
  pool.ParallelFor(static_cast<int>(digests.size()), [&](int i, int thread) {
    const auto index = static_cast<size_t>(i);
    if (progress != nullptr && index < pieces.size()) progress->Add(bytes_of(pieces[index]));
    if (index >= pieces.size()) {
      const auto& [tensor, begin, bytes] = stored[index - pieces.size()];
      hashers[thread].Update(source.Data(*tensor).data() + begin, bytes);
    } else if (const Piece& piece = pieces[index]; first.parts_[piece.part].packed != nullptr) {
      for (const CpuWeightPlacer* rank : ranks) rank->PlacePacked(piece);
      return;
    } else {
      std::vector<uint8_t> gathered;
      const absl::Span<const uint8_t> bytes = first.ReadPiece(piece, &gathered);
      hashers[thread].Update(bytes.data(), bytes.size());
      for (const CpuWeightPlacer* rank : ranks) rank->PlacePiece(piece, bytes);
    }
    digests[index] = hashers[thread].Finish();
  });
  const Sha256Digest digest = first.Digest(pieces, stored, digests);
  source.DropPages();
  std::vector<CpuWeights> weights;
  for (CpuWeightPlacer* rank : ranks) {
    rank->weights_.digest = digest;
    weights.push_back(std::move(rank->weights_));
  }
  return weights;
}

}  // namespace millrace::cpu
