#include "engine/scripted_executor_test_util.h"

#include <utility>

namespace millrace {
namespace {

constexpr Token kEos = 257;

}  // namespace

void Script::Hold() {
  std::lock_guard lock(mutex_);
  hold_ = true;
}

void Script::Release() {
  std::lock_guard lock(mutex_);
  hold_ = false;
  while (!submitted_.empty()) FinishOldest();
}

void Script::Finish() {
  std::unique_lock lock(mutex_);
  submitted_changed_.wait(lock, [this] { return !submitted_.empty(); });
  FinishOldest();
}

void Script::TryFinish() {
  std::lock_guard lock(mutex_);
  if (!submitted_.empty()) FinishOldest();
}

void Script::FailDevice() {
  std::lock_guard lock(mutex_);
  device_failed_ = true;
}

void Script::RefuseSteps() {
  std::lock_guard lock(mutex_);
  refuse_steps_ = true;
}

void Script::FailRows() {
  std::lock_guard lock(mutex_);
  fail_rows_ = true;
}

int Script::num_submitted() const {
  std::lock_guard lock(mutex_);
  return num_submitted_;
}

int Script::num_late_masks() const {
  std::lock_guard lock(mutex_);
  return num_late_masks_;
}

int64_t Script::num_in_first_rows() const {
  std::lock_guard lock(mutex_);
  return num_in_first_rows_;
}

RowResult Script::RunRow(const StepPlan& plan, const StepRow& row, StepResult* result) {
  RowResult row_result{.slot = row.slot};
  if (fail_rows_) {
    row_result.status = absl::InternalError("the model's output is not finite");
    return row_result;
  }
  Slot& slot = slots_[row.slot];
  row_result.tokens.begin = static_cast<int32_t>(result->tokens.size());
  for (int32_t i = row.logits.begin; i < row.logits.end; ++i) {
    TokenResult token;
    if (plan.logits[i].target.has_value()) {
      token.token = *plan.logits[i].target;
    } else {
      token.token = slot.sampled < text_.size() ? static_cast<uint8_t>(text_[slot.sampled]) : kEos;
      ++slot.sampled;
    }
    if (const auto top = slot.sampling->top_logprobs) {
      token.logprob = -0.5f;
      token.rank = 1;
      token.top.begin = static_cast<int32_t>(result->top.size());
      for (int32_t k = 0; k < *top; ++k) result->top.push_back({'a' + k, -0.5f - k});
      token.top.end = static_cast<int32_t>(result->top.size());
    }
    result->tokens.push_back(token);
  }
  row_result.tokens.end = static_cast<int32_t>(result->tokens.size());
  row_result.embedding.begin = static_cast<int32_t>(result->embeddings.size());
  for (int32_t i = 0; i < embedding_size_; ++i) {
    result->embeddings.push_back(static_cast<float>(row.num_tokens + i));
  }
  row_result.embedding.end = static_cast<int32_t>(result->embeddings.size());
  return row_result;
}

// Under the lock.
void Script::FinishOldest() {
  const StepPlan plan = std::move(submitted_.front());
  submitted_.pop_front();
  StepResult result;
  result.id = plan.id;
  if (device_failed_) {
    result.status = absl::UnavailableError("scripted device failure");
  } else {
    for (const SlotStart& start : plan.starts) slots_[start.slot] = {start.sampling};
    for (const StepRow& row : plan.rows) result.rows.push_back(RunRow(plan, row, &result));
    fail_rows_ = false;
  }
  finished_.push_back(std::move(result));
  wake_();
}

ScriptedExecutor::ScriptedExecutor(const StepLimits& limits, std::shared_ptr<Script> script)
    : script_(std::move(script)) {
  info_ = {.architecture = "scripted",
           .digest = std::string(32, 'd'),
           .takes_masks = script_->late_masks_,
           .takes_late_masks = script_->late_masks_,
           .limits = limits,
           .kv_type = "none",
           .embedding = script_->traits_};
  script_->slots_.resize(limits.max_num_seqs);
  script_->embedding_size_ = limits.embedding_size;
}

ScriptedExecutor::~ScriptedExecutor() {
  std::lock_guard lock(script_->mutex_);
  script_->wake_ = [] {};
}

void ScriptedExecutor::OnResult(std::function<void()> wake) {
  std::lock_guard lock(script_->mutex_);
  script_->wake_ = std::move(wake);
}

absl::Status ScriptedExecutor::Submit(StepPlan plan) {
  std::lock_guard lock(script_->mutex_);
  if (script_->refuse_steps_) return absl::UnavailableError("scripted refusal");
  ++script_->num_submitted_;
  for (const SlotStart& start : plan.starts) {
    for (const StepRow& row : plan.rows) {
      if (row.slot == start.slot) script_->num_in_first_rows_ += row.num_tokens;
    }
  }
  for (int32_t i = 0; i < static_cast<int32_t>(plan.logits.size()); ++i) {
    if (plan.logits[i].late_mask) script_->awaited_masks_.emplace(plan.id, i);
  }
  script_->submitted_.push_back(std::move(plan));
  script_->submitted_changed_.notify_all();
  if (!script_->hold_) script_->FinishOldest();
  return absl::OkStatus();
}

absl::Status ScriptedExecutor::SetMasks(std::vector<LateMask> masks) {
  std::lock_guard lock(script_->mutex_);
  for (const LateMask& late : masks) {
    if (!script_->awaited_masks_.contains({late.step, late.logits})) {
      return absl::InvalidArgumentError("a mask that no step waits for");
    }
  }
  for (const LateMask& late : masks) script_->awaited_masks_.erase({late.step, late.logits});
  script_->num_late_masks_ += static_cast<int>(masks.size());
  return absl::OkStatus();
}

std::optional<StepResult> ScriptedExecutor::Poll() {
  std::lock_guard lock(script_->mutex_);
  if (script_->finished_.empty()) return std::nullopt;
  std::optional<StepResult> result(std::move(script_->finished_.front()));
  script_->finished_.pop_front();
  return result;
}

}  // namespace millrace
