#include "server/http/responses/responses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/strings.h"
#include "server/http/responses/response_store.h"
#include "server/http/scripted_engine_test_util.h"

namespace millrace {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using State = Answer::State;

constexpr size_t kLongBytes = 400'000;

// A stream whose events repeat long instructions, polled by hand.
class LongStreamTest : public testing::Test {
 protected:
  LongStreamTest() {
    auto request =
        ParseResponsesRequest(StrCat(R"({"input": "p", "stream": true, "instructions": ")",
                                     std::string(kLongBytes, 'i'), "\"}"),
                              nullptr, UnknownFields::kRefuse, /*auto_tool_choice=*/true);
    EXPECT_TRUE(request.ok()) << request.status();
    std::get<Chat>(request->api.prompts.front()).messages = request->conversation;
    answer_ =
        std::make_unique<ResponsesAnswer>(*std::move(request), std::vector<Turn>(), "resp_1", "o",
                                          std::make_shared<ResponseStore>(), engine_, [] {});
  }

  State Poll() { return answer_->Poll(response_, body_); }
  // Polls as a connection does that nobody wakes.
  State PollOn() {
    State state = State::kChunk;
    while (state == State::kChunk) state = Poll();
    return state;
  }
  ScriptedStream& stream() { return *engine_.WaitStream(); }

  ScriptedEngine engine_;
  std::unique_ptr<Answer> answer_;
  HttpResponse response_;
  std::string body_;
};

// The stream wakes its connection while that is busy with an event before.
TEST_F(LongStreamTest, AnEventThatComesDuringALongOneIsPolledWithoutAnotherWake) {
  stream().Push(TextEvent("Hello"));
  EXPECT_EQ(Poll(), State::kChunk);
  EXPECT_LT(body_.size(), kLongBytes);
  stream().Push(FinishEvent());
  EXPECT_EQ(PollOn(), State::kEnd);
  EXPECT_THAT(body_, HasSubstr("response.completed"));
  EXPECT_THAT(body_, EndsWith("}\n\n"));
}

TEST_F(LongStreamTest, AfterALongEventItWaits) {
  stream().Push(TextEvent("Hello"));
  EXPECT_EQ(PollOn(), State::kWaiting);
  EXPECT_THAT(body_, HasSubstr("Hello"));
  EXPECT_THAT(body_, Not(HasSubstr("response.completed")));
  EXPECT_EQ(Poll(), State::kWaiting);
}

TEST_F(LongStreamTest, ItSaysWhatItHoldsForItsClient) {
  EXPECT_EQ(answer_->held_bytes(), 0u);
  stream().Push(TextEvent("Hello"));
  EXPECT_EQ(Poll(), State::kChunk);
  // The two first events share the instructions.
  EXPECT_GE(answer_->held_bytes(), kLongBytes);
  EXPECT_LT(answer_->held_bytes(), 2 * kLongBytes);
  EXPECT_FALSE(answer_->ended());
  EXPECT_EQ(PollOn(), State::kWaiting);
  EXPECT_EQ(answer_->held_bytes(), 0u);
  stream().Push(FinishEvent());
  EXPECT_EQ(Poll(), State::kChunk);
  EXPECT_GE(answer_->held_bytes(), kLongBytes);
  EXPECT_TRUE(answer_->ended());
  EXPECT_EQ(PollOn(), State::kEnd);
  EXPECT_EQ(answer_->held_bytes(), 0u);
}

TEST_F(LongStreamTest, NoCommentComesIntoTheMiddleOfAnEvent) {
  stream().Push(TextEvent("Hello"));
  EXPECT_EQ(Poll(), State::kChunk);
  std::string comment;
  EXPECT_FALSE(answer_->Ping(response_, comment));
  EXPECT_EQ(PollOn(), State::kWaiting);
  EXPECT_TRUE(answer_->Ping(response_, comment));
  EXPECT_EQ(comment, kPingComment);
}

}  // namespace
}  // namespace millrace
