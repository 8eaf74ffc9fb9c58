#include "server/tracing/otlp_exporter.h"

#include <prometheus/counter.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "base/percent.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kServer);
constexpr std::chrono::milliseconds kTimeLimit(10'000);  // of one request

prometheus::Counter* CountSpans(prometheus::Registry& registry, const char* result) {
  return &prometheus::BuildCounter()
              .Name("millrace_trace_spans_total")
              .Help("Requests' spans, by whether the collector of traces got them.")
              .Register(registry)
              .Add({{"result", result}});
}

std::string WithPath(const std::string& url) {
  const size_t host = url.find("://") + 3;
  const size_t path = url.find('/', host);
  if (path == url.npos) return url + "/v1/traces";
  return path + 1 == url.size() ? url + "v1/traces" : url;
}

Duration ToUnix() {
  return std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch()) -
         std::chrono::duration_cast<Duration>(Clock::Real().Now().time_since_epoch());
}

}  // namespace

std::vector<std::pair<std::string, std::string>> ParseOtlpHeaders(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> headers;
  for (const std::string_view part : SplitList(text)) {
    const size_t equals = part.find('=');
    const std::string_view name = Trim(part.substr(0, equals));
    if (equals == part.npos || name.empty()) continue;
    headers.emplace_back(name, PercentDecoded(Trim(part.substr(equals + 1))));
  }
  // A line's end would begin another header.
  std::erase_if(headers, [](const auto& header) {
    return (header.first + header.second).find_first_of("\r\n") != std::string::npos;
  });
  return headers;
}

OtlpExporter::OtlpExporter(OtlpOptions options, prometheus::Registry& registry)
    : options_(std::move(options)),
      exported_(CountSpans(registry, "exported")),
      dropped_(CountSpans(registry, "dropped")),
      queue_(kMaxWaiting),
      client_(&stop_),
      thread_([this] { Run(); }) {}

OtlpExporter::~OtlpExporter() { Close(); }

void OtlpExporter::Close() {
  if (!thread_.joinable()) return;
  closing_ = true;
  queue_.Close();
  closed_.Raise();
  if (!failing_) ended_.Wait(Clock::Real().Now() + kLastWait);
  stop_ = true;
  thread_.join();
}

void OtlpExporter::OnSpan(RequestSpan span) {
  if (span.parent && !span.parent->sampled) return;
  if (queue_.TryPush(std::move(span)) != PushResult::kPushed) dropped_->Increment();
}

void OtlpExporter::Run() {
  while (std::optional<RequestSpan> first = queue_.Pop()) {
    if (!closing_) closed_.Wait(Clock::Real().Now() + options_.period);
    std::vector<RequestSpan> batch;
    batch.push_back(*std::move(first));
    for (RequestSpan& span : queue_.TakeAll()) {
      if (batch.size() == kMaxBatch) {
        Export(batch);
        batch.clear();
      }
      batch.push_back(std::move(span));
    }
    Export(batch);
  }
  ended_.Raise();
}

void OtlpExporter::Export(const std::vector<RequestSpan>& spans) {
  HttpRequest request;
  request.url = WithPath(options_.endpoint);
  request.body = EncodeSpans(spans, options_.resource, ToUnix());
  request.content_type = "application/x-protobuf";
  request.headers = options_.headers;
  request.time_limit = kTimeLimit;
  Duration wait = options_.retry_after;
  for (int tries = 1;; ++tries) {
    const Sent sent = Send(request, spans.size());
    if (sent == Sent::kTaken) return;
    if (sent == Sent::kRefused || tries == kTries || closing_) break;
    closed_.Wait(Clock::Real().Now() + wait);
    wait *= 2;
  }
  dropped_->Increment(static_cast<double>(spans.size()));
}

OtlpExporter::Sent OtlpExporter::Send(const HttpRequest& request, size_t spans) {
  std::string body;
  const auto reply = client_.Send(request, [&](const HttpReply&, std::string_view part) {
    body.append(part.substr(0, kMaxReplyBytes + 1 - body.size()));
    return body.size() <= kMaxReplyBytes;
  });
  if (reply.ok() && reply->status >= 200 && reply->status < 300) {
    failing_ = false;
    std::string why;
    const size_t rejected = std::min(RejectedSpans(body, why), spans);
    if (rejected > 0) {
      kLog.Warning("otlp-traces-endpoint: the collector took ", spans - rejected, " of ", spans,
                   " spans: ", Printable(why));
      dropped_->Increment(static_cast<double>(rejected));
    }
    exported_->Increment(static_cast<double>(spans - rejected));
    return Sent::kTaken;
  }
  if (!failing_.exchange(true)) {
    kLog.Warning("otlp-traces-endpoint: traces are not taken: ",
                 reply.ok() ? StrCat("HTTP ", reply->status)
                 : absl::IsAborted(reply.status())
                     ? StrCat("the answer has more than ", kMaxReplyBytes, " bytes")
                     : std::string(reply.status().message()));
  }
  // As OTLP has it: other statuses say that trying again does not help.
  if (!reply.ok()) return absl::IsUnavailable(reply.status()) ? Sent::kTryAgain : Sent::kRefused;
  const int status = reply->status;
  return status == 429 || (status >= 502 && status <= 504) ? Sent::kTryAgain : Sent::kRefused;
}

}  // namespace millrace
