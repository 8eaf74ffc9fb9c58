// Takes a checkpoint's weights into the CPU executor's memory.
#ifndef MILLRACE_EXECUTORS_CPU_WEIGHT_PLACER_H_
#define MILLRACE_EXECUTORS_CPU_WEIGHT_PLACER_H_

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/sha256.h"
#include "executors/cpu/memory.h"
#include "executors/cpu/thread_pool.h"
#include "executors/cpu/weight_tiles.h"
#include "executors/encoder_ops.h"
#include "executors/weights/checkpoint.h"

namespace millrace::cpu {

struct NormWeight {
  std::vector<float> scale;  // rounded up to 16 with zeros
  std::vector<float> bias;   // [size], of a layer norm
  int size = 0;
  float epsilon = 0;
};

// Embeddings and linears are matrices alike: an EmbeddingId or a LinearId is an index of
// `matrices`. Those of GatedLinear have 16 rows of gate and 16 of up in turns, filled up to a
// multiple of 64 rows.
struct CpuWeights {
  std::vector<TiledMatrix> matrices;
  std::vector<std::vector<float>> biases;  // of the matrices, [rows], or empty
  std::vector<NormWeight> norms;
  int64_t widest_linear = 0;  // the most rows of one whose whole output is written: gated linears'
                              // and the head's are not
  Memory memory;              // what the matrices point into
  Sha256Digest digest{};

  const TiledMatrix& Matrix(LinearId id) const { return matrices[static_cast<size_t>(id)]; }
  const TiledMatrix& Matrix(EmbeddingId id) const { return matrices[static_cast<size_t>(id)]; }
  const std::vector<float>& Bias(LinearId id) const { return biases[static_cast<size_t>(id)]; }
  const NormWeight& Norm(NormId id) const { return norms[static_cast<size_t>(id)]; }
};

// Only notes what is asked for, until Finish reads each tensor once, re-tiles and hashes it on all
// threads, and drops the file's pages. A matrix that is asked for twice (a tied head) is placed
// once.
class CpuWeightPlacer : public EncoderPlacer {
 public:
  // `weight_bits`: DeviceSpec's.
  CpuWeightPlacer(const TensorSource& source, const Kernels& kernels, int weight_bits)
      : checkpoint_(source), kernels_(kernels), weight_bits_(weight_bits) {}

  bool Has(const std::string& name) const override { return checkpoint_.Has(name); }
  absl::StatusOr<EmbeddingId> Embedding(const std::string& name) override;
  absl::StatusOr<NormId> Norm(const std::string& name, const NormSpec& spec) override;
  absl::StatusOr<NormId> LayerNorm(const std::string& name, float epsilon) override;
  absl::StatusOr<LinearId> Linear(const std::vector<std::string>& names, Shard shard) override;
  absl::StatusOr<LinearId> GatedLinear(const std::vector<std::string>& names) override;
  absl::StatusOr<LinearId> Head(const std::string& name) override;

  // The weights. Once, at the end. INVALID_ARGUMENT where weights were to be quantized and none
  // were floats.
  absl::StatusOr<CpuWeights> Finish(ThreadPool& pool);

 private:
  // Row begin + r of the tensor, r < rows, becomes row first_row + r / 16 * group_stride + r % 16
  // of the matrix.
  struct Part {
    const TensorInfo* tensor;
    int64_t begin;
    int64_t rows;
    size_t matrix;
    int64_t first_row;
    int64_t group_stride;
  };
  // Some rows of a part, [begin, end) of its own: one thread's work at a time.
  struct Piece {
    const Part* part;
    int64_t begin;
    int64_t end;
  };

  // What a matrix is to its model.
  enum class Role { kTable, kLinear, kGated };

  // The type in which a tensor is kept: its own, or that which it becomes.
  TensorType KeptType(const TensorInfo& tensor, Role role) const;
  absl::Status CheckTypes(const std::vector<const TensorInfo*>& tensors) const;
  absl::StatusOr<size_t> Place(const std::vector<std::string>& names, Role role);
  void PlacePiece(const Piece& piece, uint8_t* memory, Sha256& hasher, Sha256Digest* digest) const;
  std::vector<Piece> Pieces() const;
  Sha256Digest Digest(const std::vector<Piece>& pieces,
                      const std::vector<Sha256Digest>& digests) const;

  Checkpoint checkpoint_;
  const Kernels& kernels_;
  int weight_bits_;
  bool quantized_ = false;  // any tensor
  CpuWeights weights_;
  std::vector<size_t> offsets_;  // of the matrices in memory
  size_t bytes_ = 0;
  std::vector<Part> parts_;
  std::vector<const TensorInfo*> vectors_;           // norms and biases
  absl::flat_hash_map<std::string, size_t> placed_;  // matrices by their names
};

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_WEIGHT_PLACER_H_
