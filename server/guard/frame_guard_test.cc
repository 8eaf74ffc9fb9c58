#include "server/guard/frame_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "server/guard/frame_test_util.h"

namespace millrace {
namespace {

std::string Message(size_t bytes) {
  std::string out(1, '\0');
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(bytes >> shift & 0xff);
  return out + std::string(bytes, 'm');
}

constexpr std::string_view kBlock = "\x83\x86\x84";  // POST, http, /
const std::string kGreeting = std::string(http2::kPreface) + MakeFrame(http2::kSettings, 0, 0);

// A connection whose bytes are kept as the other side would get them.
class FrameGuardTest : public testing::Test {
 protected:
  FrameGuardTest() { Begin({}); }

  void Begin(const GuardLimits& limits) {
    guard_.reset();
    shared_ = std::make_unique<GuardShared>(limits);
    guard_ = std::make_unique<FrameGuard>(*shared_);
    unchecked_.clear();
    passed_.clear();
  }

  // Gives the guard more of the client's bytes, as a relay would.
  void Client(std::string_view bytes) {
    unchecked_ += bytes;
    while (true) {
      const size_t some = guard_->FromClient(View(unchecked_), clock_.Now());
      if (some == 0) break;
      passed_ += unchecked_.substr(0, some);
      unchecked_.erase(0, some);
    }
  }
  void Server(std::string_view bytes) {
    ASSERT_EQ(guard_->FromServer(View(bytes), clock_.Now()), bytes.size());
  }
  void Open(uint32_t stream, uint8_t more_flags = 0) {
    Client(MakeFrame(http2::kHeaders, http2::kEndHeaders | more_flags, stream, kBlock));
  }

  static http2::Bytes View(std::string_view text) {
    return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
  }

  std::optional<GuardReason> reason() const {
    if (!guard_->violation()) return std::nullopt;
    return guard_->violation()->reason;
  }

  ManualClock clock_;
  std::unique_ptr<GuardShared> shared_;
  std::unique_ptr<FrameGuard> guard_;
  std::string unchecked_;
  std::string passed_;
};

TEST_F(FrameGuardTest, AnOrdinaryCallPassesAsItCame) {
  const std::string all = kGreeting + MakeFrame(http2::kHeaders, http2::kEndHeaders, 1, kBlock) +
                          MakeFrame(http2::kData, 0, 1, Message(100).substr(0, 50)) +
                          MakeFrame(http2::kData, http2::kEndStream, 1, Message(100).substr(50)) +
                          MakeFrame(http2::kPing, 0, 0, "12345678") +
                          MakeFrame(http2::kSettings, http2::kAck, 0) +
                          MakeFrame(http2::kWindowUpdate, 0, 1, std::string_view("\0\0\1\0", 4));
  Server(MakeFrame(http2::kSettings, 0, 0));
  Client(all);
  EXPECT_EQ(passed_, all);
  EXPECT_EQ(reason(), std::nullopt);
  EXPECT_EQ(guard_->streams(), 1u);
  Server(MakeFrame(http2::kHeaders, http2::kEndHeaders | http2::kEndStream, 1, "\x88"));
  EXPECT_EQ(guard_->streams(), 0u);
  EXPECT_EQ(shared_->streams, 0u);
  EXPECT_EQ(shared_->messages.used(), 0u);
}

// The bytes that pass do not depend on how they were split.
TEST_F(FrameGuardTest, RandomSplitsPassTheSame) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::string all = kGreeting;
    uint32_t next = 1;
    for (int i = 0; i < 30; ++i) {
      switch (random() % 6) {
        case 0:
          all += MakeFrame(http2::kHeaders, http2::kEndHeaders, next, kBlock);
          next += 2;
          break;
        case 1:
          all += MakeFrame(http2::kHeaders, 0, next, kBlock.substr(0, 1));
          all += MakeFrame(http2::kContinuation, 0, next, kBlock.substr(1, 1));
          all += MakeFrame(http2::kContinuation, http2::kEndHeaders, next, kBlock.substr(2));
          next += 2;
          break;
        case 2:
          if (next > 1) {
            std::string padded(1, '\5');
            padded += Message(random() % 200) + std::string(5, 'p');
            all += MakeFrame(http2::kData, http2::kPadded, next - 2, padded);
          }
          break;
        case 3:
          all += MakeFrame(http2::kPing, 0, 0, "12345678");
          break;
        case 4:
          all += MakeFrame(99, 7, 3, std::string(random() % 300, 'u'));
          break;
        case 5:
          if (next > 1) all += MakeFrame(http2::kPriority, 0, next - 2, "12345");
          break;
      }
      if (random() % 10 == 0) all += std::string(random() % 12, '\7');  // nonsense, to the end
    }
    Begin({.unanswered_frames = 1000});
    Client(all);
    const std::string whole = passed_;
    const std::optional<GuardReason> why = reason();
    Begin({.unanswered_frames = 1000});
    for (size_t at = 0; at < all.size();) {
      const size_t some = std::min<size_t>(1 + random() % 40, all.size() - at);
      Client(std::string_view(all).substr(at, some));
      at += some;
    }
    EXPECT_EQ(reason(), why);
    EXPECT_EQ(passed_, whole);
  }
}

