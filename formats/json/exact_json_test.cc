#include "formats/json/exact_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/strings.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// Once stood before the digits of an integer.
constexpr char kMark[] = "\xef\xb7\x90";
constexpr char kLong[] = "123456789012345678901234567890";

// Returns what is written of a text that has been read.
std::string Again(std::string_view text) {
  const absl::StatusOr<OrderedJson> json = ParseExact(text, {.depth = 128});
  return json.ok() ? DumpExact(*json) : std::string(json.status().message());
}

TEST(ExactJsonTest, KeepsIntegersOfAnyLength) {
  for (size_t digits = 1; digits <= 308; ++digits) {
    for (const char* sign : {"", "-"}) {
      const std::string number = StrCat(sign, std::string(digits, '7'));
      for (const std::string& text :
           {number, StrCat("[", number, "]"), StrCat("{\"a\":", number, "}"),
            StrCat(R"([{"a":[)", number, R"(,"x",)", number, R"(]},[[)", number, "]],null]")}) {
        EXPECT_EQ(Again(text), text);
      }
    }
  }
  // Beyond the range of double the parser takes none.
  EXPECT_THAT(Again(std::string(400, '7')), HasSubstr("number overflow"));
  EXPECT_EQ(Again("[1.5,1e+300,true,18446744073709551615,-9223372036854775808]"),
            "[1.5,1e+300,true,18446744073709551615,-9223372036854775808]");
}

TEST(ExactJsonTest, KeysAndStringsStayAsTheyAre) {
  for (const std::string& text : {
           StrCat(R"({")", kMark, R"(5":1})"),
           StrCat(R"({")", kMark, R"(5":)", kLong, R"(,")", kMark, R"(6":")", kMark, R"(6x"})"),
           StrCat(R"(["x\")", kMark, R"(5"])"),
           StrCat(R"(["\")", kMark, R"(5\""])"),
           StrCat(R"(["\\\")", kMark, "5\",", kLong, "]"),
           StrCat(R"(["x\\","x)", kMark, R"(5",")", kMark, R"("])"),
           StrCat(R"([")", kMark, R"(5",)", kLong, R"(,{")", kMark, R"(5":")", kLong, R"("}])"),
           StrCat(R"({"a\"":)", kLong, R"(,"b":{},"c":[],"d":[[]],"":"\\","\u0001":"\n"})"),
           StrCat(R"([")", kMark, R"(-",")", kMark, R"(5 ",")", kMark, kMark, R"(5"])"),
       }) {
    EXPECT_EQ(Again(text), text);
  }
}

TEST(ExactJsonTest, NoTextIsTakenForAnInteger) {
  const OrderedJson json = *ParseExact(StrCat(R"([")", kLong, R"(","\ufdd05",5,)", kLong, "]"), {});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(KeptNumber(json[i]), "");
  EXPECT_EQ(KeptNumber(json[3]), kLong);
}

TEST(ExactJsonTest, FractionsStayAsTheyAreWritten) {
  for (const char* number :
       {"0", "-1", "0.5", "1.50", "1.0", "1e3", "1E+3", "-0.0", "1e-400", "18446744073709551615",
        "0.1000000000000000055511151231257827", "12345678901234567890123.0", kLong}) {
    const std::string text = StrCat(R"({"b":[)", number, R"(,null],"a":)", number, "}");
    const absl::StatusOr<OrderedJson> json = ParseAsWritten(text, {});
    ASSERT_TRUE(json.ok()) << json.status();
    EXPECT_EQ(DumpExact(*json), text);
    EXPECT_TRUE(IsNumber((*json)["a"])) << number;
    EXPECT_EQ(NumberOf((*json)["a"]), Json::parse(number).get<double>()) << number;
    EXPECT_EQ(Describe((*json)["a"]), Describe(Json::parse(number)));
  }
  // A number whose double is written the same takes no more memory than the double.
  const OrderedJson plain = *ParseAsWritten("[0.5, 1.0, -2.25, 1e+300, 7]", {});
  for (const OrderedJson& number : plain) EXPECT_EQ(KeptNumber(number), "");
  EXPECT_EQ(Again("[1.50,1e3]"), "[1.5,1000.0]");  // as ParseExact has it
  EXPECT_FALSE(IsNumber(OrderedJson("1")));
}

