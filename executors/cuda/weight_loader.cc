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
#include "executors/cuda/four_bit_rows.h"
#include "executors/cuda/packed_rows.h"
#include "executors/cuda/stored_type.h"
#include "executors/weights/shares.h"
#include "formats/float16.h"
#include "formats/model_config.h"
#include "kernels/weights/dequantize.h"
#include "kernels/weights/quantize_weights.h"
#include "kernels/weights/split_blocks.h"

namespace millrace::cuda {
namespace {

// Hashing bounds the rate, so threads help as far as there are cores; small pieces keep the pinned
// memory small, which takes long to get. An H200's machine with 16 cores, 3 GB in the page cache: 8
// threads with pieces of 8 MiB 5.2 GB/s, 16 with 4 MiB 7.5, with 2 MiB 8.5 (11 without hashing).
constexpr int64_t kPieceBytes = 2 << 20;  // of the file; more where 128 rows have more
constexpr int64_t kMostMapped = int64_t{1} << 30;  // bytes
constexpr int kThreads = 16;
constexpr int kSlots = 2;  // of a thread: one is being read while the other's is copied

// The 128-element blocks of a share, which begins with a whole one.
Share Blocks(const Share& elements) {
  const auto blocks = [](int64_t count) { return RoundUp(count, kFp8Block) / kFp8Block; };
  return {.total = blocks(elements.total),
          .begin = blocks(elements.begin),
          .count = blocks(elements.count),
          .size = blocks(elements.size)};
}

// The bytes of a packed weight's piece as it comes to the device.
int64_t PackedBytes(const WeightPiece& piece) {
  const int64_t rows = piece.end - piece.begin;
  const int64_t columns = piece.matrix->column_share.count;
  const auto& format = piece.matrix->four_bit;
  if (!format.has_value()) return rows * columns * static_cast<int64_t>(sizeof(kernels::Bf16));
  return static_cast<int64_t>(PackedRows(*format, rows, columns).bytes());
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

  absl::Status Open(int64_t largest_piece, int64_t largest_bf16, int64_t largest_four_bit) {
    MILLRACE_RETURN_IF_ERROR(ToStatus(cudaSetDevice(0), "choosing GPU 0"));
    MILLRACE_ASSIGN_OR_RETURN(stream_, MakeStream());
    for (Slot& slot : slots_) {
      MILLRACE_ASSIGN_OR_RETURN(slot.host, PinnedMemory::Allocate(largest_piece, "loading"));
      MILLRACE_ASSIGN_OR_RETURN(slot.device, DeviceMemory::Allocate(largest_piece, "loading"));
      MILLRACE_ASSIGN_OR_RETURN(slot.copied, MakeEvent());
    }
    // The stream orders its users.
    MILLRACE_ASSIGN_OR_RETURN(bf16_, DeviceMemory::Allocate(largest_bf16, "loading"));
    MILLRACE_ASSIGN_OR_RETURN(four_bit_, DeviceMemory::Allocate(largest_four_bit, "loading"));
    return absl::OkStatus();
  }

  absl::Status Place(const WeightPiece& piece, Sha256Digest* digest) {
    Slot& slot = slots_[next_slot_++ % kSlots];
    MILLRACE_RETURN_IF_ERROR(ToStatus(cudaEventSynchronize(slot.copied.get()), "loading"));
    const TensorInfo& tensor = *piece.part->tensor;
    const KeptRows kept = Kept(piece);
    if (IsPacked(tensor.type)) {
      const int64_t bytes = PackedBytes(piece);
      MILLRACE_RETURN_IF_ERROR(ToStatus(PlacePacked(piece, kept, slot), tensor.name));
      MILLRACE_RETURN_IF_ERROR(
          ToStatus(cudaEventRecord(slot.copied.get(), stream_.get()), "loading"));
      hasher_.Update(slot.host.data(), bytes);
      *digest = hasher_.Finish();
      return absl::OkStatus();
    }
    const int64_t bytes = (piece.end - piece.begin) * RowBytes(tensor);
    MILLRACE_RETURN_IF_ERROR(ReadRows(piece, slot.host.data()));
    if (kept.count > 0 && piece.matrix->column_share.count > 0) {
      MILLRACE_RETURN_IF_ERROR(
          ToStatus(Upload(piece, kept, slot.host.data(), slot.device.data()), "loading"));
      MILLRACE_RETURN_IF_ERROR(ToStatus(Convert(piece, kept, slot.device.data()), tensor.name));
    }
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
      if (tensor.scattered.has_value()) {
        source_.Read(tensor, first * RowBytes(tensor), {to - bytes, static_cast<size_t>(bytes)});
        return absl::OkStatus();
      }
      return ReadAll(source_.FileDescriptor(tensor), to - bytes, bytes,
                     tensor.offset + first * RowBytes(tensor), tensor.name);
    };
    if (matrix.gate == kernels::GateLayout::kHalves) {
      return read(*piece.part->tensor, piece.part->begin + piece.begin, piece.end - piece.begin);
    }
    for (int64_t row = piece.begin; row < piece.end; row += 8) {
      const Checkpoint::Part& part = matrix.row_parts[row % 16 == 0 ? 0 : 1];
      MILLRACE_RETURN_IF_ERROR(read(*part.tensor, part.begin + row / 16 * 8, 8));
    }
    return absl::OkStatus();
  }

