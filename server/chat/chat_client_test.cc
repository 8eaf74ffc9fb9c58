#include "server/chat/chat_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(EventReaderTest, EventsComeInAnyPieces) {
  const std::string stream =
      ": ping\n\ndata: one\n\nevent: x\r\ndata: two\r\ndata:2\r\n\r\ndata: [DONE]\n\n";
  for (size_t size = 1; size <= stream.size(); ++size) {
    EventReader reader;
    std::vector<std::string> events;
    for (size_t i = 0; i < stream.size(); i += size) {
      for (std::string& event : reader.Add(std::string_view(stream).substr(i, size))) {
        events.push_back(std::move(event));
      }
    }
    EXPECT_THAT(events, ElementsAre("one", "two\n2", "[DONE]")) << size;
  }
}

TEST(ReadDeltaTest, TakesTextsAndTheEnd) {
  const auto delta = ReadDelta(
      R"({"choices": [{"delta": {"role": "assistant", "content": "Hi", "reasoning_content": "so"}}]})");
  ASSERT_TRUE(delta.ok());
  EXPECT_EQ(delta->text, "Hi");
  EXPECT_EQ(delta->reasoning, "so");
  EXPECT_EQ(ReadDelta(R"({"choices": [{"delta": {"reasoning": "hm", "content": null},
                          "finish_reason": "length"}]})")
                ->finish_reason,
            "length");
  for (const char* other : {"[DONE]", "{}", R"({"choices": []})", R"({"choices": [3]})",
                            R"({"choices": [{"delta": []}], "usage": {}})"}) {
    ASSERT_TRUE(ReadDelta(other).ok()) << other;
    EXPECT_EQ(ReadDelta(other)->text, "") << other;
  }
}

TEST(ReadDeltaTest, AnErrorsMessageIsTheServers) {
  EXPECT_EQ(ReadDelta(R"({"error": {"message": "too long", "code": 400}})").status().message(),
            "too long");
  EXPECT_EQ(ReadDelta(R"({"error": "too long"})").status().message(), "too long");
  EXPECT_THAT(ReadDelta("<html>").status().message(), HasSubstr("no event of a chat: <html>"));
}

}  // namespace
}  // namespace millrace