TEST_F(FrameGuardTest, SurvivesRandomBytes) {
  std::mt19937 random(5);
  for (int round = 0; round < 20'000; ++round) {
    Begin({});
    Client(kGreeting);
    for (int i = 0; i < 6 && !reason(); ++i) {
      std::string payload(random() % 40, '\0');
      for (char& c : payload) c = static_cast<char>(random());
      Client(MakeFrame(static_cast<uint8_t>(random() % 11), static_cast<uint8_t>(random()),
                       random() % 6, payload));
    }
    guard_->CheckTimes(clock_.Now());
    guard_->TakeResets();
  }
}

TEST_F(FrameGuardTest, ReadsNothingBehindAShortUpdateOfTheServer) {
  const std::string update = MakeFrame(http2::kWindowUpdate, 0, 0, "\x7f");
  const std::vector<uint8_t> exact(update.begin(), update.end());  // AddressSanitizer sees its end
  EXPECT_EQ(guard_->FromServer(exact, clock_.Now()), exact.size());
}

TEST_F(FrameGuardTest, HeaderBlocksPassWholeAndInTime) {
  Client(kGreeting);
  passed_.clear();
  Client(MakeFrame(http2::kHeaders, 0, 1, kBlock));
  EXPECT_EQ(passed_, "");
  clock_.Advance(std::chrono::seconds(9));
  guard_->CheckTimes(clock_.Now());
  EXPECT_EQ(reason(), std::nullopt);
  clock_.Advance(std::chrono::seconds(2));
  guard_->CheckTimes(clock_.Now());
  EXPECT_EQ(reason(), GuardReason::kHeaderTimeout);
}

TEST_F(FrameGuardTest, ResetsBeyondTheirRateEndTheConnection) {
  Client(kGreeting);
  uint32_t stream = 1;
  for (int i = 0; i < 512; ++i, stream += 2) {
    Open(stream);
    Client(MakeFrame(http2::kRstStream, 0, stream, "1234"));
  }
  EXPECT_EQ(reason(), std::nullopt);
  EXPECT_EQ(guard_->streams(), 0u);
  clock_.Advance(std::chrono::seconds(1));
  for (int i = 0; i < 2; ++i, stream += 2) {
    Open(stream);
    Client(MakeFrame(http2::kRstStream, 0, stream, "1234"));
  }
  EXPECT_EQ(reason(), GuardReason::kResets);  // the first empty look begins the time
  EXPECT_EQ(guard_->violation()->code, http2::kEnhanceYourCalm);
}

TEST_F(FrameGuardTest, ResetsBeyondTheRateOfAllWait) {
  Begin({.all_resets = {.burst = 1, .per_second = 10}});
  Client(kGreeting);
  for (const uint32_t stream : {1, 3, 5}) Open(stream);
  passed_.clear();
  const std::string resets =
      MakeFrame(http2::kRstStream, 0, 1, "1234") + MakeFrame(http2::kRstStream, 0, 3, "1234");
  Client(resets);
  EXPECT_TRUE(guard_->waiting());
  EXPECT_EQ(passed_, resets.substr(0, 13));
  clock_.Advance(std::chrono::seconds(1));
  Client("");
  EXPECT_EQ(passed_, resets);
  EXPECT_FALSE(guard_->waiting());
}

