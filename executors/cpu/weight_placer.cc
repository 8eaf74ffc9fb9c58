#include "executors/cpu/weight_placer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/weights/shares.h"

namespace millrace::cpu {
namespace {

constexpr int kGatedRows = 4 * kTileRows;  // a block of 32 outputs

int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// The numbers of a gated matrix's rows, the gate's and then up's, in the order of its tiles.
std::vector<float> InTurns(const std::vector<float>& halves, int64_t tiles) {
  const int64_t size = static_cast<int64_t>(halves.size()) / 2;
  std::vector<float> turns(tiles * kTileRows, 0.0f);
  for (int64_t row = 0; row < size; ++row) {
    const int64_t to = row / kTileRows * 2 * kTileRows + row % kTileRows;
    turns[to] = halves[row];
    turns[to + kTileRows] = halves[size + row];
  }
  return turns;
}

}  // namespace

size_t CpuWeights::TableBytes() const {
  size_t floats = 0;
  for (const NormWeight& norm : norms) floats += norm.scale.size() + norm.bias.size();
  for (const PositionBiasTable& table : position_biases) floats += table.values.size();
  for (const auto* const group : {&biases, &corrections, &vectors}) {
    for (const std::vector<float>& values : *group) floats += values.size();
  }
  size_t bytes = floats * sizeof(float);
  for (const TiledMatrix& matrix : matrices) {
    bytes += sizeof(matrix) + matrix.places.size() * sizeof(matrix.places[0]);
  }
  return bytes;
}

absl::Status CpuWeightPlacer::CheckTypes(const std::vector<const TensorInfo*>& tensors) const {
  for (const TensorInfo* tensor : tensors) {
    if (!TileKindOf(tensor->type).has_value() && tensor->type != TensorType::kFp8E4m3) {
      return absl::UnimplementedError(
          StrCat(checkpoint_.source().base_name(), ": tensor ", tensor->name, " is ",
                 Traits(tensor->type).name,
                 "; allowed on the CPU: F32, F16, BF16, F8_E4M3, GGUF's quantized types and "
                 "4-bit weights"));
    }
  }
  return absl::OkStatus();
}

TensorType CpuWeightPlacer::KeptType(const TensorInfo& tensor, Role role) const {
  if (role == Role::kRouter && !Traits(tensor.type).quantized) return TensorType::kF32;
  const bool whole_blocks = tensor.shape[1] % kBlock == 0;
  if (weight_bits_ == 0 || Traits(tensor.type).quantized || !whole_blocks) {
    return tensor.type == TensorType::kFp8E4m3 ? TensorType::kBf16 : tensor.type;
  }
  return weight_bits_ == 4 && role != Role::kTable ? TensorType::kQ4_1 : TensorType::kQ8_0;
}

absl::StatusOr<ScaleBlock> CpuWeightPlacer::BlockOf(const std::string& name) const {
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<const TensorInfo*> tensors,
                            checkpoint_.Matrices({name}));
  const TensorType kept = KeptType(*tensors[0], Role::kLinear);
  return ScaleBlock{.rows = 1, .columns = Traits(kept).block_elements};
}

absl::Status CpuWeightPlacer::ReadFp8Scales(const std::vector<std::string>& names,
                                            const std::vector<const TensorInfo*>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i]->type != TensorType::kFp8E4m3 || fp8_.contains(tensors[i])) continue;
    MILLRACE_ASSIGN_OR_RETURN(Fp8Scaling scaling, Fp8Scaling::Read(checkpoint_, names[i]));
    fp8_[tensors[i]] = &scalings_.emplace_back(std::move(scaling));
    vectors_.push_back(checkpoint_.Fp8ScaleTensor(names[i]));
  }
  return absl::OkStatus();
}

