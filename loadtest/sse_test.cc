#include "loadtest/sse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "loadtest/random.h"

namespace millrace {
namespace {

// Feeds the pieces one after another, each in memory of its own that ends with it.
std::vector<std::string> Events(const std::vector<std::string>& pieces, bool* ok = nullptr) {
  std::vector<std::string> events;
  SseParser parser([&](std::string_view data) { events.emplace_back(data); });
  for (const std::string& piece : pieces) {
    const std::vector<char> copy(piece.begin(), piece.end());
    const bool goes_on = parser.Feed({copy.data(), copy.size()});
    if (ok != nullptr) *ok = goes_on;
  }
  return events;
}

using testing::ElementsAre;

TEST(SseTest, ReadsEvents) {
  EXPECT_THAT(Events({"data: a\n\ndata:b\n\n"}), ElementsAre("a", "b"));
  EXPECT_THAT(Events({"data: a\r\n\r\ndata: b\r\rdata: c\n\n"}), ElementsAre("a", "b", "c"));
  EXPECT_THAT(Events({"data: a\ndata: b\n\n"}), ElementsAre("a\nb"));
  EXPECT_THAT(Events({": ping\n\nevent: x\nid: 1\nretry: 5\ndata: a\n\n"}), ElementsAre("a"));
  EXPECT_THAT(Events({"\xef\xbb\xbf"
                      "data: a\n\n"}),
              ElementsAre("a"));
  EXPECT_THAT(Events({"data\n\ndata:\n\ndata:  a\n\n"}), ElementsAre("", "", " a"));
  EXPECT_THAT(Events({"database: a\n\ndatum: b\n\n"}), ElementsAre());
}

TEST(SseTest, AnEventThatDoesNotEndIsNone) {
  EXPECT_THAT(Events({"data: a"}), ElementsAre());
  EXPECT_THAT(Events({"data: a\n"}), ElementsAre());
}

TEST(SseTest, NoSplitChangesTheEvents) {
  const std::string stream =
      "\xef\xbb\xbf: hello\r\n\r\ndata: one\r\n\r\ndata: two\ndata: three\n\nevent: e\rdata: "
      "four\r\r"
      "data: \xc3\xa4\n\ndata: [DONE]\n\n";
  const std::vector<std::string> whole = Events({stream});
  ASSERT_THAT(whole, ElementsAre("one", "two\nthree", "four", "\xc3\xa4", "[DONE]"));
  for (size_t i = 0; i <= stream.size(); ++i) {
    EXPECT_EQ(Events({stream.substr(0, i), stream.substr(i)}), whole) << i;
  }
  Random random(1, 0);
  for (int round = 0; round < 1000; ++round) {
    std::vector<std::string> pieces;
    for (size_t at = 0; at < stream.size();) {
      const auto size = static_cast<size_t>(random.Between(1, 9));
      pieces.push_back(stream.substr(at, size));
      at += size;
    }
    EXPECT_EQ(Events(pieces), whole);
  }
}

TEST(SseTest, RefusesAnEventThatIsTooLong) {
  for (const std::string piece : {"data: 0123456789", "data: 0123\n"}) {
    int events = 0;
    SseParser parser([&](std::string_view) { ++events; }, 50);
    bool goes_on = true;
    for (int i = 0; i < 1000 && goes_on; ++i) goes_on = parser.Feed(piece);
    EXPECT_FALSE(goes_on);
    EXPECT_FALSE(parser.Feed("\n\ndata: a\n\n"));
    EXPECT_EQ(events, 0);
  }
}

TEST(SseTest, ResetForgetsWhatCame) {
  std::vector<std::string> events;
  SseParser parser([&](std::string_view data) { events.emplace_back(data); });
  EXPECT_TRUE(parser.Feed("data: a\ndata: b\nda"));
  parser.Reset();
  EXPECT_TRUE(parser.Feed("data: c\n\n"));
  EXPECT_THAT(events, ElementsAre("c"));
}

}  // namespace
}  // namespace millrace
