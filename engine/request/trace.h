// Traces: a request's place in one, and the span that is left of it.
#ifndef MILLRACE_ENGINE_REQUEST_TRACE_H_
#define MILLRACE_ENGINE_REQUEST_TRACE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/clock.h"

namespace millrace {

using TraceId = std::array<uint8_t, 16>;
using SpanId = std::array<uint8_t, 8>;

// The span that a caller works in, as the headers traceparent and tracestate give it (W3C Trace
// Context, level 1).
struct TraceContext {
  TraceId trace_id{};
  SpanId span_id{};
  bool sampled = false;
  std::string state;  // passed on as it came
};

// Returns nothing for a `parent` that is not valid; as the standard asks, that is no error. A state
// that is not fit to be passed on is left out.
std::optional<TraceContext> ParseTraceContext(std::string_view parent, std::string_view state);

TraceId NewTraceId();
SpanId NewSpanId();

// One choice of a request, or all inputs of an embedding, from arrival to end.
struct RequestSpan {
  std::string request_id;
  std::string model;
  std::optional<TraceContext> parent;  // unset: the request begins a trace
  std::string_view finish_reason;      // as Name(FinishReason) has it
  absl::Status status;

  SteadyTime arrival;
  std::optional<SteadyTime> first_scheduled;
  std::optional<SteadyTime> first_token;
  SteadyTime ended;

  int32_t choice = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  // The next four are set for generations alone.
  std::optional<int32_t> n;
  std::optional<int32_t> max_tokens;
  std::optional<float> temperature;
  std::optional<float> top_p;
};

// Takes the spans of ended requests.
class SpanSink {
 public:
  virtual ~SpanSink() = default;
  // Called from any thread. Must not block.
  virtual void OnSpan(RequestSpan span) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_REQUEST_TRACE_H_