TEST_F(FrameGuardTest, UnansweredPingsWait) {
  Client(kGreeting);
  passed_.clear();
  const std::string ping = MakeFrame(http2::kPing, 0, 0, "12345678");
  for (int i = 0; i < 20; ++i) Client(ping);
  EXPECT_EQ(passed_.size(), 8 * ping.size());
  EXPECT_TRUE(guard_->waiting());
  Server(MakeFrame(http2::kPing, http2::kAck, 0, "12345678"));
  Client("");
  EXPECT_EQ(passed_.size(), 9 * ping.size());
}

TEST_F(FrameGuardTest, AMessageThatStallsResetsItsStream) {
  Client(kGreeting);
  Open(1);
  Open(3);
  Client(MakeFrame(http2::kData, 0, 1, Message(1000).substr(0, 300)));
  Client(MakeFrame(http2::kData, 0, 3, Message(1000)));  // complete: more may come when it likes
  EXPECT_EQ(shared_->messages.used(), 295u);
  clock_.Advance(std::chrono::seconds(11));
  guard_->CheckTimes(clock_.Now());
  const auto resets = guard_->TakeResets();
  ASSERT_EQ(resets.size(), 1u);
  EXPECT_EQ(resets[0].stream, 1u);
  EXPECT_EQ(resets[0].reason, GuardReason::kMessageRate);
  EXPECT_EQ(guard_->streams(), 1u);
  EXPECT_EQ(shared_->messages.used(), 0u);
  Client(MakeFrame(http2::kData, 0, 1, "on its way"));  // what comes after is no violation
  EXPECT_EQ(reason(), std::nullopt);
}

TEST_F(FrameGuardTest, ACallWhoseFirstMessageNeverBeginsIsReset) {
  Client(kGreeting);
  Open(1);
  Open(3, http2::kEndStream);  // the client has said that there is none
  Open(5);                     // a stream both ways, which the server has begun to answer
  Server(MakeFrame(http2::kHeaders, http2::kEndHeaders, 5, "\x88"));
  Open(7);
  Client(MakeFrame(http2::kData, 0, 7, Message(0)));  // and the next one comes when it likes
  clock_.Advance(std::chrono::seconds(10));
  guard_->CheckTimes(clock_.Now());
  EXPECT_TRUE(guard_->TakeResets().empty());
  Open(9);
  clock_.Advance(std::chrono::seconds(1));
  guard_->CheckTimes(clock_.Now());
  const auto resets = guard_->TakeResets();
  ASSERT_EQ(resets.size(), 1u);
  EXPECT_EQ(resets[0].stream, 1u);
  EXPECT_EQ(resets[0].reason, GuardReason::kMessageRate);
  EXPECT_EQ(guard_->streams(), 4u);
  // A client whose window the server has not opened has its time from then on.
  const std::string settings("\0\4\0\0\0\0", 6);
  Server(MakeFrame(http2::kSettings, 0, 0, settings));
  clock_.Advance(std::chrono::seconds(100));
  guard_->CheckTimes(clock_.Now());
  Server(MakeFrame(http2::kWindowUpdate, 0, 9, std::string_view("\0\0\1\0", 4)));
  guard_->CheckTimes(clock_.Now());
  EXPECT_TRUE(guard_->TakeResets().empty());
  clock_.Advance(std::chrono::seconds(11));
  guard_->CheckTimes(clock_.Now());
  EXPECT_EQ(guard_->TakeResets().size(), 1u);
}

TEST_F(FrameGuardTest, MessagesAreBoundedTogether) {
  Begin({.all_message_bytes = 1000});
  Client(kGreeting);
  Open(1);
  Client(MakeFrame(http2::kData, 0, 1, Message(5000).substr(0, 600)));
  clock_.Advance(std::chrono::seconds(2));
  Open(3);
  Client(MakeFrame(http2::kData, 0, 3, Message(5000).substr(0, 800)));
  guard_->CheckTimes(clock_.Now());
  const auto resets = guard_->TakeResets();
  ASSERT_EQ(resets.size(), 1u);
  EXPECT_EQ(resets[0].stream, 1u);
  EXPECT_EQ(resets[0].code, http2::kEnhanceYourCalm);
  EXPECT_EQ(shared_->messages.used(), 795u);
}

