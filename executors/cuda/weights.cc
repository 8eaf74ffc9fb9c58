#include "executors/cuda/weights.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "kernels/weights/dequantize.h"
#include "kernels/weights/fill.h"
#include "kernels/weights/quantize_weights.h"

namespace millrace::cuda {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

constexpr size_t kAlignment = 256;
constexpr int64_t kRowMultiple = 16;
constexpr int64_t kPieceBytes = 8 << 20;  // of the file
constexpr int kThreads = 8;
constexpr int kSlots = 2;  // of a thread: one is being read while the other's is copied
constexpr int64_t kMaxFp8Block = 128;

int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

int64_t RowBytes(const TensorInfo& tensor) {
  return static_cast<int64_t>(tensor.bytes) / tensor.shape[0];
}

size_t ElementBytes(kernels::Type type) {
  return type == kernels::Type::kF32 ? 4 : type == kernels::Type::kBf16 ? 2 : 1;
}

// What DequantizeArgs calls it; FP8 is not dequantized.
kernels::StoredType Stored(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return kernels::StoredType::kF32;
    case TensorType::kF16:
      return kernels::StoredType::kF16;
    case TensorType::kQ8_0:
      return kernels::StoredType::kQ8_0;
    case TensorType::kQ4_1:
      return kernels::StoredType::kQ4_1;
    case TensorType::kBf16:
    case TensorType::kFp8E4m3:
      break;
  }
  return kernels::StoredType::kBf16;
}

absl::Status ReadAll(int file, uint8_t* to, int64_t bytes, int64_t offset, std::string_view name) {
  while (bytes > 0) {
    const ssize_t got = pread(file, to, bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return absl::DataLossError(StrCat(
          "tensor ", name, ": reading failed: ", got == 0 ? "the file ends" : strerror(errno)));
    }
    to += got;
    bytes -= got;
    offset += got;
  }
  return absl::OkStatus();
}

}  // namespace

size_t CudaWeightPlacer::Reserve(size_t bytes) {
  const size_t offset = bytes_;
  bytes_ += RoundUp(static_cast<int64_t>(bytes), kAlignment);
  return offset;
}

absl::StatusOr<size_t> CudaWeightPlacer::Place(const std::vector<std::string>& names, bool layer) {
  const std::string key = absl::StrJoin(names, " ");
  if (const auto found = placed_.find(key); found != placed_.end()) return found->second;
  Matrix matrix;
  MILLRACE_ASSIGN_OR_RETURN(matrix.parts, checkpoint_.Matrices(names));
  matrix.names = names;
  for (const TensorInfo* tensor : matrix.parts) matrix.rows += tensor->shape[0];
  matrix.columns = matrix.parts[0]->shape[1];
  matrix.stride = RoundUp(matrix.columns, kernels::kColumnPadding);
  if (matrix.rows >= int64_t{1} << 30 || matrix.stride >= int64_t{1} << 30) {
    return absl::InvalidArgumentError(StrCat("tensor ", names[0], " is ",
                                             ShapeString(matrix.parts[0]->shape),
                                             ", larger than the GPU executor takes"));
  }
  matrix.stored_fp8 = matrix.parts[0]->type == TensorType::kFp8E4m3;
  if (matrix.stored_fp8) {
    MILLRACE_RETURN_IF_ERROR(ReadScales(matrix));
  } else if (layer && options_.quantize_fp8) {
    matrix.type = kernels::Type::kFp8;
    matrix.scaling = kernels::WeightScaling::kChannel;
    matrix.num_scales = RoundUp(matrix.rows, kRowMultiple);
  }
  matrix.data_offset =
      Reserve(RoundUp(matrix.rows, kRowMultiple) * matrix.stride * ElementBytes(matrix.type));
  if (matrix.num_scales > 0) matrix.scales_offset = Reserve(matrix.num_scales * sizeof(float));
  if (matrix.input_scale.has_value()) matrix.input_scale_offset = Reserve(sizeof(float));
  matrices_.push_back(std::move(matrix));
  placed_[key] = matrices_.size() - 1;
  return matrices_.size() - 1;
}

