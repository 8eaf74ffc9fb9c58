#include "executors/torch/torch_weights.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/weights/fp8_scaling.h"
#include "executors/weights/shares.h"
#include "formats/tensors/dequantize.h"

namespace millrace::aten {
namespace {

constexpr int64_t kRows = 64;  // of a matrix, in one chunk

}  // namespace

void TorchWeightPlacer::Hash(const TensorInfo& tensor) {
  std::vector<uint8_t> gathered;
  for (const TensorInfo* stored : checkpoint_.Stored(tensor)) {
    const absl::Span<const uint8_t> bytes =
        checkpoint_.source().Bytes(*stored, 0, stored->bytes, &gathered);
    hasher_.Update(
        StrCat(stored->name, " ", Traits(stored->type).name, ShapeString(stored->shape), "\n"));
    hasher_.Update(bytes.data(), bytes.size());
  }
}

absl::Status TorchWeightPlacer::Fill(const Checkpoint::Part& part, const std::string& name,
                                     const Share& columns, const at::Tensor& out) {
  const TensorInfo& tensor = *part.tensor;
  MILLRACE_ASSIGN_OR_RETURN(const std::optional<PackedReader> packed, checkpoint_.Packed(tensor));
  std::optional<Fp8Scaling> fp8;
  if (tensor.type == TensorType::kFp8E4m3) {
    MILLRACE_ASSIGN_OR_RETURN(fp8, Fp8Scaling::Read(checkpoint_, name));
  }
  const size_t row_bytes = tensor.bytes / tensor.shape[0];
  const int64_t chunks = (part.rows.count + kRows - 1) / kRows;
  std::vector<std::vector<float>> wide(pool_.num_threads());
  std::vector<std::vector<uint8_t>> gathered(pool_.num_threads());
  pool_.ParallelFor(static_cast<int>(chunks), [&](int chunk, int thread) {
    const int64_t end = std::min((chunk + int64_t{1}) * kRows, part.rows.count);
    std::vector<float>& row = wide[thread];
    row.resize(columns.total);
    for (int64_t i = chunk * kRows; i < end; ++i) {
      const int64_t from = part.Row(part.rows.begin + i);
      if (packed.has_value()) {
        packed->ReadFloats(from, row.data());
      } else {
        Dequantize(
            tensor.type,
            checkpoint_.source().Bytes(tensor, from * row_bytes, row_bytes, &gathered[thread]),
            absl::MakeSpan(row));
      }
      if (fp8.has_value()) fp8->Apply(from, 0, absl::MakeSpan(row));
      const float* const values = row.data() + columns.begin;
      if (out.scalar_type() == at::kFloat) {
        std::copy_n(values, columns.count, out.mutable_data_ptr<float>() + i * columns.size);
      } else {
        std::copy_n(values, columns.count, out.mutable_data_ptr<at::BFloat16>() + i * columns.size);
      }
    }
  });
  weights_.bytes += static_cast<int64_t>(out.nbytes());
  return absl::OkStatus();
}

absl::StatusOr<ScaleBlock> TorchWeightPlacer::BlockOf(const std::string&) const {
  return ScaleBlock{};  // elements of their own
}

absl::StatusOr<size_t> TorchWeightPlacer::Place(const std::vector<std::string>& names,
                                                const Shard& shard, at::ScalarType dtype) {
  const std::string key = absl::StrJoin(names, " ");
  if (const auto found = placed_.find(key); found != placed_.end()) return found->second;
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<const TensorInfo*> tensors,
                            checkpoint_.Matrices(names));
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<Checkpoint::Part> parts,
                            checkpoint_.Parts(tensors, shard));
  const Share columns = shard.columns.value_or(Whole(tensors[0]->shape[1]));
  std::vector<Share> shares;
  int64_t rows = 0;
  for (const Checkpoint::Part& part : parts) {
    shares.push_back(part.rows);
    rows += part.rows.size;
  }
  const at::Tensor matrix = at::zeros({rows, columns.size}, dtype);
  rows = 0;
  for (const Checkpoint::Part& part : parts) {
    const auto tensor = std::find(tensors.begin(), tensors.end(), part.tensor);
    MILLRACE_RETURN_IF_ERROR(Fill(part, names[tensor - tensors.begin()], columns,
                                  matrix.narrow(0, rows, part.rows.size)));
    rows += part.rows.size;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo* const tensor = tensors[i];
    if (tensor->type == TensorType::kFp8E4m3) Hash(*checkpoint_.Fp8ScaleTensor(names[i]));
    Hash(*tensor);
    checkpoint_.source().DropPages(*tensor);
  }
  MILLRACE_ASSIGN_OR_RETURN(const Checkpoint::Biases biases, checkpoint_.BiasesOf(names));
  std::optional<at::Tensor> bias;
  // One rank alone adds the bias of a product that ranks sum up.
  if (!biases.values.empty() && (rank_.rank == 0 || columns.count == columns.total)) {
    bias = at::tensor(Cut(biases.values, shares)).to(dtype);
  }
  weights_.matrices.push_back({matrix, std::move(bias)});
  placed_[key] = weights_.matrices.size() - 1;
  return weights_.matrices.size() - 1;
}

absl::StatusOr<size_t> TorchWeightPlacer::PlaceTable(const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<const TensorInfo*> tensors,
                            checkpoint_.Matrices({name}));
  const Share rows = DivideUnits(tensors[0]->shape[0], kShareMultiple, rank_);
  return Place({name}, {.rows = {rows}, .columns = std::nullopt}, dtype_);
}

