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
#include "executors/ops.h"
#include "executors/weights/checkpoint.h"

namespace millrace::cpu {

struct NormWeight {
  std::vector<float> scale;  // rounded up to 16 with zeros
  int size = 0;
  float epsilon = 0;
};

// Embeddings and linears are matrices alike: an EmbeddingId or a LinearId is an index of
// `matrices`. Those of GatedLinear have 16 rows of gate and 16 of up in turns, filled up to a
// multiple of 64 rows.
struct CpuWeights {
  std::vector<TiledMatrix> matrices;
  std::vector<NormWeight> norms;
  Memory memory;  // what the matrices point into
  Sha256Digest digest{};

  const TiledMatrix& Matrix(LinearId id) const { return matrices[static_cast<size_t>(id)]; }
  const TiledMatrix& Matrix(EmbeddingId id) const { return matrices[static_cast<size_t>(id)]; }
  const NormWeight& Norm(NormId id) const { return norms[static_cast<size_t>(id)]; }
};

// Only notes what is asked for, until Finish reads each tensor once, re-tiles and hashes it on all
// threads, and drops the file's pages. A matrix that is asked for twice (a tied head) is placed
// once.
class CpuWeightPlacer : public WeightPlacer {
 public:
  CpuWeightPlacer(const TensorSource& source, const Kernels& kernels)
      : checkpoint_(source), kernels_(kernels) {}

  bool Has(const std::string& name) const override { return checkpoint_.Has(name); }
  absl::StatusOr<EmbeddingId> Embedding(const std::string& name) override;
  absl::StatusOr<NormId> Norm(const std::string& name, float epsilon) override;
  absl::StatusOr<LinearId> Linear(const std::vector<std::string>& names, Shard shard) override;
  absl::StatusOr<LinearId> GatedLinear(const std::string& gate, const std::string& up) override;
  absl::StatusOr<LinearId> Head(const std::string& name) override {
    return Linear({name}, Shard::kOutput);
  }

  // The weights. Once, at the end.
  absl::StatusOr<CpuWeights> Finish(ThreadPool& pool);

 private:
  // Row r of the tensor becomes row first_row + r / 16 * group_stride + r % 16 of the matrix.
  struct Part {
    const TensorInfo* tensor;
    size_t matrix;
    int64_t first_row;
    int64_t group_stride;
  };
  // Some rows of a part: one thread's work at a time.
  struct Piece {
    const Part* part;
    int64_t begin;
    int64_t end;
  };

  absl::StatusOr<size_t> Place(const std::vector<std::string>& names, bool gated);
  void PlacePiece(const Piece& piece, uint8_t* memory, Sha256& hasher, Sha256Digest* digest) const;
  std::vector<Piece> Pieces() const;
  Sha256Digest Digest(const std::vector<Piece>& pieces,
                      const std::vector<Sha256Digest>& digests) const;

  Checkpoint checkpoint_;
  const Kernels& kernels_;
  CpuWeights weights_;
  std::vector<size_t> offsets_;  // of the matrices in memory
  size_t bytes_ = 0;
  std::vector<Part> parts_;
  std::vector<const TensorInfo*> vectors_;           // what Norm took
  absl::flat_hash_map<std::string, size_t> placed_;  // matrices by their names
};

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_WEIGHT_PLACER_H_
