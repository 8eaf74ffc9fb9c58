// Tools whose arguments are elements, one for each property.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/strings.h"
#include "engine/constraints/answer_grammar_test_util.h"

namespace millrace {
namespace {

TEST(AnswerGrammarTest, ElementsAreHeldToTheirSchemas) {
  EXPECT_TRUE(
      Takes(Forced("f"), "qwen3_coder",
            "<parameter=n>\n1\n</parameter>\n<parameter=s>\na<b\n</parameter>\n</function>"));
  EXPECT_TRUE(Takes(Forced("f"), "qwen3_coder", "<parameter=n>\n1\n</parameter>\n</function>"));
  EXPECT_FALSE(Takes(Forced("f"), "qwen3_coder", "<parameter=n>\nx\n</parameter>\n</function>"));
  EXPECT_FALSE(Takes(Forced("f"), "qwen3_coder", "</function>"));
  const auto value = [](const std::string& schema, std::string_view text) {
    const std::string tools =
        R"([{"function":{"name":"f","strict":true,"parameters":{"properties":{"v":)" + schema +
        R"(},"required":["v"],"$defs":{"zip":{"type":"string","pattern":"^[0-9]{5}$"}}}}}])";
    return Takes(Forced("f", tools), "glm45",
                 StrCat("<arg_key>v</arg_key>\n<arg_value>", text, "</arg_value>\n</tool_call>"));
  };
  EXPECT_TRUE(value(R"({"$ref":"#/$defs/zip"})", "04224"));
  EXPECT_FALSE(value(R"({"$ref":"#/$defs/zip"})", "0422"));
  EXPECT_FALSE(value(R"({"$ref":"#/$defs/zip"})", "\"04224\""));
  EXPECT_TRUE(value(R"({"type":"string","format":"date"})", "2026-01-31"));
  EXPECT_FALSE(value(R"({"type":"string","format":"date"})", "today"));
  EXPECT_TRUE(value(R"({"anyOf":[{"type":"string"},{"type":"null"}]})", "some \"text\"\n"));
  EXPECT_FALSE(value(R"({"type":"string"})", "a</arg_value>b"));
  EXPECT_TRUE(value(R"({"enum":["a b",2,null]})", "a b"));
  EXPECT_TRUE(value(R"({"enum":["a b",2,null]})", "2"));
  EXPECT_FALSE(value(R"({"enum":["a b",2,null]})", "3"));
  EXPECT_TRUE(value(R"({"anyOf":[{"const":"x"},{"type":"integer","minimum":5}]})", "7"));
  EXPECT_FALSE(value(R"({"anyOf":[{"const":"x"},{"type":"integer","minimum":5}]})", "4"));
  EXPECT_TRUE(value(R"({"type":"object","properties":{"a":{"type":"string"}}})", R"({"a": "b"})"));
  EXPECT_TRUE(value(R"({"type":"string","maxLength":2})", "\"\\"));
  EXPECT_FALSE(value(R"({"type":"string","maxLength":2})", "abc"));
  const auto refused = Made({.chat = Forced("f", R"([{"function":{"name":"f","strict":true,
                                "parameters":{"if":{"required":["a"]},"then":{}}}}])"),
                             .parser = "qwen3_coder"});
  EXPECT_THAT(std::string(refused.status().message()),
              testing::HasSubstr("tools has the keyword if in the parameters of f"));
}

// The elements of a call of a strict tool with these parameters.
bool TakesElements(const std::string& parameters, const std::vector<std::string>& elements,
                   bool strict = true) {
  const std::string tools =
      StrCat(R"([{"function":{"name":"f","strict":)", strict ? "true" : "false",
             R"(,"parameters":)", parameters, "}}]");
  std::string text;
  for (const std::string& element : elements) {
    const size_t sign = element.find('=');
    text += StrCat("<parameter=", element.substr(0, sign), ">\n", element.substr(sign + 1),
                   "\n</parameter>\n");
  }
  return Takes(Forced("f", tools), "qwen3_coder", text + "</function>");
}

TEST(AnswerGrammarTest, ElementsAreHeldToKeywordsOfTheObject) {
  const std::string abc = R"("properties":{"a":{"type":"integer"},"b":{"type":"integer"},
                             "c":{"type":"integer"}})";
  const auto with = [&](const std::string& keywords) { return "{" + abc + "," + keywords + "}"; };
  for (const bool strict : {true, false}) {
    const std::string least = with(R"("minProperties":2)");
    EXPECT_FALSE(TakesElements(least, {"b=1"}, strict));
    EXPECT_TRUE(TakesElements(least, {"a=1", "c=1"}, strict));
    const std::string most = with(R"("maxProperties":1)");
    EXPECT_TRUE(TakesElements(most, {"c=1"}, strict));
    EXPECT_FALSE(TakesElements(most, {"a=1", "c=1"}, strict));
    const std::string dependent = with(R"("dependentRequired":{"a":["c"]})");
    EXPECT_FALSE(TakesElements(dependent, {"a=1", "b=1"}, strict));
    EXPECT_TRUE(TakesElements(dependent, {"a=1", "c=1"}, strict));
    EXPECT_TRUE(TakesElements(dependent, {"b=1"}, strict));
    const std::string one_of_two = with(R"("anyOf":[{"required":["a"]},{"required":["b"]}])");
    EXPECT_FALSE(TakesElements(one_of_two, {"c=1"}, strict));
    EXPECT_TRUE(TakesElements(one_of_two, {"b=1", "c=1"}, strict));
    const std::string both = with(R"("allOf":[{"required":["c"]},
        {"properties":{"a":{"minimum":5}},"required":["a"]}])");
    EXPECT_TRUE(TakesElements(both, {"a=5", "c=1"}, strict));
    EXPECT_FALSE(TakesElements(both, {"a=4", "c=1"}, strict));
    EXPECT_FALSE(TakesElements(both, {"a=5"}, strict));
  }
  EXPECT_FALSE(TakesElements(R"({"minProperties":1})", {}));
  EXPECT_TRUE(TakesElements(R"({"minProperties":1})", {"any=1"}));
}

TEST(AnswerGrammarTest, ElementsFollowBranchesThatARequiredPropertyTellsApart) {
  const std::string shape = R"({"oneOf":[
      {"properties":{"kind":{"const":"circle"},"r":{"type":"number"}},"required":["kind","r"]},
      {"properties":{"kind":{"enum":["box"]},"w":{"type":"number"}},"required":["kind","w"],
       "additionalProperties":false}]})";
  EXPECT_TRUE(TakesElements(shape, {"kind=circle", "r=2"}));
  EXPECT_TRUE(TakesElements(shape, {"kind=box", "w=2"}));
  EXPECT_FALSE(TakesElements(shape, {"kind=box", "r=2"}));
  EXPECT_FALSE(TakesElements(shape, {"kind=circle"}));
  const auto refused = Made({.chat = Forced("f", R"([{"function":{"name":"f","strict":true,
      "parameters":{"oneOf":[{"properties":{"a":{}}},{"properties":{"a":{"type":"integer"}}}]}}}])"),
                             .parser = "glm45"});
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("oneOf"));
  // The same, of a tool that is not strict, is held to one of them.
  EXPECT_FALSE(TakesElements(R"({"oneOf":[{"properties":{"a":{"type":"integer"}},"required":["a"]},
                                {"properties":{"a":{"type":"boolean"}},"required":["a"]}]})",
                             {"a=x"}, /*strict=*/false));
}