TEST_F(FrameGuardTest, AWindowThatStaysShutEndsItsStream) {
  const std::string settings("\0\4\0\0\0\12", 6);  // windows of 10 bytes
  Client(std::string(http2::kPreface) + MakeFrame(http2::kSettings, 0, 0, settings));
  Open(1, http2::kEndStream);
  Open(3, http2::kEndStream);
  for (const uint32_t stream : {1, 3}) {
    Server(MakeFrame(http2::kHeaders, http2::kEndHeaders, stream, "\x88"));
    Server(MakeFrame(http2::kData, 0, stream, "0123456789"));
  }
  guard_->CheckTimes(clock_.Now());
  clock_.Advance(std::chrono::seconds(30));
  Client(MakeFrame(http2::kWindowUpdate, 0, 3, std::string_view("\0\0\0\x20", 4)));
  guard_->CheckTimes(clock_.Now());
  clock_.Advance(std::chrono::seconds(11));
  guard_->CheckTimes(clock_.Now());
  const auto resets = guard_->TakeResets();
  ASSERT_EQ(resets.size(), 1u);
  EXPECT_EQ(resets[0].stream, 1u);
  EXPECT_EQ(resets[0].reason, GuardReason::kWriteTimeout);
}

TEST_F(FrameGuardTest, AConnectionWindowThatStaysShutEndsTheConnection) {
  Client(kGreeting);
  Open(1, http2::kEndStream);
  Server(MakeFrame(http2::kHeaders, http2::kEndHeaders, 1, "\x88"));
  Client(MakeFrame(http2::kWindowUpdate, 0, 1, std::string_view("\0\1\0\0", 4)));
  for (int i = 0; i < 4; ++i) Server(MakeFrame(http2::kData, 0, 1, std::string(16384, 'd')));
  guard_->CheckTimes(clock_.Now());
  clock_.Advance(std::chrono::seconds(31));
  guard_->CheckTimes(clock_.Now());
  EXPECT_EQ(reason(), GuardReason::kWriteTimeout);
}

TEST_F(FrameGuardTest, LargerFramesPassOnceTheServerTakesThem) {
  Client(kGreeting);
  Open(1);
  Server(MakeFrame(http2::kSettings, 0, 0, std::string_view("\0\5\0\0\x80\0", 6)));
  Client(MakeFrame(http2::kData, 0, 1, std::string(32768, 'd')));
  EXPECT_EQ(reason(), std::nullopt);
  Client(MakeFrame(http2::kData, 0, 1, std::string(32769, 'd')));
  EXPECT_EQ(reason(), GuardReason::kFrameSize);
}

TEST_F(FrameGuardTest, AnswersEarnPingsAndWindowUpdates) {
  Client(kGreeting);
  Open(1, http2::kEndStream);
  const std::string ping = MakeFrame(http2::kPing, 0, 0, "12345678");
  const std::string update =
      MakeFrame(http2::kWindowUpdate, 0, 0, std::string_view("\0\0\0\x20", 4));
  for (int i = 0; i < 5000; ++i) {
    Server(MakeFrame(http2::kData, 0, 1, "token"));
    Client(ping + update + update);
    Server(MakeFrame(http2::kPing, http2::kAck, 0, "12345678"));
  }
  EXPECT_EQ(reason(), std::nullopt);
  for (int i = 0; i < 101; ++i) {
    Client(ping);
    Server(MakeFrame(http2::kPing, http2::kAck, 0, "12345678"));
  }
  EXPECT_EQ(reason(), GuardReason::kPings);
  EXPECT_EQ(guard_->violation()->text, "too_many_pings");
}

TEST_F(FrameGuardTest, StopsAtABoundaryWhereAFrameCanBePut) {
  Client(kGreeting);
  Open(1);
  const std::string data = MakeFrame(http2::kData, 0, 1, Message(20));
  guard_->StopClientAtBoundary(true);
  Client(data);
  EXPECT_EQ(unchecked_, data);  // it is at one already
  guard_->StopClientAtBoundary(false);
  Client("");
  EXPECT_TRUE(guard_->ClientAtBoundary());

  const std::string headers = MakeFrame(http2::kHeaders, 0, 1, "\x88");
  const std::string more = MakeFrame(http2::kContinuation, http2::kEndHeaders, 1, "\x88");
  EXPECT_EQ(guard_->FromServer(View(headers), clock_.Now()), headers.size());
  EXPECT_FALSE(guard_->ServerAtBoundary());
  guard_->StopServerAtBoundary(true);
  EXPECT_EQ(guard_->FromServer(View(more + headers), clock_.Now()), more.size());
  EXPECT_TRUE(guard_->ServerAtBoundary());
}

}  // namespace
}  // namespace millrace