absl::StatusOr<EmbeddingId> TorchWeightPlacer::Embedding(const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, PlaceTable(name));
  return static_cast<EmbeddingId>(index);
}

absl::StatusOr<LinearId> TorchWeightPlacer::Head(const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, PlaceTable(name));
  return static_cast<LinearId>(index);
}

absl::StatusOr<LinearId> TorchWeightPlacer::Linear(const std::vector<std::string>& names,
                                                   const Shard& shard) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, Place(names, shard, dtype_));
  return static_cast<LinearId>(index);
}

absl::StatusOr<VectorId> TorchWeightPlacer::Vector(const std::string& name, const Share& share) {
  MILLRACE_ASSIGN_OR_RETURN(const at::Tensor values, Floats(name, share));
  weights_.vectors.push_back(values);
  return static_cast<VectorId>(weights_.vectors.size() - 1);
}

absl::StatusOr<ConvolutionSpec> TorchWeightPlacer::Convolution(const std::string& module, bool bias,
                                                               absl::Span<const Share> channels) {
  MILLRACE_ASSIGN_OR_RETURN(const Checkpoint::Table read,
                            checkpoint_.Convolution(module + ".weight"));
  Hash(*read.tensor);
  const at::Tensor of_inputs =
      at::tensor(read.values).view({read.tensor->shape[0], read.tensor->shape.back()}).t();
  const auto cut = [&](const at::Tensor& values) {
    const at::Tensor row = values.contiguous();
    return at::tensor(
        Cut({row.const_data_ptr<float>(), static_cast<size_t>(row.numel())}, channels));
  };
  const auto add = [&](at::Tensor values) {
    weights_.vectors.push_back(std::move(values));
    return static_cast<VectorId>(weights_.vectors.size() - 1);
  };
  std::vector<at::Tensor> inputs;
  for (int64_t input = 0; input < of_inputs.size(0); ++input)
    inputs.push_back(cut(of_inputs[input]));
  ConvolutionSpec spec{.width = static_cast<int32_t>(of_inputs.size(0)),
                       .weights = add(at::stack(inputs)),
                       .bias = std::nullopt};
  if (!bias) return spec;
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* tensor, checkpoint_.Vector(module + ".bias"));
  Hash(*tensor);
  spec.bias = add(cut(at::tensor(checkpoint_.Floats(*tensor))));
  return spec;
}

absl::StatusOr<LinearId> TorchWeightPlacer::Router(const RouterNames& names) {
  std::vector<std::string> weights = {names.weight};
  if (names.shared_gate.has_value()) weights.push_back(*names.shared_gate);
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, Place(weights, {}, at::kFloat));
  if (names.correction.has_value()) {
    MILLRACE_ASSIGN_OR_RETURN(weights_.matrices[index].correction,
                              Floats(*names.correction, std::nullopt));
  }
  return static_cast<LinearId>(index);
}

// A rank without experts has one that no token goes to.
absl::StatusOr<LinearId> TorchWeightPlacer::Experts(const ExpertNames& names, const Share& experts,
                                                    const Shard& shard) {
  const int64_t begin = std::min(experts.begin, experts.total - 1);
  const int64_t end = begin + std::max<int64_t>(1, experts.count);
  const size_t first = weights_.matrices.size();
  for (int64_t expert = begin; expert < end; ++expert) {
    MILLRACE_RETURN_IF_ERROR(Place(names[expert], shard, dtype_).status());
  }
  weights_.matrices[first].experts = experts;
  return static_cast<LinearId>(first);
}

absl::StatusOr<at::Tensor> TorchWeightPlacer::Floats(const std::string& name,
                                                     const std::optional<Share>& share) {
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* tensor, checkpoint_.Vector(name));
  Hash(*tensor);
  const std::vector<float> floats = checkpoint_.Floats(*tensor);
  return at::tensor(Cut(floats, 0, share.value_or(Whole(tensor->shape[0]))));
}

absl::StatusOr<NormId> TorchWeightPlacer::Norm(const std::string& name, const NormSpec& spec) {
  MILLRACE_ASSIGN_OR_RETURN(const at::Tensor scale, Floats(name, spec.share));
  weights_.norms.push_back({.scale = scale + spec.offset, .bias = {}, .epsilon = spec.epsilon});
  weights_.bytes += static_cast<int64_t>(scale.nbytes());
  return static_cast<NormId>(weights_.norms.size() - 1);
}

absl::StatusOr<NormId> TorchWeightPlacer::LayerNorm(const std::string& name, float epsilon) {
  MILLRACE_ASSIGN_OR_RETURN(const NormId id, Norm(name + ".weight", {.epsilon = epsilon}));
  at::Tensor& bias = weights_.norms.back().bias;
  if (!Has(name + ".bias")) {
    bias = at::zeros_like(weights_.norms.back().scale);
    return id;
  }
  MILLRACE_ASSIGN_OR_RETURN(bias, Floats(name + ".bias", std::nullopt));
  weights_.bytes += static_cast<int64_t>(bias.nbytes());
  return id;
}

absl::StatusOr<PositionBiasId> TorchWeightPlacer::PositionBias(const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(Checkpoint::Table table, checkpoint_.FloatTable(name));
  Hash(*table.tensor);
  weights_.position_biases.push_back(
      at::tensor(table.values).view({table.tensor->shape[0], table.tensor->shape[1]}));
  return static_cast<PositionBiasId>(weights_.position_biases.size() - 1);
}

TorchWeights TorchWeightPlacer::Finish() {
  hasher_.Update(at::toString(dtype_));
  weights_.digest = hasher_.Finish();
  return std::move(weights_);
}

}  // namespace millrace::aten
