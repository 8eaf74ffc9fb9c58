#include "executors/cpu/cpu_executor.h"

#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "executors/cpu/cpu_model.h"
#include "executors/cpu/slots.h"
#include "executors/plan_checker.h"
#include "executors/step_worker.h"

namespace millrace::cpu {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

class CpuExecutor : public Executor {
 public:
  explicit CpuExecutor(std::unique_ptr<CpuModel> model)
      : model_(std::move(model)),
        checker_(model_->info.limits),
        slots_(model_->info.limits),
        runner_([this](const StepPlan& plan) { return Run(plan); }),
        worker_(runner_) {}

  const ModelInfo& info() const override { return model_->info; }
  void OnResult(std::function<void()> wake) override { worker_.OnResult(std::move(wake)); }

  absl::Status Submit(StepPlan plan) override {
    MILLRACE_RETURN_IF_ERROR(worker_.Ready());
    MILLRACE_RETURN_IF_ERROR(checker_.Check(plan));
    return worker_.Submit(std::move(plan));
  }

  std::optional<StepResult> Poll() override { return worker_.Poll(); }
  std::optional<StepResult> Wait() override { return worker_.Wait(); }

 private:
  StepResult Run(const StepPlan& plan) {
    const KvArena& kv = model_->kv;
    for (const BlockCopy& copy : plan.copies) {
      std::memcpy(kv.Page(copy.dst, 0, 0), kv.Page(copy.src, 0, 0), kv.block_bytes);
    }
    slots_.Begin(plan, &input_);
    if (!input_.tokens.empty()) {
      model_->ops->BeginStep();
      model_->model->Forward(*model_->ops, input_);
    }
    return slots_.End(plan, model_->ops->sampled());
  }

  std::unique_ptr<CpuModel> model_;
  PlanChecker checker_;
  Slots slots_;
  CpuStepInput input_;
  SerialStepRunner runner_;
  StepWorker worker_;  // last: it uses what is above
};

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> LoadCpuExecutor(const ModelSpec& model,
                                                          const DeviceSpec& device,
                                                          const Kernels& kernels) {
  MILLRACE_ASSIGN_OR_RETURN(std::unique_ptr<CpuModel> loaded, LoadCpuModel(model, device, kernels));
  kLog.Info("cpu executor: ", kernels.name, ", ", loaded->pool->num_threads(), " threads, ",
            loaded->info.weight_bytes >> 20, " MiB of weights, ", loaded->info.kv.num_blocks,
            " KV blocks of ", loaded->info.kv.block_size, " tokens");
  return std::make_unique<CpuExecutor>(std::move(loaded));
}

}  // namespace millrace::cpu
