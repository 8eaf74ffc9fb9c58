#include "executors/host/host_executor.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "executors/draft_mailbox.h"
#include "executors/host/slots.h"
#include "executors/plan_checker.h"
#include "executors/step_worker.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

// The host samples for every model, under masks that it has when the step begins.
ModelInfo WithSampling(ModelInfo info, bool drafts) {
  info.takes_masks = true;
  if (!drafts) return info;
  info.max_draft_tokens = kMaxDraftTokens;
  info.max_step_draft_tokens =
      info.limits.has_slots() ? kMaxStateDraftTokens : info.limits.max_num_batched_tokens;
  return info;
}

class HostExecutor : public Executor {
 public:
  HostExecutor(std::unique_ptr<HostModel> model, bool drafts)
      : parts_(new Parts(std::move(model))),
        model_(parts_->model.get()),
        info_(WithSampling(model_->info(), drafts)),
        checker_(info_),
        runner_([this](StepPlan plan) { return Run(std::move(plan)); }),
        worker_(runner_) {}

  const ModelInfo& info() const override { return info_; }
  void OnResult(std::function<void()> wake) override { worker_.OnResult(std::move(wake)); }

  absl::Status Submit(StepPlan plan) override {
    MILLRACE_RETURN_IF_ERROR(worker_.Ready());
    MILLRACE_RETURN_IF_ERROR(checker_.Check(plan));
    return worker_.Submit(std::move(plan));
  }

  absl::Status SetDrafts(std::vector<LateDraft> drafts) override {
    MILLRACE_RETURN_IF_ERROR(checker_.CheckDrafts(drafts));
    drafts_.Put(std::move(drafts));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<MixtureUse>> MixtureUses() const override {
    return model_->mixture_uses();
  }

  std::optional<StepResult> Poll() override { return worker_.Poll(); }
  std::optional<StepResult> Wait() override { return worker_.Wait(); }

 private:
  // The state that the model's threads use in a step.
  struct Parts {
    explicit Parts(std::unique_ptr<HostModel> loaded)
        : model(std::move(loaded)), slots(model->info().limits) {}

    std::unique_ptr<HostModel> model;
    Slots slots;
    CpuStepInput input;
    StepPlan plan;  // which the input points into
  };
  struct LeakIfItHangs {
    void operator()(Parts* parts) const {
      if (!parts->model->Hangs()) delete parts;
    }
  };

  StepResult Run(StepPlan submitted) {
    parts_->plan = std::move(submitted);
    StepPlan& plan = parts_->plan;
    drafts_.FillAll(plan);
    if (!plan.moves.empty()) {
      absl::Status moved = model_->Move(plan.moves);
      if (!moved.ok()) return {.id = plan.id, .status = std::move(moved)};
    }
    CpuStepInput& input = parts_->input;
    parts_->slots.Begin(plan, &input);
    absl::Span<const Sampled> sampled;
    if (!input.tokens.empty()) {
      absl::StatusOr<absl::Span<const Sampled>> ran = model_->Run(input);
      if (absl::IsResourceExhausted(ran.status())) {
        kLog.Error("a step's requests fail: ", std::string(ran.status().message()));
        // The plan of memory was wrong, not the request: clients are not to try again.
        return parts_->slots.Fail(plan, absl::InternalError(ran.status().message()));
      }
      if (!ran.ok()) return {.id = plan.id, .status = std::move(ran).status()};
      sampled = *ran;
    }
    StepResult result = parts_->slots.End(plan, sampled);
    const auto has_draft = [](const StepRow& row) { return row.num_draft > 0; };
    if (info_.limits.has_slots() && std::any_of(plan.rows.begin(), plan.rows.end(), has_draft)) {
      absl::Status accepted = model_->AcceptDrafts(parts_->slots.accepted());
      if (!accepted.ok()) return {.id = plan.id, .status = std::move(accepted)};
    }
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

  const std::unique_ptr<Parts, LeakIfItHangs> parts_;
  HostModel* const model_;
  const ModelInfo info_;
  PlanChecker checker_;
  DraftMailbox drafts_;
  SerialStepRunner runner_;
  StepWorker worker_;  // last, since its thread uses the members above
};

}  // namespace

std::unique_ptr<Executor> MakeHostExecutor(std::unique_ptr<HostModel> model, bool drafts) {
  return std::make_unique<HostExecutor>(std::move(model), drafts);
}

}  // namespace millrace
