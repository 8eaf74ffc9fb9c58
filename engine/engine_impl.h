// Joins the parts of an engine: what begins requests, what carries them, and the watchdog.
#ifndef MILLRACE_ENGINE_ENGINE_IMPL_H_
#define MILLRACE_ENGINE_ENGINE_IMPL_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/embedder.h"
#include "engine/engine.h"
#include "engine/engine_options.h"
#include "engine/engine_parts.h"
#include "engine/generator.h"
#include "engine/metrics/metrics.h"
#include "engine/text_calls.h"
#include "engine/text_set.h"
#include "engine/watchdog.h"
#include "executors/executor.h"

namespace millrace {

class EngineImpl final : public Engine, private ShardListener, private LoopListener {
 public:
  static absl::StatusOr<std::unique_ptr<EngineImpl>> Create(EngineOptions options,
                                                            std::unique_ptr<Executor> executor,
                                                            std::unique_ptr<const TextSet> text,
                                                            Metrics& metrics);
  // Every stream must have been dropped. Ends what is alive, and waits for the steps in flight.
  ~EngineImpl() override;

  const EngineInfo& info() const override { return parts_.info; }
  std::vector<std::shared_ptr<ResponseStream>> Generate(GenerateRequest request,
                                                        std::function<void()> ready) override;
  std::function<void()> Embed(EmbedRequest request,
                              std::function<void(absl::StatusOr<Embeddings>)> done) override;
  std::function<void()> Tokenize(
      TokenizeRequest request, std::function<void(absl::StatusOr<TokenizeResult>)> done) override {
    return text_calls_.Tokenize(std::move(request), std::move(done));
  }
  std::function<void()> Detokenize(DetokenizeRequest request,
                                   std::function<void(absl::StatusOr<std::string>)> done) override {
    return text_calls_.Detokenize(std::move(request), std::move(done));
  }
  bool Report(std::function<void(EngineStatus)> done) override {
    return parts_.loop.Report(std::move(done));
  }
  Health health() const override;

  const LoopGauges& gauges() const { return parts_.loop.gauges(); }

  void BeginDrain() override;
  bool WaitIdle(SteadyTime deadline) override;
  void CancelAll() override { CancelAll(CancelReason::kDrain); }
  // Ends every request that is alive.
  void CancelAll(CancelReason reason);

 private:
  EngineImpl(EngineOptions options, SequenceDefaults defaults, EngineInfo info,
             std::unique_ptr<Scheduler> scheduler, std::unique_ptr<Executor> executor,
             std::unique_ptr<const TextSet> text, EngineMetrics& metrics);

  void OnNoMoreWanted(const std::shared_ptr<LiveRequest>& request, absl::Status why) override;
  void CountPrompt(const LiveRequest& request, int64_t cached_tokens);
  void OnToken(const LiveRequest& request, std::optional<Duration> since_previous,
               Duration since_arrival) override;
  void OnFinish(const std::shared_ptr<LiveRequest>& request, OutputEvent last,
                const SequenceEnd& end) override;
  void OnEmbedded(const std::shared_ptr<LiveRequest>& request, absl::Span<const float> embedding,
                  const SequenceEnd& end) override;
  void OnCapacity() override;
  void OnIteration(const SchedulerStats& stats) override;
  void OnStep(const StepFigures& step) override;
  void OnDeviceFailure(const absl::Status& status) override;

  EngineParts parts_;
  Generator generator_;
  Embedder embedder_;
  TextCalls text_calls_;
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_ENGINE_IMPL_H_