TEST(AnswerGrammarTest, ElementsReferToAnyPartOfTheParameters) {
  const std::string tree =
      R"({"type":"object","properties":{"left":{"$ref":"#"},"size":{"type":"integer"},
      "depth":{"$ref":"#/properties/size"}}})";
  EXPECT_TRUE(TakesElements(tree, {R"(left={"left": {"size": 1}})", "depth=3"}));
  EXPECT_FALSE(TakesElements(tree, {R"(left={"left": {"size": "x"}})"}));
  EXPECT_FALSE(TakesElements(tree, {"depth=deep"}));
  const std::string root = R"({"$ref":"#/$defs/args","$defs":{"args":{"type":"object","properties":
      {"n":{"type":"integer"},"sub":{"$ref":"#/$defs/args"}},"required":["n"]}}})";
  EXPECT_TRUE(TakesElements(root, {"n=1", R"(sub={"n": 2})"}));
  EXPECT_FALSE(TakesElements(root, {"n=1", R"(sub={})"}));
  EXPECT_FALSE(TakesElements(root, {}));
}

// The refusal of a strict tool with these parameters; empty: it is taken.
std::string RefusalOfElements(const std::string& parameters) {
  const std::string tools =
      R"([{"function":{"name":"f","strict":true,"parameters":)" + parameters + "}}]";
  const auto grammar = Made({.chat = Forced("f", tools), .parser = "qwen3_coder"});
  return grammar.ok() ? "" : std::string(grammar.status().message());
}

