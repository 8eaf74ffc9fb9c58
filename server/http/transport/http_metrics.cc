#include "server/http/transport/http_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/summary.h>

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/log_fields.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kHttp);

using Buckets = prometheus::Histogram::BucketBoundaries;

// Seconds: the instrumentator's two resolutions.
const Buckets& LowResolution() {
  static const auto* const buckets = new Buckets{0.1, 0.5, 1};
  return *buckets;
}
const Buckets& HighResolution() {
  static const auto* const buckets =
      new Buckets{0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1,  1.5, 2,
                  2.5,  3,     3.5,  4,     4.5, 5,    7.5, 10,   30, 60};
  return *buckets;
}

// A client may send any word for a method, and each would be a series.
std::string MethodLabel(std::string_view method) {
  constexpr std::array<std::string_view, 7> kKnown = {"GET",    "HEAD",    "POST", "PUT",
                                                      "DELETE", "OPTIONS", "PATCH"};
  const bool known = std::find(kKnown.begin(), kKnown.end(), method) != kKnown.end();
  return known ? std::string(method) : "OTHER";
}

// The name of a field may be any text of the client's. A line is read as words.
std::string OneWord(std::string_view param) {
  std::string word = Printable(param, 64);
  std::replace(word.begin(), word.end(), ' ', '_');
  return word;
}

void Log(const AccessRecord& record) {
  const LogLevel level = record.routine ? LogLevel::kDebug : LogLevel::kInfo;
  if (!kLog.Enabled(level)) return;
  const std::string method = Printable(record.method, 16);
  const std::string path = Printable(record.path);
  const std::string duration = absl::StrFormat("%.3f", 1000 * record.took.count());
  std::string line = StrCat(method, " ", path, " ", record.status, " ", record.response_bytes,
                            " bytes ", duration, " ms");
  std::vector<LogField> fields = {{"method", method},
                                  {"path", path},
                                  {"status", StrCat(record.status), true},
                                  {"request_bytes", StrCat(record.request_bytes), true},
                                  {"response_bytes", StrCat(record.response_bytes), true},
                                  {"duration_ms", duration, true}};
  if (record.tokens.has_value()) {
    fields.push_back({"prompt_tokens", StrCat(record.tokens->prompt), true});
    fields.push_back({"completion_tokens", StrCat(record.tokens->completion), true});
  }
  const auto add = [&](std::string_view name, std::string_view value) {
    if (value.empty()) return;
    line += StrCat(" ", name, "=", value);
    fields.push_back({name, std::string(value)});
  };
  add("from", record.from);
  add("client", record.client);
  add("tenant", record.tenant);
  add("reason", record.reason);
  add("param", OneWord(record.param));
  LogWithFields(level, LogComponent::kHttp, record.request_id, line, fields);
}

}  // namespace

HttpMetrics::HttpMetrics(prometheus::Registry& registry)
    : requests_(prometheus::BuildCounter()
                    .Name("http_requests_total")
                    .Help("HTTP requests answered, but for probes and scrapes.")
                    .Register(registry)),
      refusals_(prometheus::BuildCounter()
                    .Name("millrace_http_refusals_total")
                    .Help("HTTP requests that got an error, by its code.")
                    .Register(registry)),
      durations_(prometheus::BuildHistogram()
                     .Name("http_request_duration_seconds")
                     .Help("From an HTTP request's first byte to its answer's last.")
                     .Register(registry)),
      request_sizes_(prometheus::BuildSummary()
                         .Name("http_request_size_bytes")
                         .Help("Bodies of HTTP requests.")
                         .Register(registry)),
      response_sizes_(prometheus::BuildSummary()
                          .Name("http_response_size_bytes")
                          .Help("Answers to HTTP requests, with their headers.")
                          .Register(registry)),
      all_durations_(prometheus::BuildHistogram()
                         .Name("http_request_duration_highr_seconds")
                         .Help("The same of all handlers, in finer buckets.")
                         .Register(registry)
                         .Add({}, HighResolution())) {}

void HttpMetrics::OnRequest(const AccessRecord& record) {
  Log(record);
  if (!record.reason.empty()) OnRefusal(record.reason);
  if (record.routine) return;
  const std::string handler(record.handler);
  const std::string method = MethodLabel(record.method);
  requests_
      .Add(
          {{"handler", handler}, {"method", method}, {"status", StrCat(record.status / 100, "xx")}})
      .Increment();
  durations_.Add({{"handler", handler}, {"method", method}}, LowResolution())
      .Observe(record.took.count());
  all_durations_.Observe(record.took.count());
  request_sizes_.Add({{"handler", handler}}, prometheus::Summary::Quantiles{})
      .Observe(static_cast<double>(record.request_bytes));
  response_sizes_.Add({{"handler", handler}}, prometheus::Summary::Quantiles{})
      .Observe(static_cast<double>(record.response_bytes));
}

void HttpMetrics::OnRefusal(std::string_view reason) {
  refusals_.Add({{"reason", std::string(reason)}}).Increment();
}

}  // namespace millrace
