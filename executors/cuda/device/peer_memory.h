// Memory of one GPU that several GPUs of this process read and write.
#ifndef MILLRACE_EXECUTORS_CUDA_DEVICE_PEER_MEMORY_H_
#define MILLRACE_EXECUTORS_CUDA_DEVICE_PEER_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace millrace::cuda {

// Returns OK if each of the devices can reach the memory of all others. Otherwise UNIMPLEMENTED,
// naming the first two that cannot.
absl::Status CheckPeerAccess(absl::Span<const int> devices);

// Owned memory, mapped at one address on all devices that have access (CUDA Driver API, "Virtual
// Memory Management"). Unlike cudaDeviceEnablePeerAccess this maps nothing else, and no handle is
// exchanged.
class PeerMemory {
 public:
  // Allocates `bytes` on `device`, which each of `users` may access; `device` is one of them. The
  // memory is not initialized. Errors name `what` and the size.
  static absl::StatusOr<PeerMemory> Allocate(size_t bytes, int device, absl::Span<const int> users,
                                             std::string_view what);

  PeerMemory() = default;
  PeerMemory(PeerMemory&& other) noexcept { *this = std::move(other); }
  PeerMemory& operator=(PeerMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~PeerMemory();

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;  // mapped
  unsigned long long handle_ = 0;
};

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_DEVICE_PEER_MEMORY_H_
