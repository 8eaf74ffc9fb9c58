#include "engine/answer/response_buffer.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

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

// Buffers of tenants "a" and "b" that share a budgets of twice a buffer's bound.
class SharedBudgetTest : public ::testing::Test {
 protected:
  static constexpr size_t kPiece = ResponseBuffer::kMaxBytes / 4;

  std::unique_ptr<ResponseBuffer> Make(const char* tenant) {
    auto buffer = std::make_unique<ResponseBuffer>(clock_, nullptr);
    buffer->ShareBudgets(budgets_, tenant);
    return buffer;
  }
  // Pushes until the buffer is full.
  void Fill(ResponseBuffer& buffer) {
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(buffer.Push(Text(kPiece)));
  }

  ManualClock clock_;
  std::shared_ptr<UnreadBudgets> budgets_ =
      std::make_shared<UnreadBudgets>(2 * ResponseBuffer::kMaxBytes);
};

// It has no part in a buffer's own bound, and so needs the shared ones.
TEST_F(SharedBudgetTest, EchoesThatNobodyReadsLeaveRoomToOtherTenants) {
  OutputEvent echo = Text(ResponseBuffer::kMaxBytes);
  echo.echo = true;
  const auto first = Make("a");
  const auto second = Make("a");
  const auto third = Make("a");
  EXPECT_TRUE(first->Push(echo));
  EXPECT_TRUE(second->Push(echo));  // by the budget of readers that are not silent
  EXPECT_FALSE(third->Push(echo));
  EXPECT_TRUE(Make("b")->Push(Text(kPiece)));
  EXPECT_TRUE(first->Next()->echo);
  EXPECT_TRUE(third->Push(echo));
}

TEST_F(SharedBudgetTest, ReadersThatTakeNothingLeaveRoomToOtherTenants) {
  const auto first = Make("a");
  const auto second = Make("a");
  const auto other = Make("b");
  Fill(*first);
  EXPECT_TRUE(second->Push(Text(kPiece)));
  clock_.Advance(ResponseBuffer::kSilence);
  EXPECT_FALSE(second->Push(Text(kPiece)));
  EXPECT_TRUE(other->Push(Text(kPiece)));
  clock_.Advance(ResponseBuffer::kSilence);
  EXPECT_TRUE(other->Push(Text(kPiece)));
  first->Abandon();
  EXPECT_TRUE(second->Push(Text(kPiece)));
}

TEST_F(SharedBudgetTest, AReaderThatIsBehindGetsAllOfIt) {
  const auto first = Make("a");
  const auto second = Make("a");
  Fill(*first);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(second->Push(Text(1)));
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(ResponseBuffer::kSilence / 2);
    EXPECT_TRUE(second->Push(Text(kPiece)));
    EXPECT_TRUE(second->Next().has_value());
  }
  clock_.Advance(ResponseBuffer::kSilence);
  EXPECT_FALSE(second->Push(Text(2 * ResponseBuffer::kOwnBytes)));
}

// Each takes an event now and then, or has only just begun.
TEST_F(SharedBudgetTest, ReadersThatAreBehindHaveALimitTogether) {
  std::vector<std::unique_ptr<ResponseBuffer>> buffers;
  size_t refused = 0;
  for (int i = 0; i < 32; ++i) {
    ResponseBuffer& buffer = *buffers.emplace_back(Make("a"));
    EXPECT_TRUE(buffer.Push(Text(1)));
    EXPECT_TRUE(buffer.Push(Text(1)));
    EXPECT_TRUE(buffer.Next().has_value());
    if (!buffer.Push(Text(kPiece))) ++refused;
  }
  EXPECT_GT(refused, 0u);
  EXPECT_LE(budgets_->all.used(), ResponseBuffer::kMaxBytes);     // half of it each
  EXPECT_LE(budgets_->behind.used(), ResponseBuffer::kMaxBytes);  // likewise
  EXPECT_GT(budgets_->behind.used(), 0u);
  buffers.clear();
  EXPECT_EQ(budgets_->all.used(), 0u);
  EXPECT_EQ(budgets_->behind.used(), 0u);
}

TEST_F(SharedBudgetTest, WhatIsReadGoesBack) {
  const auto buffer = Make("a");
  Fill(*buffer);
  EXPECT_GT(budgets_->all.used(), 2 * kPiece);
  while (buffer->Next().has_value()) {
  }
  EXPECT_EQ(budgets_->all.used(), 0u);
  Fill(*buffer);
  buffer->Abandon();
  EXPECT_EQ(budgets_->all.used(), 0u);
}

TEST_F(SharedBudgetTest, PartsOfItGoBackWhileMoreIsUnread) {
  const auto buffer = Make("a");
  Fill(*buffer);
  const size_t full = budgets_->all.used();
  EXPECT_TRUE(buffer->Next().has_value());
  EXPECT_LE(budgets_->all.used(), full - kPiece);
  EXPECT_GE(budgets_->all.used() + ResponseBuffer::kOwnBytes, 2 * kPiece);
}

TEST_F(SharedBudgetTest, LittleTakesNothingOfIt) {
  const auto buffer = Make("a");
  EXPECT_TRUE(buffer->Push(Text(1000)));
  EXPECT_TRUE(buffer->Push(Text(1000)));
  EXPECT_EQ(budgets_->all.used(), 0u);
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
