#include "text/grammar/grammar.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "text/grammar/regular.h"
#include "text/grammar/test_limits.h"

namespace millrace {
namespace {

using Kind = GrammarSpec::Kind;

std::shared_ptr<const Grammar> Compiled(const GrammarSpec& spec) {
  auto grammar = Grammar::Compile(spec, kUnhurried);
  EXPECT_TRUE(grammar.ok()) << spec.text << ": " << grammar.status();
  return grammar.ok() ? *grammar : nullptr;
}

std::string Refusal(const GrammarSpec& spec, const GrammarLimits& limits = kUnhurried) {
  return std::string(Grammar::Compile(spec, limits).status().message());
}

struct Case {
  Kind kind;
  std::string text;
  std::vector<std::string> in, out;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.text; }

class GrammarLanguageTest : public testing::TestWithParam<Case> {};

TEST_P(GrammarLanguageTest, HasTheseTextsAndNotThose) {
  const auto grammar = Compiled({.kind = GetParam().kind, .text = GetParam().text});
  ASSERT_NE(grammar, nullptr);
  for (const std::string& text : GetParam().in) EXPECT_TRUE(grammar->Matches(text)) << text;
  for (const std::string& text : GetParam().out) EXPECT_FALSE(grammar->Matches(text)) << text;
}

constexpr Kind kSchema = Kind::kJsonSchema, kRegex = Kind::kRegex, kEbnf = Kind::kEbnf;

const Case kCases[] = {
    {Kind::kJsonObject, "", {"{}", R"({"a": [1, {"b": null}]})"}, {"[]", "{", "{} ", R"({"a"})"}},
    {kRegex, "a{2,3}|[^\\d]b?", {"aa", "aaa", "x", "xb", "é"}, {"aaaa", "1", ""}},
    {kRegex, "^(?!no)[a-z]+$", {"yes", "on", "n"}, {"no", "nope", ""}},
    {kRegex, "a(?:b|(?!c)(?=.d)[a-z]+)e", {"abe", "axde", "axdxe"}, {"acde", "axe", "axd"}},
    {kRegex, "(a(?=b$))?(b|c)", {"ab", "b", "c"}, {"ac", "a"}},
    // Anchors where they hold for sure.
    {kRegex, "(?:a$|b)", {"a", "b"}, {"ab"}},
    {kRegex, "^(?:^a|b$|c)d?", {"ad", "a", "b", "cd"}, {"bd", "d"}},
    {kSchema,  // pydantic's Decimal
     R"({"type":"string","pattern":"^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"})",
     {R"("1")", R"("-12.50")", R"(".5")", R"("00")"},
     {R"("")", R"("+")", R"("-.")", R"("1e5")", R"("1.2.3")"}},
    {kSchema,  // three digits before the point and two after it
     R"x({"type":"string","pattern":"^(?!^[-+.]*$)-?(?:\\d{0,3}$|(?=[\\d.]{1,6}$)\\d{0,3}\\.\\d{0,2}$)"})x",
     {R"("123")", R"("-123.45")", R"(".5")"},
     {R"("1.234")", R"("1234")", R"("-")"}},
    // Integers up to 2^64 and beyond.
    {kSchema,
     R"({"type":"integer","maximum":18446744073709551615})",
     {"18446744073709551615", "-18446744073709551615", "0"},
     {"18446744073709551616", "1.5"}},
    {kSchema, R"({"type":"integer"})", {"99999999999999999999"}, {"100000000000000000000"}},
    {kSchema, R"({"type":"string","nullable":true})", {"null", R"("a")"}, {"1"}},
    {kSchema, R"({"not":{"type":"string","nullable":true}})", {"1"}, {"null", R"("a")"}},
    {kRegex, "(?=a(?!b))[a-c]{2}", {"aa", "ac"}, {"ab", "ba"}},
    {kRegex, "\\u00e9\\x41", {"éA"}, {"eA"}},
    {kEbnf, "root ::= \"(\" root \")\" | [a-c]{2}", {"ab", "((cc))"}, {"(ab", "a", "abc"}},
    {kEbnf, "root ::= root \"+\" [0-9] | [0-9] # left recursion", {"1", "1+2+3"}, {"1+", "+"}},
    {kEbnf, "root ::= [0-9] + \"x\" {2} ?", {"1", "12xx"}, {"", "1x"}},
    {kEbnf, "start: \"a\" ~ 2..3 item *\nitem: \"b\" ?\n", {"aa", "aaabb"}, {"a", "aaaa"}},
    {kEbnf, "start: pair (\",\" pair)*\npair: NAME \"=\" /[0-9]+/\nNAME: \"a\"..\"c\"\n", {}, {}},
    {kEbnf,
     "start: sum\n?sum: sum \"+\" atom | atom\natom: NUMBER | \"(\" sum \")\"\n"
     "%import common.NUMBER\n%ignore \" \"\n",
     {"1", "1 + 2", "(1+2.5) + 3 "},
     {"1 +", "a"}},
    {kSchema, "true", {"1", "null", "[1, \"a\"]"}, {"", "[1,"}},
    {kSchema,
     R"({"uniqueItems":true,"items":{"enum":["a","b",1]},"minItems":1})",
     {"[\"a\"]", "[1, \"b\"]", "[\"b\", \"a\", 1]"},
     {"[]", "[\"a\", \"a\"]", "[1, \"b\", 1]"}},
    {kSchema,
     R"({"uniqueItems":true,"items":{"type":["boolean","null"]},"maxItems":2})",
     {"[]", "[null, true]", "[false, true]"},
     {"[true, true]", "[null, true, false]"}},
    {kSchema,
     R"({"items":[{"type":"integer"},{"type":"string"}],"additionalItems":{"type":"null"}})",
     {"[]", "[1]", "[1, \"a\"]", "[1, \"a\", null]"},
     {"[\"a\"]", "[1, 1]", "[1, \"a\", 1]"}},
    {kSchema,
     R"({"type":"number","multipleOf":0.25})",
     {"0.25", "1.5", "1.50", "2", "-0.5"},
     {"0.3", "1.55", "0.1"}},
    // An escaped spelling of a declared key is none of the others.
    {kSchema,
     R"({"properties":{"a":{"type":"null"}},"required":["a"],"additionalProperties":{"type":"integer"}})",
     {R"({"a": null, "cl\u00e9": 1, "\ud83d\ude42": 2})"},
     {R"({"a": null, "\u0061": 1})", R"({"\u0061": null})"}},
    {kSchema,
     R"({"properties":{"é":{"type":"null"}},"additionalProperties":{"type":"integer"}})",
     {R"({"é": null, "b": 1})"},
     {R"({"\u00e9": 1})", R"({"\u00E9": 1})"}},
    {kSchema,
     R"({"propertyNames":{"type":"string"},"additionalProperties":{"type":"integer"}})",
     {R"({"cl\u00e9": 1})"},
     {R"({"a": "b"})"}},
    // zod's time, whose pattern has no zone; where both can hold, both do.
    {kSchema,
     R"({"format":"time","pattern":"^[0-9:]{5}$","type":"string"})",
     {"\"12:34\""},
     {"\"1\""}},
    {kSchema,
     R"({"format":"date","pattern":"^2024","type":"string"})",
     {"\"2024-02-29\""},
     {"\"2023-01-01\"", "\"2024-02-30\"", "\"2024\""}},
    {kSchema,
     R"({"format":"uuid4","type":"string"})",
     {"\"123e4567-e89b-42d3-a456-426614174000\""},
     {"\"123e4567-e89b-12d3-a456-426614174000\""}},
    {kSchema,
     R"({"format":"ipv4network","type":"string"})",
     {"\"10.0.0.0/8\"", "\"172.16.0.0/12\"", "\"1.2.3.4\"", "\"1.2.3.4/32\"", "\"0.0.0.0/0\""},
     {"\"10.0.0.1/8\"", "\"172.17.0.0/12\"", "\"1.2.3.4/33\""}},
    {kSchema,
     R"({"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"string"}},
         "required":["b","a"],"additionalProperties":false})",
     {R"({"b": 1, "a": "x"})", "{\n  \"b\": 1,\n  \"a\": \"\"\n}"},
     {R"({"a": "x", "b": 1})", R"({"b": 1})", R"({"b": 1.5, "a": "x"})",
      R"({"b": 1, "a": "x", "c": 1})"}},
    {kSchema,
     R"({"type":"integer","minimum":-7,"exclusiveMaximum":120})",
     {"-7", "0", "9", "119", "-1"},
     {"-8", "120", "1.5", "01", "-0"}},
    {kSchema,
     R"({"type":"number","minimum":0.5,"maximum":10})",
     {"0.5", "0.51", "10", "10.0", "9.999", "1"},
     {"0.49", "10.01", "0", "11", "-1", "5e9"}},
    {kSchema, R"({"type":"integer","multipleOf":7})", {"0", "7", "-14", "700"}, {"1", "8", "-15"}},
    {kSchema, R"({"multipleOf":0.25,"type":"number"})", {"1", "0.25", "1.50"}, {"0.3", "1.51"}},
    {kSchema,
     R"({"type":"string","minLength":2,"maxLength":3})",
     {R"("ab")", R"("éé")", R"("\u0041\n")", R"("\ud83d\ude00x")"},
     {R"("a")", R"("abcd")", R"("\ud83dx")"}},
    {kSchema,
     R"({"type":"string","pattern":"^[a-z]+$","minLength":2,"format":"hostname"})",
     {R"("ab")"},
     {R"("a")", R"("a1")"}},
    {kSchema,
     R"({"type":"string","format":"date"})",
     {R"("2024-02-29")", R"("1999-12-31")", R"("0001-01-01")", R"("0400-02-29")"},
     {R"("2023-02-29")", R"("2024-13-01")", R"("0000-01-01")", R"("0000-02-29")"}},
    {kSchema,
     R"({"enum":["a",1,null,{"x":[true]}]})",
     {R"("a")", "1", "1.0", "null", R"({"x": [true]})"},
     {R"("b")", "2"}},
    {kSchema,
     R"({"allOf":[{"properties":{"a":{"type":"integer"}}},{"required":["a"]}],
                  "type":"object"})",
     {R"({"a": 1})", R"({"a": 1, "b": 2})"},
     {R"({"a": "x"})", "{}"}},
    {kSchema, R"({"oneOf":[{"type":"integer"},{"minimum":2}]})", {"1", "2.5"}, {"3", "1.5"}},
    {kSchema, R"({"not":{"type":["string","object"]}})", {"1", "[]"}, {R"("a")", "{}"}},
    {kSchema,
     R"({"type":"object","if":{"properties":{"k":{"const":"i"}},"required":["k"]},
                  "then":{"properties":{"v":{"type":"integer"}}},
                  "else":{"properties":{"v":{"type":"string"}}}})",
     {R"({"k": "i", "v": 1})", R"({"v": "x", "k": "s"})"},
     {R"({"k": "i", "v": "x"})", R"({"k": "s", "v": 1})"}},
    {kSchema,
     R"({"type":"array","prefixItems":[{"type":"integer"}],"items":{"type":"string"},
                  "minItems":2,"maxItems":3})",
     {R"([1, "a"])", R"([1, "a", "b"])"},
     {"[1]", R"(["a", "b"])", R"([1, "a", "b", "c"])"}},
    {kSchema,
     R"({"type":"object","patternProperties":{"^x":{"type":"integer"}},
                  "additionalProperties":{"type":"string"},"properties":{"xy":{"minimum":5}}})",
     {R"({"xy": 5})", R"({"x1": 1, "y": "s"})"},
     {R"({"xy": 4})", R"({"x1": "s"})"}},
    // An escaped key is the same key, so that it must not slip past the declared one.
    {kSchema,
     R"({"type":"object","properties":{"a":{"type":"integer"}}})",
     {R"({"a": 1, "b": "x"})"},
     {R"({"\u0061": "x"})", R"({"a": "x"})"}},
    {kSchema,
     R"({"$defs":{"n":{"type":"object","properties":{"next":{"$ref":"#/$defs/n"}},
                  "additionalProperties":false}},"$ref":"#/$defs/n"})",
     {"{}", R"({"next": {"next": {}}})"},
     {R"({"next": 1})"}},
    {kSchema,
     R"({"type":"object","maxProperties":1,"minProperties":1})",
     {R"({"a": 1})"},
     {"{}", R"({"a": 1, "b": 2})"}},
    {kSchema,
     R"({"type":"object","propertyNames":{"enum":["a","b"]}})",
     {R"({"a": 1})"},
     {R"({"c": 1})"}},
};

