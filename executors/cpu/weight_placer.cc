#include "executors/cpu/weight_placer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace::cpu {
namespace {

// Of the file: small enough to stay in a core's cache between hashing and re-tiling.
constexpr int64_t kPieceBytes = 256 << 10;

constexpr int kGatedRows = 4 * kTileRows;  // a block of 32 outputs

int64_t RowBytes(const TensorInfo& tensor) {
  return static_cast<int64_t>(tensor.bytes) / tensor.shape[0];
}

}  // namespace

absl::StatusOr<size_t> CpuWeightPlacer::Place(const std::vector<std::string>& names, bool gated) {
  const std::string key = absl::StrJoin(names, " ") + (gated ? " gated" : "");
  if (const auto found = placed_.find(key); found != placed_.end()) return found->second;
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<const TensorInfo*> tensors,
                            checkpoint_.Matrices(names));
  if (tensors[0]->type == TensorType::kBf16 || tensors[0]->type == TensorType::kFp8E4m3) {
    return absl::UnimplementedError(StrCat(checkpoint_.source().base_name(), ": tensor ",
                                           tensors[0]->name, " is ", Traits(tensors[0]->type).name,
                                           "; allowed on the CPU: F32, F16, Q8_0, Q4_1"));
  }
  int64_t rows = 0;
  for (const TensorInfo* tensor : tensors) {
    parts_.push_back({.tensor = tensor,
                      .matrix = weights_.matrices.size(),
                      .first_row = gated ? (tensor == tensors[0] ? 0 : kTileRows) : rows,
                      .group_stride = gated ? 2 * kTileRows : kTileRows});
    rows += tensor->shape[0];
  }
  if (gated) {
    if (tensors[0]->shape[0] != tensors[1]->shape[0]) {
      return absl::InvalidArgumentError(StrCat(names[0], " and ", names[1],
                                               " differ in rows: ", tensors[0]->shape[0], " and ",
                                               tensors[1]->shape[0]));
    }
    rows = (rows + kGatedRows - 1) / kGatedRows * kGatedRows;
  }
  const int64_t columns = tensors[0]->shape[1];
  if (rows > std::numeric_limits<int32_t>::max() - kGatedRows ||
      columns > std::numeric_limits<int32_t>::max() / 64) {
    return absl::InvalidArgumentError(StrCat("tensor ", names[0], " is ",
                                             ShapeString(tensors[0]->shape),
                                             ", larger than the CPU executor takes"));
  }
  weights_.matrices.push_back(DescribeTiles(tensors[0]->type, rows, columns, kernels_));
  offsets_.push_back(bytes_);
  bytes_ += weights_.matrices.back().tiles * weights_.matrices.back().tile_bytes;
  placed_[key] = weights_.matrices.size() - 1;
  return weights_.matrices.size() - 1;
}

absl::StatusOr<EmbeddingId> CpuWeightPlacer::Embedding(const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, Place({name}, false));
  return static_cast<EmbeddingId>(index);
}

absl::StatusOr<LinearId> CpuWeightPlacer::Linear(const std::vector<std::string>& names, Shard) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, Place(names, false));
  return static_cast<LinearId>(index);
}

absl::StatusOr<LinearId> CpuWeightPlacer::GatedLinear(const std::string& gate,
                                                      const std::string& up) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, Place({gate, up}, true));
  return static_cast<LinearId>(index);
}

absl::StatusOr<NormId> CpuWeightPlacer::Norm(const std::string& name, float epsilon) {
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* tensor, checkpoint_.Vector(name));
  const int64_t size = tensor->shape[0];
  NormWeight norm{.size = static_cast<int>(size), .epsilon = epsilon};
  norm.scale = checkpoint_.Floats(*tensor);
  norm.scale.resize((size + kTileRows - 1) / kTileRows * kTileRows);
  vectors_.push_back(tensor);
  weights_.norms.push_back(std::move(norm));
  return static_cast<NormId>(weights_.norms.size() - 1);
}

std::vector<CpuWeightPlacer::Piece> CpuWeightPlacer::Pieces() const {
  std::vector<Piece> pieces;
  for (const Part& part : parts_) {
    const int64_t rows = part.tensor->shape[0];
    const int64_t tiles = std::max<int64_t>(1, kPieceBytes / (RowBytes(*part.tensor) * kTileRows));
    for (int64_t begin = 0; begin < rows; begin += tiles * kTileRows) {
      pieces.push_back({&part, begin, std::min(begin + tiles * kTileRows, rows)});
    }
  }
  return pieces;
}

void CpuWeightPlacer::PlacePiece(const Piece& piece, uint8_t* memory, Sha256& hasher,
                                 Sha256Digest* digest) const {
  const Part& part = *piece.part;
  const TiledMatrix& matrix = weights_.matrices[part.matrix];
  const int64_t row_bytes = RowBytes(*part.tensor);
  const absl::Span<const uint8_t> bytes =
      checkpoint_.source()
          .Data(*part.tensor)
          .subspan(piece.begin * row_bytes, (piece.end - piece.begin) * row_bytes);
  hasher.Update(bytes.data(), bytes.size());
  *digest = hasher.Finish();
  uint8_t* data = memory + offsets_[part.matrix];
  for (int64_t row = piece.begin; row < piece.end; ++row) {
    const int64_t to = part.first_row + row / kTileRows * part.group_stride + row % kTileRows;
    TileRow(matrix, bytes.data() + (row - piece.begin) * row_bytes,
            static_cast<int>(to % kTileRows), data + to / kTileRows * matrix.tile_bytes);
  }
}

// A tree of two levels, as pieces are hashed in parallel: over each tensor's name, type and shape
// and its pieces' digests, in the order of placement.
Sha256Digest CpuWeightPlacer::Digest(const std::vector<Piece>& pieces,
                                     const std::vector<Sha256Digest>& digests) const {
  Sha256 hasher;
  const auto describe = [&](const TensorInfo& tensor) {
    hasher.Update(
        StrCat(tensor.name, " ", Traits(tensor.type).name, ShapeString(tensor.shape), "\n"));
  };
  for (const TensorInfo* tensor : vectors_) {
    describe(*tensor);
    const absl::Span<const uint8_t> bytes = checkpoint_.source().Data(*tensor);
    hasher.Update(bytes.data(), bytes.size());
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].begin == 0) describe(*pieces[i].part->tensor);
    hasher.Update(digests[i].data(), digests[i].size());
  }
  return hasher.Finish();
}

absl::StatusOr<CpuWeights> CpuWeightPlacer::Finish(ThreadPool& pool) {
  MILLRACE_ASSIGN_OR_RETURN(weights_.memory, Memory::Reserve(bytes_, "the weights"));
  for (size_t i = 0; i < weights_.matrices.size(); ++i) {
    weights_.matrices[i].data = weights_.memory.data() + offsets_[i];
  }
  const std::vector<Piece> pieces = Pieces();
  std::vector<Sha256Digest> digests(pieces.size());
  std::vector<Sha256> hashers(pool.num_threads());
  pool.ParallelFor(static_cast<int>(pieces.size()), [&](int piece, int thread) {
    PlacePiece(pieces[piece], weights_.memory.data(), hashers[thread], &digests[piece]);
  });
  weights_.digest = Digest(pieces, digests);
  checkpoint_.source().DropPages();
  return std::move(weights_);
}

}  // namespace millrace::cpu
