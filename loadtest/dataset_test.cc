#include "loadtest/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(DatasetTest, ReadsShareGpt) {
  const auto data = ParseDataset(
      R"([{"id": "a", "conversations": [{"from": "system", "value": "be kind"},
          {"from": "human", "value": "hi"}, {"from": "gpt", "value": "12345678"},
          {"from": "human", "value": "and?"}]},
         {"id": "b", "conversations": [{"from": "gpt", "value": "no one asked"}]},
         {"id": "c", "conversations": []}])");
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ(data->size(), 1U);  // the user begins neither of the others
  const DataEntry& entry = data->front();
  EXPECT_THAT(entry.users, ElementsAre("hi", "and?"));
  EXPECT_THAT(entry.output_len, ElementsAre(2, 0));
  ASSERT_EQ(entry.before.size(), 1U);
  EXPECT_EQ(entry.before[0].role, "system");
}

TEST(DatasetTest, ReadsLinesOfEachKind) {
  const auto data = ParseDataset(
      "{\"prompt\": \"p\", \"output_tokens\": 9}\n\n"
      "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}, {\"role\": \"user\", "
      "\"content\": \"y\"}]}\r\n"
      "{\"conversations\": [{\"from\": \"user\", \"value\": \"z\"}]}");
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ(data->size(), 3U);
  EXPECT_THAT((*data)[0].output_len, ElementsAre(9));
  EXPECT_THAT((*data)[1].users, ElementsAre("y"));
  EXPECT_EQ((*data)[1].before[0].text, "x");
  EXPECT_THAT((*data)[2].users, ElementsAre("z"));
}

TEST(DatasetTest, StopsWhereAConversationIsNoLongerOne) {
  const auto data = ParseDataset(
      R"({"conversations": [{"from": "human", "value": "a"}, {"from": "human", "value": "b"}]})");
  ASSERT_TRUE(data.ok());
  EXPECT_THAT(data->front().users, ElementsAre("a"));
}

TEST(DatasetTest, ErrorsNameTheLine) {
  for (const std::string_view line :
       {"{", "1", "[]", "{}", "{\"prompt\": 1}", "{\"messages\": []}", "{\"messages\": {}}",
        "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}]}", "{\"conversations\": 1}",
        "{\"messages\": [1]}", "{\"conversations\": [{\"from\": \"human\"}]}",
        "{\"prompt\": \"x\", \"output_tokens\": 0}",
        "{\"prompt\": \"x\", \"output_tokens\": \"1\"}"}) {
    const auto data = ParseDataset("{\"prompt\": \"good\"}\n" + std::string(line));
    ASSERT_FALSE(data.ok()) << line;
    EXPECT_THAT(std::string(data.status().message()), HasSubstr("line 2: expected")) << line;
  }
  EXPECT_FALSE(ParseDataset("").ok());
  EXPECT_FALSE(ParseDataset("[]").ok());
  EXPECT_FALSE(ParseDataset("[{\"prompt\": \"x\"}").ok());
}

}  // namespace
}  // namespace millrace
