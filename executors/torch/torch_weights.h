// Takes a checkpoint's weights into LibTorch's tensors.
#ifndef MILLRACE_EXECUTORS_TORCH_TORCH_WEIGHTS_H_
#define MILLRACE_EXECUTORS_TORCH_TORCH_WEIGHTS_H_

#include <ATen/ATen.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/sha256.h"
#include "executors/cpu/thread_pool.h"
#include "executors/encoder_ops.h"
#include "executors/weights/checkpoint.h"

namespace millrace::aten {

struct Matrix {
  at::Tensor weight;               // [out, in]
  std::optional<at::Tensor> bias;  // [out]
};

struct NormWeight {
  at::Tensor scale;  // [size], float32; a checkpoint's offset is in it
  at::Tensor bias;   // the same of a layer norm
  float epsilon = 0;
};

// Embeddings and linears are matrices alike: an EmbeddingId or a LinearId is an index of
// `matrices`. A gated linear's has the gate's rows first.
struct TorchWeights {
  std::vector<Matrix> matrices;
  std::vector<NormWeight> norms;
  int64_t bytes = 0;
  Sha256Digest digest{};

  const Matrix& Linear(LinearId id) const { return matrices[static_cast<size_t>(id)]; }
  const at::Tensor& Table(EmbeddingId id) const { return matrices[static_cast<size_t>(id)].weight; }
  const NormWeight& Norm(NormId id) const { return norms[static_cast<size_t>(id)]; }
};

// Expands every type that has elements of its own (formats/dequantize.h) to `dtype`: kFloat or
// kBFloat16. A matrix that is asked for twice (a tied head) is placed once.
class TorchWeightPlacer : public EncoderPlacer {
 public:
  TorchWeightPlacer(const TensorSource& source, at::ScalarType dtype, cpu::ThreadPool& pool)
      : checkpoint_(source), dtype_(dtype), pool_(pool) {}

  bool Has(const std::string& name) const override { return checkpoint_.Has(name); }
  absl::StatusOr<EmbeddingId> Embedding(const std::string& name) override;
  absl::StatusOr<NormId> Norm(const std::string& name, const NormSpec& spec) override;
  absl::StatusOr<NormId> LayerNorm(const std::string& name, float epsilon) override;
  absl::StatusOr<LinearId> Linear(const std::vector<std::string>& names, Shard shard) override;
  absl::StatusOr<LinearId> GatedLinear(const std::vector<std::string>& names) override {
    return Linear(names, Shard::kOutput);
  }
  absl::StatusOr<LinearId> Head(const std::string& name) override {
    return Linear({name}, Shard::kOutput);
  }

  // The weights. Once, at the end.
  TorchWeights Finish();

 private:
  absl::StatusOr<size_t> Place(const std::vector<std::string>& names);
  // Float32.
  absl::StatusOr<at::Tensor> Vector(const std::string& name);
  // Into `out`, [rows, columns].
  void Fill(const TensorInfo& tensor, const at::Tensor& out);

  Checkpoint checkpoint_;
  at::ScalarType dtype_;
  cpu::ThreadPool& pool_;
  TorchWeights weights_;
  Sha256 hasher_;  // of each tensor's name, type, shape and bytes, as they are placed
  absl::flat_hash_map<std::string, size_t> placed_;  // matrices by their names
};

}  // namespace millrace::aten

#endif  // MILLRACE_EXECUTORS_TORCH_TORCH_WEIGHTS_H_
