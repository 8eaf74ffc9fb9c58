// Brings the elements of a model's matrices into the GPU's memory, in their place and form: read
// from its files, or drawn.
#ifndef MILLRACE_EXECUTORS_CUDA_WEIGHT_LOADER_H_
#define MILLRACE_EXECUTORS_CUDA_WEIGHT_LOADER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/sha256.h"
#include "formats/tensor_source.h"
#include "kernels/types.h"

namespace millrace::cuda {

// A weight in the making: tensors one below the other.
struct PendingMatrix {
  std::vector<const TensorInfo*> parts;
  std::vector<std::string> names;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
  kernels::Type type = kernels::Type::kBf16;
  kernels::WeightScaling scaling = kernels::WeightScaling::kNone;
  bool stored_fp8 = false;  // codes are the file's; else they are made here
  kernels::GateLayout gate = kernels::GateLayout::kHalves;  // how a gated linear's rows lie
  size_t data_offset = 0;                                   // in the arena
  size_t scales_offset = 0;
  size_t num_scales = 0;
  size_t input_scale_offset = 0;
  std::vector<float> host_scales;  // of stored_fp8
  std::optional<float> input_scale;
};

// Some rows of a part: one thread's work at a time.
struct WeightPiece {
  const PendingMatrix* matrix;
  const TensorInfo* tensor;
  int64_t first_row;  // of the matrix, where row `begin` of the tensor goes
  int64_t begin;
  int64_t end;  // of an interleaved matrix: rows of that one, whole turns, from all parts
};

size_t ElementBytes(kernels::Type type);
int64_t RowBytes(const TensorInfo& tensor);  // as the file has it

// All rows of all matrices. Pointers are into `matrices`.
std::vector<WeightPiece> CutIntoPieces(const std::vector<PendingMatrix>& matrices);

// Has threads read each piece once, into pinned memory and from there to the device, where kernels
// bring it into its place in `arena`. `digests`, as many as pieces: of their bytes in the files.
absl::Status ReadWeights(const TensorSource& source, const std::vector<WeightPiece>& pieces,
                         uint8_t* arena, std::vector<Sha256Digest>* digests);

// Draws each matrix, in its place in `arena`, from a seed of its own: 1, 2, 3 …
absl::Status DrawWeights(const std::vector<PendingMatrix>& matrices, uint8_t* arena);

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_WEIGHT_LOADER_H_
