#include "executors/cuda/weights.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/cuda/gemm_plans.h"
#include "executors/cuda/stored_type.h"
#include "executors/weights/shares.h"
#include "kernels/weights/fill.h"

namespace millrace::cuda {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

constexpr size_t kAlignment = 256;

int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Returns whether the tensor's rows lie in its file, in a type that LaunchDequantize reads or FP8.
bool IsLoadable(const TensorInfo& tensor) {
  const bool packed = tensor.type == TensorType::kInt4x32 || tensor.type == TensorType::kInt4x128;
  const bool readable =
      tensor.type == TensorType::kFp8E4m3 || StoredTypeOf(tensor.type).has_value();
  return readable && !packed && !tensor.scattered.has_value();
}

// By turns 8 of the first half and 8 of the second (GateLayout).
std::vector<float> Interleaved(const std::vector<float>& halves) {
  std::vector<float> turned;
  for (size_t row = 0; row < halves.size() / 2; row += 8) {
    for (const size_t from : {row, halves.size() / 2 + row}) {
      turned.insert(turned.end(), halves.begin() + from, halves.begin() + from + 8);
    }
  }
  return turned;
}

// `head`: the product is fp32 logits.
kernels::GemmDesc DescOf(const CudaLinear& linear, bool head) {
  const bool gated = linear.gate == kernels::GateLayout::kInterleaved;
  return {.rows = linear.weight.rows,
          .stride = linear.weight.stride,
          .weight = linear.weight.type,
          .weight_scaling = linear.weight.scaling,
          .input = linear.weight.type,
          .input_scaling = linear.input,
          .output = head ? kernels::Type::kF32 : kernels::Type::kBf16,
          .epilogue = gated && kernels::IsKnown(linear.input) ? kernels::Epilogue::kGate
                                                              : kernels::Epilogue::kStore};
}

}  // namespace

size_t CudaWeightPlacer::Reserve(size_t bytes) {
  const size_t offset = bytes_;
  bytes_ += RoundUp(static_cast<int64_t>(bytes), kAlignment);
  return offset;
}

