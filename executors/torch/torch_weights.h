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
#include "executors/decoder_ops.h"
#include "executors/encoder_ops.h"
#include "executors/host/thread_pool.h"
#include "executors/weights/checkpoint.h"

namespace millrace::aten {

struct Matrix {
  at::Tensor weight;               // [out, in]
  std::optional<at::Tensor> bias;  // [out]
  at::Tensor correction = {};      // [out], float32, of a router that has one
  Share experts = {};              // of the first matrix of a mixture's linear: the rank's experts
};

struct NormWeight {
  at::Tensor scale;  // [size], float32; a checkpoint's offset is in it
  at::Tensor bias;   // the same of a layer norm
  float epsilon = 0;
};

// Embeddings and linears are matrices alike: an EmbeddingId or a LinearId is an index of
// `matrices`. A gated linear's has the gate's rows first. The linears of a mixture's experts have
// the matrices from theirs on, one for each expert of the rank, and at least one.
struct TorchWeights {
  std::vector<Matrix> matrices;
  std::vector<at::Tensor> vectors;  // float32
  std::vector<NormWeight> norms;
  std::vector<at::Tensor> position_biases;  // float32 [buckets, heads]
  int64_t bytes = 0;
  Sha256Digest digest{};

  const Matrix& Linear(LinearId id) const { return matrices[static_cast<size_t>(id)]; }
  // Returns the linear of one of the rank's experts, counted from its first.
  static LinearId Expert(LinearId id, int64_t expert) {
    return static_cast<LinearId>(static_cast<int64_t>(id) + expert);
  }
  const at::Tensor& Vector(VectorId id) const { return vectors[static_cast<size_t>(id)]; }
  const at::Tensor& PositionBias(PositionBiasId id) const {
    return position_biases[static_cast<size_t>(id)];
  }
  const at::Tensor& Table(EmbeddingId id) const { return matrices[static_cast<size_t>(id)].weight; }
  const NormWeight& Norm(NormId id) const { return norms[static_cast<size_t>(id)]; }
};

// Expands every type that has elements of its own (formats/tensors/dequantize.h) to `dtype`: kFloat
// or kBFloat16. A rank holds its share. A matrix that is asked for twice (a tied head) is placed
// once.
class TorchWeightPlacer : public DecoderPlacer, public EncoderPlacer {
 public:
  TorchWeightPlacer(const TensorSource& source, at::ScalarType dtype, ThreadPool& pool,
                    RankSpec rank = {})
      : checkpoint_(source), dtype_(dtype), pool_(pool), rank_(rank) {}

  bool Has(const std::string& name) const override { return checkpoint_.Has(name); }
  RankSpec rank() const override { return rank_; }
  absl::StatusOr<ScaleBlock> BlockOf(const std::string& name) const override;
  absl::StatusOr<EmbeddingId> Embedding(const std::string& name) override;
  absl::StatusOr<NormId> Norm(const std::string& name, const NormSpec& spec) override;
  absl::StatusOr<NormId> LayerNorm(const std::string& name, float epsilon) override;
  absl::StatusOr<PositionBiasId> PositionBias(const std::string& name) override;
  absl::StatusOr<LinearId> Linear(const std::vector<std::string>& names,
                                  const Shard& shard) override;
  absl::StatusOr<LinearId> GatedLinear(const std::vector<std::string>& names,
                                       const Share& share) override {
    return Linear(names, {.rows = {share, share}, .columns = std::nullopt});
  }
  absl::StatusOr<VectorId> Vector(const std::string& name, const Share& share) override;
  absl::StatusOr<ConvolutionSpec> Convolution(const std::string& module, bool bias,
                                              absl::Span<const Share> channels) override;
  absl::StatusOr<LinearId> Router(const RouterNames& names) override;
  absl::StatusOr<LinearId> GatedExperts(const ExpertNames& names, const Share& experts,
                                        const Share& share) override {
    return Experts(names, experts, {.rows = {share, share}, .columns = std::nullopt});
  }
  absl::StatusOr<LinearId> Experts(const ExpertNames& names, const Share& experts,
                                   const Shard& shard) override;
  absl::StatusOr<LinearId> Head(const std::string& name) override;

  // Returns the weights. Called once, at the end.
  TorchWeights Finish();

 private:
  absl::StatusOr<size_t> Place(const std::vector<std::string>& names, const Shard& shard,
                               at::ScalarType dtype);
  absl::StatusOr<size_t> PlaceTable(const std::string& name);
  // Reads a tensor, or a share of it, as float32.
  absl::StatusOr<at::Tensor> Floats(const std::string& name, const std::optional<Share>& share);
  // Takes the tensor's name, type, shape and bytes into the digest.
  void Hash(const TensorInfo& tensor);
  // Reads the part's share of rows and `columns` into `out`, [rows.size, columns.size], which is
  // zeros. `name` is the weight's.
  absl::Status Fill(const Checkpoint::Part& part, const std::string& name, const Share& columns,
                    const at::Tensor& out);

  Checkpoint checkpoint_;
  at::ScalarType dtype_;
  ThreadPool& pool_;
  RankSpec rank_;
  TorchWeights weights_;
  Sha256 hasher_;  // of each tensor's name, type, shape and bytes, as they are placed
  absl::flat_hash_map<std::string, size_t> placed_;  // matrices by their names
};

}  // namespace millrace::aten

#endif  // MILLRACE_EXECUTORS_TORCH_TORCH_WEIGHTS_H_