// The scales of stored codes, brought to one scaling for all parts of the matrix: tensor scales
// that differ become those of their channels.
absl::Status CudaWeightPlacer::ReadScales(Matrix& matrix) {
  matrix.type = kernels::Type::kFp8;
  const Fp8Scheme scheme = config_.fp8.value_or(Fp8Scheme{});
  const bool blocks = scheme.weights == Fp8Scheme::Weights::kBlock;
  const int64_t block_stride = kernels::BlockScaleStride(matrix.stride);
  int64_t first_row = 0;
  bool one_scale = scheme.weights == Fp8Scheme::Weights::kTensor;
  for (size_t i = 0; i < matrix.parts.size(); ++i) {
    const int64_t rows = matrix.parts[i]->shape[0];
    Checkpoint::Fp8Scales scales{.weight = std::vector<float>(1, 1.0f), .input = std::nullopt};
    if (checkpoint_.source().has_data()) {
      MILLRACE_ASSIGN_OR_RETURN(scales, checkpoint_.ScalesOf(matrix.names[i]));
    } else {
      const int64_t dummy = blocks ? RoundUp(rows, kMaxFp8Block) / kMaxFp8Block *
                                         (RoundUp(matrix.columns, kMaxFp8Block) / kMaxFp8Block)
                            : one_scale ? 1
                                        : rows;
      scales.weight.assign(dummy, 1e-3f / 448);
      if (scheme.static_activations) scales.input = 1.0f / 448;
    }
    if (scales.input.has_value()) {
      matrix.input_scale = std::max(matrix.input_scale.value_or(0), *scales.input);
    }
    if (blocks) {
      if (first_row % kMaxFp8Block != 0) {
        return absl::UnimplementedError(
            StrCat("tensor ", matrix.names[i], " begins at row ", first_row,
                   " of a fused weight; allowed with 128x128 scales: multiples of 128"));
      }
      const int64_t columns = RoundUp(matrix.columns, kMaxFp8Block) / kMaxFp8Block;
      for (int64_t r = 0; r < static_cast<int64_t>(scales.weight.size()) / columns; ++r) {
        std::vector<float> row(block_stride, 0.0f);
        std::copy_n(scales.weight.begin() + r * columns, columns, row.begin());
        matrix.host_scales.insert(matrix.host_scales.end(), row.begin(), row.end());
      }
    } else {
      for (int64_t r = 0; r < rows; ++r) {
        matrix.host_scales.push_back(scales.weight.size() == 1 ? scales.weight[0]
                                                               : scales.weight[r]);
      }
    }
    first_row += rows;
  }
  for (const float scale : matrix.host_scales) {
    one_scale = one_scale && scale == matrix.host_scales[0];
  }
  if (blocks) {
    matrix.scaling = kernels::WeightScaling::kBlock;
  } else if (one_scale) {
    matrix.scaling = kernels::WeightScaling::kTensor;
    matrix.host_scales.resize(1);
  } else {
    matrix.scaling = kernels::WeightScaling::kChannel;
    matrix.host_scales.resize(RoundUp(matrix.rows, kRowMultiple), 0.0f);
  }
  matrix.num_scales = matrix.host_scales.size();
  return absl::OkStatus();
}

absl::StatusOr<EmbeddingId> CudaWeightPlacer::Embedding(const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, Place({name}, /*layer=*/false));
  embeddings_.push_back(index);
  return static_cast<EmbeddingId>(embeddings_.size() - 1);
}

absl::StatusOr<NormId> CudaWeightPlacer::Norm(const std::string& name, float epsilon) {
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* tensor, checkpoint_.Vector(name));
  norms_.push_back({tensor, Reserve(tensor->shape[0] * sizeof(float)), epsilon});
  return static_cast<NormId>(norms_.size() - 1);
}

absl::StatusOr<LinearId> CudaWeightPlacer::Linear(const std::vector<std::string>& names, Shard) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, Place(names, /*layer=*/true));
  linears_.push_back({index, /*head=*/false});
  return static_cast<LinearId>(linears_.size() - 1);
}