  // The rank's columns of the rows that it keeps, densely.
  cudaError_t Upload(const WeightPiece& piece, const KeptRows& kept, const uint8_t* host,
                     uint8_t* device) {
    const TensorInfo& tensor = *piece.part->tensor;
    const TensorTypeTraits& traits = Traits(tensor.type);
    const auto bytes = [&](int64_t columns) {
      return columns / traits.block_elements * traits.block_bytes;
    };
    const Share& columns = piece.matrix->column_share;
    const int64_t row_bytes = RowBytes(tensor);
    const uint8_t* from = host + (kept.begin - piece.begin) * row_bytes + bytes(columns.begin);
    if (columns.count == columns.total) {
      return cudaMemcpyAsync(device, from, kept.count * row_bytes, cudaMemcpyHostToDevice,
                             stream_.get());
    }
    return cudaMemcpy2DAsync(device, bytes(columns.count), from, row_bytes, bytes(columns.count),
                             kept.count, cudaMemcpyHostToDevice, stream_.get());
  }

  // Reads the piece's rows, whatever the rank keeps of them, into the slot's memory and makes tiles
  // of them, or BF16 where no four-bit form holds them.
  cudaError_t PlacePacked(const WeightPiece& piece, const KeptRows& kept, Slot& slot) {
    const PendingMatrix& matrix = *piece.matrix;
    const int64_t rows = piece.end - piece.begin;
    const Interval columns = {matrix.column_share.begin, matrix.column_share.count};
    const bool interleaved = matrix.gate == kernels::GateLayout::kInterleaved;
    // Calls `read` with each part, its rows, and the row of the piece that they begin at.
    const auto for_parts = [&](const auto& read) {
      if (interleaved) {
        for (int64_t i = 0; i < 2; ++i) {
          read(i, Interval{matrix.row_parts[i].begin + piece.begin / 2, rows / 2}, i * rows / 2);
        }
      } else {
        read(piece.part - matrix.row_parts.data(), Interval{piece.part->begin + piece.begin, rows},
             0);
      }
    };
    uint8_t* const host = slot.host.data();
    const auto upload = [&] {
      return cudaMemcpyAsync(slot.device.data(), host, PackedBytes(piece), cudaMemcpyHostToDevice,
                             stream_.get());
    };
    if (matrix.four_bit.has_value()) {
      const PackedRows plain(*matrix.four_bit, rows, columns.count);
      for_parts([&](int64_t part, const Interval& of_part, int64_t to) {
        plain.Read(*matrix.packed[part], of_part, columns, to, host);
      });
      plain.MapRows(interleaved, host);
      if (const cudaError_t error = upload(); error != cudaSuccess) return error;
      const FourBitRows to = {&matrix, kept.to, rows, arena_};
      return kernels::LaunchTileFourBit(plain.TileArgs(slot.device.data(), matrix.stride, to.out()),
                                        stream_.get());
    }
    auto* const values = reinterpret_cast<uint16_t*>(host);
    for_parts([&](int64_t part, const Interval& of_part, int64_t to) {
      std::vector<float> row(matrix.packed[part]->columns());
      for (int64_t i = 0; i < of_part.count; ++i) {
        matrix.packed[part]->ReadFloats(of_part.begin + i, row.data());
        // By turns 8 of the gate and 8 of the other factor.
        const int64_t at = interleaved ? i / 8 * 16 + i % 8 + (to > 0 ? 8 : 0) : to + i;
        std::transform(row.begin() + columns.begin, row.begin() + columns.begin + columns.count,
                       values + at * columns.count, FloatToBf16);
      }
    });
    if (const cudaError_t error = upload(); error != cudaSuccess) return error;
    return Dequantize(matrix, slot.device.data(), kernels::StoredType::kBf16, rows, kept.to);
  }