// `quantized`: how weights become FP8 on the way, kNone where they do not.
absl::StatusOr<size_t> CudaWeightPlacer::Place(const std::vector<std::string>& names,
                                               const Shard& shard, kernels::WeightScaling quantized,
                                               bool gated) {
  // A tied head that is quantized is another matrix than the embedding.
  const std::string key = StrCat(absl::StrJoin(names, " "), " ", static_cast<int>(quantized));
  if (const auto found = placed_.find(key); found != placed_.end()) return found->second;
  PendingMatrix matrix;
  MILLRACE_ASSIGN_OR_RETURN(matrix.parts, checkpoint_.Matrices(names));
  for (const TensorInfo* tensor : matrix.parts) {
    if (IsLoadable(*tensor)) continue;
    return absl::UnimplementedError(
        StrCat(checkpoint_.source().base_name(), ": tensor ", tensor->name, " is ",
               Traits(tensor->type).name,
               "; allowed on the GPU: F32, F16, BF16, F8_E4M3 and GGUF's quantized types"));
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
  matrix.stride = RoundUp(matrix.columns, kernels::kColumnPadding);
  if (total_rows >= int64_t{1} << 30 || matrix.column_share.total >= int64_t{1} << 30) {
    return absl::InvalidArgumentError(StrCat("tensor ", names[0], " is ",
                                             ShapeString(matrix.parts[0]->shape),
                                             ", larger than the GPU executor takes"));
  }
  matrix.stored_fp8 = matrix.parts[0]->type == TensorType::kFp8E4m3;
  if (matrix.stored_fp8) {
    MILLRACE_RETURN_IF_ERROR(ReadScales(matrix));
  } else if (quantized != kernels::WeightScaling::kNone) {
    matrix.type = kernels::Type::kFp8;
    matrix.scaling = quantized;
    matrix.num_scales = quantized == kernels::WeightScaling::kChannel
                            ? RoundUp(matrix.rows, kRowMultiple)
                            : RoundUp(matrix.rows, kFp8Block) / kFp8Block *
                                  kernels::BlockScaleStride(matrix.stride);
  }
  // Blocks of scales have 128 rows, and a piece of a file is of one type.
  const bool one_type =
      std::all_of(matrix.parts.begin(), matrix.parts.end(),
                  [&](const TensorInfo* part) { return part->type == matrix.parts[0]->type; });
  if (gated && one_type && total_rows % 16 == 0 &&
      matrix.scaling != kernels::WeightScaling::kBlock) {
    matrix.gate = kernels::GateLayout::kInterleaved;
    if (matrix.host_scales.size() > 1) matrix.host_scales = Interleaved(matrix.host_scales);
  }
  if (matrix.stored_fp8) {
    matrix.rank_scales = RankScales(matrix);
    matrix.num_scales = matrix.rank_scales.size();
  }
  matrix.data_offset =
      Reserve(RoundUp(matrix.rows, kRowMultiple) * matrix.stride * ElementBytes(matrix.type));
  if (matrix.num_scales > 0) matrix.scales_offset = Reserve(matrix.num_scales * sizeof(float));
  if (matrix.input_scale.has_value()) matrix.input_scale_offset = Reserve(sizeof(float));
  matrices_.push_back(std::move(matrix));
  placed_[key] = matrices_.size() - 1;
  return matrices_.size() - 1;
}

// The scales of stored codes, brought to one scaling for all parts of the matrix: tensor scales
// that differ become those of their channels.
absl::Status CudaWeightPlacer::ReadScales(PendingMatrix& matrix) {
  matrix.type = kernels::Type::kFp8;
  const QuantScheme scheme = config_.quantization.value_or(QuantScheme{});
  const bool blocks = scheme.group == kFp8Blocks;
  const int64_t block_stride =
      kernels::BlockScaleStride(RoundUp(matrix.column_share.total, kernels::kColumnPadding));
  int64_t first_row = 0;
  bool one_scale = scheme.group == kPerTensor;
  for (size_t i = 0; i < matrix.parts.size(); ++i) {
    const int64_t rows = matrix.parts[i]->shape[0];
    Checkpoint::Fp8Scales scales{.weight = std::vector<float>(1, 1.0f), .input = std::nullopt};
    if (checkpoint_.source().has_data()) {
      MILLRACE_ASSIGN_OR_RETURN(scales, checkpoint_.ScalesOf(matrix.names[i]));
    } else {
      const int64_t dummy =
          scheme.group.Down(rows) * scheme.group.Across(matrix.column_share.total);
      scales.weight.assign(dummy, 1e-3f / 448);
      if (scheme.static_activations()) scales.input = 1.0f / 448;
    }
    if (scales.input.has_value()) {
      matrix.input_scale = std::max(matrix.input_scale.value_or(0), *scales.input);
    }
    if (blocks) {
      if (first_row % kFp8Block != 0) {
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
  return ScaleBlock{.rows = 1, .columns = Traits(type).block_elements};
}

absl::StatusOr<size_t> CudaWeightPlacer::PlaceTable(const std::string& name,
                                                    kernels::WeightScaling quantized) {
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<const TensorInfo*> tensors,
                            checkpoint_.Matrices({name}));
  // Scales of blocks have 128 rows.
  const int64_t unit =
      quantized == kernels::WeightScaling::kBlock ? int64_t{kFp8Block} : kShareMultiple;
  const Share rows = DivideUnits(tensors[0]->shape[0], unit, rank_);
  return Place({name}, {.rows = {rows}, .columns = std::nullopt}, quantized);
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
                                                       const Shard& shard, bool gated) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index,
                            Place(names, shard,
                                  options_.quantize_fp8 ? kernels::WeightScaling::kChannel
                                                        : kernels::WeightScaling::kNone,
                                  gated));
  linears_.push_back({.matrix = index, .file_bias = {}, .bias = {}});
  return static_cast<LinearId>(linears_.size() - 1);
}

absl::StatusOr<LinearId> CudaWeightPlacer::Linear(const std::vector<std::string>& names,
                                                  const Shard& shard) {
  MILLRACE_ASSIGN_OR_RETURN(const LinearId id, LayerLinear(names, shard, /*gated=*/false));
  PendingLinear& linear = linears_.back();
  MILLRACE_ASSIGN_OR_RETURN(Checkpoint::Biases biases, checkpoint_.BiasesOf(names));
  linear.file_bias = std::move(biases.values);
  if (options_.dummy) std::fill(linear.file_bias.begin(), linear.file_bias.end(), 0.0f);
  if (!linear.file_bias.empty() && (!shard.columns.has_value() || rank_.rank == 0)) {
    linear.bias = Cut(linear.file_bias, RowShares(matrices_[linear.matrix]));
  }
  if (!linear.bias.empty()) linear.bias_offset = Reserve(linear.bias.size() * sizeof(float));
  return id;
}

absl::StatusOr<LinearId> CudaWeightPlacer::GatedLinear(const std::vector<std::string>& names,
                                                       const Share& share) {
  return LayerLinear(names, {.rows = {share, share}, .columns = std::nullopt}, /*gated=*/true);
}

absl::StatusOr<VectorId> CudaWeightPlacer::Vector(const std::string& name, const Share&) {
  return absl::UnimplementedError(StrCat("the model has attention sinks, ",
                                         checkpoint_.source().NameInFile(name),
                                         "; allowed on the GPU: models without"));
}

absl::StatusOr<LinearId> CudaWeightPlacer::Router(const std::string& name,
                                                  const std::optional<std::string>&) {
  return absl::UnimplementedError(
      StrCat("the model's feed-forward network is a mixture of experts, ",
             checkpoint_.source().NameInFile(name), "; allowed on the GPU: dense"));
}

absl::StatusOr<LinearId> CudaWeightPlacer::GatedExperts(const ExpertNames& names, const Share&,
                                                        const Share&) {
  return Router(names[0][0], std::nullopt);
}

absl::StatusOr<LinearId> CudaWeightPlacer::Experts(const ExpertNames& names, const Share&,
                                                   const Shard&) {
  return Router(names[0][0], std::nullopt);
}

absl::StatusOr<LinearId> CudaWeightPlacer::Head(const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(
      const size_t index, PlaceTable(name, options_.quantize_head ? kernels::WeightScaling::kBlock
                                                                  : kernels::WeightScaling::kNone));
  linears_.push_back({.matrix = index, .head = true, .file_bias = {}, .bias = {}});
  return static_cast<LinearId>(linears_.size() - 1);
}

absl::Status CudaWeightPlacer::DrawNorms(const CudaWeights& weights) const {
  uint8_t* const arena = weights.memory.data();
  uint64_t seed = matrices_.size();  // after those of DrawWeights
  for (const PendingNorm& norm : norms_) {
    MILLRACE_RETURN_IF_ERROR(ToStatus(kernels::LaunchFill({.out = arena + norm.offset,
                                                           .type = kernels::Type::kF32,
                                                           .rows = 1,
                                                           .columns = norm.size,
                                                           .stride = RoundUp(norm.size, 16),
                                                           .seed = ++seed},
                                                          nullptr),
                                      "dummy weights"));
  }
  return ToStatus(cudaDeviceSynchronize(), "dummy weights");
}

// Norms, biases and scales: small, copied one by one.
absl::Status CudaWeightPlacer::UploadSmall(CudaWeights& weights) const {
  uint8_t* const arena = weights.memory.data();
  const auto upload = [arena](size_t offset, const std::vector<float>& values) {
    return ToStatus(cudaMemcpy(arena + offset, values.data(), values.size() * sizeof(float),
                               cudaMemcpyHostToDevice),
                    "loading scales");
  };
  for (const PendingMatrix& matrix : matrices_) {
    if (!matrix.rank_scales.empty()) {
      MILLRACE_RETURN_IF_ERROR(upload(matrix.scales_offset, matrix.rank_scales));
    }
    if (matrix.input_scale.has_value()) {
      MILLRACE_RETURN_IF_ERROR(upload(matrix.input_scale_offset, {*matrix.input_scale}));
    }
  }
  for (const PendingLinear& linear : linears_) {
    if (!linear.bias.empty()) {
      MILLRACE_RETURN_IF_ERROR(upload(linear.bias_offset, linear.bias));
    }
  }
  if (options_.dummy) return absl::OkStatus();
  for (const PendingNorm& norm : norms_) {
    std::vector<float> values = checkpoint_.Floats(*norm.tensor);
    for (float& value : values) value += norm.spec.offset;
    if (norm.spec.share.has_value()) values = Cut(values, 0, *norm.spec.share);
    MILLRACE_RETURN_IF_ERROR(upload(norm.offset, values));
  }
  return absl::OkStatus();
}

CudaWeights CudaWeightPlacer::Describe(uint8_t* arena) const {
  CudaWeights weights;
  for (const PendingNorm& norm : norms_) {
    weights.norms.push_back({.weight = reinterpret_cast<float*>(arena + norm.offset),
                             .epsilon = norm.spec.epsilon,
                             .size = static_cast<int>(norm.size)});
  }
  for (const size_t index : embeddings_) {
    const PendingMatrix& matrix = matrices_[index];
    weights.embeddings.push_back(
        {.table = reinterpret_cast<kernels::Bf16*>(arena + matrix.data_offset),
         .stride = matrix.stride,
         .vocab = static_cast<int>(matrix.rows),
         .width = static_cast<int>(matrix.columns)});
  }
  for (const PendingLinear& pending : linears_) {
    const PendingMatrix& matrix = matrices_[pending.matrix];
    const bool blocks = matrix.scaling == kernels::WeightScaling::kBlock;
    CudaLinear linear{.weight = {.data = arena + matrix.data_offset,
                                 .type = matrix.type,
                                 .scaling = matrix.scaling,
                                 .rows = RoundUp(matrix.rows, kRowMultiple),
                                 .stride = matrix.stride,
                                 .scales = nullptr},
                      .rows = static_cast<int>(matrix.rows),
                      .columns = static_cast<int>(matrix.columns),
                      .gate = matrix.gate};
    if (matrix.num_scales > 0) {
      linear.weight.scales = reinterpret_cast<float*>(arena + matrix.scales_offset);
    }
    if (matrix.input_scale.has_value()) {
      linear.input_scale = reinterpret_cast<float*>(arena + matrix.input_scale_offset);
    }
    if (!pending.bias.empty()) {
      linear.bias = reinterpret_cast<float*>(arena + pending.bias_offset);
    }
    if (matrix.type == kernels::Type::kFp8) {
      linear.input = blocks                           ? kernels::Scaling::kTokenGroup
                     : matrix.input_scale.has_value() ? kernels::Scaling::kTensor
                                                      : kernels::Scaling::kToken;
    }
    weights.linears.push_back(linear);
  }
  return weights;
}

absl::Status CudaWeightPlacer::MakePlans(CudaWeights& weights,
                                         kernels::LinearPlanner& planner) const {
  std::vector<GemmUse> uses;
  for (size_t i = 0; i < linears_.size(); ++i) {
    const CudaLinear& linear = weights.linears[i];
    AddUse(DescOf(linear, linears_[i].head), linear.weight.data, &uses);
  }
  LearnPlans(uses, planner);
  for (size_t i = 0; i < linears_.size(); ++i) {
    CudaLinear& linear = weights.linears[i];
    std::string error;
    linear.plan = planner.Plan(DescOf(linear, linears_[i].head), &error);
    if (linear.plan == nullptr) {
      return absl::UnimplementedError(
          StrCat("tensor ", matrices_[linears_[i].matrix].names[0], ": ", error));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaWeightPlacer::ReadKvScales(CudaWeights& weights) const {
  weights.k_scales.assign(config_.layers.size(), 1.0f);
  weights.v_scales.assign(config_.layers.size(), 1.0f);
  if (!checkpoint_.source().has_data()) return absl::OkStatus();
  for (int layer = 0; layer < config_.num_layers(); ++layer) {
    MILLRACE_ASSIGN_OR_RETURN(const Checkpoint::KvScales scales, checkpoint_.KvScalesOf(layer));
    weights.k_scales[layer] = scales.k.value_or(1.0f);
    weights.v_scales[layer] = scales.v.value_or(1.0f);
    weights.has_kv_scales = weights.has_kv_scales || (scales.k.has_value() && scales.v.has_value());
  }
  return absl::OkStatus();
}

// A tree of two levels, as pieces are hashed in parallel: what the weights are made of, and how.
Sha256Digest CudaWeightPlacer::Digest(const CudaWeights& weights,
                                      const std::vector<WeightPiece>& pieces,
                                      const std::vector<Sha256Digest>& digests) const {
  Sha256 hasher;
  hasher.Update(StrCat(options_.dummy ? "dummy " : "", options_.quantize_fp8 ? "fp8" : "",
                       options_.quantize_head ? " fp8 head\n" : "\n"));
  const auto describe = [&](const TensorInfo& tensor) {
    hasher.Update(
        StrCat(tensor.name, " ", Traits(tensor.type).name, ShapeString(tensor.shape), "\n"));
  };
  for (const PendingNorm& norm : norms_) {
    describe(*norm.tensor);
    if (options_.dummy) continue;
    const std::vector<float> values = checkpoint_.Floats(*norm.tensor);
    hasher.Update(values.data(), values.size() * sizeof(float));
  }
  for (const PendingMatrix& matrix : matrices_) {
    hasher.Update(matrix.host_scales.data(), matrix.host_scales.size() * sizeof(float));
    const float input = matrix.input_scale.value_or(0);
    hasher.Update(&input, sizeof(input));
  }
  for (const PendingLinear& linear : linears_) {
    hasher.Update(linear.file_bias.data(), linear.file_bias.size() * sizeof(float));
  }
  for (const std::vector<float>* scales : {&weights.k_scales, &weights.v_scales}) {
    hasher.Update(scales->data(), scales->size() * sizeof(float));
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i == 0 || pieces[i].matrix != pieces[i - 1].matrix) {
      for (const TensorInfo* tensor : pieces[i].matrix->parts) describe(*tensor);
    }
    hasher.Update(digests[i].data(), digests[i].size());
  }
  return hasher.Finish();
}

absl::StatusOr<CudaWeights> CudaWeightPlacer::Finish(kernels::LinearPlanner& planner) {
  const SteadyTime begin = Clock::Real().Now();
  MILLRACE_ASSIGN_OR_RETURN(DeviceMemory memory,
                            DeviceMemory::Allocate(std::max<size_t>(bytes_, 1), "weights"));
  // Padding rows and columns, and scales of padding rows, are zeros.
  MILLRACE_RETURN_IF_ERROR(ToStatus(cudaMemset(memory.data(), 0, memory.bytes()), "weights"));
  MILLRACE_RETURN_IF_ERROR(ToStatus(cudaDeviceSynchronize(), "weights"));
  uint8_t* const arena = memory.data();
  CudaWeights weights = Describe(arena);
  weights.memory = std::move(memory);
  const std::vector<WeightPiece> pieces = CutIntoPieces(matrices_);
  std::vector<Sha256Digest> digests(pieces.size());
  if (options_.dummy) {
    MILLRACE_RETURN_IF_ERROR(DrawWeights(matrices_, arena));
    MILLRACE_RETURN_IF_ERROR(DrawNorms(weights));
  } else {
    MILLRACE_RETURN_IF_ERROR(ReadWeights(checkpoint_.source(), pieces, arena, &digests));
  }
  MILLRACE_RETURN_IF_ERROR(UploadSmall(weights));
  MILLRACE_RETURN_IF_ERROR(ReadKvScales(weights));
  MILLRACE_RETURN_IF_ERROR(MakePlans(weights, planner));
  weights.digest = Digest(weights, pieces, digests);

  int64_t read = 0;
  for (const WeightPiece& piece : pieces)
    read += (piece.end - piece.begin) * RowBytes(*piece.part->tensor);
  const double seconds = std::chrono::duration<double>(Clock::Real().Now() - begin).count();
  kLog.Info(options_.dummy ? "drew " : "read ", read >> 20, " MiB of weights in ",
            static_cast<int64_t>(seconds * 1000), " ms, ",
            static_cast<double>(read) / seconds / 1e9, " GB/s");
  return weights;
}

}  // namespace millrace::cuda
