// Decides which requests an engine takes, and knows all that are alive.
#ifndef MILLRACE_ENGINE_ADMISSION_CONTROL_H_
#define MILLRACE_ENGINE_ADMISSION_CONTROL_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "base/clock.h"
#include "engine/embedding_batch.h"
#include "engine/engine.h"
#include "engine/engine_loop.h"
#include "engine/engine_options.h"
#include "engine/live_request.h"
#include "engine/metrics.h"
#include "engine/text_set.h"
#include "scheduler/step_plan.h"

namespace millrace {

// The choices of one request, in their order.
using Choices = std::vector<std::shared_ptr<LiveRequest>>;

// Thread-safe. Owns the lock around everything that is alive.
class AdmissionControl {
 public:
  // All pointers outlive this.
  AdmissionControl(const EngineOptions* options, const EngineInfo* info, const StepLimits& limits,
                   const TextSet* text, EngineLoop* loop, EngineMetrics* metrics);
  AdmissionControl(const AdmissionControl&) = delete;
  AdmissionControl& operator=(const AdmissionControl&) = delete;

  // Checks the fields. InvalidArgument names the field, what came and what is allowed.
  absl::Status Check(const GenerateRequest& request) const;
  absl::Status Check(const EmbedRequest& request) const;

  // Counts the choices, or the batch, as alive and as still with the text pool, and says whether
  // they may come in; `checked` is Check's status. Every Enter has a Leave for each choice, or for
  // the batch, also where it was refused.
  absl::Status Enter(const Choices& choices, const absl::Status& checked);
  absl::Status Enter(const std::shared_ptr<EmbeddingBatch>& batch, const absl::Status& checked);

  // Counts a sequence out. Call before the client learns of the end, so that its next request finds
  // capacity.
  void Leave(const std::shared_ptr<LiveRequest>& request);
  void Leave(const std::shared_ptr<EmbeddingBatch>& batch);

  // Counts `count` sequences out that the text pool has handed to the engine thread, or given up.
  void LeaveText(size_t count);

  // Counts one more of a batch's inputs as running, unless half of the capacity is taken: the other
  // half is for requests that are yet to come.
  bool TakeInputPlace();
  void ReturnInputPlace();

  // Sequences that were accepted and do not run yet.
  int32_t num_not_running() const;

  // Counts a refusal in the metrics, by the status that the client gets.
  void CountRefusal(const absl::Status& why);

  // Makes Enter refuse from now on; accepted requests go on.
  void BeginDrain() { draining_ = true; }
  // Waits until nothing is alive, at most until `deadline`. Returns false if something still is.
  bool WaitIdle(SteadyTime deadline);

  // Returns the requests alive now.
  std::vector<std::shared_ptr<LiveRequest>> requests() const;
  std::vector<std::shared_ptr<EmbeddingBatch>> batches() const;

 private:
  int64_t most_alive() const;
  absl::Status CheckTakesWork() const;
  absl::Status CheckCapacity(int64_t num_alive) const;

  const EngineOptions& options_;
  const EngineInfo& info_;
  const StepLimits limits_;
  const TextSet& text_;
  EngineLoop& loop_;
  EngineMetrics& metrics_;

  std::atomic<int32_t> in_text_ = 0;  // sequences accepted, and not yet with the engine thread
  std::atomic<bool> draining_ = false;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable idle_;
  absl::flat_hash_set<std::shared_ptr<LiveRequest>> requests_;
  absl::flat_hash_set<std::shared_ptr<EmbeddingBatch>> batches_;
  size_t batch_bytes_ = 0;  // of batches_
  int64_t num_alive_ = 0;   // requests_, and of each batch as many inputs as run, at least one
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_ADMISSION_CONTROL_H_
