// Brings pieces of weights from pinned memory to a rank's device, in their place and form.
#ifndef MILLRACE_EXECUTORS_CUDA_WEIGHTS_RANK_WRITER_H_
#define MILLRACE_EXECUTORS_CUDA_WEIGHTS_RANK_WRITER_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "executors/cuda/device/device.h"
#include "executors/cuda/weights/weight_loader.h"
#include "kernels/weights/dequantize.h"

namespace millrace::cuda {

// Buffers of a thread that reads: one is being filled while the other's piece is copied.
inline constexpr int kReadingSlots = 2;

// The part of a packed weight's piece to read, and its form. `rows` are numbered as the piece's.
struct PackedForm {
  std::optional<kernels::FourBitFormat> format;  // nothing: BF16
  Interval rows;
  Interval columns;
};
PackedForm KeptForm(const WeightPiece& piece);   // what the rank keeps
PackedForm WholeForm(const WeightPiece& piece);  // all of it, the same on every rank

// Returns the bytes of the form.
int64_t PackedBytes(const PackedForm& form);

// Reads the piece in a form.
void ReadPacked(const WeightPiece& piece, const PackedForm& form, uint8_t* host);

// The bytes of the largest piece, and of what is staged on the device for it.
struct LargestPiece {
  int64_t bytes = 1;
  int64_t bf16 = 1;
  int64_t four_bit = 1;
};

// One reading thread's stream and buffers on a rank's device, which becomes the thread's own.
class RankWriter {
 public:
  RankWriter(int device, uint8_t* arena) : device_(device), arena_(arena) {}

  absl::Status Open(const LargestPiece& largest);

  // Waits until what was last placed from this slot's host memory has left it.
  absl::Status Await(int slot) const {
    return ToStatus(cudaEventSynchronize(slots_[slot].copied.get()), "loading");
  }

  // Starts placing the rank's share of a piece. `host`, the slot's memory, has the piece as the
  // file does, or gets the rank's form of it if it is packed.
  absl::Status Place(const WeightPiece& piece, int slot_index, uint8_t* host);

  absl::Status Close() {
    return ToStatus(cudaStreamSynchronize(stream_.get()), "loading the weights");
  }

 private:
  struct Slot {
    DeviceMemory device;
    Event copied;
  };

  // The rank's columns of the rows that it keeps, densely.
  cudaError_t Upload(const WeightPiece& piece, const KeptRows& kept, const uint8_t* host,
                     uint8_t* device);

  // Reads the piece's rows, whatever the rank keeps of them, into the slot's memory and makes tiles
  // of them, or BF16 where no four-bit form holds them.
  cudaError_t PlacePacked(const WeightPiece& piece, const KeptRows& kept, uint8_t* host,
                          uint8_t* device);

  // Dequantizes the rows of PendingMatrix::expands_fp8, which are few, on the host.
  cudaError_t PlaceExpanded(const WeightPiece& piece, const KeptRows& kept, const uint8_t* host);

  cudaError_t Dequantize(const PendingMatrix& matrix, const uint8_t* from,
                         kernels::StoredType stored, int64_t rows, int64_t to);

  cudaError_t Convert(const WeightPiece& piece, const KeptRows& kept, const uint8_t* from);

  const int device_;
  uint8_t* arena_;
  Stream stream_;
  Slot slots_[kReadingSlots];
  DeviceMemory bf16_;
  DeviceMemory four_bit_;
};

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_WEIGHTS_RANK_WRITER_H_
