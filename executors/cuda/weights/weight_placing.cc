// CudaWeightPlacer's first half: decides the form and the place of each weight that a model asks
// for. weight_loader.h fills these places.
#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/cuda/weights/packed_rows.h"
#include "executors/cuda/weights/stored_type.h"
#include "executors/cuda/weights/weights.h"
#include "executors/weights/shares.h"
#include "kernels/weights/split_blocks.h"

namespace millrace::cuda {
namespace {

constexpr size_t kAlignment = 256;

// A layer's linear of so many rows is not quantized here: it is a small part of the weights, and
// fills no tile of the kernels that its precision would be given up for.
constexpr int64_t kFewRows = 128;

// Returns whether the tensor's rows are those of a file, in a type that LaunchDequantize reads or
// FP8.
bool IsLoadable(TensorType type) {
  return !IsPacked(type) && (type == TensorType::kFp8E4m3 || StoredTypeOf(type).has_value());
}

// Returns the four-bit form in which GGUF's elements are kept as they are. Q4_1 would fit
// kInt4Affine, but for the rounding of its scales: it is kept exactly, in BF16.
std::optional<kernels::FourBitFormat> FourBitFormOf(TensorType type) {
  if (type == TensorType::kQ4_1) return std::nullopt;
  const std::optional<kernels::StoredType> stored = StoredTypeOf(type);
  return stored.has_value() ? kernels::FourBitFormatOf(*stored) : std::nullopt;
}

}  // namespace

size_t CudaWeightPlacer::Reserve(size_t bytes) {
  const size_t offset = bytes_;
  bytes_ += RoundUp(static_cast<int64_t>(bytes), kAlignment);
  return offset;
}

size_t CudaWeightPlacer::Reserve(const std::vector<float>& values) {
  return values.empty() ? 0 : Reserve(values.size() * sizeof(float));
}

// `quantized`: how weights become FP8 on the way, kNone where they do not.
absl::StatusOr<PendingMatrix> CudaWeightPlacer::Describe(const std::vector<std::string>& names,
                                                         const Shard& shard, Role role,
                                                         kernels::WeightScaling quantized) {
  PendingMatrix matrix;
  MILLRACE_ASSIGN_OR_RETURN(matrix.parts, checkpoint_.Matrices(names));
  const bool one_type =
      std::all_of(matrix.parts.begin(), matrix.parts.end(),
                  [&](const TensorInfo* part) { return part->type == matrix.parts[0]->type; });
  for (const TensorInfo* tensor : matrix.parts) {
    if (IsLoadable(tensor->type) || IsPacked(tensor->type)) continue;
    return absl::UnimplementedError(
        StrCat(checkpoint_.source().base_name(), ": tensor ", tensor->name, " is ",
               Traits(tensor->type).name,
               "; allowed on the GPU: F32, F16, BF16, F8_E4M3 and GGUF's quantized types"));
  }
  if (shard.groups > 1) {
    return absl::UnimplementedError(StrCat(checkpoint_.source().base_name(), ": tensor ",
                                           matrix.parts[0]->name, " has its rows in ", shard.groups,
                                           " groups; allowed on the GPU: part by part"));
  }
  matrix.names = names;
  MILLRACE_ASSIGN_OR_RETURN(matrix.row_parts, checkpoint_.Parts(matrix.parts, shard));
  int64_t total_rows = 0;
  for (const Checkpoint::Part& part : matrix.row_parts) {
    matrix.rows += part.rows.size;
    total_rows += part.rows.total;
  }
  matrix.column_share = shard.columns.value_or(Whole(matrix.parts[0]->shape[1]));
  matrix.columns = matrix.column_share.size;
  matrix.stride =
      role == Role::kRouter ? matrix.columns : RoundUp(matrix.columns, kernels::kColumnPadding);
  if (total_rows >= int64_t{1} << 30 || matrix.column_share.total >= int64_t{1} << 30) {
    return absl::InvalidArgumentError(StrCat("tensor ", names[0], " is ",
                                             ShapeString(matrix.parts[0]->shape),
                                             ", larger than the GPU executor takes"));
  }
  matrix.stored_fp8 = matrix.parts[0]->type == TensorType::kFp8E4m3;
  const bool quantizes = role != Role::kLinear || total_rows > kFewRows;
  MILLRACE_RETURN_IF_ERROR(ChooseFourBits(role, quantizes, matrix));
  if (role == Role::kRouter) {
    if (matrix.stored_fp8) {
      return absl::UnimplementedError(StrCat(checkpoint_.source().base_name(), ": tensor ",
                                             matrix.parts[0]->name,
                                             " is F8_E4M3; allowed for a router: other types"));
    }
    const bool bf16 = one_type && matrix.parts[0]->type == TensorType::kBf16;
    matrix.type = bf16 ? kernels::Type::kBf16 : kernels::Type::kF32;
  } else if (matrix.stored_fp8 && !quantizes && matrix.parts.size() > 1 &&
             config_.quantization.has_value() && config_.quantization->group == kFp8Blocks) {
    MILLRACE_RETURN_IF_ERROR(ExpandFewRows(matrix));
  } else if (matrix.stored_fp8) {
    MILLRACE_RETURN_IF_ERROR(ReadScales(role, matrix));
  } else if (quantizes && quantized != kernels::WeightScaling::kNone &&
             !matrix.four_bit.has_value()) {
    matrix.type = kernels::Type::kFp8;
    matrix.scaling = quantized;
    matrix.num_scales = quantized == kernels::WeightScaling::kChannel
                            ? RoundUp(matrix.rows, kRowMultiple)
                            : RoundUp(matrix.rows, kFp8Block) / kFp8Block *
                                  kernels::BlockScaleStride(matrix.stride);
  }
  // A piece of a file is of one type, and blocks of scales have 128 rows; those of experts' gated
  // linears lie apart.
  const bool interleaves = one_type && total_rows % 16 == 0;
  if (role == Role::kGatedExpert && !interleaves) {
    return absl::UnimplementedError(StrCat(
        checkpoint_.source().base_name(), ": tensors ", names[0], " and ", names.back(), " are ",
        Traits(matrix.parts[0]->type).name, " and ", Traits(matrix.parts.back()->type).name, " of ",
        total_rows / 2, " rows; allowed on the GPU: one type, and multiples of 8"));
  }
  if (role == Role::kGatedExpert ||
      (role == Role::kGated && interleaves && matrix.scaling != kernels::WeightScaling::kBlock)) {
    matrix.gate = kernels::GateLayout::kInterleaved;
    if (matrix.scaling == kernels::WeightScaling::kChannel && matrix.stored_fp8) {
      matrix.host_scales = Interleaved(matrix.host_scales);
    }
  }
  return matrix;
}

// Gives the matrix of a layer's linear a four-bit form, if its elements have one or, where it
// `quantizes`, are quantized to one.
absl::Status CudaWeightPlacer::ChooseFourBits(Role role, bool quantizes, PendingMatrix& matrix) {
  const TensorType type = matrix.parts[0]->type;
  absl::flat_hash_map<const TensorInfo*, const PackedReader*> readers;
  for (const TensorInfo* tensor : matrix.parts) {
    MILLRACE_ASSIGN_OR_RETURN(std::optional<PackedReader> reader, checkpoint_.Packed(*tensor));
    if (reader.has_value()) readers[tensor] = &readers_.emplace_back(*std::move(reader));
  }
  for (const Checkpoint::Part& part : matrix.row_parts) {
    const auto reader = readers.find(part.tensor);
    matrix.packed.push_back(reader != readers.end() ? reader->second : nullptr);
  }
  // Tiles have 64 rows, all of one part but for a gated linear's whose parts are interleaved.
  const auto is_type = [type](const TensorInfo* part) { return part->type == type; };
  const bool one_type = std::all_of(matrix.parts.begin(), matrix.parts.end(), is_type);
  const bool interleaves = one_type && (role == Role::kGated || role == Role::kGatedExpert);
  const bool whole_tiles = interleaves
                               ? matrix.rows % 16 == 0
                               : std::all_of(matrix.row_parts.begin(), matrix.row_parts.end() - 1,
                                             [](const Checkpoint::Part& part) {
                                               return part.rows.size % kernels::kFourBitRows == 0;
                                             });
  const bool in_layer = role != Role::kTable && role != Role::kRouter;
  if (!options_.four_bit || !in_layer || !whole_tiles || matrix.stored_fp8) return absl::OkStatus();
  if (readers.size() == matrix.parts.size()) {
    matrix.four_bit = PackedFormat(matrix.packed, matrix.column_share);
    // Scales may have to be read for it: once, where a rank has all columns.
    matrix.whole_four_bit = matrix.column_share.count == matrix.column_share.total
                                ? matrix.four_bit
                                : PackedFormat(matrix.packed, Whole(matrix.column_share.total));
  } else if (options_.quantize_int4 && IsFloat(type) && quantizes) {
    matrix.four_bit = {.type = kernels::FourBitType::kInt4Affine, .group = 32};
    matrix.quantized_int4 = true;
  } else if (one_type) {
    matrix.four_bit = IsPacked(type) ? DrawnFormat(matrix.column_share.count) : FourBitFormOf(type);
  }
  return absl::OkStatus();
}

std::optional<kernels::FourBitFormat> CudaWeightPlacer::DrawnFormat(int64_t columns) const {
  const QuantScheme& scheme = *config_.quantization;
  if (scheme.reordered) return std::nullopt;
  const bool by_channel = scheme.group == kPerChannel;
  const int64_t group = std::gcd(by_channel ? columns : int64_t{scheme.group.columns}, columns);
  const kernels::FourBitFormat format{.type = kernels::FourBitType::kInt4,
                                      .group = static_cast<int>(std::gcd<int64_t>(128, group)),
                                      .symmetric = scheme.symmetric};
  return format.IsValid() ? std::optional(format) : std::nullopt;
}

std::optional<kernels::FourBitFormat> CudaWeightPlacer::PackedFormat(
    absl::Span<const PackedReader* const> parts, const Share& columns) {
  if (!parts[0]->order().empty()) return std::nullopt;
  return FormatOf(parts, {columns.begin, columns.count});
}

absl::StatusOr<size_t> CudaWeightPlacer::Place(const std::vector<std::string>& names,
                                               const Shard& shard, Role role,
                                               kernels::WeightScaling quantized) {
  // A tied head that is quantized is another matrix than the embedding.
  const std::string key = StrCat(absl::StrJoin(names, " "), " ", static_cast<int>(quantized));
  if (const auto found = placed_.find(key); found != placed_.end()) return found->second;
  MILLRACE_ASSIGN_OR_RETURN(PendingMatrix matrix, Describe(names, shard, role, quantized));
  if (matrix.stored_fp8) {
    matrix.rank_scales = RankScales(matrix);
    matrix.num_scales = matrix.rank_scales.size();
  }
  matrix.data_offset = Reserve(BytesOf(matrix));
  if (matrix.num_scales > 0) matrix.scales_offset = Reserve(matrix.num_scales * sizeof(float));
  if (matrix.input_scale.has_value()) matrix.input_scale_offset = Reserve(sizeof(float));
  matrices_.push_back(std::move(matrix));
  placed_[key] = matrices_.size() - 1;
  return matrices_.size() - 1;
}

absl::StatusOr<Checkpoint::Fp8Scales> CudaWeightPlacer::Fp8ScalesOf(const std::string& name,
                                                                    int64_t rows,
                                                                    int64_t columns) const {
  if (checkpoint_.source().has_data()) return checkpoint_.ScalesOf(name);
  const QuantScheme scheme = config_.quantization.value_or(QuantScheme{});
  Checkpoint::Fp8Scales scales{.weight = std::vector<float>(1, 1.0f), .input = std::nullopt};
  scales.weight.assign(scheme.group.Down(rows) * scheme.group.Across(columns), 1e-3f / 448);
  if (scheme.static_activations()) scales.input = 1.0f / 448;
  return scales;
}

// Several tensors of less than a block of rows each, whose scales no kernel tells apart, become
// BF16.
absl::Status CudaWeightPlacer::ExpandFewRows(PendingMatrix& matrix) {
  matrix.stored_fp8 = false;
  matrix.expands_fp8 = true;
  for (size_t i = 0; i < matrix.parts.size(); ++i) {
    MILLRACE_ASSIGN_OR_RETURN(
        const Checkpoint::Fp8Scales scales,
        Fp8ScalesOf(matrix.names[i], matrix.parts[i]->shape[0], matrix.column_share.total));
    matrix.host_scales.insert(matrix.host_scales.end(), scales.weight.begin(), scales.weight.end());
  }
  return absl::OkStatus();
}

// The scales of stored codes, brought to one scaling for all parts of the matrix: tensor scales
// that differ become those of their channels.
absl::Status CudaWeightPlacer::ReadScales(Role role, PendingMatrix& matrix) {
  matrix.type = kernels::Type::kFp8;
  const QuantScheme scheme = config_.quantization.value_or(QuantScheme{});
  const bool blocks = scheme.group == kFp8Blocks;
  const int64_t block_stride =
      kernels::BlockScaleStride(RoundUp(matrix.column_share.total, kernels::kColumnPadding));
  int64_t first_row = 0;
  bool one_scale = scheme.group == kPerTensor;
  for (size_t i = 0; i < matrix.parts.size(); ++i) {
    const int64_t rows = matrix.parts[i]->shape[0];
    MILLRACE_ASSIGN_OR_RETURN(const Checkpoint::Fp8Scales scales,
                              Fp8ScalesOf(matrix.names[i], rows, matrix.column_share.total));
    if (scales.input.has_value()) {
      matrix.input_scale = std::max(matrix.input_scale.value_or(0), *scales.input);
    }
    if (blocks) {
      if (first_row % kFp8Block != 0 && role != Role::kGatedExpert) {
        return absl::UnimplementedError(
            StrCat("tensor ", matrix.names[i], " begins at row ", first_row,
                   " of a fused weight; allowed with 128x128 scales: multiples of 128"));
      }
      const int64_t columns = RoundUp(matrix.column_share.total, kFp8Block) / kFp8Block;
      for (int64_t r = 0; r < static_cast<int64_t>(scales.weight.size()) / columns; ++r) {
        std::vector<float> row(block_stride, 0.0f);
        std::copy_n(scales.weight.begin() + r * columns, columns, row.begin());
        matrix.host_scales.insert(matrix.host_scales.end(), row.begin(), row.end());
      }
    } else {
      for (int64_t r = 0; r < rows; ++r) {
        matrix.host_scales.push_back(scales.weight.size() == 1 ? scales.weight[0]
                                                               : scales.weight[r]);
      }
    }
    first_row += rows;
  }
  for (const float scale : matrix.host_scales) {
    one_scale = one_scale && scale == matrix.host_scales[0];
  }
  if (blocks) {
    matrix.scaling = kernels::WeightScaling::kBlock;
  } else if (one_scale) {
    matrix.scaling = kernels::WeightScaling::kTensor;
    matrix.host_scales.resize(1);
  } else {
    matrix.scaling = kernels::WeightScaling::kChannel;
    matrix.host_scales.resize(RoundUp(first_row, kRowMultiple), 0.0f);
  }
  return absl::OkStatus();
}

absl::StatusOr<ScaleBlock> CudaWeightPlacer::BlockOf(const std::string& name) const {
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<const TensorInfo*> tensors,
                            checkpoint_.Matrices({name}));
  const TensorType type = tensors[0]->type;
  const bool blocks = type == TensorType::kFp8E4m3 && config_.quantization.has_value() &&
                      config_.quantization->group == kFp8Blocks;
  if (blocks) return ScaleBlock{.rows = kFp8Block, .columns = kFp8Block};
  // Four-bit weights lie in tiles of 64 rows, and those of a gated linear are by turns the gate's
  // and the other factor's.
  const bool four_bit =
      options_.four_bit &&
      (IsPacked(type) || (options_.quantize_int4 && IsFloat(type)) || FourBitFormOf(type));
  return ScaleBlock{.rows = four_bit ? kernels::kFourBitRows / 2 : 1,
                    .columns = Traits(type).block_elements};
}

