#include "executors/torch/torch_weights.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/dequantize.h"

namespace millrace::aten {
namespace {

constexpr int64_t kRows = 64;  // of a matrix, in one chunk

}  // namespace

void TorchWeightPlacer::Fill(const TensorInfo& tensor, const at::Tensor& out) {
  const absl::Span<const uint8_t> bytes = checkpoint_.source().Data(tensor);
  hasher_.Update(
      StrCat(tensor.name, " ", Traits(tensor.type).name, ShapeString(tensor.shape), "\n"));
  hasher_.Update(bytes.data(), bytes.size());
  const int64_t columns = out.size(-1);
  const size_t row_bytes = bytes.size() / tensor.shape[0];
  const int64_t chunks = (tensor.shape[0] + kRows - 1) / kRows;
  std::vector<std::vector<float>> wide(pool_.num_threads());
  pool_.ParallelFor(static_cast<int>(chunks), [&](int chunk, int thread) {
    const int64_t row = chunk * kRows;
    const int64_t count = std::min(kRows, tensor.shape[0] - row);
    const absl::Span<const uint8_t> some = bytes.subspan(row * row_bytes, count * row_bytes);
    if (out.scalar_type() == at::kFloat) {
      float* const to = out.mutable_data_ptr<float>() + row * columns;
      Dequantize(tensor.type, some, absl::MakeSpan(to, count * columns));
      return;
    }
    wide[thread].resize(count * columns);
    Dequantize(tensor.type, some, absl::MakeSpan(wide[thread]));
    std::copy(wide[thread].begin(), wide[thread].end(),
              out.mutable_data_ptr<at::BFloat16>() + row * columns);
  });
  weights_.bytes += static_cast<int64_t>(out.nbytes());
  checkpoint_.source().DropPages(tensor);
}

absl::StatusOr<size_t> TorchWeightPlacer::Place(const std::vector<std::string>& names) {
  const std::string key = absl::StrJoin(names, " ");
  if (const auto found = placed_.find(key); found != placed_.end()) return found->second;
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<const TensorInfo*> tensors,
                            checkpoint_.Matrices(names));
  int64_t rows = 0;
  for (const TensorInfo* tensor : tensors) {
    if (tensor->type == TensorType::kFp8E4m3) {
      return absl::UnimplementedError(StrCat(checkpoint_.source().base_name(), ": tensor ",
                                             tensor->name, " is ", Traits(tensor->type).name,
                                             "; not allowed with --device torch"));
    }
    rows += tensor->shape[0];
  }
  const at::Tensor matrix = at::empty({rows, tensors[0]->shape[1]}, dtype_);
  rows = 0;
  for (const TensorInfo* tensor : tensors) {
    Fill(*tensor, matrix.narrow(0, rows, tensor->shape[0]));
    rows += tensor->shape[0];
  }
  MILLRACE_ASSIGN_OR_RETURN(const Checkpoint::Biases biases, checkpoint_.BiasesOf(names));
  std::optional<at::Tensor> bias;
  if (!biases.values.empty()) bias = at::tensor(biases.values).to(dtype_);
  weights_.matrices.push_back({matrix, std::move(bias)});
  placed_[key] = weights_.matrices.size() - 1;
  return weights_.matrices.size() - 1;
}

absl::StatusOr<EmbeddingId> TorchWeightPlacer::Embedding(const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, Place({name}));
  return static_cast<EmbeddingId>(index);
}

absl::StatusOr<LinearId> TorchWeightPlacer::Linear(const std::vector<std::string>& names, Shard) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, Place(names));
  return static_cast<LinearId>(index);
}

absl::StatusOr<at::Tensor> TorchWeightPlacer::Vector(const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* tensor, checkpoint_.Vector(name));
  at::Tensor vector = at::empty({tensor->shape[0]}, at::kFloat);
  Fill(*tensor, vector.unsqueeze(1));
  return vector;
}

absl::StatusOr<NormId> TorchWeightPlacer::Norm(const std::string& name, const NormSpec& spec) {
  MILLRACE_ASSIGN_OR_RETURN(const at::Tensor scale, Vector(name));
  weights_.norms.push_back({.scale = scale + spec.offset, .epsilon = spec.epsilon});
  return static_cast<NormId>(weights_.norms.size() - 1);
}

absl::StatusOr<NormId> TorchWeightPlacer::LayerNorm(const std::string& name, float epsilon) {
  MILLRACE_ASSIGN_OR_RETURN(const NormId id, Norm(name + ".weight", {.epsilon = epsilon}));
  MILLRACE_ASSIGN_OR_RETURN(weights_.norms.back().bias, Vector(name + ".bias"));
  return id;
}

TorchWeights TorchWeightPlacer::Finish() {
  hasher_.Update(at::toString(dtype_));
  weights_.digest = hasher_.Finish();
  return std::move(weights_);
}

}  // namespace millrace::aten
