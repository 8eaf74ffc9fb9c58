// Brings the elements of a model's matrices into the GPU's memory, in their place and form: read
// from its files, or drawn.
#ifndef MILLRACE_EXECUTORS_CUDA_WEIGHTS_WEIGHT_LOADER_H_
#define MILLRACE_EXECUTORS_CUDA_WEIGHTS_WEIGHT_LOADER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/load_progress.h"
#include "base/sha256.h"
#include "executors/weights/checkpoint.h"
#include "formats/tensors/tensor_source.h"
#include "kernels/gemm/four_bit.h"
#include "kernels/types.h"

namespace millrace::cuda {

inline constexpr int64_t kRowMultiple = 16;  // a matrix's rows are filled up to this with zeros

inline int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// A weight in the making: a rank's share of tensors one below the other.
struct PendingMatrix {
  bool present = true;  // false: another rank's expert, which is read for the digest alone
  std::vector<const TensorInfo*> parts;
  std::vector<std::string> names;
  std::vector<Checkpoint::Part> row_parts;  // of all of the tensors' rows
  Share column_share;
  int64_t rows = 0;     // of the rank
  int64_t columns = 0;  // of the rank
  int64_t stride = 0;
  kernels::Type type = kernels::Type::kBf16;
  kernels::WeightScaling scaling = kernels::WeightScaling::kNone;
  std::optional<kernels::FourBitFormat> four_bit;        // the form, in place of `type`
  std::optional<kernels::FourBitFormat> whole_four_bit;  // of all columns of a packed weight
  // The reader of each of row_parts that is a packed weight, or null; they outlive it.
  std::vector<const PackedReader*> packed;
  bool quantized_int4 = false;  // four_bit's codes are made here; else they are the file's
  bool stored_fp8 = false;      // codes are the file's; else they are made here
  bool expands_fp8 = false;     // the file's codes become BF16
  kernels::GateLayout gate = kernels::GateLayout::kHalves;  // how a gated linear's rows lie
  size_t data_offset = 0;                                   // in the arena
  size_t scales_offset = 0;
  size_t num_scales = 0;
  size_t input_scale_offset = 0;
  // All ranks' scales of a matrix that is stored_fp8. One that expands_fp8 has those of the
  // tensors' only rows of blocks.
  std::vector<float> host_scales;
  std::vector<float> rank_scales;  // of them, the rank's
  std::optional<float> input_scale;
  std::vector<float> row_factors;  // [rows], of drawn elements; empty: all 1
};

// The rows [begin, end) of a part, or of all parts where they are interleaved: one thread's work at
// a time. It reads all of them, and keeps those of the rank.
struct WeightPiece {
  const PendingMatrix* matrix;
  const Checkpoint::Part* part;  // the first, where they are interleaved
  Share rows;                    // the rank's among all that pieces are cut of
  int64_t first_row;             // of the matrix: where row rows.begin goes
  int64_t begin;
  int64_t end;
};

// The rows of a piece that the rank keeps: [begin, begin + count) go to row `to` of its matrix.
struct KeptRows {
  int64_t begin;
  int64_t count;
  int64_t to;
};
KeptRows Kept(const WeightPiece& piece);

// Returns the rank's share of each part's rows.
std::vector<Share> RowShares(const PendingMatrix& matrix);

// Returns the rank's scales, in its matrix's layout, of host_scales.
std::vector<float> RankScales(const PendingMatrix& matrix);

// Returns a gated linear's values, one a row, by turns 8 of the first half and 8 of the second
// (GateLayout).
std::vector<float> Interleaved(const std::vector<float>& halves);

// Returns the rank's share of all rows of an interleaved matrix.
Share InterleavedRows(const Share& rows);

size_t ElementBytes(kernels::Type type);
// Returns the matrix's bytes on the device, without its scales.
size_t BytesOf(const PendingMatrix& matrix);
// Returns whether a tensor of the type is made of others (formats/tensors/packed_weight.h).
inline bool IsPacked(TensorType type) {
  return type == TensorType::kInt4x32 || type == TensorType::kInt4x128;
}
// Returns the bytes of a row as the file has it; of a packed weight of its codes.
int64_t RowBytes(const TensorInfo& tensor);

// Cuts all rows of all matrices, the same on every rank. Pointers are into `matrices`.
std::vector<WeightPiece> CutIntoPieces(const std::vector<PendingMatrix>& matrices);

// A rank's pieces, as many as every rank's, and where they go.
struct RankPieces {
  int device;
  std::vector<WeightPiece> pieces;
  uint8_t* arena;
};

// Has threads read each piece once, into pinned memory and from there to the device of each rank,
// where kernels bring it into its place in the rank's arena. `digests`, as many as pieces: of their
// bytes in the files. `progress` is told of each; may be null.
absl::Status ReadWeights(const TensorSource& source, absl::Span<const RankPieces> ranks,
                         std::vector<Sha256Digest>* digests, LoadProgress* progress);

// Draws each matrix, in its place in `arena`, from a seed of its own: 1, 2, 3 …
// Rows with a factor have seeds of their own.
absl::Status DrawWeights(const std::vector<PendingMatrix>& matrices, uint8_t* arena);

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_WEIGHTS_WEIGHT_LOADER_H_
