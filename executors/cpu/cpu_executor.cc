#include "executors/cpu/cpu_executor.h"

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/control_group.h"
#include "base/fault_points.h"
#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/cpu/cpu_model.h"
#include "executors/cpu/ranks_model.h"
#include "executors/host/host_executor.h"
#include "executors/models/model_state.h"

namespace millrace::cpu {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

FaultPoint device_error("cpu.device_error");  // a step fails, and with it the device
FaultPoint hang("cpu.hang");  // a step takes 10 ms longer, each time that this fires

constexpr std::chrono::milliseconds kHang{10};

class CpuHostModel : public HostModel {
 public:
  explicit CpuHostModel(std::unique_ptr<CpuModel> model) : model_(std::move(model)) {}

  const ModelInfo& info() const override { return model_->info; }

  absl::Status Move(absl::Span<const StateMove> moves) override {
    model_->kv.Move(moves, *model_->pool);
    return absl::OkStatus();
  }

  absl::StatusOr<absl::Span<const Sampled>> Run(const CpuStepInput& input) override {
    while (hang.Fires()) std::this_thread::sleep_for(kHang);
    if (device_error.Fires()) {
      return absl::UnavailableError("the CPU failed (fault point cpu.device_error)");
    }
    MILLRACE_RETURN_IF_ERROR(model_->Run(input));
    MILLRACE_RETURN_IF_ERROR(model_->CheckMemory());
    return model_->ops->sampled();
  }

  absl::Status AcceptDrafts(absl::Span<const int32_t> accepted) override {
    model_->ops->AcceptDrafts(accepted);
    return absl::OkStatus();
  }

  absl::Span<const float> embeddings() const override { return model_->ops->embeddings(); }

  std::vector<MixtureUse> mixture_uses() const override {
    const absl::Span<const MixtureUse> uses = model_->ops->mixture_uses();
    return {uses.begin(), uses.end()};
  }

 private:
  std::unique_ptr<CpuModel> model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> LoadCpuExecutor(const ModelSpec& model,
                                                          const CpuSpec& device,
                                                          const Kernels& kernels, Nodes* nodes) {
  std::unique_ptr<HostModel> host_model;
  if (device.tensor_parallel_size > 1) {
    MILLRACE_ASSIGN_OR_RETURN(host_model, LoadRanksModel(model, device, kernels, nodes));
  } else {
    MILLRACE_ASSIGN_OR_RETURN(std::unique_ptr<CpuModel> loaded,
                              LoadCpuModel(model, device, kernels));
    host_model = std::make_unique<CpuHostModel>(std::move(loaded));
  }
  const ModelInfo& info = host_model->info();
  std::string ranks;
  if (info.tensor_parallel_size > 1) {
    ranks = StrCat(info.tensor_parallel_size, " ranks",
                   nodes != nullptr ? StrCat(" on ", nodes->size(), " nodes") : "",
                   info.expert_parallel ? " with experts of their own, " : ", ");
  }
  kLog.Info("cpu executor: ", kernels.name, ", ", ranks,
            device.threads > 0 ? device.threads : UsableCores(), " threads, ",
            info.weight_bytes >> 20, " MiB of weights, ",
            DivisionText(info.limits.state, info.limits.num_blocks));
  // Other nodes get plans and no drafts.
  const bool drafts = nodes == nullptr && info.limits.embedding_size == 0;
  return MakeHostExecutor(std::move(host_model), drafts);
}

}  // namespace millrace::cpu
