#include "executors/cuda/weights/weights.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/cuda/weights/gemm_plans.h"
#include "executors/cuda/weights/stored_type.h"
#include "executors/weights/shares.h"
#include "kernels/weights/fill.h"

namespace millrace::cuda {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

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

absl::Status CudaWeightPlacer::DrawNorms(const CudaWeights& weights) const {
  uint8_t* const arena = weights.data();
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

// A drawn vector is zeros; a drawn convolution returns the mean of what it reads.
std::vector<float> CudaWeightPlacer::ValuesOf(const PendingVector& vector) const {
  const int64_t columns = vector.columns;
  std::vector<float> file = checkpoint_.Floats(*vector.tensor);
  if (options_.dummy) {
    std::fill(file.begin(), file.end(), columns == 1 ? 0.0f : 1.0f / static_cast<float>(columns));
  }
  std::vector<float> values;
  std::vector<float> column(file.size() / columns);
  for (int64_t at = 0; at < columns; ++at) {
    for (size_t i = 0; i < column.size(); ++i) column[i] = file[i * columns + at];
    const std::vector<float> cut = Cut(column, vector.shares);
    values.insert(values.end(), cut.begin(), cut.end());
  }
  return values;
}

// Norms, biases and scales: small, copied one by one.
absl::Status CudaWeightPlacer::UploadSmall(CudaWeights& weights) const {
  uint8_t* const arena = weights.data();
  const auto upload = [arena](size_t offset, const std::vector<float>& values) {
    return ToStatus(cudaMemcpy(arena + offset, values.data(), values.size() * sizeof(float),
                               cudaMemcpyHostToDevice),
                    "loading scales");
  };
  for (const PendingMatrix& matrix : matrices_) {
    if (!matrix.present) continue;
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
    if (!linear.correction.empty()) {
      MILLRACE_RETURN_IF_ERROR(upload(linear.correction_offset, linear.correction));
    }
  }
  for (const PendingVector& vector : vectors_) {
    MILLRACE_RETURN_IF_ERROR(upload(vector.offset, ValuesOf(vector)));
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
  weights.rank = rank_;
  for (const PendingNorm& norm : norms_) {
    weights.norms.push_back({.weight = reinterpret_cast<float*>(arena + norm.offset),
                             .epsilon = norm.spec.epsilon,
                             .size = static_cast<int>(norm.size),
                             .all = static_cast<int>(norm.tensor->shape[0]),
                             .counted = norm.spec.counted});
  }
  for (const PendingVector& vector : vectors_) {
    weights.vectors.push_back(reinterpret_cast<const float*>(arena + vector.offset));
  }
  for (const size_t index : embeddings_) {
    const PendingMatrix& matrix = matrices_[index];
    weights.embeddings.push_back(
        {.table = reinterpret_cast<kernels::Bf16*>(arena + matrix.data_offset),
         .stride = matrix.stride,
         .vocab = static_cast<int>(matrix.row_parts[0].rows.total),
         .rows = static_cast<int>(matrix.rows),
         .width = static_cast<int>(matrix.columns)});
  }
  for (const PendingLinear& linear : linears_) weights.linears.push_back(Describe(linear, arena));
  return weights;
}

CudaLinear CudaWeightPlacer::Describe(const PendingLinear& pending, uint8_t* arena) const {
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
  const auto floats = [arena](size_t offset) { return reinterpret_cast<float*>(arena + offset); };
  if (matrix.num_scales > 0) linear.weight.scales = floats(matrix.scales_offset);
  if (matrix.input_scale.has_value()) linear.input_scale = floats(matrix.input_scale_offset);
  if (!pending.bias.empty()) linear.bias = floats(pending.bias_offset);
  if (matrix.type == kernels::Type::kFp8) {
    linear.input = blocks                           ? kernels::Scaling::kTokenGroup
                   : matrix.input_scale.has_value() ? kernels::Scaling::kTensor
                                                    : kernels::Scaling::kToken;
  }
  const kernels::GroupedWeight grouped = {.data = linear.weight.data,
                                          .type = linear.weight.type,
                                          .scaling = linear.weight.scaling,
                                          .groups = std::max(pending.experts, 1),
                                          .rows = linear.weight.rows,
                                          .stride = linear.weight.stride,
                                          .scales = linear.weight.scales,
                                          .four_bit = matrix.four_bit};
  if (pending.kind == Kind::kExperts) {
    linear.runner = ExpertsLinear{.weight = grouped,
                                  .chosen = ChosenExperts(),
                                  .first_expert = pending.first_expert,
                                  .all_experts = pending.all_experts};
  } else if (pending.kind == Kind::kRouter) {
    linear.runner =
        RouterLinear{pending.correction.empty() ? nullptr : floats(pending.correction_offset)};
  } else if (matrix.four_bit.has_value()) {
    linear.runner =
        FourBitLinear{.weight = grouped,
                      .expansion = DescribeExpansion(linear.weight.rows, linear.weight.stride)};
  }
  return linear;
}

// How many experts a token has, the same in all layers.
int CudaWeightPlacer::ChosenExperts() const {
  for (const LayerConfig& layer : config_.layers) {
    if (const auto* experts = std::get_if<ExpertsFeedForward>(&layer.feed_forward)) {
      return experts->router.chosen;
    }
  }
  return 1;
}

absl::Status CudaWeightPlacer::MakePlans(CudaWeights& weights,
                                         kernels::LinearPlanner& planner) const {
  std::vector<GemmUse> uses;
  const auto has_plan = [&](size_t i) {
    return std::holds_alternative<PlannedLinear>(weights.linears[i].runner);
  };
  const auto desc = [&](size_t i) {
    return DescOf(weights.linears[i], linears_[i].kind == Kind::kHead);
  };
  for (size_t i = 0; i < linears_.size(); ++i) {
    if (has_plan(i)) AddUse(desc(i), weights.linears[i].weight.data, &uses);
  }
  LearnPlans(uses, planner);
  for (size_t i = 0; i < linears_.size(); ++i) {
    auto* const linear = std::get_if<PlannedLinear>(&weights.linears[i].runner);
    if (linear == nullptr) continue;
    std::string error;
    linear->plan = planner.Plan(desc(i), &error);
    if (linear->plan == nullptr) {
      return absl::UnimplementedError(
          StrCat("tensor ", matrices_[linears_[i].matrix].names[0], ": ", error));
    }
  }
  return MakeExpansion(weights, planner);
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
  hasher.Update(StrCat(options_.dummy ? "dummy " : "", options_.skewed_routers ? "skewed " : "",
                       options_.quantize_fp8    ? "fp8"
                       : options_.quantize_int4 ? "int4"
                                                : "",
                       options_.quantize_head ? " fp8 head\n" : "\n"));
  const auto describe = [&](const TensorInfo& tensor) {
    hasher.Update(
        StrCat(tensor.name, " ", Traits(tensor.type).name, ShapeString(tensor.shape), "\n"));
  };
  const auto hash = [&](const TensorInfo& tensor) {
    describe(tensor);
    if (options_.dummy) return;
    const std::vector<float> values = checkpoint_.Floats(tensor);
    hasher.Update(values.data(), values.size() * sizeof(float));
  };
  for (const PendingNorm& norm : norms_) hash(*norm.tensor);
  for (const PendingVector& vector : vectors_) hash(*vector.tensor);
  for (const PendingMatrix& matrix : matrices_) {
    hasher.Update(matrix.host_scales.data(), matrix.host_scales.size() * sizeof(float));
    const float input = matrix.input_scale.value_or(0);
    hasher.Update(&input, sizeof(input));
  }
  for (const PendingLinear& linear : linears_) {
    hasher.Update(linear.file_bias.data(), linear.file_bias.size() * sizeof(float));
    hasher.Update(linear.correction.data(), linear.correction.size() * sizeof(float));
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

absl::Status CudaWeightPlacer::TakeMemory(int device, absl::Span<const int> devices,
                                          CudaWeights& weights) const {
  const size_t bytes = std::max<size_t>(bytes_, 1);
  if (devices.size() > 1 && CheckPeerAccess(devices).ok()) {
    MILLRACE_ASSIGN_OR_RETURN(weights.shared,
                              PeerMemory::Allocate(bytes, device, devices, "weights"));
  } else {
    MILLRACE_ASSIGN_OR_RETURN(weights.memory, DeviceMemory::Allocate(bytes, "weights"));
  }
  DeviceMemory memory = std::move(weights.memory);
  PeerMemory shared = std::move(weights.shared);
  weights = Describe(shared.data() != nullptr ? shared.data() : memory.data());
  weights.memory = std::move(memory);
  weights.shared = std::move(shared);
  // Padding rows and columns, and scales of padding rows, are zeros.
  MILLRACE_RETURN_IF_ERROR(ToStatus(cudaMemset(weights.data(), 0, weights.bytes()), "weights"));
  return ToStatus(cudaDeviceSynchronize(), "weights");
}

absl::StatusOr<CudaWeights> CudaWeightPlacer::Finish(kernels::LinearPlanner& planner) {
  int device = 0;
  MILLRACE_RETURN_IF_ERROR(ToStatus(cudaGetDevice(&device), "asking for the GPU"));
  MILLRACE_ASSIGN_OR_RETURN(std::vector<CudaWeights> weights,
                            FinishRanks({{this, &planner, device}}, nullptr));
  return std::move(weights[0]);
}

absl::StatusOr<std::vector<CudaWeights>> CudaWeightPlacer::FinishRanks(
    absl::Span<const RankTarget> ranks, LoadProgress* progress) {
  const SteadyTime begin = Clock::Real().Now();
  std::vector<int> devices;
  for (const RankTarget& rank : ranks) devices.push_back(rank.device);
  std::vector<CudaWeights> weights(ranks.size());
  std::vector<RankPieces> pieces;
  for (size_t r = 0; r < ranks.size(); ++r) {
    MILLRACE_RETURN_IF_ERROR(UseDevice(devices[r]));
    MILLRACE_RETURN_IF_ERROR(ranks[r].placer->TakeMemory(devices[r], devices, weights[r]));
    pieces.push_back({devices[r], CutIntoPieces(ranks[r].placer->matrices_), weights[r].data()});
  }
  const CudaWeightPlacer& first = *ranks[0].placer;
  const bool dummy = first.options_.dummy;
  std::vector<Sha256Digest> digests(pieces[0].pieces.size());
  if (!dummy) {
    MILLRACE_RETURN_IF_ERROR(ReadWeights(first.checkpoint_.source(), pieces, &digests, progress));
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    const CudaWeightPlacer& placer = *ranks[r].placer;
    MILLRACE_RETURN_IF_ERROR(UseDevice(devices[r]));
    if (dummy) {
      MILLRACE_RETURN_IF_ERROR(DrawWeights(placer.matrices_, weights[r].data()));
      MILLRACE_RETURN_IF_ERROR(placer.DrawNorms(weights[r]));
    }
    MILLRACE_RETURN_IF_ERROR(placer.UploadSmall(weights[r]));
    MILLRACE_RETURN_IF_ERROR(placer.ReadKvScales(weights[r]));
    MILLRACE_RETURN_IF_ERROR(placer.MakePlans(weights[r], *ranks[r].planner));
  }
  const Sha256Digest digest = first.Digest(weights[0], pieces[0].pieces, digests);
  for (CudaWeights& of_rank : weights) of_rank.digest = digest;

  int64_t read = 0;
  for (const WeightPiece& piece : pieces[0].pieces)
    read += (piece.end - piece.begin) * RowBytes(*piece.part->tensor);
  const auto expanded = std::count_if(
      first.matrices_.begin(), first.matrices_.end(), [](const PendingMatrix& matrix) {
        const auto is_packed = [](const PackedReader* part) { return part != nullptr; };
        return !matrix.four_bit.has_value() &&
               std::any_of(matrix.packed.begin(), matrix.packed.end(), is_packed);
      });
  if (expanded > 0) {
    kLog.Warning(expanded, " of ", first.matrices_.size(), " weights are stored in four bits and ",
                 "were expanded to BF16, which takes four times the memory: their inputs are ",
                 "reordered (act-order), or their groups fit no kernel");
  }
  const double seconds = std::chrono::duration<double>(Clock::Real().Now() - begin).count();
  kLog.Info(dummy ? "drew " : "read ", read >> 20, " MiB of weights in ",
            static_cast<int64_t>(seconds * 1000), " ms, ",
            static_cast<double>(read) / seconds / 1e9, " GB/s");
  return weights;
}

}  // namespace millrace::cuda
