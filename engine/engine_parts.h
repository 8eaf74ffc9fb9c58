// The parts of an engine that carry a request on its way: text pool, engine thread, output shards.
#ifndef MILLRACE_ENGINE_ENGINE_PARTS_H_
#define MILLRACE_ENGINE_ENGINE_PARTS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/admission_control.h"
#include "engine/drafters.h"
#include "engine/engine.h"
#include "engine/engine_loop.h"
#include "engine/engine_options.h"
#include "engine/live_request.h"
#include "engine/metrics/metrics.h"
#include "engine/output_shard.h"
#include "engine/prepare.h"
#include "engine/text/text_pool.h"
#include "engine/text_set.h"

namespace millrace {

// Shared by those that begin requests (Generator, Embedder) and by the watchdog. Every member is
// constant or has its own lock. Threads lie in the order in which what they use must outlive them.
struct EngineParts {
  // Tokenize and Detokenize calls that may wait, beside the requests to generate.
  static constexpr size_t kMaxTextCalls = 1024;
  // Events of all answers that lie unread, beyond what each has of its own.
  static constexpr size_t kMaxUnreadBytes = 64 << 20;

  EngineParts(EngineOptions options_in, SequenceDefaults defaults_in, EngineInfo info_in,
              std::unique_ptr<Scheduler> scheduler, std::unique_ptr<Executor> executor,
              std::unique_ptr<const TextSet> text_in, EngineMetrics& metrics_in,
              ShardListener* shard_listener, LoopListener* loop_listener);

  // Ends the request early; it still gets its last event.
  void Cancel(const std::shared_ptr<LiveRequest>& request, CancelReason reason);

  // Returns the reason that is told: a client that goes when its deadline comes goes because of it.
  CancelReason ReasonBy(std::optional<SteadyTime> deadline, CancelReason reason) const;

  OutputShard& ShardOf(const LiveRequest& request);

  // Returns the engine's clock at `time`.
  std::optional<SteadyTime> ToSteady(std::optional<absl::Time> time) const;

  // Returns the vocabulary that grammars work on, made by the first call.
  std::shared_ptr<const GrammarVocabulary> Vocabulary();

  // Writes the prompt's text on a log line of the request.
  void LogPrompt(const std::string& id, const std::vector<Token>& prompt) const;

  const EngineOptions options;
  const SequenceDefaults defaults;
  const EngineInfo info;
  const Clock& clock;
  const std::unique_ptr<const TextSet> text;
  const bool takes_masks;  // the executor does
  Drafters drafters;
  GrammarCache grammars;
  EngineMetrics& metrics;
  // Shared: a caller may let go of an answer after the engine's end.
  const std::shared_ptr<UnreadBudgets> unread = std::make_shared<UnreadBudgets>(kMaxUnreadBytes);
  std::atomic<uint64_t> next_key = 1;  // LiveRequest::key of the next one

  std::vector<std::unique_ptr<OutputShard>> shards;
  EngineLoop loop;
  AdmissionControl admission;
  std::unique_ptr<TextPool> pool;

 private:
  std::once_flag vocabulary_made_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_ENGINE_PARTS_H_
