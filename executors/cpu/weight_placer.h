// Takes a checkpoint's weights into the CPU executor's memory.
#ifndef MILLRACE_EXECUTORS_CPU_WEIGHT_PLACER_H_
#define MILLRACE_EXECUTORS_CPU_WEIGHT_PLACER_H_

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/load_progress.h"
#include "base/sha256.h"
#include "executors/cpu/kernels/weight_tiles.h"
#include "executors/cpu/memory.h"
#include "executors/decoder_ops.h"
#include "executors/encoder_ops.h"
#include "executors/host/thread_pool.h"
#include "executors/weights/checkpoint.h"
#include "executors/weights/fp8_scaling.h"

namespace millrace::cpu {

struct NormWeight {
  std::vector<float> scale;  // rounded up to 16 with zeros
  std::vector<float> bias;   // [size], of a layer norm
  int size = 0;              // of the values that the mean is over: all ranks'
  float epsilon = 0;
  bool counted = true;  // NormSpec's
};

// The biases of scores, [buckets][heads].
struct PositionBiasTable {
  int buckets;
  int heads;
  std::vector<float> values;
};

// Embeddings and linears are matrices alike: an EmbeddingId or a LinearId is an index of
// `matrices`. Those of gated linears have 16 rows of gate and 16 of up in turns, filled up to a
// multiple of 64 rows. The linears of a mixture's experts have the matrices from theirs on, one for
// each expert of the rank, and at least one.
struct CpuWeights {
  RankSpec rank;
  std::vector<TiledMatrix> matrices;
  // By matrix: the rank's rows of the vocabulary, of an embedding or a head; its experts, of the
  // first matrix of a mixture's linear.
  std::vector<Share> owned;
  std::vector<std::vector<float>> biases;       // of the matrices, in the order of rows, or empty
  std::vector<std::vector<float>> corrections;  // of the matrices that are routers, or empty
  std::vector<std::vector<float>> vectors;
  std::vector<NormWeight> norms;
  std::vector<PositionBiasTable> position_biases;
  Memory memory;  // what the matrices point into
  Sha256Digest digest{};

  const TiledMatrix& Matrix(LinearId id) const { return matrices[static_cast<size_t>(id)]; }
  const TiledMatrix& Matrix(EmbeddingId id) const { return matrices[static_cast<size_t>(id)]; }
  const std::vector<float>& Bias(LinearId id) const { return biases[static_cast<size_t>(id)]; }
  const std::vector<float>& Correction(LinearId id) const {
    return corrections[static_cast<size_t>(id)];
  }
  const std::vector<float>& Vector(VectorId id) const { return vectors[static_cast<size_t>(id)]; }
  const Share& Owned(LinearId id) const { return owned[static_cast<size_t>(id)]; }
  const Share& Owned(EmbeddingId id) const { return owned[static_cast<size_t>(id)]; }
  // Returns the linear of one of the rank's experts, counted from its first.
  static LinearId Expert(LinearId id, int expert) {
    return static_cast<LinearId>(static_cast<int32_t>(id) + expert);
  }
  const NormWeight& Norm(NormId id) const { return norms[static_cast<size_t>(id)]; }
  // Returns the bytes of all that is not in `memory`: norms, biases, and where tiles lie.
  size_t TableBytes() const;
};

// Packed weights (formats/tensors/packed_weight.h) become tiles of kInt4x32 or kInt4x128. Where
// their groups are made of any inputs, columns are brought into an order in which groups are
// contiguous, and so is x when it is multiplied: that is UNIMPLEMENTED for ranks that divide the
// columns.
//
// FP8 weights become BF16, each element the product of its code and its scale, or what
// `weight_bits` says. BF16 loses less than int8 would: 0.2 % of a weight against 0.6 % of a typical
// one.
//
// Only notes what is asked for, until Finish reads each tensor once, re-tiles the rank's share and
// hashes all of it on all threads, and drops the file's pages. A matrix that is asked for twice (a
// tied head) is placed once. The placers of a model's ranks are asked for the same in the same
// order, and FinishRanks reads each tensor once for all of them.
class CpuWeightPlacer : public DecoderPlacer, public EncoderPlacer {
 public:
  // `weight_bits`: CpuSpec's.
  CpuWeightPlacer(const TensorSource& source, const Kernels& kernels, int weight_bits,
                  RankSpec rank = {})
      : checkpoint_(source), kernels_(kernels), weight_bits_(weight_bits) {
    weights_.rank = rank;
  }

  bool Has(const std::string& name) const override { return checkpoint_.Has(name); }
  RankSpec rank() const override { return weights_.rank; }
  absl::StatusOr<ScaleBlock> BlockOf(const std::string& name) const override;
  absl::StatusOr<EmbeddingId> Embedding(const std::string& name) override;
  absl::StatusOr<NormId> Norm(const std::string& name, const NormSpec& spec) override;
  absl::StatusOr<NormId> LayerNorm(const std::string& name, float epsilon) override;
  absl::StatusOr<PositionBiasId> PositionBias(const std::string& name) override;
  absl::StatusOr<LinearId> Linear(const std::vector<std::string>& names,
                                  const Shard& shard) override;
  absl::StatusOr<LinearId> GatedLinear(const std::vector<std::string>& names,
                                       const Share& share) override;
  absl::StatusOr<VectorId> Vector(const std::string& name, const Share& share) override;
  absl::StatusOr<ConvolutionSpec> Convolution(const std::string& module, bool bias,
                                              absl::Span<const Share> channels) override;
  absl::StatusOr<LinearId> Router(const RouterNames& names) override;
  absl::StatusOr<LinearId> GatedExperts(const ExpertNames& names, const Share& experts,
                                        const Share& share) override;
  absl::StatusOr<LinearId> Experts(const ExpertNames& names, const Share& experts,
                                   const Shard& shard) override;
  absl::StatusOr<LinearId> Head(const std::string& name) override;

