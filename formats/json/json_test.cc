#include "formats/json/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/strings.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(std::string_view text, const JsonLimits& limits = {}) {
  const absl::StatusOr<Json> json = ParseJson(text, limits);
  return json.ok() ? "no error" : std::string(json.status().message());
}

TEST(JsonTest, ReadsWithinTheLimits) {
  const absl::StatusOr<Json> json = ParseJson(R"( {"a": [1, -2, 0.5], "b": {"c": null}} )", {});
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(*json, Json({{"a", {1, -2, 0.5}}, {"b", {{"c", nullptr}}}}));
  EXPECT_EQ(ErrorOf("[[1], [2]]", {.depth = 2, .values = 5}), "no error");
}

TEST(JsonTest, RefusesWhatReadersWouldReadDifferently) {
  EXPECT_THAT(ErrorOf(R"({"a": 1, "a": 2})"), HasSubstr("\"a\" comes twice"));
  EXPECT_THAT(ErrorOf(R"({"x": {"a": 1, "a": 2}})"), HasSubstr("\"a\" comes twice"));
  EXPECT_THAT(ErrorOf(R"({"a": {"b": [1]}, "a": {"b": [1, 2]}})"), HasSubstr("\"a\" comes twice"));
  EXPECT_THAT(ErrorOf(R"({"a": [], "a": {}})"), HasSubstr("\"a\" comes twice"));
  EXPECT_THAT(ErrorOf(R"({"a": {"b": 1}, "c": 0, "a": {"b": 1, "b": 2}})"),
              HasSubstr("\"b\" comes twice"));
  // Whichever of two equal values a reader takes, it is the same.
  EXPECT_EQ(ParseJson(R"({"a": {"b": [1, {}]}, "c": 2, "a": {"b": [1, {}]}, "c": 2, "d": 3})", {})
                ->dump(),
            R"({"a":{"b":[1,{}]},"c":2,"d":3})");
  EXPECT_EQ(ParseOrdered(R"({"c": 2, "a": 1, "c": 2, "b": 0})", {})->dump(),
            R"({"c":2,"a":1,"b":0})");
  for (const char* text : {"", "{", "{} {}", "{\"a\": NaN}", "[1,]", "\"\xff\"", "{'a': 1}"}) {
    EXPECT_NE(ErrorOf(text), "no error") << text;
  }
}

TEST(JsonTest, RefusesWhatIsBeyondTheLimits) {
  EXPECT_THAT(ErrorOf("[[1]]", {.depth = 1}), HasSubstr("nested more than 1 deep"));
  EXPECT_THAT(ErrorOf("[[1], [2]]", {.values = 4}), HasSubstr("more than 4 values"));
  EXPECT_THAT(ErrorOf(std::string(1 << 20, '[')), HasSubstr("nested more than 32 deep"));
}

TEST(JsonTest, OrderedKeepsTheOrderOfKeys) {
  const auto json = ParseOrdered(R"({"b": [{"z": 1, "y": {}}], "a": null})", {});
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->dump(), R"({"b":[{"z":1,"y":{}}],"a":null})");
  constexpr std::string_view kTwice = R"({"b": {"c": 1}, "a": 2, "b": [3]})";
  EXPECT_THAT(ParseOrdered(kTwice, {}).status().message(), HasSubstr("\"b\" comes twice"));
  const auto last = ParseOrdered(kTwice, {.repeats = true});
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->dump(), R"({"b":[3],"a":2})");
  EXPECT_EQ(ParseJson(kTwice, {.repeats = true})->dump(), R"({"a":2,"b":[3]})");
}

// Compared with each other these keys would take a minute.
TEST(JsonTest, OrderedTakesLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) text += StrCat("\"", i, "\":0,");
  text.back() = '}';
  const auto json = ParseOrdered(text, {});
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->size(), 200000u);
  EXPECT_EQ(json->dump(), text);
}

// Each object's first member is the next one, and 16 follow. If an object that grows copied its
// members, these million strings would be copied 600 times.
TEST(JsonTest, OrderedMovesWhatIsNested) {
  std::string inner = "[";
  for (int i = 0; i < 900'000; ++i) inner += "\"\",";
  inner.back() = ']';
  std::string others;
  for (int i = 0; i < 16; ++i) others += StrCat(",\"", i, "\":0");
  std::string text = inner;
  for (int depth = 0; depth < 120; ++depth) text = StrCat("{\"a\":", text, others, "}");
  const auto json = ParseOrdered(text, {.depth = 128});
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->size(), 17u);
}

TEST(JsonTest, OrderedFindsARepeatedKeyAmongFewAndMany) {
  for (const int count : {1, 8, 9, 10, 1000}) {
    std::string members;
    for (int i = 0; i < count; ++i) members += StrCat("\"key ", i, "\":", i, ",");
    for (const int again : {0, count / 2, count - 1}) {
      const std::string key = StrCat("\"key ", again, "\":");
      EXPECT_EQ(ParseOrdered(StrCat("{", members, key, again, "}"), {})->size(), count);
      EXPECT_THAT(ParseOrdered(StrCat("{", members, key, -1, "}"), {}).status().message(),
                  HasSubstr("comes twice"));
    }
  }
}

TEST(JsonTest, DescribesValuesShortly) {
  EXPECT_EQ(Describe(Json::parse("[1, 2]")), "a list of 2");
  EXPECT_EQ(Describe(Json::parse("{\"a\": 1}")), "an object");
  EXPECT_EQ(Describe(Json::parse("1.5")), "1.5");
  EXPECT_EQ(Describe(Json(std::string(1000, 'x'))).size(), 64 + 3 + 2);
}

}  // namespace
}  // namespace millrace
