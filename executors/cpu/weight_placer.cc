#include "executors/cpu/weight_placer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/weights/quantize.h"
#include "formats/dequantize.h"

namespace millrace::cpu {
namespace {

// Of the file: small enough to stay in a core's cache between hashing and re-tiling.
constexpr int64_t kPieceBytes = 256 << 10;

constexpr int kGatedRows = 4 * kTileRows;  // a block of 32 outputs

int64_t RowBytes(const TensorInfo& tensor) {
  return static_cast<int64_t>(tensor.bytes) / tensor.shape[0];
}

int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// The type of each tile of 16 rows: of gate and up in turns, else of one tensor after the other.
std::vector<TensorType> TileTypes(const std::vector<const TensorInfo*>& tensors,
                                  const std::vector<TensorType>& types, bool gated, int64_t rows) {
  std::vector<TensorType> tiles(RoundUp(rows, kTileRows) / kTileRows, types[0]);
  int64_t first = 0;
  for (size_t i = 0; i < tensors.size() && !gated; ++i) {
    const int64_t end = first + tensors[i]->shape[0];
    for (int64_t row = first; row < end; row += kTileRows) tiles[row / kTileRows] = types[i];
    first = end;
  }
  for (size_t i = 1; i < tiles.size() && gated; i += 2) tiles[i] = types.back();
  return tiles;
}

}  // namespace

// Tensors that run as one read one form of x, and a tile has rows of one type.
absl::Status CpuWeightPlacer::CheckTypes(const std::vector<const TensorInfo*>& tensors) const {
  const std::string& file = checkpoint_.source().base_name();
  bool one_type = true;
  bool may_mix = true;
  for (const TensorInfo* tensor : tensors) {
    if (!TileKindOf(tensor->type).has_value()) {
      return absl::UnimplementedError(
          StrCat(file, ": tensor ", tensor->name, " is ", Traits(tensor->type).name,
                 "; allowed on the CPU: F32, F16, BF16 and GGUF's quantized types"));
    }
    one_type = one_type && tensor->type == tensors[0]->type;
    may_mix = may_mix && Traits(tensor->type).quantized && tensor->shape[0] % kTileRows == 0;
  }
  if (one_type || may_mix) return absl::OkStatus();
  std::vector<std::string> parts;
  for (const TensorInfo* tensor : tensors) {
    parts.push_back(
        StrCat(tensor->name, " is ", Traits(tensor->type).name, " ", ShapeString(tensor->shape)));
  }
  return absl::UnimplementedError(StrCat(
      file, ": tensor ", absl::StrJoin(parts, ", "),
      "; allowed in tensors that run as one: one type, or quantized types with multiples of ",
      kTileRows, " rows"));
}

TensorType CpuWeightPlacer::KeptType(const TensorInfo& tensor, Role role) const {
  const bool whole_blocks = tensor.shape[1] % kBlock == 0;
  if (weight_bits_ == 0 || Traits(tensor.type).quantized || !whole_blocks) return tensor.type;
  return weight_bits_ == 4 && role != Role::kTable ? TensorType::kQ4_1 : TensorType::kQ8_0;
}

absl::StatusOr<size_t> CpuWeightPlacer::Place(const std::vector<std::string>& names, Role role) {
  const bool gated = role == Role::kGated;
  const std::string key = absl::StrJoin(names, " ") + (gated ? " gated" : "");
  if (const auto found = placed_.find(key); found != placed_.end()) return found->second;
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<const TensorInfo*> tensors,
                            checkpoint_.Matrices(names));
  MILLRACE_RETURN_IF_ERROR(CheckTypes(tensors));
  int64_t rows = 0;
  const auto add_part = [&](const TensorInfo& tensor, int64_t begin, int64_t count) {
    parts_.push_back({.tensor = &tensor,
                      .begin = begin,
                      .rows = count,
                      .matrix = weights_.matrices.size(),
                      .first_row = gated ? (rows == 0 ? 0 : kTileRows) : rows,
                      .group_stride = gated ? 2 * kTileRows : kTileRows});
    rows += count;
  };
  if (gated && tensors.size() == 1) {
    const int64_t half = tensors[0]->shape[0] / 2;
    add_part(*tensors[0], 0, half);
    add_part(*tensors[0], half, half);
  } else {
    for (const TensorInfo* tensor : tensors) add_part(*tensor, 0, tensor->shape[0]);
  }
  if (gated) {
    if (tensors.size() == 2 && tensors[0]->shape[0] != tensors[1]->shape[0]) {
      return absl::InvalidArgumentError(StrCat(names[0], " and ", names[1],
                                               " differ in rows: ", tensors[0]->shape[0], " and ",
                                               tensors[1]->shape[0]));
    }
    rows = RoundUp(rows, kGatedRows);
  }
  const int64_t columns = tensors[0]->shape[1];
  if (rows > std::numeric_limits<int32_t>::max() - kGatedRows ||
      columns > std::numeric_limits<int32_t>::max() / 64) {
    return absl::InvalidArgumentError(StrCat("tensor ", names[0], " is ",
                                             ShapeString(tensors[0]->shape),
                                             ", larger than the CPU executor takes"));
  }
  std::vector<TensorType> types;
  for (const TensorInfo* tensor : tensors) {
    types.push_back(KeptType(*tensor, role));
    quantized_ = quantized_ || types.back() != tensor->type;
  }
  weights_.matrices.push_back(
      DescribeTiles(TileTypes(tensors, types, gated, rows), rows, columns, kernels_));
  if (role == Role::kLinear) weights_.widest_linear = std::max(weights_.widest_linear, rows);
  MILLRACE_ASSIGN_OR_RETURN(Checkpoint::Biases biases, checkpoint_.BiasesOf(names));
  weights_.biases.push_back(std::move(biases.values));
  vectors_.insert(vectors_.end(), biases.tensors.begin(), biases.tensors.end());
  offsets_.push_back(bytes_);
  bytes_ += weights_.matrices.back().bytes;
  placed_[key] = weights_.matrices.size() - 1;
  return weights_.matrices.size() - 1;
}

