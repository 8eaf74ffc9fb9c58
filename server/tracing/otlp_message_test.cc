#include "server/tracing/otlp_message.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "millrace/otlp/v1/trace.pb.h"

namespace millrace {
namespace {

namespace pb = otlp::v1;
using std::chrono::milliseconds;

SteadyTime At(int ms) { return SteadyTime(milliseconds(ms)); }

RequestSpan Request() {
  RequestSpan span;
  span.request_id = "cmpl-1";
  span.model = "m";
  span.finish_reason = "stop";
  span.arrival = At(100);
  span.first_scheduled = At(110);
  span.first_token = At(130);
  span.ended = At(190);
  span.prompt_tokens = 5;
  span.completion_tokens = 3;
  span.max_tokens = 7;
  return span;
}

std::vector<pb::Span> Encode(const RequestSpan& span, Duration to_unix = Duration::zero()) {
  pb::ExportTraceServiceRequest message;
  EXPECT_TRUE(message.ParseFromString(EncodeSpans({span}, {"service", "1.2"}, to_unix)));
  EXPECT_EQ(message.resource_spans_size(), 1);
  const pb::ResourceSpans& all = message.resource_spans(0);
  EXPECT_EQ(all.resource().attributes(0).key(), "service.name");
  EXPECT_EQ(all.resource().attributes(0).value().string_value(), "service");
  const auto& spans = all.scope_spans(0).spans();
  return {spans.begin(), spans.end()};
}

std::map<std::string, pb::AnyValue> AttributesOf(const pb::Span& span) {
  std::map<std::string, pb::AnyValue> found;
  for (const pb::KeyValue& pair : span.attributes()) found[pair.key()] = pair.value();
  return found;
}

TEST(OtlpMessageTest, ARequestIsASpanWithItsPartsBelow) {
  const auto spans = Encode(Request(), std::chrono::seconds(1));
  ASSERT_EQ(spans.size(), 4);
  const pb::Span& whole = spans[0];
  EXPECT_EQ(whole.name(), "llm_request");
  EXPECT_EQ(whole.kind(), pb::SPAN_KIND_SERVER);
  EXPECT_EQ(whole.trace_id().size(), 16);
  EXPECT_EQ(whole.parent_span_id(), "");
  EXPECT_EQ(whole.start_time_unix_nano(), 1'100'000'000);
  EXPECT_EQ(whole.end_time_unix_nano(), 1'190'000'000);
  EXPECT_EQ(whole.status().code(), pb::STATUS_CODE_UNSET);

  uint64_t begin = whole.start_time_unix_nano();
  for (size_t i = 1; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].trace_id(), whole.trace_id());
    EXPECT_EQ(spans[i].parent_span_id(), whole.span_id());
    EXPECT_EQ(spans[i].start_time_unix_nano(), begin);
    begin = spans[i].end_time_unix_nano();
  }
  EXPECT_EQ(begin, whole.end_time_unix_nano());
  EXPECT_EQ(spans[1].name() + spans[2].name() + spans[3].name(), "queueprefilldecode");

  auto attributes = AttributesOf(whole);
  EXPECT_EQ(attributes["gen_ai.request.id"].string_value(), "cmpl-1");
  EXPECT_EQ(attributes["gen_ai.request.max_tokens"].int_value(), 7);
  EXPECT_EQ(attributes["gen_ai.usage.prompt_tokens"].int_value(), 5);
  EXPECT_EQ(attributes["gen_ai.usage.completion_tokens"].int_value(), 3);
  EXPECT_EQ(attributes["gen_ai.response.finish_reasons"].array_value().values(0).string_value(),
            "stop");
  EXPECT_DOUBLE_EQ(attributes["gen_ai.latency.time_in_queue"].double_value(), 0.01);
  EXPECT_DOUBLE_EQ(attributes["gen_ai.latency.time_to_first_token"].double_value(), 0.03);
  EXPECT_DOUBLE_EQ(attributes["gen_ai.latency.time_in_model_decode"].double_value(), 0.06);
  EXPECT_EQ(attributes.count("gen_ai.request.temperature"), 0);
}

TEST(OtlpMessageTest, TheCallersTraceGoesOn) {
  RequestSpan request = Request();
  request.parent =
      ParseTraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=b");
  const auto spans = Encode(request);
  for (const pb::Span& span : spans) {
    EXPECT_EQ(span.trace_id(), std::string("\x0a\xf7\x65\x19\x16\xcd\x43\xdd\x84\x48\xeb\x21\x1c"
                                           "\x80\x31\x9c"));
    EXPECT_EQ(span.trace_state(), "a=b");
  }
  EXPECT_EQ(spans[0].parent_span_id(), "\xb7\xad\x6b\x71\x69\x20\x33\x31");
}

TEST(OtlpMessageTest, ARequestThatNeverRanWasInTheQueueAlone) {
  RequestSpan request = Request();
  request.first_scheduled.reset();
  request.first_token.reset();
  request.finish_reason = "cancelled";
  request.status = absl::DeadlineExceededError("too late");
  const auto spans = Encode(request);
  ASSERT_EQ(spans.size(), 2);
  EXPECT_EQ(spans[0].status().code(), pb::STATUS_CODE_ERROR);
  EXPECT_EQ(spans[0].status().message(), "too late");
  EXPECT_EQ(spans[1].name(), "queue");
  EXPECT_EQ(spans[1].end_time_unix_nano(), spans[0].end_time_unix_nano());
}

TEST(OtlpMessageTest, ACollectorMaySayWhatItDidNotTake) {
  pb::ExportTraceServiceResponse response;
  response.mutable_partial_success()->set_rejected_spans(3);
  response.mutable_partial_success()->set_error_message("too old");
  std::string why;
  EXPECT_EQ(RejectedSpans(response.SerializeAsString(), why), 3);
  EXPECT_EQ(why, "too old");
  EXPECT_EQ(RejectedSpans("", why), 0);
  EXPECT_EQ(RejectedSpans("<html>", why), 0);
  response.mutable_partial_success()->set_rejected_spans(-1);
  EXPECT_EQ(RejectedSpans(response.SerializeAsString(), why), 0);
}

}  // namespace
}  // namespace millrace
