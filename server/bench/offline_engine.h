// The engine that serves, without endpoints and text: one caller hands it a batch of prompts and
// waits.
#ifndef MILLRACE_SERVER_BENCH_OFFLINE_ENGINE_H_
#define MILLRACE_SERVER_BENCH_OFFLINE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/event.h"
#include "engine/engine_loop.h"
#include "engine/event_sink.h"
#include "engine/prepare.h"
#include "executors/executor.h"

namespace millrace {

// Prompts that are answered together, each with exactly `new_tokens` tokens.
struct OfflineBatch {
  std::vector<std::vector<Token>> prompts;
  int32_t new_tokens = 1;
  float temperature = 0;
};

// The cost of answering a batch. Steps are counted in the order in which they ran.
struct OfflineRun {
  Duration wall;  // from the prompts' tokens to the last answer's end
  int32_t steps = 0;
  // The steps that gave each sequence one token and did nothing else.
  int32_t whole_steps = 0;
  int32_t first_whole_step = 0;
  int64_t prefix_hits = 0;  // tokens of the prompts that the prefix cache had
  int64_t preemptions = 0;
  std::vector<MixtureUse> mixtures;  // with what this run's steps touched, prompts included
};

// Generate belongs to one thread.
class OfflineEngine final : private EventSink, private LoopListener {
 public:
  static absl::StatusOr<std::unique_ptr<OfflineEngine>> Create(std::unique_ptr<Executor> executor,
                                                               bool prefix_caching);
  ~OfflineEngine() override = default;

  const ModelInfo& info() const { return info_; }
  std::vector<int64_t> DecodeBytes(int32_t rows, int64_t positions,
                                   const std::vector<double>& touched) const {
    return executor_.DecodeBytes(rows, positions, touched);
  }
  std::optional<double> MeasureReadRate() const { return executor_.MeasureReadRate(); }

  // Admits the whole batch, then lets the engine run; returns when every answer has ended. An
  // error: a prompt that can never fit, a row or a device that failed.
  absl::StatusOr<OfflineRun> Generate(const OfflineBatch& batch);

 private:
  OfflineEngine(std::unique_ptr<Scheduler> scheduler, std::unique_ptr<Executor> executor,
                bool prefix_caching);

  absl::StatusOr<std::vector<Admission>> MakeAdmissions(const OfflineBatch& batch);

  // Called by the engine thread.
  void Deliver(std::shared_ptr<const StepResult> result, std::vector<RoutedEvent> events,
               SteadyTime when) override;
  bool HasCapacity() override { return open_; }
  void OnIteration(const SchedulerStats& stats) override;
  void OnStep(const StepFigures& step) override;
  void OnDeviceFailure(const absl::Status& status) override;

  const ModelInfo info_;
  const Executor& executor_;  // the loop's
  const SequenceDefaults defaults_;
  const Clock& clock_ = Clock::Real();
  uint64_t last_key_ = 0;

  Event done_;
  bool open_ = false;  // the engine thread's: it has the whole batch, and steps may be planned

  std::mutex mutex_;  // guards what follows
  bool running_ = false;
  int32_t batch_size_ = 0;
  int32_t unfinished_ = 0;
  int32_t sampled_ = 0;  // sequences that got a token from the step that is being committed
  OfflineRun run_;
  SchedulerStats stats_;
  absl::Status status_;

  EngineLoop loop_;  // ends first
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_BENCH_OFFLINE_ENGINE_H_
