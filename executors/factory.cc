#include "executors/factory.h"

#include "executors/cpu/cpu_executor.h"
#ifdef MILLRACE_HAS_CUDA
#include "executors/cuda/cuda_executor.h"
#include "executors/cuda/trace.h"
#include "kernels/kernel_table.h"
#endif
#include "executors/fake/fake_executor.h"
#include "executors/torch/torch_executor.h"

namespace millrace {
namespace {

[[maybe_unused]] absl::Status WithoutCuda() {
  return absl::UnimplementedError(
      "device: cuda is not built into this server, allowed: cpu, torch, fake");
}

absl::Status PackageNeedsTorch() {
  return absl::InvalidArgumentError("model: an AOTInductor package (.pt2) needs --device torch");
}

}  // namespace

bool IsPackage(const std::string& path) { return path.ends_with(".pt2"); }

absl::StatusOr<std::unique_ptr<TensorModel>> LoadTensorModel(const ModelSpec& model,
                                                             const DeviceSpec& device) {
  if (device.kind == DeviceKind::kTorch) return aten::LoadTorchPackage(model, device);
  return PackageNeedsTorch();
}

absl::StatusOr<std::unique_ptr<Executor>> LoadExecutor(const ModelSpec& model,
                                                       const DeviceSpec& device) {
  if (IsPackage(model.path) && device.kind != DeviceKind::kTorch) return PackageNeedsTorch();
  switch (device.kind) {
    case DeviceKind::kCpu:
      return cpu::LoadCpuExecutor(model, device);
    case DeviceKind::kTorch:
      return aten::LoadTorchExecutor(model, device);
    case DeviceKind::kFake:
      return LoadFakeExecutor(device);
    case DeviceKind::kCuda:
      break;
  }
#ifdef MILLRACE_HAS_CUDA
  return cuda::LoadCudaExecutor(model, device);
#else
  return WithoutCuda();
#endif
}

absl::StatusOr<std::string> CudaKernelTable() {
#ifdef MILLRACE_HAS_CUDA
  return kernels::KernelTableText();
#else
  return WithoutCuda();
#endif
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
