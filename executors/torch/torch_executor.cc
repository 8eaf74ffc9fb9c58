#include "executors/torch/torch_executor.h"

#include <dlfcn.h>

#include <cstdlib>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/models/model_state.h"
#include "executors/torch/package_model.h"
#include "executors/torch/torch_model.h"

namespace millrace::aten {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

// The plugin's function of this name, of type Function.
template <typename Function>
absl::StatusOr<Function> FindInPlugin(const char* name) {
  // GNU OpenMP reads this when it is opened. Its threads would otherwise spin at the end of each
  // region, on cores that the server's other threads want: steps took up to 17 times as long.
  setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
  // Its symbols stay its own: LibTorch carries copies of libraries that the server links.
  void* const plugin = dlopen("libmillrace_torch.so", RTLD_NOW | RTLD_LOCAL);
  void* const function = plugin != nullptr ? dlsym(plugin, name) : nullptr;
  if (function == nullptr) {
    return absl::UnimplementedError(
        StrCat("device: torch needs libmillrace_torch.so beside the server (it is built where "
               "scripts/fetch_torch.sh has put LibTorch): ",
               dlerror()));
  }
  return reinterpret_cast<Function>(function);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> LoadTorchExecutor(const ModelSpec& model,
                                                            const TorchSpec& device) {
  MILLRACE_ASSIGN_OR_RETURN(
      const auto load, FindInPlugin<decltype(&MillraceLoadTorchModel)>("MillraceLoadTorchModel"));
  absl::StatusOr<std::unique_ptr<HostModel>> loaded;
  load(model, device, &loaded);
  MILLRACE_RETURN_IF_ERROR(loaded.status());
  const ModelInfo& info = (*loaded)->info();
  kLog.Info("torch executor: ", info.kv_type, ", ", info.weight_bytes >> 20, " MiB of weights, ",
            DivisionText(info.limits.state, info.limits.num_blocks));
  return MakeHostExecutor(*std::move(loaded));
}

absl::StatusOr<std::unique_ptr<TensorModel>> LoadTorchPackage(const ModelSpec& model,
                                                              const TorchSpec& device) {
  MILLRACE_ASSIGN_OR_RETURN(const auto load, FindInPlugin<decltype(&MillraceLoadTorchPackage)>(
                                                 "MillraceLoadTorchPackage"));
  absl::StatusOr<std::unique_ptr<TensorModel>> loaded;
  load(model, device, &loaded);
  return loaded;
}

}  // namespace millrace::aten