absl::StatusOr<LinearId> CudaWeightPlacer::GatedLinear(const std::string& gate,
                                                       const std::string& up) {
  return Linear({gate, up}, Shard::kOutput);
}

absl::StatusOr<LinearId> CudaWeightPlacer::Head(const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(const size_t index, Place({name}, /*layer=*/false));
  linears_.push_back({index, /*head=*/true});
  return static_cast<LinearId>(linears_.size() - 1);
}

std::vector<CudaWeightPlacer::Piece> CudaWeightPlacer::Pieces() const {
  std::vector<Piece> pieces;
  for (const Matrix& matrix : matrices_) {
    int64_t first_row = 0;
    for (const TensorInfo* tensor : matrix.parts) {
      const int64_t rows = tensor->shape[0];
      const int64_t step = std::max<int64_t>(1, kPieceBytes / RowBytes(*tensor));
      for (int64_t begin = 0; begin < rows; begin += step) {
        pieces.push_back({&matrix, tensor, first_row + begin, begin, std::min(begin + step, rows)});
      }
      first_row += rows;
    }
  }
  return pieces;
}

// One thread's stream and buffers.
class CudaWeightPlacer::Reader {
 public:
  Reader(const TensorSource& source, uint8_t* arena) : source_(source), arena_(arena) {}

  absl::Status Open(int64_t largest_piece, int64_t largest_bf16) {
    MILLRACE_RETURN_IF_ERROR(ToStatus(cudaSetDevice(0), "choosing GPU 0"));
    MILLRACE_ASSIGN_OR_RETURN(stream_, MakeStream());
    for (Slot& slot : slots_) {
      MILLRACE_ASSIGN_OR_RETURN(slot.host, PinnedMemory::Allocate(largest_piece, "loading"));
      MILLRACE_ASSIGN_OR_RETURN(slot.device, DeviceMemory::Allocate(largest_piece, "loading"));
      MILLRACE_ASSIGN_OR_RETURN(slot.copied, MakeEvent());
    }
    // The stream orders its users.
    MILLRACE_ASSIGN_OR_RETURN(bf16_, DeviceMemory::Allocate(largest_bf16, "loading"));
    return absl::OkStatus();
  }

  absl::Status Place(const Piece& piece, Sha256Digest* digest) {
    Slot& slot = slots_[next_slot_++ % kSlots];
    MILLRACE_RETURN_IF_ERROR(ToStatus(cudaEventSynchronize(slot.copied.get()), "loading"));
    const TensorInfo& tensor = *piece.tensor;
    const int64_t bytes = (piece.end - piece.begin) * RowBytes(tensor);
    MILLRACE_RETURN_IF_ERROR(ReadAll(source_.FileDescriptor(tensor), slot.host.data(), bytes,
                                     tensor.offset + piece.begin * RowBytes(tensor), tensor.name));
    MILLRACE_RETURN_IF_ERROR(ToStatus(cudaMemcpyAsync(slot.device.data(), slot.host.data(), bytes,
                                                      cudaMemcpyHostToDevice, stream_.get()),
                                      "loading"));
    MILLRACE_RETURN_IF_ERROR(ToStatus(Convert(piece, slot.device.data()), tensor.name));
    MILLRACE_RETURN_IF_ERROR(
        ToStatus(cudaEventRecord(slot.copied.get(), stream_.get()), "loading"));
    hasher_.Update(slot.host.data(), bytes);
    *digest = hasher_.Finish();
    return absl::OkStatus();
  }

  absl::Status Close() {
    return ToStatus(cudaStreamSynchronize(stream_.get()), "loading the weights");
  }

 private:
  struct Slot {
    PinnedMemory host;
    DeviceMemory device;
    Event copied;
  };

