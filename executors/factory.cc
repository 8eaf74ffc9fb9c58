#include "executors/factory.h"

#include "executors/cpu/cpu_executor.h"
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
      break;
  }
  return absl::UnimplementedError("device: cuda is not built into this server, allowed: cpu, fake");
}

}  // namespace millrace