// Notes the rank's rows of the tensors in the order of the shard's parts, and returns how they are
// tiled. Those of a gated matrix lie in turns, filled up to whole blocks of outputs.
std::vector<TileRun> CpuWeightPlacer::AddParts(const std::vector<Checkpoint::Part>& parts,
                                               Role role, const Share& columns, Orders* orders) {
  const bool gated = role == Role::kGated;
  std::vector<TileRun> runs;
  int64_t place = 0;  // of the part's first row, counted in lanes
  for (const Checkpoint::Part& part : parts) {
    const TensorType type = KeptType(*part.tensor, role);
    const std::optional<int> order = OrderOf(*part.tensor, columns.size, orders);
    quantized_ = quantized_ || (type != part.tensor->type && Traits(type).quantized);
    if (gated) {
      place = runs.empty() ? 0 : kTileRows;
      runs.push_back({type, kTileRows, order});
    } else if (!runs.empty() && runs.back().type == type && runs.back().order == order) {
      runs.back().rows += part.rows.size;
    } else {
      place = RoundUp(place, kTileRows);
      runs.push_back({type, part.rows.size, order});
    }
    parts_.push_back({.source = part,
                      .packed = PackedOf(*part.tensor),
                      .fp8 = fp8_.contains(part.tensor) ? fp8_.at(part.tensor) : nullptr,
                      .columns = columns,
                      .matrix = weights_.matrices.size(),
                      .first_row = place,
                      .group_stride = gated ? 2 * kTileRows : kTileRows});
    place += part.rows.size;
  }
  if (gated) {
    const std::vector<TileRun> pair = runs;
    const int64_t tiles = RoundUp(2 * parts[0].rows.size, kGatedRows) / kTileRows;
    while (static_cast<int64_t>(runs.size()) < tiles) {
      runs.insert(runs.end(), pair.begin(), pair.end());
    }
  }
  return runs;
}

absl::StatusOr<size_t> CpuWeightPlacer::Place(const std::vector<std::string>& names, Role role,
                                              const Shard& shard) {
  const std::string key = StrCat(absl::StrJoin(names, " "), role == Role::kGated ? " gated" : "");
  if (const auto found = placed_.find(key); found != placed_.end()) return found->second;
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<const TensorInfo*> tensors,
                            checkpoint_.Matrices(names));
  MILLRACE_RETURN_IF_ERROR(CheckTypes(tensors));
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<Checkpoint::Part> parts,
                            checkpoint_.Parts(tensors, shard));
  const Share columns = shard.columns.value_or(Whole(tensors[0]->shape[1]));
  std::vector<Share> rows;
  int64_t total = 0;
  for (const Checkpoint::Part& part : parts) {
    rows.push_back(part.rows);
    total += part.rows.total;
  }
  if (total > std::numeric_limits<int32_t>::max() - kGatedRows ||
      columns.total > std::numeric_limits<int32_t>::max() / 64) {
    return absl::InvalidArgumentError(StrCat("tensor ", names[0], " is ",
                                             ShapeString(tensors[0]->shape),
                                             ", larger than the CPU executor takes"));
  }
  MILLRACE_ASSIGN_OR_RETURN(Checkpoint::Biases biases, checkpoint_.BiasesOf(names));
  MILLRACE_RETURN_IF_ERROR(ReadFp8Scales(names, tensors));
  MILLRACE_RETURN_IF_ERROR(OpenPacked(tensors, columns));
  Orders orders;
  const std::vector<TileRun> runs = AddParts(parts, role, columns, &orders);
  TiledMatrix& matrix = weights_.matrices.emplace_back(DescribeTiles(runs, columns.size, kernels_));
  matrix.orders = std::move(orders);
  weights_.owned.push_back(rows[0]);
  weights_.corrections.emplace_back();
  // One rank alone adds the bias of a product that ranks sum up.
  const bool has_bias =
      !biases.values.empty() && (rank().rank == 0 || columns.count == columns.total);
  std::vector<float> bias = has_bias ? Cut(biases.values, rows) : std::vector<float>();
  if (has_bias && role == Role::kGated) bias = InTurns(bias, matrix.tiles);
  weights_.biases.push_back(std::move(bias));
  vectors_.insert(vectors_.end(), biases.tensors.begin(), biases.tensors.end());
  offsets_.push_back(bytes_);
  bytes_ += matrix.bytes;
  placed_[key] = weights_.matrices.size() - 1;
  return weights_.matrices.size() - 1;
}

