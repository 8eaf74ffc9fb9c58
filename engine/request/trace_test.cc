#include "engine/request/trace.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace millrace {
namespace {

constexpr char kParent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceContextTest, IsReadAsTheStandardWritesIt) {
  const auto context = ParseTraceContext(kParent, "vendor=a,other=b");
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace_id, (TraceId{0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48,
                                        0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c}));
  EXPECT_EQ(context->span_id, (SpanId{0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31}));
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(context->state, "vendor=a,other=b");

  std::string unsampled = kParent;
  unsampled.back() = '0';
  EXPECT_FALSE(ParseTraceContext(unsampled, "")->sampled);
}

TEST(TraceContextTest, ALaterVersionMayHaveMore) {
  const std::string later = std::string("cc") + (kParent + 2) + "-what-comes";
  EXPECT_TRUE(ParseTraceContext(later, "").has_value());
  EXPECT_FALSE(ParseTraceContext(std::string(kParent) + "-more", "").has_value());
  EXPECT_FALSE(ParseTraceContext(std::string("cc") + (kParent + 2) + ".more", "").has_value());
}

TEST(TraceContextTest, WhatIsNotValidIsNone) {
  for (const char* const parent :
       {"", "00", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g",
        "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}) {
    EXPECT_FALSE(ParseTraceContext(parent, "").has_value()) << parent;
  }
}

TEST(TraceContextTest, AStateThatIsNotFitIsLeftOut) {
  EXPECT_EQ(ParseTraceContext(kParent, "a=\x01")->state, "");
  EXPECT_EQ(ParseTraceContext(kParent, std::string(513, 'a'))->state, "");
  EXPECT_EQ(ParseTraceContext(kParent, std::string(512, 'a'))->state.size(), 512);
}

TEST(TraceContextTest, IdsDiffer) {
  std::set<TraceId> traces;
  std::set<SpanId> spans;
  for (int i = 0; i < 1000; ++i) {
    traces.insert(NewTraceId());
    spans.insert(NewSpanId());
  }
  EXPECT_EQ(traces.size(), 1000);
  EXPECT_EQ(spans.size(), 1000);
}

}  // namespace
}  // namespace millrace