absl::StatusOr<size_t> CudaWeightPlacer::PlaceTable(const std::string& name,
                                                    kernels::WeightScaling quantized) {
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<const TensorInfo*> tensors,
                            checkpoint_.Matrices({name}));
  // Scales of blocks have 128 rows.
  const int64_t unit =
      quantized == kernels::WeightScaling::kBlock ? int64_t{kFp8Block} : kShareMultiple;
  const Share rows = DivideUnits(tensors[0]->shape[0], unit, rank_);
  return Place({name}, {.rows = {rows}, .columns = std::nullopt}, Role::kTable, quantized);
}

absl::StatusOr<EmbeddingId> CudaWeightPlacer::Embedding(const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, PlaceTable(name, kernels::WeightScaling::kNone));
  embeddings_.push_back(index);
  return static_cast<EmbeddingId>(embeddings_.size() - 1);
}

absl::StatusOr<NormId> CudaWeightPlacer::Norm(const std::string& name, const NormSpec& spec) {
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* tensor, checkpoint_.Vector(name));
  const int64_t size = spec.share.value_or(Whole(tensor->shape[0])).size;
  norms_.push_back({tensor, size, Reserve(size * sizeof(float)), spec});
  return static_cast<NormId>(norms_.size() - 1);
}

absl::StatusOr<LinearId> CudaWeightPlacer::LayerLinear(const std::vector<std::string>& names,
                                                       const Shard& shard, Role role) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index,
                            Place(names, shard, role,
                                  options_.quantize_fp8 ? kernels::WeightScaling::kChannel
                                                        : kernels::WeightScaling::kNone));
  linears_.push_back({.matrix = index});
  return static_cast<LinearId>(linears_.size() - 1);
}

