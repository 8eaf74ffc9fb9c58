#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "base/strings.h"
#include "server/http/json/api_error.h"
#include "server/http/json/json_reader.h"
#include "server/http/json/json_writer.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

std::string JsonString(std::string_view text) {
  std::string out;
  AppendJsonString(out, text);
  return out;
}

TEST(JsonWriterTest, EscapesWhatJsonNeedsEscaped) {
  EXPECT_EQ(JsonString("plain"), R"("plain")");
  EXPECT_EQ(JsonString("a\"b\\c\n\r\t"), R"("a\"b\\c\n\r\t")");
  EXPECT_EQ(JsonString(std::string("\0\x1f\x7f", 3)), R"("\u0000\u001f\u007f")");
  EXPECT_EQ(JsonString("ünï 漢字 🙂"), "\"ünï 漢字 🙂\"");
}

TEST(JsonWriterTest, EveryByteStringBecomesJsonThatReadsBack) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string text{'x', static_cast<char>(first), static_cast<char>(second)};
      const Json parsed = Json::parse(JsonString(text));
      if (first < 128 && second < 128) {
        EXPECT_EQ(parsed.get<std::string>(), text);
      }
    }
  }
  EXPECT_EQ(JsonString("a\xE2\x80"), "\"a\xEF\xBF\xBD\"");
}

TEST(JsonWriterTest, LogprobsAreFiniteAndReadBackTheSame) {
  const auto written = [](float value) {
    std::string out;
    AppendJsonLogprob(out, value);
    return out;
  };
  EXPECT_EQ(written(0.0f), "0.0");
  EXPECT_EQ(written(-5.0f), "-5.0");
  EXPECT_EQ(written(-1.5f), "-1.5");
  EXPECT_EQ(written(-std::numeric_limits<float>::infinity()), "-9999.0");
  EXPECT_EQ(written(std::nanf("")), "-9999.0");
  EXPECT_EQ(written(std::numeric_limits<float>::infinity()), "-9999.0");
  for (float value : {-0.1f, -1e-30f, -123.456f}) EXPECT_EQ(std::stof(written(value)), value);
}

TEST(ParseBodyTest, ReadsEveryKindOfValue) {
  const auto json = ParseBody(R"({"a": [1, -2, 3.5, true, null, "é", {}], "b": {"c": []}})");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(*json,
            OrderedJson::parse(R"({"a": [1, -2, 3.5, true, null, "é", {}], "b": {"c": []}})"));
  EXPECT_EQ(*ParseBody(" 7 "), 7);
}

std::string ParseError(std::string_view text) {
  const auto json = ParseBody(text);
  EXPECT_FALSE(json.ok()) << text.substr(0, 100);
  const ApiError error = ErrorFromStatus(json.status());
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.code, "invalid_json");
  EXPECT_LT(error.message.size(), 400u);
  return error.message;
}

TEST(ParseBodyTest, RefusesWhatIsNotJson) {
  for (std::string_view text :
       {"", " ", "{", "{\"a\":}", "[1,]", "{'a':1}", "{\"a\":1} x", "nul", "01", "\"\\ud800\"",
        "\"\xff\"", "\"\x01\"", "1e999", "// c\n{}", "NaN", "{\"a\":1,}", "\"unfinished"}) {
    ParseError(text);
  }
}

TEST(ParseBodyTest, RefusesAKeyThatComesTwice) {
  EXPECT_THAT(ParseError(R"({"max_tokens": 1, "max_tokens": 1000000})"),
              HasSubstr("\"max_tokens\" comes twice"));
  EXPECT_TRUE(ParseBody(R"([{"a": 1}, {"a": 2}])").ok());
}

TEST(ParseBodyTest, BoundsDepthAndNumberOfValues) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(ParseBody(nested(128)).ok());
  EXPECT_THAT(ParseError(nested(129)), HasSubstr("nested"));
  ParseError(nested(1'000'000));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"a":)";
  ParseError(objects);
  std::string many = "[0";
  for (size_t i = 0; i < JsonLimits{}.values; ++i) many += ",0";
  EXPECT_THAT(ParseError(many + "]"), HasSubstr("values"));
}

TEST(FieldReaderTest, KeepsTheFirstErrorAndNamesTheField) {
  const OrderedJson object = OrderedJson::parse(R"({"a": "x", "b": "y"})");
  FieldReader fields(object, "outer.");
  int32_t a = 5;
  bool b = true;
  fields.Read("a", a);
  fields.Read("b", b);
  const ApiError error = ErrorFromStatus(fields.Finish());
  EXPECT_EQ(error.param, "outer.a");
  EXPECT_EQ(error.message, "outer.a is \"x\"; allowed: an integer of 32 bits");
  EXPECT_EQ(a, 5);
}