INSTANTIATE_TEST_SUITE_P(All, GrammarLanguageTest, testing::ValuesIn([] {
                           std::vector<Case> cases(std::begin(kCases), std::end(kCases));
                           std::erase_if(cases, [](const Case& c) { return c.in.empty(); });
                           return cases;
                         }()));

TEST(GrammarTest, TakesPartsTogether) {
  const GrammarSpec schema{.kind = kSchema, .text = R"({"type":"integer"})"};
  const GrammarSpec call{.kind = Kind::kSequence,
                         .parts = {{.kind = Kind::kMarker, .text = "<call>"},
                                   schema,
                                   {.kind = Kind::kLiteral, .text = "</call>"}}};
  const auto grammar =
      Compiled({.kind = Kind::kSequence,
                .parts = {{.kind = Kind::kText, .choices = {"<call>"}},
                          {.kind = Kind::kRepeat, .parts = {call}, .min = 0, .max = 2}}});
  for (const char* text : {"", "hello <cal", "x<call>1</call>", "<call>1</call><call>2</call>"}) {
    EXPECT_TRUE(grammar->Matches(text)) << text;
  }
  for (const char* text : {"<call>x</call>", "<call>1", "<call>1</call>x"}) {
    EXPECT_FALSE(grammar->Matches(text)) << text;
  }
}