TEST(AnswerGrammarTest, AReferenceToNothingIsRefused) {
  const std::string integer = R"({"type":"integer"})";
  const auto with = [&](const std::string& pointer) {
    return StrCat(R"({"type":"object","properties":{"a":{}},"required":["a"],"$ref":"#)", pointer,
                  R"(","$defs":{"a/b~":{"properties":{"a":)", integer,
                  R"(}},"":{"properties":{"a":)", integer, R"(}}},"allOf":[{"properties":{"a":)",
                  integer, "}}]}");
  };
  for (const char* pointer :
       {"/required/", "/required//", "/required/99999999999999999999999", "/required/9999999999",
        "/required/-", "/required/00", "/required/01", "/required/+0", "/required/0x",
        "/required/1", "/required/0/0", "/type/0", "/properties/a/~", "/$defs/~2", "/$defs/a~1b~",
        "required", "/properties/b", "/"}) {
    EXPECT_THAT(RefusalOfElements(with(pointer)), testing::HasSubstr("$ref")) << pointer;
    EXPECT_TRUE(TakesElements(with(pointer), {"a=1"}, /*strict=*/false)) << pointer;
  }
  for (const char* pointer : {"/allOf/0", "/$defs/a~1b~0", "/$defs/"}) {
    EXPECT_EQ(RefusalOfElements(with(pointer)), "") << pointer;
    EXPECT_TRUE(TakesElements(with(pointer), {"a=1"})) << pointer;
    EXPECT_FALSE(TakesElements(with(pointer), {"a=x"})) << pointer;
  }
}

TEST(AnswerGrammarTest, DefinitionsThatAreNoObjectAreNone) {
  for (const char* defs : {"[1]", "\"text\"", "3", "null", "true"}) {
    const std::string parameters = StrCat(
        R"({"$defs":)", defs,
        R"(,"definitions":[2],"type":"object","properties":{"a":{"$ref":"#"},"n":{"type":"integer"}}})");
    EXPECT_TRUE(TakesElements(parameters, {R"(a={"n": 1})"}, /*strict=*/false)) << defs;
    EXPECT_FALSE(TakesElements(parameters, {R"(a={"n": "x"})"}, /*strict=*/false)) << defs;
  }
}

TEST(AnswerGrammarTest, SchemasThatLeadToManyAreReadInBoundedTime) {
  const auto times = [](size_t count, const std::string& schema) {
    std::string list;
    for (size_t i = 0; i < count; ++i) list += StrCat(i == 0 ? "" : ",", schema);
    return list;
  };
  const std::string itself = times(20, R"({"$ref":"#"})");
  for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
    const std::string tree =
        StrCat(R"({"properties":{"n":{"type":"integer"}},")", keyword, R"(":[)", itself, "]}");
    EXPECT_TRUE(TakesElements(tree, {"n=1"}, /*strict=*/false)) << keyword;
    EXPECT_FALSE(TakesElements(tree, {"n=x"}, /*strict=*/false)) << keyword;
    EXPECT_THAT(RefusalOfElements(tree), testing::HasSubstr("the keyword $ref")) << keyword;
  }
  std::string chain = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 7; ++i) {
    chain += StrCat("\"d", i, R"(":{"allOf":[)",
                    times(20, StrCat(R"({"$ref":"#/$defs/d)", i + 1, "\"}")), "]},");
  }
  chain += R"("d7":{"properties":{"n":{"type":"integer"}}}}})";
  EXPECT_THAT(RefusalOfElements(chain),
              testing::HasSubstr("the keyword $ref that leads to too many schemas"));
  EXPECT_TRUE(TakesElements(chain, {"n=1"}, /*strict=*/false));
}

TEST(AnswerGrammarTest, SchemasThatAllPropertiesReferToAreBounded) {
  std::string parameters = R"({"properties":{"n":{"type":"integer"})";
  for (int i = 0; i < 500; ++i) parameters += StrCat(",\"p", i, R"(":{"$ref":"#/$defs/long"})");
  parameters += StrCat(R"(},"$defs":{"long":{"const":")", std::string(2000, 'x'), "\"}}}");
  EXPECT_THAT(
      RefusalOfElements(parameters),
      testing::HasSubstr("parameters of f, a strict tool, whose properties have more than"));
  EXPECT_TRUE(TakesElements(parameters, {"n=1"}, /*strict=*/false));
  EXPECT_FALSE(TakesElements(parameters, {"n=x"}, /*strict=*/false));
}

TEST(AnswerGrammarTest, PropertiesThatAreTooManyForAGrammarMayBeAny) {
  std::string parameters = R"({"properties":{"n":{"type":"integer"})";
  for (int i = 0; i < 20000; ++i) parameters += StrCat(",\"p", i, "\":{}");
  parameters += "}}";
  EXPECT_TRUE(TakesElements(parameters, {"p19999=1"}, /*strict=*/false));
}

TEST(AnswerGrammarTest, ElementsThatAreNotPlainAreListedUpToABound) {
  const auto with = [](int properties, int required) {
    std::string listed;
    std::string needed;
    for (int i = 0; i < properties; ++i) {
      listed += StrCat(i == 0 ? "" : ",", "\"p", i, R"(":{"type":"integer"})");
      if (i < required) needed += StrCat(i == 0 ? "" : ",", "\"p", i, "\"");
    }
    return StrCat(R"({"properties":{)", listed, R"(},"required":[)", needed,
                  R"(],"maxProperties":)", properties - 1, "}");
  };
  std::vector<std::string> elements;
  for (int i = 0; i < 20; ++i) elements.push_back(StrCat("p", i, "=1"));
  EXPECT_FALSE(TakesElements(with(20, 14), elements));
  elements.pop_back();
  EXPECT_TRUE(TakesElements(with(20, 14), elements));
  // Where the model decides, more stands around it.
  const std::string tools =
      StrCat(R"([{"function":{"name":"f","strict":true,"parameters":)", with(20, 14), "}}]");
  for (const char* parser : {"qwen3_coder", "glm45", "minimax_m2", "deepseek_v32", "seed_oss"}) {
    const auto made = Made({.chat = WithTools(tools), .parser = parser});
    EXPECT_TRUE(made.ok()) << parser << made.status();
  }
  EXPECT_THAT(
      RefusalOfElements(with(36, 30)),
      testing::HasSubstr("maxProperties beside more than 6 optional properties or 20 in all"));
  elements.clear();
  for (int i = 0; i < 36; ++i) elements.push_back(StrCat("p", i, "=1"));
  EXPECT_TRUE(TakesElements(with(36, 30), elements, /*strict=*/false));
  elements.front() = "p0=x";
  EXPECT_FALSE(TakesElements(with(36, 30), elements, /*strict=*/false));
}

TEST(AnswerGrammarTest, BranchesOfOneOfAreApartInBothDirections) {
  const auto one_of = [](const std::string& branches, const std::string& around = "") {
    return RefusalOfElements(StrCat("{", around, R"("oneOf":[)", branches, "]}"));
  };
  const auto refused = testing::HasSubstr("the keyword oneOf with branches");
  const std::string a = R"({"properties":{"a":{"type":"integer"}},"required":["a"]})";
  const std::string b = R"({"properties":{"b":{}},"required":["b"]})";
  // {"a": 1} is of both.
  EXPECT_THAT(one_of(a + R"(,{"properties":{"b":{}}})"), refused);
  EXPECT_THAT(one_of(R"({"properties":{"b":{}}},)" + a), refused);
  EXPECT_EQ(one_of(StrCat(a, ",", b)), "");
  EXPECT_EQ(one_of(a + R"(,{"properties":{"b":{}},"additionalProperties":false})"), "");
  // The properties around the branches may stand beside those of either.
  EXPECT_THAT(one_of(StrCat(a, ",", b), R"("properties":{"b":{}},)"), refused);
  EXPECT_EQ(one_of(R"({"properties":{"k":{"const":1}},"required":["k"]},
                      {"properties":{"k":{"const":2},"a":{}}})"),
            "");
}

}  // namespace
}  // namespace millrace