absl::StatusOr<LinearId> CudaWeightPlacer::Linear(const std::vector<std::string>& names,
                                                  const Shard& shard) {
  MILLRACE_ASSIGN_OR_RETURN(const LinearId id, LayerLinear(names, shard, Role::kLinear));
  PendingLinear& linear = linears_.back();
  MILLRACE_ASSIGN_OR_RETURN(Checkpoint::Biases biases, checkpoint_.BiasesOf(names));
  linear.file_bias = std::move(biases.values);
  if (options_.dummy) std::fill(linear.file_bias.begin(), linear.file_bias.end(), 0.0f);
  // Also of a linear that is divided by columns: every rank adds it to the sum.
  if (!linear.file_bias.empty()) {
    linear.bias = Cut(linear.file_bias, RowShares(matrices_[linear.matrix]));
  }
  linear.bias_offset = Reserve(linear.bias);
  return id;
}

absl::StatusOr<LinearId> CudaWeightPlacer::GatedLinear(const std::vector<std::string>& names,
                                                       const Share& share) {
  return LayerLinear(names, {.rows = {share, share}, .columns = std::nullopt}, Role::kGated);
}

absl::StatusOr<VectorId> CudaWeightPlacer::Vector(const std::string& name, const Share& share) {
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* tensor, checkpoint_.Vector(name));
  return Place(tensor, {share}, 1);
}