  cudaError_t Convert(const Piece& piece, const uint8_t* from) {
    const Matrix& matrix = *piece.matrix;
    const int64_t rows = piece.end - piece.begin;
    uint8_t* out =
        arena_ + matrix.data_offset + piece.first_row * matrix.stride * ElementBytes(matrix.type);
    if (matrix.stored_fp8) {
      return cudaMemcpy2DAsync(out, matrix.stride, from, matrix.columns, matrix.columns, rows,
                               cudaMemcpyDeviceToDevice, stream_.get());
    }
    const bool quantized = matrix.type == kernels::Type::kFp8;
    const cudaError_t error = kernels::LaunchDequantize({.source = from,
                                                         .stored = Stored(piece.tensor->type),
                                                         .rows = rows,
                                                         .columns = matrix.columns,
                                                         .out = quantized ? bf16_.data() : out,
                                                         .type = kernels::Type::kBf16,
                                                         .stride = matrix.stride},
                                                        stream_.get());
    if (error != cudaSuccess || !quantized) return error;
    float* scales = reinterpret_cast<float*>(arena_ + matrix.scales_offset) + piece.first_row;
    return kernels::LaunchQuantizeWeights({.source = bf16_.As<kernels::Bf16>(),
                                           .rows = rows,
                                           .stride = matrix.stride,
                                           .out = out,
                                           .scaling = matrix.scaling,
                                           .scales = scales},
                                          stream_.get());
  }

  const TensorSource& source_;
  uint8_t* arena_;
  Stream stream_;
  Slot slots_[kSlots];
  int next_slot_ = 0;
  DeviceMemory bf16_;
  Sha256 hasher_;
};