TEST(ExactJsonTest, MembersAreSortedByTheirKeys) {
  const OrderedJson json = *ParseOrdered(R"({"b": 1, "": 2, "a": 3})", {});
  std::string keys;
  for (const OrderedMember* member : SortedMembers(json)) keys += member->first + ";";
  EXPECT_EQ(keys, ";a;b;");
}

TEST(ExactJsonTest, ValuesAreTheSameHoweverTheyAreWritten) {
  const auto same = [](std::string_view a, std::string_view b) {
    return SameValue(*ParseAsWritten(a, {}), *ParseAsWritten(b, {}));
  };
  EXPECT_TRUE(
      same(R"({"x": [1.50, {"z": 1e3}], "y": null})", R"({"y": null, "x": [1.5, {"z": 1000}]})"));
  EXPECT_FALSE(same(R"({"x": 1, "y": 2})", R"({"x": 1, "z": 2})"));
  EXPECT_FALSE(same(R"({"x": 1})", R"({"x": 1, "y": 2})"));
  EXPECT_FALSE(same("[1]", "[1, 1]"));
  EXPECT_FALSE(same("1.50", R"("1.50")"));
  EXPECT_FALSE(same("18446744073709551616", "18446744073709551617"));
  // A key that comes twice with the same value is one member.
  EXPECT_TRUE(ParseAsWritten(R"({"a": {"x": 1.50, "y": 2}, "a": {"y": 2, "x": 1.5}})", {}).ok());
  EXPECT_THAT(ParseAsWritten(R"({"a": {"x": 1.50, "y": 2}, "a": {"y": 2, "x": 1.51}})", {})
                  .status()
                  .message(),
              HasSubstr("comes twice"));
}

// Returns a random value's JSON text, of characters that are likely to be mistaken.
std::string RandomText(std::mt19937& random, int depth) {
  const auto string = [&] {
    constexpr const char* kPieces[] = {kMark, "5", "-", "\\\"", "\\\\", ":", ",", "x"};
    std::string text;
    for (auto i = random() % 6; i > 0; --i) text += kPieces[random() % std::size(kPieces)];
    return text;
  };
  const auto kind = random() % (depth > 0 ? 4 : 2);
  if (kind == 0)
    return StrCat(random() % 2 == 0 ? "-" : "", 1 + random() % 9, std::string(random() % 60, '8'));
  if (kind == 1) return StrCat("\"", string(), "\"");
  std::string items;
  for (auto i = random() % 5; i > 0; --i) {
    const std::string key = StrCat("\"", string(), random() % 2 == 0 ? "" : StrCat(i), "\":");
    // A key that comes twice is one member.
    if (kind == 2 && items.find(key) != items.npos) continue;
    items += StrCat(items.empty() ? "" : ",", kind == 2 ? key : "", RandomText(random, depth - 1));
  }
  return kind == 2 ? StrCat("{", items, "}") : StrCat("[", items, "]");
}

TEST(ExactJsonTest, RandomValuesComeAgain) {
  std::mt19937 random(1);
  for (int i = 0; i < 5000; ++i) {
    const std::string text = RandomText(random, 4);
    EXPECT_EQ(Again(text), text);
  }
}

// A move of the whole text for each integer would take hours.
TEST(ExactJsonTest, TakesLinearTime) {
  std::string text = "[";
  for (int i = 0; i < 500000; ++i) text += "18446744073709551616,";
  text.back() = ']';
  EXPECT_EQ(Again(text), text);
}

TEST(ExactJsonTest, TextsAreAsTheyAreAndOtherValuesJson) {
  const OrderedJson json = *ParseExact(StrCat(R"(["a\"b",)", kLong, ",[", kLong, "]]"), {});
  EXPECT_EQ(TextOrJson(json[0]), "a\"b");
  EXPECT_EQ(TextOrJson(json[1]), kLong);
  EXPECT_EQ(TextOrJson(json[2]), StrCat("[", kLong, "]"));
}

}  // namespace
}  // namespace millrace
