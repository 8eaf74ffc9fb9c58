#include "executors/factory.h"

#include "executors/cpu/cpu_executor.h"
#ifdef MILLRACE_HAS_CUDA
#include "executors/cuda/cuda_executor.h"
#include "executors/cuda/trace.h"
#endif
#include "executors/fake/fake_executor.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<Executor>> LoadExecutor(const ModelSpec& model,
                                                       const DeviceSpec& device) {
  switch (device.kind) {
    case DeviceKind::kCpu:
      return cpu::LoadCpuExecutor(model, device);
    case DeviceKind::kFake:
      return LoadFakeExecutor(device);
    case DeviceKind::kCuda:
#ifdef MILLRACE_HAS_CUDA
      return cuda::LoadCudaExecutor(model, device);
#else
      break;
#endif
  }
  return absl::UnimplementedError("device: cuda is not built into this server, allowed: cpu, fake");
}

absl::StatusOr<std::unique_ptr<DeviceTrace>> StartTrace(DeviceKind device) {
#ifdef MILLRACE_HAS_CUDA
  if (device == DeviceKind::kCuda) return cuda::StartCudaTrace();
#endif
  return CanTrace(device);
}

absl::Status CanTrace(DeviceKind device) {
#ifdef MILLRACE_HAS_CUDA
  if (device == DeviceKind::kCuda) return cuda::CanTrace();
#endif
  return absl::UnimplementedError(device == DeviceKind::kCuda
                                      ? "trace: cuda is not built into this server"
                                      : "trace: only --device cuda keeps a record of what it does");
}

}  // namespace millrace