absl::StatusOr<size_t> CpuWeightPlacer::PlaceTable(const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<const TensorInfo*> tensors,
                            checkpoint_.Matrices({name}));
  const Share rows = DivideUnits(tensors[0]->shape[0], kShareMultiple, rank());
  return Place({name}, Role::kTable, {.rows = {rows}, .columns = std::nullopt});
}

absl::StatusOr<EmbeddingId> CpuWeightPlacer::Embedding(const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, PlaceTable(name));
  return static_cast<EmbeddingId>(index);
}

absl::StatusOr<LinearId> CpuWeightPlacer::Head(const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, PlaceTable(name));
  return static_cast<LinearId>(index);
}

absl::StatusOr<LinearId> CpuWeightPlacer::Linear(const std::vector<std::string>& names,
                                                 const Shard& shard) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, Place(names, Role::kLinear, shard));
  return static_cast<LinearId>(index);
}

absl::StatusOr<LinearId> CpuWeightPlacer::GatedLinear(const std::vector<std::string>& names,
                                                      const Share& share) {
  MILLRACE_ASSIGN_OR_RETURN(
      const size_t index,
      Place(names, Role::kGated, {.rows = {share, share}, .columns = std::nullopt}));
  return static_cast<LinearId>(index);
}

absl::StatusOr<VectorId> CpuWeightPlacer::Vector(const std::string& name, const Share& share) {
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* tensor, checkpoint_.Vector(name));
  std::vector<float> values(tensor->shape[0]);
  if (checkpoint_.source().has_data()) values = checkpoint_.Floats(*tensor);
  vectors_.push_back(tensor);
  weights_.vectors.push_back(Cut(values, 0, share));
  return static_cast<VectorId>(weights_.vectors.size() - 1);
}

absl::StatusOr<ConvolutionSpec> CpuWeightPlacer::Convolution(const std::string& module, bool bias,
                                                             absl::Span<const Share> channels) {
  MILLRACE_ASSIGN_OR_RETURN(const Checkpoint::Table read,
                            checkpoint_.Convolution(module + ".weight"));
  const int64_t width = read.tensor->shape.back();
  const int64_t rows = read.tensor->shape[0];
  // Inputs are multiplied one after the other: each one's weights lie together.
  std::vector<float> weights;
  std::vector<float> of_input(rows);
  for (int64_t input = 0; input < width; ++input) {
    for (int64_t row = 0; row < rows; ++row) of_input[row] = read.values[row * width + input];
    const std::vector<float> cut = Cut(of_input, channels);
    weights.insert(weights.end(), cut.begin(), cut.end());
  }
  const auto add = [&](const TensorInfo* tensor, std::vector<float> values) {
    vectors_.push_back(tensor);
    weights_.vectors.push_back(std::move(values));
    return static_cast<VectorId>(weights_.vectors.size() - 1);
  };
  ConvolutionSpec spec{.width = static_cast<int32_t>(width),
                       .weights = add(read.tensor, std::move(weights)),
                       .bias = std::nullopt};
  if (!bias) return spec;
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* tensor, checkpoint_.Vector(module + ".bias"));
  std::vector<float> biases(rows);
  if (checkpoint_.source().has_data()) biases = checkpoint_.Floats(*tensor);
  spec.bias = add(tensor, Cut(biases, channels));
  return spec;
}

absl::StatusOr<LinearId> CpuWeightPlacer::Router(const RouterNames& names) {
  std::vector<std::string> weights = {names.weight};
  if (names.shared_gate.has_value()) weights.push_back(*names.shared_gate);
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, Place(weights, Role::kRouter, {}));
  if (names.correction.has_value()) {
    MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* tensor, checkpoint_.Vector(*names.correction));
    weights_.corrections[index] = checkpoint_.Floats(*tensor);
    vectors_.push_back(tensor);
  }
  return static_cast<LinearId>(index);
}