  cudaError_t Dequantize(const PendingMatrix& matrix, const uint8_t* from,
                         kernels::StoredType stored, int64_t rows, int64_t to) {
    return kernels::LaunchDequantize(
        {.source = from,
         .stored = stored,
         .rows = rows,
         .columns = matrix.column_share.count,
         .out = arena_ + matrix.data_offset + to * matrix.stride * ElementBytes(matrix.type),
         .type = matrix.type,
         .stride = matrix.stride},
        stream_.get());
  }

  cudaError_t Convert(const WeightPiece& piece, const KeptRows& kept, const uint8_t* from) {
    const PendingMatrix& matrix = *piece.matrix;
    const int64_t rows = kept.count;
    const int64_t columns = matrix.column_share.count;
    uint8_t* out =
        arena_ + matrix.data_offset + kept.to * matrix.stride * ElementBytes(matrix.type);
    if (matrix.stored_fp8) {
      return cudaMemcpy2DAsync(out, matrix.stride, from, columns, columns, rows,
                               cudaMemcpyDeviceToDevice, stream_.get());
    }
    const std::optional<kernels::StoredType> stored = StoredTypeOf(piece.part->tensor->type);
    if (!stored.has_value()) return cudaErrorInvalidValue;
    const FourBitRows four_bit = {&matrix, kept.to, rows, arena_};
    if (matrix.four_bit.has_value() && kernels::FourBitFormatOf(*stored) == matrix.four_bit &&
        !matrix.quantized_int4) {
      return TileBlocks(four_bit, from, *stored, four_bit_.data(), stream_.get());
    }
    const bool quantized = matrix.type == kernels::Type::kFp8 || matrix.four_bit.has_value();
    if (!quantized) return Dequantize(matrix, from, *stored, rows, kept.to);
    const cudaError_t error = kernels::LaunchDequantize({.source = from,
                                                         .stored = *stored,
                                                         .rows = rows,
                                                         .columns = columns,
                                                         .out = bf16_.data(),
                                                         .type = kernels::Type::kBf16,
                                                         .stride = matrix.stride},
                                                        stream_.get());
    if (error != cudaSuccess) return error;
    if (matrix.four_bit.has_value()) {
      return TileQuantized(four_bit, bf16_.As<kernels::Bf16>(), four_bit_.data(), stream_.get());
    }
    const int64_t first_scale = matrix.scaling == kernels::WeightScaling::kBlock
                                    ? kept.to / 128 * kernels::BlockScaleStride(matrix.stride)
                                    : kept.to;
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
  DeviceMemory four_bit_;
  Sha256 hasher_;
};

}  // namespace

size_t ElementBytes(kernels::Type type) {
  return type == kernels::Type::kF32 ? 4 : type == kernels::Type::kBf16 ? 2 : 1;
}

size_t BytesOf(const PendingMatrix& matrix) {
  const int64_t rows = RoundUp(matrix.rows, kRowMultiple);
  return matrix.four_bit.has_value() ? matrix.four_bit->Bytes(rows, matrix.stride)
                                     : rows * matrix.stride * ElementBytes(matrix.type);
}

int64_t RowBytes(const TensorInfo& tensor) {
  if (IsPacked(tensor.type)) return tensor.shape[1] / 2;
  return static_cast<int64_t>(tensor.bytes) / tensor.shape[0];
}

std::vector<Share> RowShares(const PendingMatrix& matrix) {
  std::vector<Share> shares;
  for (const Checkpoint::Part& part : matrix.row_parts) shares.push_back(part.rows);
  return shares;
}

std::vector<float> RankScales(const PendingMatrix& matrix) {
  const std::vector<float>& all = matrix.host_scales;
  std::vector<Share> rows = RowShares(matrix);
  std::vector<float> scales;
  switch (matrix.scaling) {
    case kernels::WeightScaling::kChannel:
      if (matrix.gate == kernels::GateLayout::kInterleaved) rows = {InterleavedRows(rows[0])};
      scales = Cut(all, rows);
      scales.resize(RoundUp(matrix.rows, kRowMultiple), 0.0f);
      return scales;
    case kernels::WeightScaling::kBlock: {
      const Share columns = Blocks(matrix.column_share);
      const int64_t all_stride =
          kernels::BlockScaleStride(RoundUp(matrix.column_share.total, kernels::kColumnPadding));
      const int64_t stride = kernels::BlockScaleStride(matrix.stride);
      int64_t first = 0;  // of the part's blocks of rows
      for (const Share& part : rows) {
        const Share blocks = Blocks(part);
        for (int64_t i = 0; i < blocks.size; ++i) {
          std::vector<float> row(stride, 0.0f);
          if (i < blocks.count) {
            const int64_t from = (first + blocks.begin + i) * all_stride + columns.begin;
            std::copy_n(all.begin() + from, columns.count, row.begin());
          }
          scales.insert(scales.end(), row.begin(), row.end());
        }
        first += blocks.total;
      }
      return scales;
    }
    default:
      return all;
  }
}

KeptRows Kept(const WeightPiece& piece) {
  const int64_t begin = std::max(piece.begin, piece.rows.begin);
  const int64_t end = std::min(piece.end, piece.rows.begin + piece.rows.count);
  return {.begin = begin,
          .count = std::max<int64_t>(0, end - begin),
          .to = piece.first_row + begin - piece.rows.begin};
}

Share InterleavedRows(const Share& rows) { return Elements(rows, 2); }

std::vector<WeightPiece> CutIntoPieces(const std::vector<PendingMatrix>& matrices) {
  std::vector<WeightPiece> pieces;
  // Multiples of `multiple` rows.
  const auto cut = [&](const PendingMatrix& matrix, const Checkpoint::Part& part, const Share& rows,
                       int64_t first_row, int64_t multiple) {
    const int64_t step =
        std::max(multiple, kPieceBytes / RowBytes(*part.tensor) / multiple * multiple);
    for (int64_t begin = 0; begin < rows.total; begin += step) {
      pieces.push_back(
          {&matrix, &part, rows, first_row, begin, std::min(begin + step, rows.total)});
    }
  };
  for (const PendingMatrix& matrix : matrices) {
    if (matrix.gate == kernels::GateLayout::kInterleaved) {
      const Checkpoint::Part& part = matrix.row_parts[0];  // the other is of its type
      cut(matrix, part, InterleavedRows(part.rows), 0,
          matrix.four_bit.has_value() ? kernels::kFourBitRows : 16);
      continue;
    }
    int64_t first_row = 0;
    for (const Checkpoint::Part& part : matrix.row_parts) {
      // Whole blocks of rows where they share scales or lie in tiles.
      cut(matrix, part, part.rows, first_row,
          matrix.scaling == kernels::WeightScaling::kBlock ? 128
          : matrix.four_bit.has_value()                    ? kernels::kFourBitRows
                                                           : 1);
      first_row += part.rows.size;
    }
  }
  return pieces;
}

absl::Status ReadWeights(const TensorSource& source, const std::vector<WeightPiece>& pieces,
                         uint8_t* arena, std::vector<Sha256Digest>* digests) {
  int64_t largest_piece = 1;
  int64_t largest_bf16 = 1;
  int64_t largest_four_bit = 1;
  for (const WeightPiece& piece : pieces) {
    const int64_t rows = piece.end - piece.begin;
    const bool packed = IsPacked(piece.part->tensor->type);
    largest_piece =
        std::max(largest_piece, packed ? PackedBytes(piece) : rows * RowBytes(*piece.part->tensor));
    largest_bf16 = std::max(largest_bf16, 2 * rows * piece.matrix->stride);
    if (piece.matrix->four_bit.has_value()) {
      largest_four_bit =
          std::max(largest_four_bit, FourBitStagingBytes(rows, piece.matrix->stride));
    }
  }
  std::atomic<size_t> next = 0;
  std::atomic<int64_t> mapped = 0;  // bytes read through the mapping of the file
  std::mutex mutex;
  absl::Status failure;
  const auto read = [&] {
    Reader reader(source, arena);
    absl::Status status = reader.Open(largest_piece, largest_bf16, largest_four_bit);
    while (status.ok()) {
      const size_t index = next++;
      if (index >= pieces.size()) break;
      const WeightPiece& piece = pieces[index];
      status = reader.Place(piece, &(*digests)[index]);
      // Packed and scattered tensors are not read from the file but seen in its mapping, which is
      // not to grow to the whole file. Pages that another thread still reads come back by
      // themselves.
      const TensorInfo& tensor = *piece.part->tensor;
      if (!IsPacked(tensor.type) && !tensor.scattered.has_value()) continue;
      const int64_t bytes = (piece.end - piece.begin) * RowBytes(tensor);
      const int64_t before = mapped.fetch_add(bytes);
      if (before / kMostMapped != (before + bytes) / kMostMapped) source.DropPages();
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

}  // namespace millrace::cuda
