#include "executors/cuda/weights/weight_loader.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "base/status.h"
#include "base/strings.h"
#include "executors/cuda/device/device.h"
#include "executors/cuda/weights/four_bit_rows.h"
#include "executors/cuda/weights/rank_writer.h"
#include "executors/weights/shares.h"
#include "formats/model/model_config.h"

namespace millrace::cuda {
namespace {

// Hashing bounds the rate, so threads help as far as there are cores; small pieces keep the pinned
// memory small, which takes long to get. An H200's machine with 16 cores, 3 GB in the page cache: 8
// threads with pieces of 8 MiB 5.2 GB/s, 16 with 4 MiB 7.5, with 2 MiB 8.5 (11 without hashing).
constexpr int64_t kPieceBytes = 2 << 20;           // of the file; more where 128 rows have more
constexpr int64_t kMostMapped = int64_t{1} << 30;  // bytes
constexpr int kThreads = 16;

// The 128-element blocks of a share, which begins with a whole one.
Share Blocks(const Share& elements) {
  const auto blocks = [](int64_t count) { return RoundUp(count, kFp8Block) / kFp8Block; };
  return {.total = blocks(elements.total),
          .begin = blocks(elements.begin),
          .count = blocks(elements.count),
          .size = blocks(elements.size)};
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

// One thread's host memory, from which it deals pieces to all ranks.
class Reader {
 public:
  Reader(const TensorSource& source, absl::Span<const RankPieces> ranks)
      : source_(source), ranks_(ranks) {
    for (const RankPieces& rank : ranks) writers_.emplace_back(rank.device, rank.arena);
  }

  absl::Status Open(const LargestPiece& largest) {
    for (RankWriter& writer : writers_) MILLRACE_RETURN_IF_ERROR(writer.Open(largest));
    for (PinnedMemory& host : hosts_) {
      MILLRACE_ASSIGN_OR_RETURN(host, PinnedMemory::Allocate(largest.bytes, "loading"));
    }
    return absl::OkStatus();
  }

  absl::Status Place(size_t index, Sha256Digest* digest) {
    const int slot = next_slot_++ % kReadingSlots;
    uint8_t* const host = hosts_[slot].data();
    for (const RankWriter& writer : writers_) MILLRACE_RETURN_IF_ERROR(writer.Await(slot));
    const WeightPiece& piece = ranks_[0].pieces[index];
    const TensorInfo& tensor = *piece.part->tensor;
    const bool packed = IsPacked(tensor.type);
    if (!packed) MILLRACE_RETURN_IF_ERROR(ReadRows(piece, host));
    for (size_t rank = 0; rank < writers_.size(); ++rank) {
      MILLRACE_RETURN_IF_ERROR(writers_[rank].Place(ranks_[rank].pieces[index], slot, host));
      // The next rank has another form of a packed piece.
      if (packed && writers_.size() > 1) MILLRACE_RETURN_IF_ERROR(writers_[rank].Await(slot));
    }
    int64_t bytes = (piece.end - piece.begin) * RowBytes(tensor);
    if (packed) {
      const PackedForm whole = WholeForm(piece);
      bytes = PackedBytes(whole);
      if (writers_.size() > 1) ReadPacked(piece, whole, host);
    }
    hasher_.Update(host, bytes);
    *digest = hasher_.Finish();
    return absl::OkStatus();
  }

  absl::Status Close() {
    for (RankWriter& writer : writers_) MILLRACE_RETURN_IF_ERROR(writer.Close());
    return absl::OkStatus();
  }

 private:
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

  const TensorSource& source_;
  const absl::Span<const RankPieces> ranks_;
  std::deque<RankWriter> writers_;  // by rank
  PinnedMemory hosts_[kReadingSlots];
  int next_slot_ = 0;
  Sha256 hasher_;
};

LargestPiece LargestOf(absl::Span<const RankPieces> ranks) {
  LargestPiece largest;
  for (const RankPieces& rank : ranks) {
    for (const WeightPiece& piece : rank.pieces) {
      const int64_t rows = piece.end - piece.begin;
      const TensorInfo& tensor = *piece.part->tensor;
      const int64_t bytes = IsPacked(tensor.type) ? std::max(PackedBytes(WholeForm(piece)),
                                                             PackedBytes(KeptForm(piece)))
                                                  : rows * RowBytes(tensor);
      largest.bytes = std::max(largest.bytes, bytes);
      largest.bf16 = std::max(largest.bf16, 2 * rows * piece.matrix->stride);
      if (piece.matrix->four_bit.has_value()) {
        largest.four_bit =
            std::max(largest.four_bit, FourBitStagingBytes(rows, piece.matrix->stride));
      }
    }
  }
  return largest;
}

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

std::vector<float> Interleaved(const std::vector<float>& halves) {
  std::vector<float> turned;
  for (size_t row = 0; row < halves.size() / 2; row += 8) {
    for (const size_t from : {row, halves.size() / 2 + row}) {
      turned.insert(turned.end(), halves.begin() + from, halves.begin() + from + 8);
    }
  }
  return turned;
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

absl::Status ReadWeights(const TensorSource& source, absl::Span<const RankPieces> ranks,
                         std::vector<Sha256Digest>* digests, LoadProgress* progress) {
  const std::vector<WeightPiece>& pieces = ranks[0].pieces;
  const auto bytes_of = [](const WeightPiece& piece) {
    return (piece.end - piece.begin) * RowBytes(*piece.part->tensor);
  };
  if (progress != nullptr) {
    int64_t total = 0;
    for (const WeightPiece& piece : pieces) total += bytes_of(piece);
    progress->SetTotal(0, total);
  }
  const LargestPiece largest = LargestOf(ranks);
  std::atomic<size_t> next = 0;
  std::atomic<int64_t> mapped = 0;  // bytes read through the mapping of the file
  std::mutex mutex;
  absl::Status failure;
  const auto read = [&] {
    Reader reader(source, ranks);
    absl::Status status = reader.Open(largest);
    while (status.ok()) {
      const size_t index = next++;
      if (index >= pieces.size()) break;
      const WeightPiece& piece = pieces[index];
      status = reader.Place(index, &(*digests)[index]);
      if (progress != nullptr) progress->Add(bytes_of(piece));
      // Packed and scattered tensors are not read from the file but seen in its mapping, which is
      // not to grow to the whole file. Pages that another thread still reads come back by
      // themselves.
      const TensorInfo& tensor = *piece.part->tensor;
      if (!IsPacked(tensor.type) && !tensor.scattered.has_value()) continue;
      const int64_t bytes = bytes_of(piece);
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
