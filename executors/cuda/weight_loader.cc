#include "executors/cuda/weight_loader.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/status.h"
#include "base/strings.h"
#include "executors/cuda/device.h"
#include "kernels/weights/dequantize.h"
#include "kernels/weights/fill.h"
#include "kernels/weights/quantize_weights.h"

namespace millrace::cuda {
namespace {

// Hashing bounds the rate, so threads help as far as there are cores; small pieces keep the pinned
// memory small, which takes long to get. An H200's machine with 16 cores, 3 GB in the page cache: 8
// threads with pieces of 8 MiB 5.2 GB/s, 16 with 4 MiB 7.5, with 2 MiB 8.5 (11 without hashing).
constexpr int64_t kPieceBytes = 2 << 20;  // of the file; more where 128 rows have more
constexpr int kThreads = 16;
constexpr int kSlots = 2;  // of a thread: one is being read while the other's is copied

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
    default:
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

// One thread's stream and buffers.
class Reader {
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

  absl::Status Place(const WeightPiece& piece, Sha256Digest* digest) {
    Slot& slot = slots_[next_slot_++ % kSlots];
    MILLRACE_RETURN_IF_ERROR(ToStatus(cudaEventSynchronize(slot.copied.get()), "loading"));
    const TensorInfo& tensor = *piece.tensor;
    const int64_t bytes = (piece.end - piece.begin) * RowBytes(tensor);
    MILLRACE_RETURN_IF_ERROR(ReadRows(piece, slot.host.data()));
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

  absl::Status ReadRows(const WeightPiece& piece, uint8_t* to) {
    const PendingMatrix& matrix = *piece.matrix;
    const auto read = [&](const TensorInfo& tensor, int64_t first, int64_t rows) {
      const int64_t bytes = rows * RowBytes(tensor);
      to += bytes;
      return ReadAll(source_.FileDescriptor(tensor), to - bytes, bytes,
                     tensor.offset + first * RowBytes(tensor), tensor.name);
    };
    if (matrix.gate == kernels::GateLayout::kHalves) {
      return read(*piece.tensor, piece.begin, piece.end - piece.begin);
    }
    for (int64_t row = piece.begin; row < piece.end; row += 8) {
      int64_t from = row / 16 * 8 + (row % 16 == 0 ? 0 : matrix.rows / 2);
      auto part = matrix.parts.begin();
      for (; from >= (*part)->shape[0]; ++part) from -= (*part)->shape[0];
      MILLRACE_RETURN_IF_ERROR(read(**part, from, 8));
    }
    return absl::OkStatus();
  }

  cudaError_t Convert(const WeightPiece& piece, const uint8_t* from) {
    const PendingMatrix& matrix = *piece.matrix;
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
    const int64_t first_scale =
        matrix.scaling == kernels::WeightScaling::kBlock
            ? piece.first_row / 128 * kernels::BlockScaleStride(matrix.stride)
            : piece.first_row;
    float* scales = reinterpret_cast<float*>(arena_ + matrix.scales_offset) + first_scale;
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

}  // namespace

size_t ElementBytes(kernels::Type type) {
  return type == kernels::Type::kF32 ? 4 : type == kernels::Type::kBf16 ? 2 : 1;
}

int64_t RowBytes(const TensorInfo& tensor) {
  return static_cast<int64_t>(tensor.bytes) / tensor.shape[0];
}

std::vector<WeightPiece> CutIntoPieces(const std::vector<PendingMatrix>& matrices) {
  std::vector<WeightPiece> pieces;
  for (const PendingMatrix& matrix : matrices) {
    if (matrix.gate == kernels::GateLayout::kInterleaved) {
      const TensorInfo* const tensor = matrix.parts[0];  // the others are of its type
      const int64_t step = std::max<int64_t>(16, kPieceBytes / RowBytes(*tensor) / 16 * 16);
      for (int64_t begin = 0; begin < matrix.rows; begin += step) {
        pieces.push_back({&matrix, tensor, begin, begin, std::min(begin + step, matrix.rows)});
      }
      continue;
    }
    int64_t first_row = 0;
    for (const TensorInfo* tensor : matrix.parts) {
      const int64_t rows = tensor->shape[0];
      // Whole blocks of rows where they share scales.
      const int64_t multiple = matrix.scaling == kernels::WeightScaling::kBlock ? 128 : 1;
      const int64_t step =
          std::max(multiple, kPieceBytes / RowBytes(*tensor) / multiple * multiple);
      for (int64_t begin = 0; begin < rows; begin += step) {
        pieces.push_back({&matrix, tensor, first_row + begin, begin, std::min(begin + step, rows)});
      }
      first_row += rows;
    }
  }
  return pieces;
}

absl::Status ReadWeights(const TensorSource& source, const std::vector<WeightPiece>& pieces,
                         uint8_t* arena, std::vector<Sha256Digest>* digests) {
  int64_t largest_piece = 1;
  int64_t largest_bf16 = 1;
  for (const WeightPiece& piece : pieces) {
    const int64_t rows = piece.end - piece.begin;
    largest_piece = std::max(largest_piece, rows * RowBytes(*piece.tensor));
    largest_bf16 = std::max(largest_bf16, 2 * rows * piece.matrix->stride);
  }
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  absl::Status failure;
  const auto read = [&] {
    Reader reader(source, arena);
    absl::Status status = reader.Open(largest_piece, largest_bf16);
    while (status.ok()) {
      const size_t index = next++;
      if (index >= pieces.size()) break;
      status = reader.Place(pieces[index], &(*digests)[index]);
    }
    if (status.ok()) status = reader.Close();
    if (!status.ok()) next = pieces.size();  // the others read no more either
    std::lock_guard lock(mutex);
    failure.Update(status);
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(read);
  for (std::thread& thread : threads) thread.join();
  return failure;
}

absl::Status DrawWeights(const std::vector<PendingMatrix>& matrices, uint8_t* arena) {
  DeviceMemory bf16;
  uint64_t seed = 0;
  for (const PendingMatrix& matrix : matrices) {
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
  // The staging memory goes: whoever uses it must be done.
  return ToStatus(cudaDeviceSynchronize(), "dummy weights");
}

}  // namespace millrace::cuda
