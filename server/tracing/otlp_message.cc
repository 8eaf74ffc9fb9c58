#include "server/tracing/otlp_message.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "millrace/otlp/v1/trace.pb.h"

namespace millrace {
namespace {

namespace pb = otlp::v1;

class Attributes {
 public:
  explicit Attributes(google::protobuf::RepeatedPtrField<pb::KeyValue>* list) : list_(*list) {}

  void Add(std::string_view key, std::string_view text) {
    Value(key)->set_string_value(std::string(text));
  }
  void Add(std::string_view key, int64_t number) { Value(key)->set_int_value(number); }
  void Add(std::string_view key, double number) { Value(key)->set_double_value(number); }
  void AddList(std::string_view key, std::string_view only) {
    Value(key)->mutable_array_value()->add_values()->set_string_value(std::string(only));
  }

 private:
  pb::AnyValue* Value(std::string_view key) {
    pb::KeyValue* const pair = list_.Add();
    pair->set_key(std::string(key));
    return pair->mutable_value();
  }

  google::protobuf::RepeatedPtrField<pb::KeyValue>& list_;
};

template <typename Id>
std::string Bytes(const Id& id) {
  return std::string(id.begin(), id.end());
}

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

void AddAttributes(const RequestSpan& request, pb::Span& span) {
  Attributes attributes(span.mutable_attributes());
  attributes.Add("gen_ai.request.id", request.request_id);
  attributes.Add("gen_ai.response.model", request.model);
  if (request.n) attributes.Add("gen_ai.request.n", int64_t{*request.n});
  if (request.max_tokens) {
    attributes.Add("gen_ai.request.max_tokens", int64_t{*request.max_tokens});
  }
  if (request.temperature)
    attributes.Add("gen_ai.request.temperature", double{*request.temperature});
  if (request.top_p) attributes.Add("gen_ai.request.top_p", double{*request.top_p});
  if (!request.finish_reason.empty()) {
    attributes.Add("millrace.choice", int64_t{request.choice});
    attributes.AddList("gen_ai.response.finish_reasons", request.finish_reason);
    attributes.Add("gen_ai.usage.completion_tokens", request.completion_tokens);
    attributes.Add("millrace.cached_tokens", request.cached_tokens);
  }
  attributes.Add("gen_ai.usage.prompt_tokens", request.prompt_tokens);
  attributes.Add("gen_ai.latency.e2e", Seconds(request.ended - request.arrival));
  if (!request.first_scheduled) return;
  const SteadyTime scheduled = *request.first_scheduled;
  attributes.Add("gen_ai.latency.time_in_queue", Seconds(scheduled - request.arrival));
  attributes.Add("gen_ai.latency.time_in_model_inference", Seconds(request.ended - scheduled));
  if (!request.first_token) return;
  const SteadyTime first = *request.first_token;
  attributes.Add("gen_ai.latency.time_to_first_token", Seconds(first - request.arrival));
  attributes.Add("gen_ai.latency.time_in_model_prefill", Seconds(first - scheduled));
  attributes.Add("gen_ai.latency.time_in_model_decode", Seconds(request.ended - first));
}

class Encoder {
 public:
  Encoder(pb::ScopeSpans& scope, Duration to_unix) : scope_(scope), to_unix_(to_unix) {}

  void Add(const RequestSpan& request) {
    const TraceId trace = request.parent ? request.parent->trace_id : NewTraceId();
    const std::string state = request.parent ? request.parent->state : "";
    const auto add = [&](std::string_view name, SteadyTime begin, SteadyTime end) -> pb::Span& {
      pb::Span& span = *scope_.add_spans();
      span.set_trace_id(Bytes(trace));
      span.set_span_id(Bytes(NewSpanId()));
      span.set_trace_state(state);
      span.set_name(std::string(name));
      span.set_start_time_unix_nano(UnixNanoseconds(begin));
      span.set_end_time_unix_nano(UnixNanoseconds(std::max(begin, end)));
      return span;
    };
    pb::Span& whole = add("llm_request", request.arrival, request.ended);
    whole.set_kind(pb::SPAN_KIND_SERVER);
    if (request.parent) whole.set_parent_span_id(Bytes(request.parent->span_id));
    AddAttributes(request, whole);
    if (!request.status.ok()) {
      whole.mutable_status()->set_code(pb::STATUS_CODE_ERROR);
      whole.mutable_status()->set_message(std::string(request.status.message()));
    }
    const std::string id = whole.span_id();  // adding to the list may move `whole`
    const auto add_part = [&](std::string_view name, SteadyTime begin,
                              std::optional<SteadyTime> end) {
      pb::Span& part = add(name, begin, end.value_or(request.ended));
      part.set_kind(pb::SPAN_KIND_INTERNAL);
      part.set_parent_span_id(id);
    };
    if (request.finish_reason.empty()) return;  // its inputs have times of their own
    add_part("queue", request.arrival, request.first_scheduled);
    if (request.first_scheduled) add_part("prefill", *request.first_scheduled, request.first_token);
    if (request.first_token) add_part("decode", *request.first_token, request.ended);
  }

 private:
  uint64_t UnixNanoseconds(SteadyTime time) const {
    const Duration since = time.time_since_epoch() + to_unix_;
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
  }

  pb::ScopeSpans& scope_;
  const Duration to_unix_;
};

}  // namespace

std::string EncodeSpans(absl::Span<const RequestSpan> spans, const TraceResource& resource,
                        Duration to_unix) {
  pb::ExportTraceServiceRequest message;
  pb::ResourceSpans& all = *message.add_resource_spans();
  Attributes attributes(all.mutable_resource()->mutable_attributes());
  attributes.Add("service.name", resource.service_name);
  attributes.Add("service.version", resource.version);
  pb::ScopeSpans& scope = *all.add_scope_spans();
  scope.mutable_scope()->set_name("millrace");
  scope.mutable_scope()->set_version(resource.version);
  Encoder encoder(scope, to_unix);
  for (const RequestSpan& span : spans) encoder.Add(span);
  return message.SerializeAsString();
}

size_t RejectedSpans(std::string_view response, std::string& why) {
  pb::ExportTraceServiceResponse message;
  if (!message.ParseFromArray(response.data(), static_cast<int>(response.size()))) return 0;
  why = message.partial_success().error_message();
  return static_cast<size_t>(std::max<int64_t>(message.partial_success().rejected_spans(), 0));
}

}  // namespace millrace
