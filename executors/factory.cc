#include "executors/factory.h"

#include <utility>
#include <variant>

#include "base/status.h"
#include "executors/cpu/cpu_executor.h"
#include "executors/cpu/cpu_model.h"
#ifdef MILLRACE_HAS_CUDA
#include "executors/cuda/cuda_executor.h"
#include "executors/cuda/cuda_model.h"
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

absl::StatusOr<std::unique_ptr<Executor>> LoadNodesRanks(const ModelSpec& model,
                                                         const DeviceSpec& device, Nodes& nodes) {
  if (const auto* cpu = std::get_if<CpuSpec>(&device)) {
    return cpu::LoadCpuExecutor(model, *cpu, cpu::BestKernels(), &nodes);
  }
#ifdef MILLRACE_HAS_CUDA
  if (const auto* cuda = std::get_if<CudaSpec>(&device)) {
    return cuda::LoadCudaExecutor(model, *cuda, &nodes);
  }
#endif
  return absl::UnimplementedError("nnodes: several are allowed with --device cpu or cuda");
}

// Loads this node's ranks. Other nodes than the first only follow.
absl::StatusOr<std::unique_ptr<Executor>> LoadOnNodes(const ModelSpec& model,
                                                      const DeviceSpec& device, Nodes& nodes) {
  MILLRACE_ASSIGN_OR_RETURN(auto executor, LoadNodesRanks(model, device, nodes));
  if (nodes.node() > 0) return executor;
  return MakeNodesExecutor(std::move(executor), nodes);
}

absl::Status PackageNeedsTorch() {
  return absl::InvalidArgumentError("model: an AOTInductor package (.pt2) needs --device torch");
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorModel>> LoadTensorModel(const ModelSpec& model,
                                                             const DeviceSpec& device) {
  if (const auto* torch = std::get_if<TorchSpec>(&device)) {
    return aten::LoadTorchPackage(model, *torch);
  }
  return PackageNeedsTorch();
}

absl::StatusOr<std::unique_ptr<Executor>> LoadExecutor(const ModelSpec& model,
                                                       const DeviceSpec& device, Nodes* nodes) {
  if (nodes != nullptr) {
    if (IsPackage(model.path)) return PackageNeedsTorch();
    return LoadOnNodes(model, device, *nodes);
  }
  if (const auto* torch = std::get_if<TorchSpec>(&device)) {
    return aten::LoadTorchExecutor(model, *torch);
  }
  if (IsPackage(model.path)) return PackageNeedsTorch();
  if (const auto* cpu = std::get_if<CpuSpec>(&device)) return cpu::LoadCpuExecutor(model, *cpu);
  if (const auto* fake = std::get_if<FakeSpec>(&device)) return LoadFakeExecutor(*fake);
#ifdef MILLRACE_HAS_CUDA
  return cuda::LoadCudaExecutor(model, std::get<CudaSpec>(device));
#else
  return WithoutCuda();
#endif
}

absl::StatusOr<MemoryPlan> PlanMemory(const OpenedModel& model, const DeviceSpec& device,
                                      int nodes) {
  if (const auto* cpu = std::get_if<CpuSpec>(&device)) {
    return cpu::PlanCpuMemory(model, *cpu, cpu::BestKernels(), nodes);
  }
#ifdef MILLRACE_HAS_CUDA
  if (const auto* cuda = std::get_if<CudaSpec>(&device)) {
    return cuda::PlanCudaMemory(model, *cuda, nodes);
  }
#else
  if (std::holds_alternative<CudaSpec>(device)) return WithoutCuda();
#endif
  return absl::UnimplementedError("the memory of --device torch and fake is not planned");
}

absl::StatusOr<std::string> CudaKernelTable() {
#ifdef MILLRACE_HAS_CUDA
  return kernels::KernelTableText() + "\n" + kernels::CrossoversText();
#else
  return WithoutCuda();
#endif
}

absl::StatusOr<std::unique_ptr<DeviceTrace>> StartTrace(const DeviceSpec& device) {
#ifdef MILLRACE_HAS_CUDA
  if (std::holds_alternative<CudaSpec>(device)) return cuda::StartCudaTrace();
#endif
  return CanTrace(device);
}

absl::Status CanTrace(const DeviceSpec& device) {
#ifdef MILLRACE_HAS_CUDA
  if (std::holds_alternative<CudaSpec>(device)) return cuda::CanTrace();
#endif
  return absl::UnimplementedError(std::holds_alternative<CudaSpec>(device)
                                      ? "trace: cuda is not built into this server"
                                      : "trace: only --device cuda keeps a record of what it does");
}

}  // namespace millrace
