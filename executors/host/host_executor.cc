#include "executors/host/host_executor.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/status.h"
#include "executors/host/slots.h"
#include "executors/plan_checker.h"
#include "executors/step_worker.h"

namespace millrace {
namespace {

class HostExecutor : public Executor {
 public:
  explicit HostExecutor(std::unique_ptr<HostModel> model)
      : model_(std::move(model)),
        checker_(model_->info().limits),
        slots_(model_->info().limits),
        runner_([this](const StepPlan& plan) { return Run(plan); }),
        worker_(runner_) {}

  const ModelInfo& info() const override { return model_->info(); }
  void OnResult(std::function<void()> wake) override { worker_.OnResult(std::move(wake)); }

  absl::Status Submit(StepPlan plan) override {
    MILLRACE_RETURN_IF_ERROR(worker_.Ready());
    MILLRACE_RETURN_IF_ERROR(checker_.Check(plan));
    return worker_.Submit(std::move(plan));
  }

  absl::StatusOr<std::vector<MixtureUse>> MixtureUses() const override {
    const absl::Span<const MixtureUse> uses = model_->mixture_uses();
    return std::vector<MixtureUse>(uses.begin(), uses.end());
  }

  std::optional<StepResult> Poll() override { return worker_.Poll(); }
  std::optional<StepResult> Wait() override { return worker_.Wait(); }

 private:
  StepResult Run(const StepPlan& plan) {
    for (const BlockCopy& copy : plan.copies) model_->Copy(copy);
    slots_.Begin(plan, &input_);
    absl::Span<const Sampled> sampled;
    if (!input_.tokens.empty()) {
      absl::StatusOr<absl::Span<const Sampled>> ran = model_->Run(input_);
      if (!ran.ok()) return {.id = plan.id, .status = std::move(ran).status()};
      sampled = *ran;
    }
    StepResult result = slots_.End(plan, sampled);
    if (info().limits.embedding_size > 0) AddEmbeddings(result);
    return result;
  }

  void AddEmbeddings(StepResult& result) const {
    const absl::Span<const float> embeddings = model_->embeddings();
    const int32_t size = info().limits.embedding_size;
    result.embeddings.assign(embeddings.begin(), embeddings.end());
    int32_t begin = 0;
    for (RowResult& row : result.rows) {
      row.embedding = {begin, begin + size};
      begin += size;
      const auto values = embeddings.subspan(row.embedding.begin, size);
      if (std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); })) {
        continue;
      }
      row.status = absl::InternalError("the model's embedding is not of finite numbers");
      row.embedding = {};
    }
  }

  std::unique_ptr<HostModel> model_;
  PlanChecker checker_;
  Slots slots_;
  CpuStepInput input_;
  SerialStepRunner runner_;
  StepWorker worker_;  // last, since its thread uses the members above
};

}  // namespace

std::unique_ptr<Executor> MakeHostExecutor(std::unique_ptr<HostModel> model) {
  return std::make_unique<HostExecutor>(std::move(model));
}

}  // namespace millrace
