// The settings of one engine.
#ifndef MILLRACE_ENGINE_ENGINE_OPTIONS_H_
#define MILLRACE_ENGINE_ENGINE_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "engine/block_event_sink.h"
#include "engine/request/sampling_defaults.h"
#include "engine/request/trace.h"
#include "speculative/lookup_drafter.h"

namespace millrace {

struct EngineOptions {
  std::string model_name;
  SamplingDefaults sampling;
  bool prefix_caching = true;
  std::optional<Duration> itl_slo = Duration::zero();     // SchedulerOptions::itl_slo
  std::optional<LookupOptions> lookup = LookupOptions();  // unset: nothing is drafted
  int32_t max_waiting = 1024;
  int text_threads = 2;
  int output_threads = 1;  // and one for requests that score their prompts
  Duration stall_timeout = std::chrono::seconds(10);
  Duration read_timeout = std::chrono::seconds(30);  // of a reader that takes nothing
  bool log_prompts = false;
  SpanSink* spans = nullptr;  // of ended requests; null: none are made. Outlives the engine
  // Takes the events of the prefix cache's blocks, and outlives the engine. Null: none are made.
  BlockEventSink* block_events = nullptr;
  // Bound on the inputs and embeddings of all batches that are alive, unless one is alone. One
  // request may ask for 2,048 embeddings.
  size_t max_embedding_bytes = size_t{512} << 20;
  // Called once, from the engine thread, when the device has failed and every request has been
  // given its end.
  std::function<void()> on_failure = [] {};
  const Clock* clock = &Clock::Real();
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_ENGINE_OPTIONS_H_
