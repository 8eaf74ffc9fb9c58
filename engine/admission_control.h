// Decides which requests an engine takes, and knows all that are alive.
#ifndef MILLRACE_ENGINE_ADMISSION_CONTROL_H_
#define MILLRACE_ENGINE_ADMISSION_CONTROL_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
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
#include "engine/metrics/metrics.h"
#include "engine/text_set.h"
#include "plan/step_plan.h"

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
  // `evicted` gets the batches that had to make room, for the caller to cancel (kEvicted).
  absl::Status Enter(const std::shared_ptr<EmbeddingBatch>& batch, const absl::Status& checked,
                     std::vector<std::shared_ptr<EmbeddingBatch>>* evicted);

  // Counts a sequence out. Call before the client learns of the end, so that its next request finds
  // capacity. The tokens are what the sequence has used.
  void Leave(const std::shared_ptr<LiveRequest>& request, int64_t prompt_tokens,
             int64_t generation_tokens);
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

  // Unavailable while the server drains, and once the device has failed.
  absl::Status CheckTakesWork() const;
  // Makes Enter refuse from now on; accepted requests go on.
  void BeginDrain() { draining_ = true; }
  // Waits until nothing is alive, at most until `deadline`. Returns false if something still is.
  bool WaitIdle(SteadyTime deadline);

  // Returns the requests alive now.
  std::vector<std::shared_ptr<LiveRequest>> requests() const;
  std::vector<std::shared_ptr<EmbeddingBatch>> batches() const;

 private:
  int64_t most_alive() const;
  absl::Status CheckDimensions(int32_t dimensions) const;
  // The sequences of one tenant.
  struct Holder {
    int64_t alive = 0;  // sequences and batches, without those that were evicted
    // Requests by their first key, batches by their number: the latest come last. A batch sends
    // nothing before its end.
    std::map<uint64_t, Choices> evictable;
    std::map<uint64_t, std::shared_ptr<EmbeddingBatch>> batches;
    bool holds_evictable() const { return !evictable.empty() || !batches.empty(); }
  };
  struct Evicted {
    Choices choices;
    std::vector<std::shared_ptr<EmbeddingBatch>> batches;
  };

  absl::Status QueueIsFull() const;
  bool MakeRoom(uint32_t tenant, Evicted& evicted);
  void EvictOne(Holder& holder, Evicted& evicted);
  void LeaveHolder(uint32_t id, int64_t count);

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
  uint64_t next_batch_ = 0;
  std::map<uint32_t, Holder> holders_;  // by Tenant::id; 0: of none
  int64_t num_evicting_ = 0;            // evicted, and not yet left
  int64_t num_alive_ = 0;  // requests_, and of each batch as many inputs as run, at least one
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_ADMISSION_CONTROL_H_