absl::Status CudaWeightPlacer::Read(const CudaWeights& weights, const std::vector<Piece>& pieces,
                                    std::vector<Sha256Digest>* digests) const {
  int64_t largest_piece = 1;
  int64_t largest_bf16 = 1;
  for (const Piece& piece : pieces) {
    const int64_t rows = piece.end - piece.begin;
    largest_piece = std::max(largest_piece, rows * RowBytes(*piece.tensor));
    largest_bf16 = std::max(largest_bf16, 2 * rows * piece.matrix->stride);
  }
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  absl::Status failure;
  const auto read = [&] {
    Reader reader(checkpoint_.source(), weights.memory.data());
    absl::Status status = reader.Open(largest_piece, largest_bf16);
    while (status.ok()) {
      const size_t index = next++;
      if (index >= pieces.size()) break;
      status = reader.Place(pieces[index], &(*digests)[index]);
    }
    if (status.ok()) status = reader.Close();
    std::lock_guard lock(mutex);
    failure.Update(status);
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(read);
  for (std::thread& thread : threads) thread.join();
  return failure;
}

absl::Status CudaWeightPlacer::FillDummy(const CudaWeights& weights) const {
  uint8_t* const arena = weights.memory.data();
  DeviceMemory bf16;
  uint64_t seed = 0;
  for (const Matrix& matrix : matrices_) {
    kernels::FillArgs fill{.out = arena + matrix.data_offset,
                           .type = matrix.type,
                           .rows = matrix.rows,
                           .columns = matrix.columns,
                           .stride = matrix.stride,
                           .seed = ++seed};
    if (matrix.stored_fp8) {
      fill.low = -448;
      fill.high = 448;
    }
    const bool quantized = matrix.type == kernels::Type::kFp8 && !matrix.stored_fp8;
    if (quantized) {
      const size_t bytes = 2 * matrix.rows * matrix.stride;
      if (bf16.bytes() < bytes) {
        MILLRACE_ASSIGN_OR_RETURN(bf16, DeviceMemory::Allocate(bytes, "dummy weights"));
      }
      fill.out = bf16.data();
      fill.type = kernels::Type::kBf16;
    }
    MILLRACE_RETURN_IF_ERROR(ToStatus(kernels::LaunchFill(fill, nullptr), "dummy weights"));
    if (!quantized) continue;
    MILLRACE_RETURN_IF_ERROR(
        ToStatus(kernels::LaunchQuantizeWeights(
                     {.source = bf16.As<kernels::Bf16>(),
                      .rows = matrix.rows,
                      .stride = matrix.stride,
                      .out = arena + matrix.data_offset,
                      .scaling = matrix.scaling,
                      .scales = reinterpret_cast<float*>(arena + matrix.scales_offset)},
                     nullptr),
                 "dummy weights"));
  }
  for (const PendingNorm& norm : norms_) {
    const int64_t size = norm.tensor->shape[0];
    MILLRACE_RETURN_IF_ERROR(ToStatus(kernels::LaunchFill({.out = arena + norm.offset,
                                                           .type = kernels::Type::kF32,
                                                           .rows = 1,
                                                           .columns = size,
                                                           .stride = RoundUp(size, 16),
                                                           .seed = ++seed},
                                                          nullptr),
                                      "dummy weights"));
  }
  return ToStatus(cudaDeviceSynchronize(), "dummy weights");
}

// Norms and scales: small, copied one by one.
absl::Status CudaWeightPlacer::UploadSmall(CudaWeights& weights) const {
  uint8_t* const arena = weights.memory.data();
  const auto upload = [arena](size_t offset, const std::vector<float>& values) {
    return ToStatus(cudaMemcpy(arena + offset, values.data(), values.size() * sizeof(float),
                               cudaMemcpyHostToDevice),
                    "loading scales");
  };
  for (const Matrix& matrix : matrices_) {
    if (!matrix.host_scales.empty()) {
      MILLRACE_RETURN_IF_ERROR(upload(matrix.scales_offset, matrix.host_scales));
    }
    if (matrix.input_scale.has_value()) {
      MILLRACE_RETURN_IF_ERROR(upload(matrix.input_scale_offset, {*matrix.input_scale}));
    }
  }
  if (options_.dummy) return absl::OkStatus();
  for (const PendingNorm& norm : norms_) {
    MILLRACE_RETURN_IF_ERROR(upload(norm.offset, checkpoint_.Floats(*norm.tensor)));
  }
  return absl::OkStatus();
}

absl::Status CudaWeightPlacer::MakePlans(CudaWeights& weights,
                                         kernels::LinearPlanner& planner) const {
  uint8_t* const arena = weights.memory.data();
  for (const PendingLinear& pending : linears_) {
    const Matrix& matrix = matrices_[pending.matrix];
    const bool blocks = matrix.scaling == kernels::WeightScaling::kBlock;
    CudaLinear linear{.weight = {.data = arena + matrix.data_offset,
                                 .type = matrix.type,
                                 .scaling = matrix.scaling,
                                 .rows = RoundUp(matrix.rows, kRowMultiple),
                                 .stride = matrix.stride,
                                 .scales = nullptr},
                      .rows = static_cast<int>(matrix.rows),
                      .columns = static_cast<int>(matrix.columns)};
    if (matrix.num_scales > 0) {
      linear.weight.scales = reinterpret_cast<float*>(arena + matrix.scales_offset);
    }
    if (matrix.input_scale.has_value()) {
      linear.input_scale = reinterpret_cast<float*>(arena + matrix.input_scale_offset);
    }
    if (matrix.type == kernels::Type::kFp8) {
      linear.input = blocks                           ? kernels::Scaling::kTokenGroup
                     : matrix.input_scale.has_value() ? kernels::Scaling::kTensor
                                                      : kernels::Scaling::kToken;
    }
    std::string error;
    linear.plan =
        planner.Plan({.rows = linear.weight.rows,
                      .stride = matrix.stride,
                      .type = matrix.type,
                      .blocks = blocks,
                      .output = pending.head ? kernels::Type::kF32 : kernels::Type::kBf16},
                     &error);
    if (linear.plan == nullptr) {
      return absl::UnimplementedError(StrCat("tensor ", matrix.names[0], ": ", error));
    }
    weights.linears.push_back(linear);
  }
  return absl::OkStatus();
}

absl::Status CudaWeightPlacer::ReadKvScales(CudaWeights& weights) const {
  weights.k_scales.assign(config_.layers, 1.0f);
  weights.v_scales.assign(config_.layers, 1.0f);
  if (!checkpoint_.source().has_data()) return absl::OkStatus();
  for (int layer = 0; layer < config_.layers; ++layer) {
    MILLRACE_ASSIGN_OR_RETURN(const Checkpoint::KvScales scales, checkpoint_.KvScalesOf(layer));
    weights.k_scales[layer] = scales.k.value_or(1.0f);
    weights.v_scales[layer] = scales.v.value_or(1.0f);
    weights.has_kv_scales = weights.has_kv_scales || (scales.k.has_value() && scales.v.has_value());
  }
  return absl::OkStatus();
}

// A tree of two levels, as pieces are hashed in parallel: what the weights are made of, and how.
Sha256Digest CudaWeightPlacer::Digest(const CudaWeights& weights, const std::vector<Piece>& pieces,
                                      const std::vector<Sha256Digest>& digests) const {
  Sha256 hasher;
  hasher.Update(StrCat(options_.dummy ? "dummy " : "", options_.quantize_fp8 ? "fp8\n" : "\n"));
  const auto describe = [&](const TensorInfo& tensor) {
    hasher.Update(
        StrCat(tensor.name, " ", Traits(tensor.type).name, ShapeString(tensor.shape), "\n"));
  };
  for (const PendingNorm& norm : norms_) {
    describe(*norm.tensor);
    if (options_.dummy) continue;
    const std::vector<float> values = checkpoint_.Floats(*norm.tensor);
    hasher.Update(values.data(), values.size() * sizeof(float));
  }
  for (const Matrix& matrix : matrices_) {
    hasher.Update(matrix.host_scales.data(), matrix.host_scales.size() * sizeof(float));
    const float input = matrix.input_scale.value_or(0);
    hasher.Update(&input, sizeof(input));
  }
  for (const std::vector<float>* scales : {&weights.k_scales, &weights.v_scales}) {
    hasher.Update(scales->data(), scales->size() * sizeof(float));
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].begin == 0) describe(*pieces[i].tensor);
    hasher.Update(digests[i].data(), digests[i].size());
  }
  return hasher.Finish();
}

