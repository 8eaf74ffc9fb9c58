#include "formats/distributed/tensor_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

// Bytes that are dropped at once, at least: each time costs a call of the system.
constexpr uint64_t kLeastDropped = 64 << 10;

}  // namespace

absl::StatusOr<TensorStream> TensorStream::Open(CheckpointFolder* folder,
                                                const CheckpointTensor& tensor) {
  TensorStream stream(folder, tensor);
  const size_t rank = tensor.shape.size();
  stream.strides_.resize(rank);
  int64_t stride = 1;
  for (size_t i = rank; i > 0; --i) {
    stream.strides_[i - 1] = stride;
    stride *= tensor.shape[i - 1];
  }
  for (const CheckpointChunk& chunk : tensor.chunks) {
    MILLRACE_ASSIGN_OR_RETURN(StoredChunk stored, folder->Chunk(tensor, chunk));
    // Behind the last dimension that the chunk has a part of, runs are whole.
    size_t dims = rank;
    int64_t elements = 1;
    while (dims > 0) {
      --dims;
      elements *= chunk.sizes[dims];
      if (chunk.sizes[dims] != tensor.shape[dims]) break;
    }
    Cursor cursor{
        .chunk = &chunk, .stored = std::move(stored), .run_elements = elements, .run_dims = dims};
    cursor.begin = stream.RunBegin(cursor);
    stream.heap_.push_back(stream.cursors_.size());
    stream.cursors_.push_back(std::move(cursor));
  }
  const auto later = [&](size_t a, size_t b) {
    return stream.cursors_[a].begin > stream.cursors_[b].begin;
  };
  std::make_heap(stream.heap_.begin(), stream.heap_.end(), later);
  return stream;
}

int64_t TensorStream::RunBegin(const Cursor& cursor) const {
  const CheckpointChunk& chunk = *cursor.chunk;
  int64_t begin = 0;
  for (size_t i = 0; i < strides_.size(); ++i) begin += chunk.offsets[i] * strides_[i];
  int64_t run = cursor.run;
  for (size_t i = cursor.run_dims; i > 0; --i) {
    begin += run % chunk.sizes[i - 1] * strides_[i - 1];
    run /= chunk.sizes[i - 1];
  }
  return begin;
}

int64_t TensorStream::Place(const Cursor& cursor, int64_t element) {
  const CheckpointChunk& chunk = *cursor.chunk;
  int64_t index = cursor.run * cursor.run_elements + element;
  if (cursor.stored.contiguous) return index;
  int64_t place = 0;
  for (size_t i = chunk.sizes.size(); i > 0; --i) {
    place += index % chunk.sizes[i - 1] * cursor.stored.strides[i - 1];
    index /= chunk.sizes[i - 1];
  }
  return place;
}

void TensorStream::Copy(const Cursor& cursor, int64_t elements, uint8_t* out) const {
  const int64_t bytes = tensor_->type->bytes;
  const uint8_t* from = cursor.stored.bytes.data();
  if (cursor.stored.contiguous) {
    std::memcpy(out, from + Place(cursor, cursor.done) * bytes, elements * bytes);
    return;
  }
  for (int64_t i = 0; i < elements; ++i) {
    std::memcpy(out + i * bytes, from + Place(cursor, cursor.done + i) * bytes, bytes);
  }
}

// A chunk that is not contiguous is read all over, and dropped at its end.
void TensorStream::Drop(Cursor* cursor, bool all) const {
  const absl::Span<const uint8_t> bytes = cursor->stored.bytes;
  if (all) {
    folder_->DropPages(*cursor->chunk, bytes.subspan(cursor->dropped));
    return;
  }
  if (!cursor->stored.contiguous) return;
  const uint64_t done = Place(*cursor, cursor->done) * tensor_->type->bytes;
  if (done - cursor->dropped < std::max(kLeastDropped, kResidentBytes / cursors_.size())) return;
  folder_->DropPages(*cursor->chunk, bytes.subspan(cursor->dropped, done - cursor->dropped));
  cursor->dropped = done;
}

absl::Status TensorStream::Read(absl::Span<uint8_t> out) {
  const int64_t bytes = tensor_->type->bytes;
  const auto later = [&](size_t a, size_t b) { return cursors_[a].begin > cursors_[b].begin; };
  auto left = static_cast<int64_t>(out.size()) / bytes;
  uint8_t* to = out.data();
  while (left > 0) {
    // A run that has begun stays in front.
    const bool has_run = !heap_.empty();
    Cursor* cursor = has_run ? &cursors_[heap_.front()] : nullptr;
    if (!has_run || cursor->begin + cursor->done != next_) {
      return absl::InvalidArgumentError(StrCat("tensor ", tensor_->name, ": chunks overlap, and ",
                                               "element ", next_, " is in none of them"));
    }
    const int64_t count = std::min(left, cursor->run_elements - cursor->done);
    Copy(*cursor, count, to);
    to += count * bytes;
    left -= count;
    next_ += count;
    cursor->done += count;
    Drop(cursor, false);
    if (cursor->done < cursor->run_elements) continue;
    std::pop_heap(heap_.begin(), heap_.end(), later);
    cursor->done = 0;
    ++cursor->run;
    if (cursor->run * cursor->run_elements == ElementsOf(cursor->chunk->sizes)) {
      Drop(cursor, true);
      heap_.pop_back();
      continue;
    }
    cursor->begin = RunBegin(*cursor);
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  return absl::OkStatus();
}

}  // namespace millrace
