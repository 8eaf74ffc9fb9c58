#include "executors/cuda/device/peer_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "base/fault_points.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/cuda/device/device.h"

namespace millrace::cuda {
namespace {

// A GPU cannot reach another's memory.
FaultPoint no_peer_access("cuda.no_peer_access");

// The driver's functions for mapped memory. The program is not linked to the driver, so that it
// starts on machines without one.
struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free_address = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  bool complete = true;

  Driver() {
    Resolve("cuMemGetAllocationGranularity", granularity);
    Resolve("cuMemAddressReserve", reserve);
    Resolve("cuMemAddressFree", free_address);
    Resolve("cuMemCreate", create);
    Resolve("cuMemRelease", release);
    Resolve("cuMemMap", map);
    Resolve("cuMemUnmap", unmap);
    Resolve("cuMemSetAccess", set_access);
  }

 private:
  template <typename Function>
  void Resolve(const char* name, Function& function) {
    constexpr unsigned kCuda12 = 12000;
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &entry, kCuda12, cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) complete = false;
    function = reinterpret_cast<Function>(entry);
  }
};

const Driver& TheDriver() {
  static const Driver driver;
  return driver;
}

absl::Status Check(CUresult result, std::string_view what, size_t bytes) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const std::string message = StrCat("the GPU's memory for ", what, ", ", bytes,
                                     " bytes: CUDA error ", static_cast<int>(result));
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return absl::ResourceExhaustedError(message);
  return absl::UnavailableError(message);
}

}  // namespace

absl::Status CheckPeerAccess(absl::Span<const int> devices) {
  for (const int from : devices) {
    for (const int to : devices) {
      if (from == to) continue;
      int can = 0;
      MILLRACE_RETURN_IF_ERROR(
          ToStatus(cudaDeviceCanAccessPeer(&can, from, to), "asking for peer access"));
      if (can != 0 && !no_peer_access.Fires()) continue;
      return absl::UnimplementedError(
          StrCat("GPU ", from, " cannot reach the memory of GPU ", to,
                 "; allowed with --tensor-parallel-size: GPUs with peer access (--devices)"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PeerMemory> PeerMemory::Allocate(size_t bytes, int device,
                                                absl::Span<const int> users,
                                                std::string_view what) {
  const Driver& driver = TheDriver();
  if (!driver.complete) {
    return absl::UnimplementedError(
        "the GPU's driver maps no memory for several GPUs; needed: that of CUDA 12 or later");
  }
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  size_t unit = 0;
  MILLRACE_RETURN_IF_ERROR(Check(
      driver.granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), what, bytes));
  const size_t mapped = (bytes + unit - 1) / unit * unit;
  CUmemGenericAllocationHandle handle = 0;
  MILLRACE_RETURN_IF_ERROR(Check(driver.create(&handle, mapped, &properties, 0), what, bytes));
  CUdeviceptr address = 0;
  absl::Status status = Check(driver.reserve(&address, mapped, unit, 0, 0), what, bytes);
  if (status.ok()) {
    status = Check(driver.map(address, mapped, 0, handle, 0), what, bytes);
    if (!status.ok()) (void)driver.free_address(address, mapped);
  }
  if (!status.ok()) {
    (void)driver.release(handle);
    return status;
  }
  PeerMemory memory;
  memory.data_ = reinterpret_cast<uint8_t*>(address);
  memory.bytes_ = mapped;
  memory.handle_ = handle;
  std::vector<CUmemAccessDesc> access;
  for (const int user : users) {
    access.push_back({.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = user},
                      .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  }
  MILLRACE_RETURN_IF_ERROR(
      Check(driver.set_access(address, mapped, access.data(), access.size()), what, bytes));
  return memory;
}

PeerMemory::~PeerMemory() {
  if (data_ == nullptr) return;
  const auto address = reinterpret_cast<CUdeviceptr>(data_);
  (void)TheDriver().unmap(address, bytes_);
  (void)TheDriver().free_address(address, bytes_);
  (void)TheDriver().release(handle_);
}

}  // namespace millrace::cuda