TEST(GrammarTest, ClosedObjectsHaveTheMembersThatTheirSchemasList) {
  const auto takes = [](const std::string& schema, const char* text, bool closed = true) {
    return Compiled({.kind = kSchema, .text = schema, .closed = closed})->Matches(text);
  };
  const char* const one = R"({"properties":{"a":{}},"required":["a"]})";
  EXPECT_TRUE(takes(one, R"({"a": 1})"));
  EXPECT_FALSE(takes(one, R"({"a": 1, "b": 2})"));
  EXPECT_TRUE(takes(one, R"({"a": 1, "b": 2})", /*closed=*/false));
  EXPECT_FALSE(takes(R"({"type":"object","properties":{}})", R"({"b": 2})"));
  // Schemas that apply together list the members together.
  const char* const all = R"({"allOf":[{"properties":{"a":{}}},{"$ref":"#/$defs/b"}],
                              "$defs":{"b":{"properties":{"b":{"type":"integer"}}}}})";
  EXPECT_TRUE(takes(all, R"({"a": 1, "b": 2})"));
  EXPECT_FALSE(takes(all, R"({"a": 1, "c": 2})"));
  const char* const any = R"({"anyOf":[{"properties":{"a":{}},"required":["a"]},
                                       {"properties":{"b":{}},"required":["b"]}]})";
  EXPECT_TRUE(takes(any, R"({"b": 2})"));
  EXPECT_FALSE(takes(any, R"({"a": 1, "b": 2})"));
  // What opens an object: saying so, or listing nothing.
  EXPECT_TRUE(takes(R"({"properties":{"a":{}},"additionalProperties":true})", R"({"b": 2})"));
  EXPECT_TRUE(
      takes(R"({"properties":{"a":{}},"additionalProperties":{"type":"integer"}})", R"({"b": 2})"));
  EXPECT_TRUE(takes(R"({"properties":{"a":{}},"unevaluatedProperties":true})", R"({"b": 2})"));
  EXPECT_TRUE(takes(R"({"type":"object"})", R"({"b": {"c": 1}})"));
  EXPECT_TRUE(takes("{}", R"({"b": 2})"));
  EXPECT_TRUE(takes(R"({"properties":{"a":{}},"minProperties":2})", R"({"a": 1, "b": 2})"));
  const char* const patterns = R"({"patternProperties":{"^x":{}},"properties":{"a":{}}})";
  EXPECT_TRUE(takes(patterns, R"({"a": 1, "x1": 2})"));
  EXPECT_FALSE(takes(patterns, R"({"b": 2})"));
  // A condition that forbids a member does not list it.
  EXPECT_TRUE(takes(R"({"type":"object","dependentRequired":{"a":["b"]}})", R"({"c": 1})"));
  EXPECT_NE((GrammarSpec{.kind = kSchema, .text = one, .closed = true}).Key(),
            (GrammarSpec{.kind = kSchema, .text = one}).Key());
}