absl::StatusOr<CudaWeights> CudaWeightPlacer::Finish(kernels::LinearPlanner& planner) {
  const SteadyTime begin = Clock::Real().Now();
  CudaWeights weights;
  MILLRACE_ASSIGN_OR_RETURN(weights.memory,
                            DeviceMemory::Allocate(std::max<size_t>(bytes_, 1), "weights"));
  // Padding rows and columns, and scales of padding rows, are zeros.
  MILLRACE_RETURN_IF_ERROR(
      ToStatus(cudaMemset(weights.memory.data(), 0, weights.memory.bytes()), "weights"));
  MILLRACE_RETURN_IF_ERROR(ToStatus(cudaDeviceSynchronize(), "weights"));
  uint8_t* const arena = weights.memory.data();
  for (const PendingNorm& norm : norms_) {
    weights.norms.push_back({.weight = reinterpret_cast<float*>(arena + norm.offset),
                             .epsilon = norm.epsilon,
                             .size = static_cast<int>(norm.tensor->shape[0])});
  }
  for (const size_t index : embeddings_) {
    const Matrix& matrix = matrices_[index];
    weights.embeddings.push_back(
        {.table = reinterpret_cast<kernels::Bf16*>(arena + matrix.data_offset),
         .stride = matrix.stride,
         .vocab = static_cast<int>(matrix.rows),
         .width = static_cast<int>(matrix.columns)});
  }
  const std::vector<Piece> pieces = Pieces();
  std::vector<Sha256Digest> digests(pieces.size());
  MILLRACE_RETURN_IF_ERROR(options_.dummy ? FillDummy(weights) : Read(weights, pieces, &digests));
  MILLRACE_RETURN_IF_ERROR(UploadSmall(weights));
  MILLRACE_RETURN_IF_ERROR(ReadKvScales(weights));
  MILLRACE_RETURN_IF_ERROR(MakePlans(weights, planner));
  weights.digest = Digest(weights, pieces, digests);

  int64_t read = 0;
  for (const Piece& piece : pieces) read += (piece.end - piece.begin) * RowBytes(*piece.tensor);
  const double seconds = std::chrono::duration<double>(Clock::Real().Now() - begin).count();
  kLog.Info(options_.dummy ? "drew " : "read ", read >> 20, " MiB of weights in ",
            static_cast<int64_t>(seconds * 1000), " ms, ",
            static_cast<double>(read) / seconds / 1e9, " GB/s");
  return weights;
}

}  // namespace millrace::cuda
