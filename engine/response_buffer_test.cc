#include "engine/response_buffer.h"

#include <chrono>
#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace millrace {
namespace {

OutputEvent Text(size_t bytes) {
  OutputEvent event;
  event.text.assign(bytes, 'x');
  return event;
}

OutputEvent Last(FinishReason reason) {
  OutputEvent event;
  event.finish.emplace();
  event.finish->reason = reason;
  return event;
}

class ResponseBufferTest : public ::testing::Test {
 protected:
  ManualClock clock_;
  int calls_ = 0;
  ResponseBuffer buffer_{clock_, [this] { ++calls_; }};
};

TEST_F(ResponseBufferTest, CallsReadyWhenSomethingComesIntoTheEmptyBuffer) {
  EXPECT_TRUE(buffer_.Push(Text(1)));
  EXPECT_TRUE(buffer_.Push(Text(2)));
  EXPECT_EQ(calls_, 1);
  EXPECT_EQ(buffer_.Next()->text, "x");
  EXPECT_EQ(buffer_.Next()->text, "xx");
  EXPECT_EQ(buffer_.Next(), std::nullopt);
  EXPECT_TRUE(buffer_.Finish(Last(FinishReason::kStop)));
  EXPECT_EQ(calls_, 2);
}

TEST_F(ResponseBufferTest, TheFirstFinishIsTheLastEvent) {
  EXPECT_TRUE(buffer_.Finish(Last(FinishReason::kLength)));
  EXPECT_TRUE(buffer_.finished());
  EXPECT_FALSE(buffer_.Finish(Last(FinishReason::kError)));
  EXPECT_TRUE(buffer_.Push(Text(1)));
  EXPECT_EQ(buffer_.Next()->finish->reason, FinishReason::kLength);
  EXPECT_EQ(buffer_.Next(), std::nullopt);
  EXPECT_EQ(calls_, 1);
}

TEST_F(ResponseBufferTest, RefusesWhatASlowReaderDoesNotTake) {
  EXPECT_TRUE(buffer_.Push(Text(ResponseBuffer::kMaxBytes / 2)));
  EXPECT_FALSE(buffer_.Push(Text(ResponseBuffer::kMaxBytes / 2)));
  EXPECT_TRUE(buffer_.Finish(Last(FinishReason::kCancelled)));
  EXPECT_TRUE(buffer_.Next().has_value());
  EXPECT_TRUE(buffer_.Next()->finish.has_value());
}

TEST_F(ResponseBufferTest, ReadingFreesCapacity) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(buffer_.Push(Text(ResponseBuffer::kMaxBytes / 2)));
    EXPECT_TRUE(buffer_.Next().has_value());
  }
}

TEST_F(ResponseBufferTest, AReaderThatNeverCatchesUpGetsAllInOrder) {
  constexpr size_t kEvents = 1000;
  size_t read = 0;
  for (size_t pushed = 0; pushed < kEvents; pushed += 2) {
    EXPECT_TRUE(buffer_.Push(Text(pushed)));
    EXPECT_TRUE(buffer_.Push(Text(pushed + 1)));
    EXPECT_EQ(buffer_.Next()->text.size(), read++);
  }
  EXPECT_EQ(calls_, 1);  // it was empty but once
  while (read < kEvents) EXPECT_EQ(buffer_.Next()->text.size(), read++);
  EXPECT_EQ(buffer_.Next(), std::nullopt);
}

TEST_F(ResponseBufferTest, OneLargeEventFitsAnEmptyBuffer) {
  EXPECT_TRUE(buffer_.Push(Text(ResponseBuffer::kMaxBytes * 2)));
  EXPECT_FALSE(buffer_.Push(Text(1)));
}

// The first token comes with it, before any reader can have taken it.
TEST_F(ResponseBufferTest, AnEchoLeavesTheWholeRoomToTheAnswer) {
  OutputEvent echo = Text(ResponseBuffer::kMaxBytes * 2);
  echo.echo = true;
  EXPECT_TRUE(buffer_.Push(echo));
  EXPECT_TRUE(buffer_.Push(Text(ResponseBuffer::kMaxBytes / 2)));
  EXPECT_FALSE(buffer_.Push(Text(ResponseBuffer::kMaxBytes / 2)));
  EXPECT_TRUE(buffer_.Next()->echo);
  EXPECT_TRUE(buffer_.Next().has_value());
  EXPECT_TRUE(buffer_.Push(Text(ResponseBuffer::kMaxBytes / 2)));
}

TEST_F(ResponseBufferTest, TellsSinceWhenSomethingLiesUnread) {
  EXPECT_EQ(buffer_.UnreadSince(), std::nullopt);
  buffer_.Push(Text(1));
  const SteadyTime first = clock_.Now();
  clock_.Advance(std::chrono::seconds(1));
  buffer_.Push(Text(1));
  EXPECT_EQ(buffer_.UnreadSince(), first);
  buffer_.Next();
  EXPECT_EQ(buffer_.UnreadSince(), clock_.Now());
  buffer_.Next();
  EXPECT_EQ(buffer_.UnreadSince(), std::nullopt);
}

TEST_F(ResponseBufferTest, AbandonedItTakesEverythingAndKeepsNothing) {
  buffer_.Push(Text(1));
  buffer_.Abandon();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(buffer_.Push(Text(ResponseBuffer::kMaxBytes)));
  EXPECT_TRUE(buffer_.Finish(Last(FinishReason::kCancelled)));
  EXPECT_EQ(buffer_.Next(), std::nullopt);
  EXPECT_EQ(calls_, 1);
}

// An endpoint's call may be kept alive by nothing but its `ready`, and abandon the buffer when it
// goes.
TEST(ResponseBufferLifeTest, ReadyMayOwnTheReader) {
  struct Reader {
    std::shared_ptr<ResponseBuffer> buffer;
    ~Reader() { buffer->Abandon(); }
  };
  ManualClock clock;
  auto reader = std::make_shared<Reader>();
  Reader* raw = reader.get();
  auto buffer = std::make_shared<ResponseBuffer>(clock, [reader = std::move(reader)] {});
  raw->buffer = buffer;
  std::weak_ptr<ResponseBuffer> weak = buffer;
  buffer->Push(Text(1));
  buffer->Finish(Last(FinishReason::kStop));
  buffer.reset();
  EXPECT_TRUE(weak.expired());
}

}  // namespace
}  // namespace millrace
