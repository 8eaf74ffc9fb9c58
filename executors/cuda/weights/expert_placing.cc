// The mixtures of CudaWeightPlacer: routers, and experts that lie one behind the other.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "executors/cuda/weights/weights.h"
#include "executors/weights/dummy_router.h"
#include "executors/weights/shares.h"

namespace millrace::cuda {

// Experts are read in one form: packed ones in the format that holds all of them, or dequantized.
void CudaWeightPlacer::UniteFormats(std::vector<PendingMatrix>& experts) const {
  const auto is_like_first = [&](const PendingMatrix& matrix) {
    return matrix.four_bit == experts[0].four_bit;
  };
  if (std::all_of(experts.begin(), experts.end(), is_like_first)) return;
  std::vector<const PackedReader*> parts;
  for (const PendingMatrix& matrix : experts) {
    parts.insert(parts.end(), matrix.packed.begin(), matrix.packed.end());
  }
  if (std::find(parts.begin(), parts.end(), nullptr) != parts.end()) return;
  const auto format = PackedFormat(parts, experts[0].column_share);
  const auto whole = PackedFormat(parts, Whole(experts[0].column_share.total));
  for (PendingMatrix& matrix : experts) {
    matrix.four_bit = format;
    matrix.whole_four_bit = whole;
  }
}

absl::StatusOr<PendingMatrix> CudaWeightPlacer::DescribeExpert(
    const std::vector<std::string>& names, bool present, const Shard& shard, Role role,
    PendingLinear& linear) {
  const auto quantized =
      options_.quantize_fp8 ? kernels::WeightScaling::kChannel : kernels::WeightScaling::kNone;
  MILLRACE_ASSIGN_OR_RETURN(PendingMatrix matrix, Describe(names, shard, role, quantized));
  matrix.present = present;
  MILLRACE_ASSIGN_OR_RETURN(Checkpoint::Biases biases, checkpoint_.BiasesOf(names));
  linear.file_bias.insert(linear.file_bias.end(), biases.values.begin(), biases.values.end());
  if (biases.values.empty() || !present) return matrix;
  std::vector<float> bias = Cut(biases.values, RowShares(matrix));
  if (role == Role::kGatedExpert) bias = Interleaved(bias);
  bias.resize(RoundUp(matrix.rows, kRowMultiple), 0.0f);
  // Ranks that divide an expert by columns add its bias once.
  const bool is_others = role == Role::kExpert && !rank_.expert_parallel && rank_.rank > 0;
  if (is_others) std::fill(bias.begin(), bias.end(), 0.0f);
  linear.bias.insert(linear.bias.end(), bias.begin(), bias.end());
  return matrix;
}

// All of the rank's experts' elements lie one behind the other, and so do their scales. All experts
// share the largest input scale, since their rows are quantized together. A rank without experts
// has one of zeros, which no token goes to, since kernels take at least one.
absl::StatusOr<LinearId> CudaWeightPlacer::PlaceExperts(const ExpertNames& names,
                                                        const Share& experts, const Shard& shard,
                                                        Role role) {
  std::vector<PendingMatrix> matrices;
  std::optional<float> input_scale;
  bool by_channel = false;
  const auto held = static_cast<size_t>(std::max<int64_t>(experts.count, 1));
  PendingLinear linear{.kind = Kind::kExperts,
                       .experts = static_cast<int>(held),
                       .first_expert = static_cast<int>(experts.begin),
                       .all_experts = static_cast<int>(experts.total)};
  for (int64_t expert = 0; expert < experts.total; ++expert) {
    const bool present = expert >= experts.begin && expert < experts.begin + experts.count;
    MILLRACE_ASSIGN_OR_RETURN(PendingMatrix matrix,
                              DescribeExpert(names[expert], present, shard, role, linear));
    by_channel = by_channel || matrix.scaling == kernels::WeightScaling::kChannel;
    if (matrix.input_scale.has_value()) {
      input_scale = std::max(input_scale.value_or(0), *matrix.input_scale);
    }
    matrices.push_back(std::move(matrix));
  }
  UniteFormats(matrices);
  const PendingMatrix& first = matrices[0];
  for (PendingMatrix& matrix : matrices) {
    if (by_channel && matrix.scaling == kernels::WeightScaling::kTensor) {
      matrix.scaling = kernels::WeightScaling::kChannel;
      int64_t rows = 0;
      for (const Share& part : RowShares(matrix)) rows += part.total;
      matrix.host_scales.assign(RoundUp(rows, kRowMultiple), matrix.host_scales[0]);
    }
    if (matrix.stored_fp8) {
      matrix.rank_scales = RankScales(matrix);
      matrix.num_scales = matrix.rank_scales.size();
    }
    matrix.input_scale = input_scale;
    if (matrix.type != first.type || matrix.scaling != first.scaling ||
        matrix.four_bit != first.four_bit) {
      return absl::UnimplementedError(StrCat(checkpoint_.source().base_name(), ": tensor ",
                                             matrix.names[0], " is of another type than ",
                                             first.names[0], "; allowed: one for all experts"));
    }
  }
  const size_t bytes = BytesOf(first);
  const size_t scale_bytes = first.num_scales * sizeof(float);
  const size_t data = Reserve(held * bytes);
  const size_t scales = scale_bytes > 0 ? Reserve(held * scale_bytes) : 0;
  const size_t input = input_scale.has_value() ? Reserve(sizeof(float)) : 0;
  // The first matrix that is present, or the place that stands for it.
  linear.matrix = matrices_.size() + (experts.count > 0 ? experts.begin : 0);
  size_t place = 0;
  for (PendingMatrix& matrix : matrices) {
    matrix.data_offset = data + place * bytes;
    matrix.scales_offset = scales + place * scale_bytes;
    matrix.input_scale_offset = input;
    if (matrix.present) ++place;
    matrices_.push_back(std::move(matrix));
  }
  if (options_.dummy) std::fill(linear.bias.begin(), linear.bias.end(), 0.0f);
  if (experts.count == 0 && !linear.file_bias.empty()) {
    linear.bias.assign(RoundUp(matrices_[linear.matrix].rows, kRowMultiple), 0.0f);
  }
  linear.bias_offset = Reserve(linear.bias);
  linears_.push_back(std::move(linear));
  return static_cast<LinearId>(linears_.size() - 1);
}

void CudaWeightPlacer::SkewRouter(PendingMatrix& matrix) {
  const int experts = static_cast<int>(matrix.parts[0]->shape[0]);
  matrix.row_factors = SkewedRouterRows(experts, ChosenExperts(), matrices_.size());
  matrix.row_factors.resize(matrix.rows, 1.0f);  // with a shared expert's gate
}

absl::StatusOr<LinearId> CudaWeightPlacer::Router(const RouterNames& names) {
  std::vector<std::string> weights = {names.weight};
  if (names.shared_gate.has_value()) weights.push_back(*names.shared_gate);
  MILLRACE_ASSIGN_OR_RETURN(const size_t index,
                            Place(weights, {}, Role::kRouter, kernels::WeightScaling::kNone));
  PendingLinear linear{.matrix = index, .kind = Kind::kRouter};
  MILLRACE_ASSIGN_OR_RETURN(Checkpoint::Biases biases, checkpoint_.BiasesOf(weights));
  linear.file_bias = std::move(biases.values);
  if (names.correction.has_value()) {
    MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* tensor, checkpoint_.Vector(*names.correction));
    linear.correction.resize(tensor->shape[0]);
    if (!options_.dummy) linear.correction = checkpoint_.Floats(*tensor);
  }
  if (options_.dummy) std::fill(linear.file_bias.begin(), linear.file_bias.end(), 0.0f);
  if (options_.skewed_routers) SkewRouter(matrices_[index]);
  linear.bias = linear.file_bias;
  linear.bias_offset = Reserve(linear.bias);
  linear.correction_offset = Reserve(linear.correction);
  linears_.push_back(std::move(linear));
  return static_cast<LinearId>(linears_.size() - 1);
}

absl::StatusOr<LinearId> CudaWeightPlacer::GatedExperts(const ExpertNames& names,
                                                        const Share& experts, const Share& share) {
  return PlaceExperts(names, experts, {.rows = {share, share}, .columns = std::nullopt},
                      Role::kGatedExpert);
}

absl::StatusOr<LinearId> CudaWeightPlacer::Experts(const ExpertNames& names, const Share& experts,
                                                   const Shard& shard) {
  return PlaceExperts(names, experts, shard, Role::kExpert);
}

}  // namespace millrace::cuda
