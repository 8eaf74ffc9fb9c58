#include "executors/cuda/device/device.h"

#include "base/strings.h"
#include "kernels/kernel_table.h"

namespace millrace::cuda {

absl::Status ToStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  std::string message =
      StrCat(what, ": CUDA error: ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
  if (error == cudaErrorNoKernelImageForDevice) {
    message += "; the program was built for other GPUs (CMake's MILLRACE_CUDA_ARCHITECTURES)";
  }
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  return absl::UnavailableError(message);
}

template <MemoryKind kKind>
absl::StatusOr<Memory<kKind>> Memory<kKind>::Allocate(size_t bytes, std::string_view what) {
  Memory memory;
  void* data = nullptr;
  const cudaError_t error = kKind == MemoryKind::kDevice
                                ? cudaMalloc(&data, bytes)
                                : cudaHostAlloc(&data, bytes, cudaHostAllocPortable);
  // clears it, so that the next launch does not report it
  if (error != cudaSuccess) (void)cudaGetLastError();
  MILLRACE_RETURN_IF_ERROR(
      ToStatus(error, StrCat(kKind == MemoryKind::kDevice ? "the GPU's" : "pinned", " memory for ",
                             what, ", ", bytes, " bytes")));
  memory.data_ = static_cast<uint8_t*>(data);
  memory.bytes_ = bytes;
  return memory;
}

template <MemoryKind kKind>
Memory<kKind>::~Memory() {
  if (data_ == nullptr) return;
  (void)(kKind == MemoryKind::kDevice ? cudaFree(data_) : cudaFreeHost(data_));
}

template class Memory<MemoryKind::kDevice>;
template class Memory<MemoryKind::kPinned>;

absl::StatusOr<Stream> MakeStream() {
  cudaStream_t stream = nullptr;
  MILLRACE_RETURN_IF_ERROR(
      ToStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream"));
  return Stream(stream);
}

absl::StatusOr<Event> MakeEvent() {
  cudaEvent_t event = nullptr;
  MILLRACE_RETURN_IF_ERROR(
      ToStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event"));
  return Event(event);
}

absl::StatusOr<MemoryUse> ReadMemory() {
  MemoryUse memory = {};
  MILLRACE_RETURN_IF_ERROR(
      ToStatus(cudaMemGetInfo(&memory.free, &memory.total), "asking for free memory"));
  return memory;
}

absl::Status UseDevice(int index) {
  return ToStatus(cudaSetDevice(index), StrCat("choosing GPU ", index));
}

absl::StatusOr<DeviceInfo> OpenDevice(int index) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    return absl::UnavailableError(
        StrCat("device: cuda needs a GPU and its driver; CUDA error: ",
               error == cudaSuccess ? "there is no device" : cudaGetErrorString(error)));
  }
  if (index >= count) {
    return absl::InvalidArgumentError(StrCat("GPU ", index, " is needed, but there are ", count,
                                             " (--devices, --tensor-parallel-size)"));
  }
  MILLRACE_RETURN_IF_ERROR(UseDevice(index));
  if (!kernels::MayRun(kernels::Kernel::kEmbed)) {
    return absl::UnavailableError("device: cuda needs a GPU of compute capability 8.0 or later");
  }
  cudaDeviceProp properties;
  MILLRACE_RETURN_IF_ERROR(
      ToStatus(cudaGetDeviceProperties(&properties, index), StrCat("asking GPU ", index)));
  return DeviceInfo{.index = index, .name = properties.name};
}

}  // namespace millrace::cuda