VectorId CudaWeightPlacer::Place(const TensorInfo* tensor, absl::Span<const Share> shares,
                                 int64_t columns) {
  int64_t size = 0;
  for (const Share& share : shares) size += share.size;
  vectors_.push_back(
      {tensor, {shares.begin(), shares.end()}, columns, Reserve(size * columns * sizeof(float))});
  return static_cast<VectorId>(vectors_.size() - 1);
}

absl::StatusOr<ConvolutionSpec> CudaWeightPlacer::Convolution(const std::string& module, bool bias,
                                                              absl::Span<const Share> channels) {
  MILLRACE_ASSIGN_OR_RETURN(const Checkpoint::Table read,
                            checkpoint_.Convolution(module + ".weight"));
  const int64_t width = read.tensor->shape.back();
  ConvolutionSpec spec{.width = static_cast<int32_t>(width),
                       .weights = Place(read.tensor, channels, width),
                       .bias = std::nullopt};
  if (!bias) return spec;
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* tensor, checkpoint_.Vector(module + ".bias"));
  spec.bias = Place(tensor, channels, 1);
  return spec;
}

absl::StatusOr<LinearId> CudaWeightPlacer::Head(const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(
      const size_t index, PlaceTable(name, options_.quantize_head ? kernels::WeightScaling::kBlock
                                                                  : kernels::WeightScaling::kNone));
  linears_.push_back({.matrix = index, .kind = Kind::kHead});
  return static_cast<LinearId>(linears_.size() - 1);
}

}  // namespace millrace::cuda
