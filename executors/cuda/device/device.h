// Owning wrappers of CUDA's handles and memory, and its errors as statuses.
#ifndef MILLRACE_EXECUTORS_CUDA_DEVICE_DEVICE_H_
#define MILLRACE_EXECUTORS_CUDA_DEVICE_DEVICE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"

namespace millrace::cuda {

// Returns OK, RESOURCE_EXHAUSTED for an allocation that failed, and UNAVAILABLE for any other
// error, after which the device is not used again. `what` names the operation.
absl::Status ToStatus(cudaError_t error, std::string_view what);

// Kinds of memory: the device's, or pinned host memory, which a device can copy asynchronously.
enum class MemoryKind { kDevice, kPinned };

// Owned memory, aligned to at least 256 bytes and not initialized.
template <MemoryKind kKind>
class Memory {
 public:
  // Allocates `bytes`. Errors name `what` and the size.
  static absl::StatusOr<Memory> Allocate(size_t bytes, std::string_view what);

  Memory() = default;
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Memory();

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <typename T>
  T* As() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};
using DeviceMemory = Memory<MemoryKind::kDevice>;
using PinnedMemory = Memory<MemoryKind::kPinned>;

// An owned CUDA handle, released by kEnd.
template <typename Handle, auto kEnd>
class Owned {
 public:
  Owned() = default;
  explicit Owned(Handle handle) : handle_(handle) {}
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_ != nullptr) (void)kEnd(handle_);
  }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};
using Stream = Owned<cudaStream_t, cudaStreamDestroy>;
using Event = Owned<cudaEvent_t, cudaEventDestroy>;
using Graph = Owned<cudaGraph_t, cudaGraphDestroy>;
using GraphExec = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;

absl::StatusOr<Stream> MakeStream();  // does not synchronize with the default stream
absl::StatusOr<Event> MakeEvent();    // without timing

struct DeviceInfo {
  int index = 0;  // as CUDA numbers it
  std::string name;
};

// Memory of the current device, in bytes.
struct MemoryUse {
  size_t free;
  size_t total;
};
absl::StatusOr<MemoryUse> ReadMemory();

// Makes a device the current one of this thread.
absl::Status UseDevice(int index);

// Makes device `index` the current one of this thread. Returns UNAVAILABLE with the reason if there
// is none.
absl::StatusOr<DeviceInfo> OpenDevice(int index);

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_DEVICE_DEVICE_H_