absl::StatusOr<EmbeddingId> CpuWeightPlacer::Embedding(const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, Place({name}, Role::kTable));
  return static_cast<EmbeddingId>(index);
}

absl::StatusOr<LinearId> CpuWeightPlacer::Head(const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, Place({name}, Role::kTable));
  return static_cast<LinearId>(index);
}

absl::StatusOr<LinearId> CpuWeightPlacer::Linear(const std::vector<std::string>& names, Shard) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, Place(names, Role::kLinear));
  return static_cast<LinearId>(index);
}

absl::StatusOr<LinearId> CpuWeightPlacer::GatedLinear(const std::vector<std::string>& names) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, Place(names, Role::kGated));
  return static_cast<LinearId>(index);
}

absl::StatusOr<NormId> CpuWeightPlacer::Norm(const std::string& name, const NormSpec& spec) {
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* tensor, checkpoint_.Vector(name));
  const int64_t size = tensor->shape[0];
  NormWeight norm{.scale = checkpoint_.Floats(*tensor),
                  .size = static_cast<int>(size),
                  .epsilon = spec.epsilon};
  for (float& scale : norm.scale) scale += spec.offset;
  norm.scale.resize(RoundUp(size, kTileRows));
  vectors_.push_back(tensor);
  weights_.norms.push_back(std::move(norm));
  return static_cast<NormId>(weights_.norms.size() - 1);
}

absl::StatusOr<NormId> CpuWeightPlacer::LayerNorm(const std::string& name, float epsilon) {
  MILLRACE_ASSIGN_OR_RETURN(const NormId id, Norm(name + ".weight", {.epsilon = epsilon}));
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* bias, checkpoint_.Vector(name + ".bias"));
  weights_.norms.back().bias = checkpoint_.Floats(*bias);
  vectors_.push_back(bias);
  return id;
}

std::vector<CpuWeightPlacer::Piece> CpuWeightPlacer::Pieces() const {
  std::vector<Piece> pieces;
  for (const Part& part : parts_) {
    const int64_t tiles = std::max<int64_t>(1, kPieceBytes / (RowBytes(*part.tensor) * kTileRows));
    for (int64_t begin = 0; begin < part.rows; begin += tiles * kTileRows) {
      pieces.push_back({&part, begin, std::min(begin + tiles * kTileRows, part.rows)});
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
          .subspan((part.begin + piece.begin) * row_bytes, (piece.end - piece.begin) * row_bytes);
  hasher.Update(bytes.data(), bytes.size());
  *digest = hasher.Finish();
  uint8_t* data = memory + offsets_[part.matrix];
  std::vector<float> floats;
  std::vector<uint8_t> blocks;
  for (int64_t row = piece.begin; row < piece.end; ++row) {
    const int64_t to = part.first_row + row / kTileRows * part.group_stride + row % kTileRows;
    const TileFormat& format = matrix.Format(to / kTileRows);
    absl::Span<const uint8_t> stored = bytes.subspan((row - piece.begin) * row_bytes, row_bytes);
    if (format.type != part.tensor->type) {
      floats.resize(matrix.columns);
      Dequantize(part.tensor->type, stored, absl::MakeSpan(floats));
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
                                     const std::vector<Sha256Digest>& digests) const {
  Sha256 hasher;
  if (weight_bits_ != 0) hasher.Update(StrCat("to ", weight_bits_, " bits\n"));
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
  if (weight_bits_ != 0 && !quantized_) {
    return absl::InvalidArgumentError(
        StrCat("quantization is int", weight_bits_, ", but ", checkpoint_.source().base_name(),
               " has no float weights in rows of multiples of ", kBlock, "; allowed: none"));
  }
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
