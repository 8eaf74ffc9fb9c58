// For tests: an executor without a model, whose steps finish when the test says and sample what it
// says; or, where the limits are an encoder's, embed a row of n tokens as n, n + 1, n + 2 …
#ifndef MILLRACE_ENGINE_SCRIPTED_EXECUTOR_TEST_UTIL_H_
#define MILLRACE_ENGINE_SCRIPTED_EXECUTOR_TEST_UTIL_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "executors/executor.h"

namespace millrace {

// The test's side. Thread-safe; shared with the executor, which the engine owns.
class Script {
 public:
  // Samples the bytes of `text` one after another, for each sequence from its first generated
  // token; after its end, the byte tokenizer's EOS.
  explicit Script(std::string text) : text_(std::move(text)) {}

  // From now on steps wait for Finish.
  void Hold();
  // They finish at once again, those that wait too.
  void Release();
  // Lets the oldest step that waits finish; waits until there is one.
  void Finish();
  // The same, if there is one.
  void TryFinish();
  // The next step to finish fails as a device does; so does every later one.
  void FailDevice();
  // From now on steps are refused.
  void RefuseSteps();
  // Every row of the next step to finish fails by itself.
  void FailRows();

  // Sets what info() says of the model's embeddings. Call before the executor is made.
  void SetEmbedding(EmbeddingTraits traits) { traits_ = std::move(traits); }

  // Has steps take masks while they run. Call before the executor is made.
  void TakeLateMasks() { late_masks_ = true; }

  int num_submitted() const;
  int num_late_masks() const;  // that have come
  // Input tokens of all sequences' first rows: of their prompts, where these fit a step.
  int64_t num_in_first_rows() const;

 private:
  friend class ScriptedExecutor;
  struct Slot {
    std::shared_ptr<const SamplingParams> sampling;
    size_t sampled = 0;
  };

  void FinishOldest();
  RowResult RunRow(const StepPlan& plan, const StepRow& row, StepResult* result);

  const std::string text_;
  mutable std::mutex mutex_;
  std::condition_variable submitted_changed_;
  bool hold_ = false;
  bool device_failed_ = false;
  bool refuse_steps_ = false;
  bool fail_rows_ = false;
  int num_submitted_ = 0;
  int64_t num_in_first_rows_ = 0;
  int32_t embedding_size_ = 0;
  EmbeddingTraits traits_;
  bool late_masks_ = false;
  std::set<std::pair<StepId, int32_t>> awaited_masks_;  // the step and its logits
  int num_late_masks_ = 0;
  std::vector<Slot> slots_;
  std::deque<StepPlan> submitted_;
  std::deque<StepResult> finished_;
  std::function<void()> wake_ = [] {};
};

class ScriptedExecutor : public Executor {
 public:
  ScriptedExecutor(const StepLimits& limits, std::shared_ptr<Script> script);

  ~ScriptedExecutor() override;

  const ModelInfo& info() const override { return info_; }
  void OnResult(std::function<void()> wake) override;
  absl::Status Submit(StepPlan plan) override;
  absl::Status SetMasks(std::vector<LateMask> masks) override;
  std::optional<StepResult> Poll() override;
  std::optional<StepResult> Wait() override { return Poll(); }

 private:
  ModelInfo info_;
  const std::shared_ptr<Script> script_;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_SCRIPTED_EXECUTOR_TEST_UTIL_H_