TEST(GrammarTest, LenientOnesPassOverWhatIsNotEnforced) {
  const auto compiled = [](const std::string& schema) {
    return Compiled({.kind = kSchema, .text = schema, .lenient = true});
  };
  const std::pair<const char*, const char*> kTaken[] = {
      {R"({"items":{"type":"object"},"uniqueItems":true})", "[{}, {}]"},
      {R"({"type":"text"})", "1"},
      {R"({"$ref":"http://x/y"})", "1"},
      {R"({"properties":{"a":{"format":"iri"}}})", R"({"a": "b"})"},
      {R"({"properties":{"made_up":{"made_up":1}}})", R"({"made_up": 2})"},
      {R"({"pattern":"(a)\\1"})", R"("b")"},
      {R"({"patternProperties":{"(":{"type":"integer"}}})", R"({"(": "x"})"},
      {R"({"multipleOf":1.234567,"type":"number"})", "1"},
      {R"({"properties":{"a":"string","b":{"required":true}}})", R"({"a": 1, "b": 2})"},
      {R"({"oneOf":[{"multipleOf":2},{"multipleOf":3}]})", "6"},
      {R"({"not":{"contains":{}}})", "[1]"},
      {R"({"propertyNames":{"anyOf":[{"const":"a"},{"const":"b"}]}})", R"({"c": 1})"},
      {R"({"enum":"a"})", "1"},
      {R"({"minLength":"a"})", R"("b")"},
  };
  for (const auto& [schema, text] : kTaken) {
    EXPECT_TRUE(compiled(schema)->Matches(text)) << schema;
    EXPECT_NE(Refusal({.kind = kSchema, .text = schema}), "") << schema;
  }
  // The rest is enforced.
  const auto rest = compiled(
      R"({"properties":{"a":{"format":"iri","maxLength":2},"b":{"type":"integer","made_up":1}},
          "required":["a"],"contains":{}})");
  EXPECT_TRUE(rest->Matches(R"({"a": "xy", "b": 1})"));
  EXPECT_FALSE(rest->Matches(R"({"a": "xyz"})"));
  EXPECT_FALSE(rest->Matches(R"({"b": 1})"));
  EXPECT_FALSE(rest->Matches(R"({"a": "xy", "b": "1"})"));
  EXPECT_NE(Refusal({.kind = kSchema, .text = "{", .lenient = true}).find("no JSON"),
            std::string::npos);
}

TEST(GrammarTest, ElementsHaveStringsAsTheyAre) {
  const auto element = [](const std::string& schema) {
    return Compiled({.kind = Kind::kElement, .text = schema, .choices = {"</v>"}});
  };
  EXPECT_TRUE(element("{}")->Matches("any \"text\""));
  EXPECT_FALSE(element("{}")->Matches("a</v>"));
  EXPECT_TRUE(element(R"({"type":"integer"})")->Matches("12"));
  EXPECT_FALSE(element(R"({"type":"integer"})")->Matches("a"));
  const auto optional = element(R"({"anyOf":[{"type":"string","minLength":6},{"type":"null"}]})");
  EXPECT_TRUE(optional->Matches("null"));
  EXPECT_TRUE(optional->Matches("123456"));
  EXPECT_FALSE(optional->Matches("12345"));
  const auto list =
      element(R"({"type":["string","array"],"items":{"type":"string"},"maxLength":1})");
  EXPECT_TRUE(list->Matches(R"(["a"])"));
  EXPECT_TRUE(list->Matches("a"));
  EXPECT_FALSE(list->Matches("ab"));
  EXPECT_NE(
      Refusal({.kind = Kind::kElement, .text = R"({"oneOf":[{"pattern":"a"},{"pattern":"b"}]})"})
          .find("oneOf"),
      std::string::npos);
  EXPECT_NE(Refusal({.kind = Kind::kElement,
                     .text = R"({"$defs":{"n":{"anyOf":[{"$ref":"#/$defs/n"},{"minLength":1}]}},
                                 "$ref":"#/$defs/n"})"}),
            "");
}

TEST(GrammarTest, RefusesByName) {
  const std::pair<GrammarSpec, const char*> kRefused[] = {
      {{kSchema, R"({"items":{"uniqueItems":true}})"}, "uniqueItems at #/items"},
      {{kSchema, R"({"type":"text"})"}, "type at #"},
      {{kSchema, R"({"$ref":"http://x/y"})"}, "$ref at #"},
      {{kSchema, R"({"properties":{"a":{"format":"iri"}}})"}, "format at #/properties/a"},
      {{kSchema, R"({"made_up":1})"}, "made_up at #"},
      {{kSchema, R"({"\u0001types":"x"})"}, "types at #"},
      {{kSchema, R"({"items":{"type":"string"},"uniqueItems":true})"}, "uniqueItems at #"},
      {{kSchema, R"({"items":[{}],"prefixItems":[{}]})"}, "prefixItems stands beside it"},
      {{kSchema, "false"}, "no text at all"},
      {{kSchema, R"({"type":"object","required":["a"],"properties":{"a":false}})"}, "no text"},
      {{kSchema, R"({"type":"string","pattern":"(a)\\1"})"}, "back reference"},
      {{kSchema, "{"}, "no JSON"},
      {{kRegex, "a("}, "without its )"},
      {{kRegex, "\\bx"}, "\\b"},
      {{kRegex, "(a(?=b))*b"}, "a look-ahead inside of a repetition"},
      {{kRegex, "(^a)*b"}, "or an anchor"},
      {{kRegex, "a(?=^b)"}, "an anchor inside of it"},
      {{kRegex, "(?<=a)b"}, "look-behind"},
      {{kEbnf, "root ::= a\na ::= b\nb ::= a"}, "begins with itself"},
      {{kEbnf, "root ::= missing"}, "missing is used, but not defined"},
      {{kEbnf, "root ::= \"a"}, "line 1"},
      {{Kind::kChoice}, "no choice"},
  };
  for (const auto& [spec, named] : kRefused) {
    EXPECT_NE(Refusal(spec).find(named), std::string::npos) << spec.text << ": " << Refusal(spec);
  }
}

TEST(GrammarTest, HostileOnesAreRefused) {
  std::string deep, wide = R"({"properties":{)", all = R"({"allOf":[)";
  for (int i = 0; i < 3000; ++i) deep += R"({"items":)";
  deep += "{}" + std::string(3000, '}');
  for (int i = 0; i < 6000; ++i) {
    wide += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + "\":{}";
  }
  for (int i = 0; i < 40; ++i) {
    all += std::string(i > 0 ? "," : "") + R"({"anyOf":[{"minLength":)" + std::to_string(i) +
           R"(},{"maxLength":)" + std::to_string(100 + i) + "}]}";
  }
  EXPECT_NE(Refusal({kSchema, deep}).find("nested"), std::string::npos);
  EXPECT_NE(Refusal({kSchema, wide + "}}"}).find("properties"), std::string::npos);
  EXPECT_NE(Refusal({kSchema, all + "]}"}, {.time = {}}).find("0 ms to compile"),
            std::string::npos);
  EXPECT_NE(Refusal({kRegex, std::string(5000, '(')}).find("nested"), std::string::npos);
  EXPECT_NE(Refusal({kRegex, "a" + std::string(65000, '*')}).find("a quantifier behind another"),
            std::string::npos);
  EXPECT_NE(Refusal({kEbnf, "root ::= \"a\"" + std::string(65000, '*')}).find("quantifiers"),
            std::string::npos);
  EXPECT_NE(Refusal({kEbnf, "root ::= " + std::string(5000, '(')}).find("nested"),
            std::string::npos);
  EXPECT_NE(Refusal({kSchema, std::string(2 << 20, ' ')}).find("bytes"), std::string::npos);
  const std::atomic<bool> cancelled = true;
  EXPECT_EQ(Grammar::Compile({kSchema, "{}"}, {.cancelled = &cancelled}).status().code(),
            absl::StatusCode::kCancelled);
}

// It may take thousands of states to tell if an intersection has a text: the clock ends that, too.
TEST(RegularPoolTest, EmptinessIsUndecidedAtTheDeadline) {
  const auto is_empty = [](RegularPool::TimePoint deadline) {
    RegularPool pool;
    pool.SetDeadline(deadline);
    const Regular twos = pool.Repeat(pool.Literal("aa"), 0, 900);
    const Regular odd = pool.Concat({pool.Literal("a"), twos});
    const bool empty = pool.IsEmpty(pool.And({twos, odd}));
    return std::pair(empty, pool.undecided());
  };
  EXPECT_EQ(is_empty(RegularPool::TimePoint::max()), std::pair(true, false));
  EXPECT_EQ(is_empty(RegularPool::TimePoint::min()), std::pair(false, true));
}

TEST(GrammarCacheTest, CompilesOnce) {
  GrammarCache cache;
  const GrammarSpec a{.kind = kRegex, .text = "a"}, b{.kind = kRegex, .text = "b"};
  const auto first = cache.Get(a), second = cache.Get(b), again = cache.Get(a);
  ASSERT_TRUE(first.ok() && second.ok() && again.ok());
  EXPECT_EQ(*first, *again);
  EXPECT_NE(*first, *second);
  EXPECT_FALSE(cache.Get({.kind = kRegex, .text = "("}).ok());
}

TEST(GrammarCacheTest, NoOwnerFindsOrDrivesOutAnothers) {
  const auto spec = [](size_t number) {
    return GrammarSpec{.kind = kRegex, .text = StrCat("x", number)};
  };
  const auto one = Grammar::Compile(spec(0));
  ASSERT_TRUE(one.ok());
  GrammarCache cache(6 * (*one)->bytes());
  const auto mine = cache.Get(spec(0), {}, 1);
  const auto mine_too = cache.Get(spec(1), {}, 1);
  EXPECT_NE(*mine, *cache.Get(spec(0), {}, 2));
  std::weak_ptr<const Grammar> first_of_flood = *cache.Get(spec(1), {}, 2);
  for (size_t i = 0; i < 50; ++i) ASSERT_TRUE(cache.Get(spec(i), {}, 2).ok());
  EXPECT_TRUE(first_of_flood.expired());
  EXPECT_EQ(*mine, *cache.Get(spec(0), {}, 1));
  EXPECT_EQ(*mine_too, *cache.Get(spec(1), {}, 1));
  // A cache too small for anything keeps the latest.
  GrammarCache tiny(1);
  const auto kept_one = tiny.Get(spec(0), {}, 1);
  EXPECT_EQ(*kept_one, *tiny.Get(spec(0), {}, 1));
  ASSERT_TRUE(tiny.Get(spec(0), {}, 2).ok());
  EXPECT_NE(*kept_one, *tiny.Get(spec(0), {}, 1));
}

// Tokens of all bytes, of random pieces of JSON and of words, a special token and an end token.
class MaskTest : public testing::Test {
 protected:
  MaskTest() {
    std::mt19937 random(5);
    for (int byte = 0; byte < 256; ++byte) texts_.emplace_back(1, static_cast<char>(byte));
    for (const char* text :
         {"{\"", "\":", "\", \"", "\"}", "}}", "[[", "null", "true", "12", " ", "  ", "\n  ", "é",
          "日本", "日\"", "\\n", "\\u00", "\xe6\x97", "abc"}) {
      texts_.emplace_back(text);
    }
    const std::string letters = "abcxyz{}[]\",: 019.-\\n\n";
    for (int i = 0; i < 600; ++i) {
      std::string text;
      for (int k = 0; k < 2 + i % 5; ++k) text += letters[random() % letters.size()];
      texts_.push_back(text);
    }
    std::vector<VocabularyToken> tokens;
    for (const std::string& text : texts_) tokens.push_back({text});
    tokens.push_back({"<call>", true});
    tokens.push_back({"</s>", true});
    end_ = static_cast<Token>(tokens.size() - 1);
    vocabulary_ = std::make_shared<GrammarVocabulary>(tokens, std::vector<Token>{end_},
                                                      static_cast<int32_t>(tokens.size()) + 7);
  }

  // Follows random tokens of the masks, each of which is compared with what its tokens do.
  std::string Walk(const std::shared_ptr<const Grammar>& grammar, uint32_t seed, int most) {
    std::mt19937 random(seed);
    GrammarMatcher matcher(grammar, vocabulary_);
    std::string text;
    for (int step = 0; step < most; ++step) {
      const auto mask = matcher.Mask();
      EXPECT_TRUE(mask.ok()) << mask.status();
      if (!mask.ok()) return text;
      std::vector<Token> allowed;
      for (Token token = 0; token < vocabulary_->mask_size(); ++token) {
        GrammarMatcher copy = matcher;
        const bool may = token == end_ ? matcher.accepting() : copy.Accept(token);
        EXPECT_EQ(MaskAllows(**mask, token), may) << "token " << token << " after " << text;
        if (may) allowed.push_back(token);
      }
      if (allowed.empty()) {
        ADD_FAILURE() << "a dead end after " << text;
        return text;
      }
      const Token token = allowed[random() % allowed.size()];
      if (token == end_) return text;
      EXPECT_TRUE(matcher.Accept(token));
      text += vocabulary_->Bytes(token);
      if (matcher.finished()) return text;
    }
    return text + matcher.ForcedBytes();
  }

  std::vector<std::string> texts_;
  Token end_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
};

TEST_F(MaskTest, HasExactlyTheTokensThatCanCome) {
  int finished = 0, index = 0;
  for (const Case& one : kCases) {
    if (one.in.empty()) continue;
    const auto grammar = Compiled({.kind = one.kind, .text = one.text});
    ASSERT_NE(grammar, nullptr);
    for (uint32_t seed = 0; seed < 2; ++seed) {
      const std::string text = Walk(grammar, seed * 100 + ++index, 25);
      finished += grammar->Matches(text) ? 1 : 0;
    }
  }
  EXPECT_GT(finished, 20);
}

TEST_F(MaskTest, SpecialTokensComeOnlyWhereAMarkerIs) {
  const auto grammar = Compiled({.kind = Kind::kSequence,
                                 .parts = {{.kind = Kind::kMarker, .text = "<call>"},
                                           {.kind = Kind::kLiteral, .text = "x"}}});
  GrammarMatcher matcher(grammar, vocabulary_);
  const Token special = end_ - 1;
  EXPECT_TRUE(MaskAllows(**matcher.Mask(), special));
  EXPECT_TRUE(MaskAllows(**matcher.Mask(), '<'));
  ASSERT_TRUE(matcher.Accept(special));
  EXPECT_FALSE(MaskAllows(**matcher.Mask(), special));
  EXPECT_EQ(matcher.ForcedBytes(), "x");
  ASSERT_TRUE(matcher.Accept('x'));
  EXPECT_TRUE(matcher.finished());
  GrammarMatcher text(Compiled({.kind = Kind::kText}), vocabulary_);
  EXPECT_FALSE(MaskAllows(**text.Mask(), special));
}

// As many as 20,000 texts may follow an "a", and nearly as many each of these.
TEST_F(MaskTest, TooManyAlternativesAreTold) {
  std::string pattern;
  for (int i = 0; i < 20000; ++i) pattern += "a?";
  GrammarMatcher matcher(Compiled({.kind = kRegex, .text = pattern}), vocabulary_);
  ASSERT_TRUE(matcher.AcceptBytes("a"));
  EXPECT_EQ(matcher.Mask().status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(MaskTest, RandomBytesNeverBreakTheParsers) {
  std::mt19937 random(9);
  const std::string pieces[] = {
      "{",           "}",    "[",   "]",         "\"type\":", "\"a\"", "(",   ")",
      "*",           "+",    "\\",  "root ::= ", "start: ",   "|",     "[a-", "\"",
      ",",           ":",    "1e9", "{2,",       "$",         "^",     "?=",  "\"$ref\":\"#\"",
      "\"allOf\":[", "\xff", "~",   "%"};
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (size_t k = random() % 14; k > 0; --k) text += pieces[random() % std::size(pieces)];
    for (const Kind kind : {kSchema, kRegex, kEbnf}) {
      const auto grammar = Grammar::Compile({.kind = kind, .text = text}, kUnhurried);
      if (grammar.ok()) (*grammar)->Matches(text);
    }
  }
}

}  // namespace
}  // namespace millrace
