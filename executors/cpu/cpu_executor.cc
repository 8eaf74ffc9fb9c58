#include "executors/cpu/cpu_executor.h"

#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "executors/cpu/cpu_model.h"
#include "executors/host/host_executor.h"

namespace millrace::cpu {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

class CpuHostModel : public HostModel {
 public:
  explicit CpuHostModel(std::unique_ptr<CpuModel> model) : model_(std::move(model)) {}

  const ModelInfo& info() const override { return model_->info; }

  void Copy(const BlockCopy& copy) override { model_->Copy(copy); }

  absl::StatusOr<absl::Span<const Sampled>> Run(const CpuStepInput& input) override {
    model_->Run(input);
    return model_->ops->sampled();
  }

  absl::Span<const float> embeddings() const override { return model_->ops->embeddings(); }

  absl::Span<const MixtureUse> mixture_uses() const override { return model_->ops->mixture_uses(); }

 private:
  std::unique_ptr<CpuModel> model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> LoadCpuExecutor(const ModelSpec& model,
                                                          const CpuSpec& device,
                                                          const Kernels& kernels) {
  MILLRACE_ASSIGN_OR_RETURN(std::unique_ptr<CpuModel> loaded, LoadCpuModel(model, device, kernels));
  kLog.Info("cpu executor: ", kernels.name, ", ", loaded->pool->num_threads(), " threads, ",
            loaded->info.weight_bytes >> 20, " MiB of weights, ", loaded->info.kv.num_blocks,
            " KV blocks of ", loaded->info.kv.block_size, " tokens");
  return MakeHostExecutor(std::make_unique<CpuHostModel>(std::move(loaded)));
}

}  // namespace millrace::cpu
