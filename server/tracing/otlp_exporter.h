// Sends the spans of requests to a collector: OTLP, protobuf over HTTP.
#ifndef MILLRACE_SERVER_TRACING_OTLP_EXPORTER_H_
#define MILLRACE_SERVER_TRACING_OTLP_EXPORTER_H_

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bounded_queue.h"
#include "base/event.h"
#include "engine/request/trace.h"
#include "hub/http_client.h"
#include "server/tracing/otlp_message.h"

namespace prometheus {
class Counter;
class Registry;
}  // namespace prometheus

namespace millrace {

struct OtlpOptions {
  std::string endpoint;  // http or https; without a path, /v1/traces is
  // More headers of each request, as OTEL_EXPORTER_OTLP_HEADERS gives them.
  std::vector<std::pair<std::string, std::string>> headers;
  TraceResource resource;
  Duration period = std::chrono::seconds(1);       // for which spans are gathered
  Duration retry_after = std::chrono::seconds(1);  // doubles with each try
};

// Reads "name=value,name=value", values percent-encoded, as OpenTelemetry's variables have it.
// Parts without a name are left out.
std::vector<std::pair<std::string, std::string>> ParseOtlpHeaders(std::string_view text);

// Keeps what waits in a bounded queue: beyond it, and when a collector does not take them in some
// tries, spans are dropped and counted. A request never waits for it.
class OtlpExporter final : public SpanSink {
 public:
  static constexpr size_t kMaxWaiting = 4096;  // spans
  static constexpr size_t kMaxBatch = 512;
  static constexpr int kTries = 5;
  static constexpr size_t kMaxReplyBytes = 64 << 10;

  OtlpExporter(OtlpOptions options, prometheus::Registry& registry);
  OtlpExporter(const OtlpExporter&) = delete;
  OtlpExporter& operator=(const OtlpExporter&) = delete;
  ~OtlpExporter() override;

  // Sends what waits, each batch once, for at most kLastWait. Where the last request failed, it
  // drops what waits and ends the request that runs, which libcurl does within a second. Later
  // spans are dropped. Called by one thread; the destructor does the same.
  void Close();
  static constexpr Duration kLastWait = std::chrono::seconds(1);

  // Takes the span unless its caller does not sample the trace.
  void OnSpan(RequestSpan span) override;

 private:
  enum class Sent { kTaken, kRefused, kTryAgain };

  void Run();
  void Export(const std::vector<RequestSpan>& spans);
  Sent Send(const HttpRequest& request, size_t spans);

  const OtlpOptions options_;
  prometheus::Counter* exported_;
  prometheus::Counter* dropped_;
  BoundedQueue<RequestSpan> queue_;
  std::atomic<bool> closing_ = false;
  std::atomic<bool> stop_ = false;  // of the client
  Event closed_;
  Event ended_;
  HttpClient client_;
  std::atomic<bool> failing_ = false;  // it has been logged
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_TRACING_OTLP_EXPORTER_H_