TEST(FieldReaderTest, SuggestsWhatAnUnknownFieldMayHaveMeant) {
  const auto finish = [](std::string_view text) {
    const OrderedJson object = OrderedJson::parse(text);
    FieldReader fields(object);
    for (std::string_view name : {"temperature", "top_p", "n"}) fields.Find(name);
    return std::string(fields.Finish().message());
  };
  EXPECT_EQ(finish(R"({"temprature": 1})"),
            "temprature is not a known field; did you mean temperature?");
  EXPECT_EQ(finish(R"({"topp": 1})"), "topp is not a known field; did you mean top_p?");
  EXPECT_EQ(finish(R"({"m": 1})"), "m is not a known field");
  EXPECT_EQ(finish(R"({"something else": 1})"), "something else is not a known field");
  EXPECT_EQ(finish(StrCat("{\"", std::string(100'000, 'x'), "\": 1}")).size(), 83u + 21u);
}

// Finish names the first unknown field in the order of names, wherever it stands.
TEST(FieldReaderTest, NamesTheSameUnknownFieldWhateverTheOrder) {
  for (std::string_view text : {R"({"y": 1, "x": 1, "n": 1})", R"({"n": 1, "x": 1, "y": 1})"}) {
    const OrderedJson object = *ParseBody(text);
    FieldReader fields(object);
    EXPECT_NE(fields.Find("n"), nullptr);
    EXPECT_EQ(ErrorFromStatus(fields.Finish()).param, "x");
  }
}

TEST(FieldReaderTest, ReadsNumbersThatAreKeptAsTheyAreWritten) {
  const OrderedJson object = *ParseBodyAsWritten(
      R"({"f": 0.70, "i": 3.00, "e": 1e1, "list": [1.0, 2.00], "long": 100000000000000000000,
          "neutral": 1.00, "other": 1.50})");
  FieldReader fields(object);
  float f = 0;
  int32_t i = 0;
  std::optional<int32_t> e;
  std::vector<int32_t> list;
  fields.Read("f", f);
  fields.Read("i", i);
  fields.Read("e", e);
  fields.Read("list", list);
  fields.Refuse("neutral", OrderedJson::array({1}));
  EXPECT_TRUE(fields.ok());
  EXPECT_EQ(f, 0.7f);
  EXPECT_EQ(i, 3);
  EXPECT_EQ(e, 10);
  EXPECT_EQ(list, std::vector<int32_t>({1, 2}));
  const auto refusal = [&](auto refuse) {
    FieldReader again(object);
    refuse(again);
    return std::string(again.Finish().message());
  };
  EXPECT_EQ(refusal([](FieldReader& r) { r.Refuse("other", OrderedJson::array({1})); }),
            "other is 1.5, which this server does not support; it may be left out or be 1");
  EXPECT_EQ(refusal([&](FieldReader& r) { r.Read("long", i); }),
            "long is 1e+20; allowed: an integer of 32 bits");
}

TEST(FieldReaderTest, FindsFieldsAmongManyOthers) {
  std::string text = "{";
  for (int i = 0; i < 500'000; ++i) text += StrCat("\"", i, "\":0,");
  const absl::StatusOr<OrderedJson> object = ParseBody(text + R"("x":null,"n":7})");
  ASSERT_TRUE(object.ok()) << object.status();
  FieldReader fields(*object);
  int32_t n = 0;
  fields.Read("n", n);
  EXPECT_EQ(n, 7);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(fields.Find(StrCat("field ", i)), nullptr);
  EXPECT_EQ(fields.Find("x"), nullptr);
  EXPECT_EQ(ErrorFromStatus(fields.Finish()).param, "0");
}

TEST(FieldReaderTest, IntegersMustFit) {
  const auto read = [](std::string_view value) { return AsInt32(OrderedJson::parse(value)); };
  EXPECT_EQ(read("2147483647"), 2147483647);
  EXPECT_EQ(read("-2147483648"), std::numeric_limits<int32_t>::min());
  EXPECT_EQ(read("-3.0"), -3);  // JSON has one kind of number
  EXPECT_EQ(read("1e3"), 1000);
  for (std::string_view bad : {"2147483648", "-2147483649", "18446744073709551615", "1.5", "1e300",
                               "true", "\"1\"", "null", "[]"}) {
    EXPECT_EQ(read(bad), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace millrace
