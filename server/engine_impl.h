// The engine: text pool, engine thread, output shards and a watchdog, joined.
#ifndef MILLRACE_SERVER_ENGINE_IMPL_H_
#define MILLRACE_SERVER_ENGINE_IMPL_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "executors/executor.h"
#include "server/embedding_batch.h"
#include "server/engine.h"
#include "server/engine_loop.h"
#include "server/live_request.h"
#include "server/metrics.h"
#include "server/output_shard.h"
#include "server/prepare.h"
#include "server/text_pool.h"
#include "server/text_set.h"

namespace millrace {

struct EngineOptions {
  std::string model_name;
  SamplingDefaults sampling;
  bool prefix_caching = true;
  int32_t max_waiting = 1024;
  int text_threads = 2;
  int output_threads = 1;
  Duration stall_timeout = std::chrono::seconds(10);
  Duration read_timeout = std::chrono::seconds(30);  // of a reader that takes nothing
  bool log_prompts = false;
  // Of all requests for embeddings that are alive, unless it is one alone: what they ask for, and
  // the inputs. One request may want 2,048 embeddings.
  size_t max_embedding_bytes = size_t{512} << 20;
  // Called once, from the engine thread, when the device has failed and every request has been
  // given its end.
  std::function<void()> on_failure = [] {};
  const Clock* clock = &Clock::Real();
};

class EngineImpl final : public Engine, private ShardListener, private LoopListener {
 public:
  static absl::StatusOr<std::unique_ptr<EngineImpl>> Create(EngineOptions options,
                                                            std::unique_ptr<Executor> executor,
                                                            std::unique_ptr<const TextSet> text,
                                                            Metrics& metrics);
  // Every stream must have been dropped. Ends what is alive, and waits for the steps in flight.
  ~EngineImpl() override;

  const EngineInfo& info() const override { return info_; }
  std::vector<std::shared_ptr<ResponseStream>> Generate(GenerateRequest request,
                                                        std::function<void()> ready) override;
  std::function<void()> Embed(EmbedRequest request,
                              std::function<void(absl::StatusOr<Embeddings>)> done) override;
  void Tokenize(TokenizeRequest request,
                std::function<void(absl::StatusOr<TokenizeResult>)> done) override;
  void Detokenize(DetokenizeRequest request,
                  std::function<void(absl::StatusOr<std::string>)> done) override;
  Health health() const override;

  const LoopGauges& gauges() const { return loop_->gauges(); }

  // From now on new requests are refused; those that were accepted go on.
  void BeginDrain();
  // Waits until no request is alive, at most until `deadline`. False: some still are.
  bool WaitIdle(SteadyTime deadline);
  // Ends every request that is alive.
  void CancelAll(CancelReason reason);

 private:
  class Stream;
  using Choices = std::vector<std::shared_ptr<LiveRequest>>;  // of one request, in their order

  // Tokenize and Detokenize calls that may wait, beside the requests to generate.
  static constexpr size_t kMaxTextCalls = 1024;

  EngineImpl(EngineOptions options, SequenceDefaults defaults, EngineInfo info,
             std::unique_ptr<Scheduler> scheduler, std::unique_ptr<Executor> executor,
             std::unique_ptr<const TextSet> text, EngineMetrics& metrics);

  absl::Status CheckTakesWork() const;
  int64_t MostAlive() const;
  absl::Status CheckRoom(int64_t num_alive) const;
  absl::Status CheckFields(const GenerateRequest& request) const;
  absl::Status AdmitAtDoor(const GenerateRequest& request, const absl::Status& fields,
                           int64_t num_alive);
  int32_t NumNotRunning() const;
  std::optional<SteadyTime> ToSteady(std::optional<absl::Time> time) const;
  Choices MakeChoices(GenerateRequest request, const std::function<void()>& ready);
  void Prepare(const Choices& choices);
  absl::Status Admit(const Choices& choices);
  void LogPrompt(const std::string& id, const std::vector<Token>& prompt) const;
  void Admit(const Choices& choices, std::vector<SequenceRequest> sequences);
  void Deliver(const std::shared_ptr<LiveRequest>& request, OutputEvent last);
  void CountRefusal(const absl::Status& why);
  void Refuse(const Choices& choices, const absl::Status& why);
  void LeaveText(size_t requests);

  using Batch = std::shared_ptr<EmbeddingBatch>;
  absl::Status CheckFields(const EmbedRequest& request) const;
  void Prepare(const Batch& batch);
  absl::Status EncodeInputs(EmbeddingBatch& batch);
  absl::StatusOr<std::vector<Token>> EncodeInput(const EmbeddingBatch& batch, size_t input) const;
  void HandOver(const Batch& batch);
  bool TakeMorePlaces();
  void CancelRunning(const EmbeddingBatch& batch, CancelReason reason);
  void Cancel(EmbeddingBatch& batch, CancelReason reason);
  void End(const Batch& batch);

  void Cancel(const std::shared_ptr<LiveRequest>& request, CancelReason reason);
  uint64_t DrawSeed();
  OutputShard& ShardOf(const LiveRequest& request);

  void OnNoMoreWanted(const std::shared_ptr<LiveRequest>& request, absl::Status why) override;
  void OnToken(const LiveRequest& request, std::optional<Duration> since_previous,
               Duration since_arrival) override;
  void OnFinish(const std::shared_ptr<LiveRequest>& request, OutputEvent last,
                const SequenceEnd& end) override;
  void OnEmbedded(const std::shared_ptr<LiveRequest>& request, absl::Span<const float> embedding,
                  const SequenceEnd& end) override;
  void OnRoom() override;
  void OnTurn(const SchedulerStats& stats) override;
  void OnStep(int64_t num_tokens) override;
  void OnDeviceFailure(const absl::Status& status) override;

  void Watch();
  void CheckStall(SteadyTime now);
  void CancelSlowReaders(SteadyTime now);
  std::vector<std::shared_ptr<LiveRequest>> Live() const;

  const EngineOptions options_;
  const SequenceDefaults defaults_;
  const EngineInfo info_;
  const Clock& clock_;
  const std::unique_ptr<const TextSet> text_;
  EngineMetrics& metrics_;

  std::atomic<uint64_t> next_key_ = 1;
  std::atomic<uint64_t> seed_state_;
  std::atomic<int32_t> in_text_ = 0;  // accepted, and not yet with the engine thread
  std::atomic<bool> draining_ = false;
  std::atomic<bool> stalled_ = false;

  mutable std::mutex live_mutex_;
  std::condition_variable idle_;
  absl::flat_hash_set<std::shared_ptr<LiveRequest>> live_;  // guarded by live_mutex_
  absl::flat_hash_set<Batch> batches_;                      // guarded by live_mutex_
  size_t batch_bytes_ = 0;                                  // of batches_; guarded by live_mutex_
  // Those in live_, and of each batch as many as run, at least one. Guarded by live_mutex_.
  int64_t num_alive_ = 0;

  // Threads: in the order in which what they use must outlive them.
  std::vector<std::unique_ptr<OutputShard>> shards_;
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<TextPool> pool_;

  std::mutex watch_mutex_;
  std::condition_variable watch_changed_;
  bool watch_ends_ = false;  // guarded by watch_mutex_
  std::thread watchdog_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_ENGINE_IMPL_H_
