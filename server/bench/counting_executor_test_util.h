// A fake device whose model has two mixtures of experts.
#ifndef MILLRACE_SERVER_BENCH_COUNTING_EXECUTOR_TEST_UTIL_H_
#define MILLRACE_SERVER_BENCH_COUNTING_EXECUTOR_TEST_UTIL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "executors/executor.h"

namespace millrace {

// Runs another executor's steps. Of the first mixture, each step touches as many experts as it has
// tokens; of the second, 10.
class CountingExecutor final : public Executor {
 public:
  explicit CountingExecutor(std::unique_ptr<Executor> executor) : executor_(std::move(executor)) {}

  const ModelInfo& info() const override { return executor_->info(); }
  void OnResult(std::function<void()> wake) override { executor_->OnResult(std::move(wake)); }
  absl::Status Submit(StepPlan plan) override {
    for (const StepRow& row : plan.rows) uses_[0].touched += row.num_tokens;
    uses_[1].touched += 10;
    return executor_->Submit(std::move(plan));
  }
  std::optional<StepResult> Poll() override { return executor_->Poll(); }
  std::optional<StepResult> Wait() override { return executor_->Wait(); }

  // A kernel that moves a byte for each row, one for each position, and one for each expert.
  std::vector<int64_t> DecodeBytes(int32_t rows, int64_t positions,
                                   absl::Span<const double> touched) const override {
    const double experts = std::accumulate(touched.begin(), touched.end(), 0.0);
    return {rows, positions, static_cast<int64_t>(experts)};
  }
  absl::StatusOr<std::vector<MixtureUse>> MixtureUses() const override { return uses_; }
  std::optional<double> MeasureReadRate() const override { return 1e6; }

 private:
  std::unique_ptr<Executor> executor_;
  std::vector<MixtureUse> uses_ = {{.experts = 64, .expert_bytes = 100, .touched = 7},
                                   {.experts = 32, .expert_bytes = 1000, .touched = 8}};
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_BENCH_COUNTING_EXECUTOR_TEST_UTIL_H_