  // Returns the weights that were asked for so far, without data: for a dry run.
  const CpuWeights& shapes() const { return weights_; }

  // Returns the bytes that the weights asked for so far take.
  size_t bytes() const { return bytes_ + weights_.TableBytes(); }

  // Returns whether weights that were asked for are FP8, which are kept in another type.
  bool has_fp8() const { return !fp8_.empty(); }

  // Loads all weights that were asked for. Called once, at the end. INVALID_ARGUMENT if weights
  // were to be quantized and none were floats.
  absl::StatusOr<CpuWeights> Finish(ThreadPool& pool);

  // The same of all ranks of a model, by rank. `progress` is told of each piece; may be null.
  static absl::StatusOr<std::vector<CpuWeights>> FinishRanks(
      absl::Span<CpuWeightPlacer* const> ranks, ThreadPool& pool, LoadProgress* progress);

 private:
  // The rank's rows of the source: its row rows.begin + r, r < rows.count, becomes lane l of
  // the matrix's tile t, where 16 t + l = first_row + r / 16 * group_stride + r % 16.
  struct Part {
    Checkpoint::Part source;
    const PackedReader* packed;  // or nullptr
    const Fp8Scaling* fp8;       // or nullptr
    Share columns;
    size_t matrix;  // or kNoMatrix: the rank has no part of it, and the digest does
    int64_t first_row;
    int64_t group_stride;
  };
  static constexpr size_t kNoMatrix = static_cast<size_t>(-1);
  // Some of the source's rows.total rows, [begin, end), of each rank's part number `part`, which
  // are neighbours in its tensor: one thread's work at a time.
  struct Piece {
    size_t part;
    int64_t begin;
    int64_t end;
  };
  // Bytes of a tensor that packed weights are made of. They are hashed by themselves, as rows do
  // not lie together in it.
  struct StoredPiece {
    const TensorInfo* tensor;
    size_t begin;
    size_t bytes;
  };
  // Orders of columns (TiledMatrix::orders).
  using Orders = std::vector<std::vector<int32_t>>;

  // The role of a matrix in its model.
  enum class Role { kTable, kLinear, kGated, kRouter };

  // Returns the type in which a tensor is kept: its own, or that which it becomes.
  TensorType KeptType(const TensorInfo& tensor, Role role) const;
  absl::Status CheckTypes(const std::vector<const TensorInfo*>& tensors) const;
  absl::StatusOr<size_t> Place(const std::vector<std::string>& names, Role role,
                               const Shard& shard);
  // Notes tensors for the digest alone.
  absl::Status Hash(const std::vector<std::string>& names);
  absl::StatusOr<LinearId> PlaceExperts(const ExpertNames& names, Role role, const Share& experts,
                                        const Shard& shard);
  absl::StatusOr<size_t> PlaceTable(const std::string& name);
  std::vector<TileRun> AddParts(const std::vector<Checkpoint::Part>& parts, Role role,
                                const Share& columns, Orders* orders);
  // Reads the scales of those of the tensors that are FP8.
  absl::Status ReadFp8Scales(const std::vector<std::string>& names,
                             const std::vector<const TensorInfo*>& tensors);
  // Opens those of the tensors that are packed.
  absl::Status OpenPacked(const std::vector<const TensorInfo*>& tensors, const Share& columns);
  // Returns the reader of a tensor that was opened, or nullptr.
  const PackedReader* PackedOf(const TensorInfo& tensor) const;
  // Returns the index of a tensor's order of columns, or nothing where x is read as it is.
  std::optional<int> OrderOf(const TensorInfo& tensor, int64_t columns, Orders* orders) const;
  void PlacePacked(const Piece& piece) const;
  std::vector<StoredPiece> StoredPieces() const;
  std::vector<Piece> Pieces() const;
  absl::Status TakeMemory();
  // The bytes of a piece, whichever rank's; in `gathered` if they do not lie together in the file.
  absl::Span<const uint8_t> ReadPiece(const Piece& piece, std::vector<uint8_t>* gathered) const;
  // Places what the rank has of a piece.
  void PlacePiece(const Piece& piece, absl::Span<const uint8_t> bytes) const;
  Sha256Digest Digest(const std::vector<Piece>& pieces, const std::vector<StoredPiece>& stored,
                      const std::vector<Sha256Digest>& digests) const;

  Checkpoint checkpoint_;
  const Kernels& kernels_;
  int weight_bits_;
  bool quantized_ = false;  // any tensor
  CpuWeights weights_;
  std::vector<size_t> offsets_;  // of the matrices in memory
  size_t bytes_ = 0;
  std::vector<Part> parts_;
  std::vector<const TensorInfo*> vectors_;  // norms, biases and scales
  std::deque<PackedReader> readers_;
  absl::flat_hash_map<const TensorInfo*, const PackedReader*> packed_;  // readers_ by their tensors
  std::deque<Fp8Scaling> scalings_;
  absl::flat_hash_map<const TensorInfo*, const Fp8Scaling*> fp8_;  // scalings_ by their tensors
  std::vector<const TensorInfo*> stored_;            // the tensors that packed weights are made of
  absl::flat_hash_map<std::string, size_t> placed_;  // matrices by their names
};

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_WEIGHT_PLACER_H_