absl::Status CpuWeightPlacer::Hash(const std::vector<std::string>& names) {
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<const TensorInfo*> tensors,
                            checkpoint_.Matrices(names));
  MILLRACE_RETURN_IF_ERROR(OpenPacked(tensors, Whole(tensors[0]->shape[1])));
  for (const TensorInfo* tensor : tensors) {
    parts_.push_back({.source = {tensor, 0, Whole(tensor->shape[0])},
                      .packed = PackedOf(*tensor),
                      .columns = Whole(tensor->shape[1]),
                      .matrix = kNoMatrix,
                      .first_row = 0,
                      .group_stride = 0});
  }
  MILLRACE_ASSIGN_OR_RETURN(const Checkpoint::Biases biases, checkpoint_.BiasesOf(names));
  vectors_.insert(vectors_.end(), biases.tensors.begin(), biases.tensors.end());
  return absl::OkStatus();
}

// A rank without experts has one that no token goes to, so that it knows their shapes.
absl::StatusOr<LinearId> CpuWeightPlacer::PlaceExperts(const ExpertNames& names, Role role,
                                                       const Share& experts, const Shard& shard) {
  const int64_t begin = std::min(experts.begin, experts.total - 1);
  const int64_t end = begin + std::max<int64_t>(1, experts.count);
  const size_t first = weights_.matrices.size();
  for (int64_t expert = 0; expert < experts.total; ++expert) {
    if (expert < begin || expert >= end) {
      MILLRACE_RETURN_IF_ERROR(Hash(names[expert]));
      continue;
    }
    MILLRACE_RETURN_IF_ERROR(Place(names[expert], role, shard).status());
    const TiledMatrix& matrix = weights_.matrices.back();
    if (matrix.inputs != weights_.matrices[first].inputs) {
      return absl::UnimplementedError(StrCat(checkpoint_.source().base_name(), ": tensor ",
                                             names[expert][0], " is of another type than ",
                                             names[begin][0], "; allowed: one for all experts"));
    }
  }
  weights_.owned[first] = experts;
  return static_cast<LinearId>(first);
}

absl::StatusOr<LinearId> CpuWeightPlacer::GatedExperts(const ExpertNames& names,
                                                       const Share& experts, const Share& share) {
  return PlaceExperts(names, Role::kGated, experts,
                      {.rows = {share, share}, .columns = std::nullopt});
}

absl::StatusOr<LinearId> CpuWeightPlacer::Experts(const ExpertNames& names, const Share& experts,
                                                  const Shard& shard) {
  return PlaceExperts(names, Role::kLinear, experts, shard);
}

absl::StatusOr<NormId> CpuWeightPlacer::Norm(const std::string& name, const NormSpec& spec) {
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* tensor, checkpoint_.Vector(name));
  NormWeight norm{.scale = checkpoint_.Floats(*tensor),
                  .bias = {},
                  .size = static_cast<int>(tensor->shape[0]),
                  .epsilon = spec.epsilon,
                  .counted = spec.counted};
  for (float& scale : norm.scale) scale += spec.offset;
  if (spec.share.has_value()) norm.scale = Cut(norm.scale, 0, *spec.share);
  norm.scale.resize(RoundUp(static_cast<int64_t>(norm.scale.size()), kTileRows));
  vectors_.push_back(tensor);
  weights_.norms.push_back(std::move(norm));
  return static_cast<NormId>(weights_.norms.size() - 1);
}

absl::StatusOr<NormId> CpuWeightPlacer::LayerNorm(const std::string& name, float epsilon) {
  MILLRACE_ASSIGN_OR_RETURN(const NormId id, Norm(name + ".weight", {.epsilon = epsilon}));
  NormWeight& norm = weights_.norms.back();
  if (!Has(name + ".bias")) {
    norm.bias.assign(norm.scale.size(), 0.0f);
    return id;
  }
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* bias, checkpoint_.Vector(name + ".bias"));
  norm.bias = checkpoint_.Floats(*bias);
  vectors_.push_back(bias);
  return id;
}

absl::StatusOr<PositionBiasId> CpuWeightPlacer::PositionBias(const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(const Checkpoint::Table read, checkpoint_.FloatTable(name));
  vectors_.push_back(read.tensor);
  weights_.position_biases.push_back({.buckets = static_cast<int>(read.tensor->shape[0]),
                                      .heads = static_cast<int>(read.tensor->shape[1]),
                                      .values = read.values});
  return static_cast<PositionBiasId>(weights_.position_biases.size() - 1);
}

}  // namespace millrace::cpu
