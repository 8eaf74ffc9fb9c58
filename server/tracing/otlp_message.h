// Spans as OTLP (OpenTelemetry's protocol 1.x) has them.
#ifndef MILLRACE_SERVER_TRACING_OTLP_MESSAGE_H_
#define MILLRACE_SERVER_TRACING_OTLP_MESSAGE_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "base/clock.h"
#include "engine/request/trace.h"

namespace millrace {

struct TraceResource {
  std::string service_name;
  std::string version;
};

// Returns an ExportTraceServiceRequest, serialized. Each request is a span "llm_request" with
// vLLM's attributes, and below it "queue", "prefill" and "decode" as far as it got.
// `to_unix`: from the clock of the spans to the time since 1970.
std::string EncodeSpans(absl::Span<const RequestSpan> spans, const TraceResource& resource,
                        Duration to_unix);

// Returns how many spans a collector's answer says it did not take, and sets why.
size_t RejectedSpans(std::string_view response, std::string& why);

}  // namespace millrace

#endif  // MILLRACE_SERVER_TRACING_OTLP_MESSAGE_H_
