#include "engine/constraints/answer_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/strings.h"
#include "engine/text/chat_format.h"
#include "text/grammar/test_limits.h"

namespace millrace {
namespace {

constexpr char kTwoTools[] =
    R"([{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object",
        "properties":{"n":{"type":"integer"},"s":{"type":"string"}},"required":["n"],
        "additionalProperties":false}}},
        {"type":"function","function":{"name":"g"}}])";
constexpr char kFreeTools[] =
    R"([{"type":"function","function":{"name":"f","parameters":{"type":"object",
        "properties":{"n":{"type":"integer"}}}}}])";

Chat WithTools(std::string tools, std::optional<std::string> forced = std::nullopt) {
  Chat chat;
  chat.tools = std::move(tools);
  chat.parse_tools = true;
  chat.forced_tool = std::move(forced);
  return chat;
}
Chat Forced(std::string tool, std::string tools = kTwoTools) {
  return WithTools(std::move(tools), std::move(tool));
}

struct Asked {
  Chat chat;
  std::string parser = "hermes";
  std::string reasoning = "qwen3";
  std::string format;  // a regular expression
  AnswerStart start = AnswerStart::kMayThink;
  bool parallel = true;
};

absl::StatusOr<std::shared_ptr<const Grammar>> Made(const Asked& asked) {
  const auto form = OutputFormat::Choose("", asked.parser, asked.reasoning);
  EXPECT_TRUE(form.ok()) << form.status();
  const GrammarSpec format{.kind = GrammarSpec::Kind::kRegex, .text = asked.format};
  const auto spec = AnswerGrammar({.chat = &asked.chat,
                                   .format = asked.format.empty() ? nullptr : &format,
                                   .start = asked.start,
                                   .parallel_tool_calls = asked.parallel},
                                  *form);
  if (!spec.ok()) return spec.status();
  EXPECT_TRUE(spec->has_value());
  return Grammar::Compile((*spec)->grammar, kUnhurried);
}

bool Takes(const Asked& asked, std::string_view text) {
  const auto grammar = Made(asked);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return grammar.ok() && (*grammar)->Matches(text);
}
bool Takes(const Chat& chat, const std::string& parser, std::string_view text) {
  return Takes({.chat = chat, .parser = parser}, text);
}

// ---- A forced call ----

TEST(AnswerGrammarTest, AForcedCallIsHeldToItsSchema) {
  EXPECT_TRUE(Takes(Forced("f"), "hermes", R"({"n": 1}})"));
  EXPECT_TRUE(Takes(Forced("f"), "hermes", R"({"n": 1, "s": "x"}})"));
  EXPECT_FALSE(Takes(Forced("f"), "hermes", R"({"n": "1"}})"));
  EXPECT_FALSE(Takes(Forced("f"), "hermes", R"({"s": "x"}})"));
  EXPECT_TRUE(Takes(Forced("f"), "openai", R"({"n": 1})"));
}

TEST(AnswerGrammarTest, AFunctionWithoutParametersGetsNone) {
  EXPECT_TRUE(Takes(Forced("g"), "hermes", "{}}"));
  EXPECT_FALSE(Takes(Forced("g"), "hermes", R"({"any": [1]}})"));
  EXPECT_TRUE(Takes(Forced("g"), "qwen3_coder", "</function>"));
  EXPECT_FALSE(Takes(Forced("g"), "qwen3_coder", "<parameter=n>\n1\n</parameter>\n</function>"));
}

TEST(AnswerGrammarTest, AForcedCallInventsNoMembers) {
  const auto one = [](const std::string& parameters) {
    return Forced("f", R"([{"function":{"name":"f","parameters":)" + parameters + "}}]");
  };
  const Chat closed = one(R"({"type":"object","properties":{"a":{"type":"object",
                              "properties":{"b":{}}},"m":{"type":"object"}}})");
  EXPECT_TRUE(Takes(closed, "hermes", R"({"a": {"b": 1}, "m": {"any": 1}}})"));
  EXPECT_FALSE(Takes(closed, "hermes", R"({"x": 1}})"));
  EXPECT_FALSE(Takes(closed, "hermes", R"({"a": {"x": 1}}})"));
  const Chat open = one(R"({"properties":{"a":{}},"additionalProperties":true})");
  EXPECT_TRUE(Takes(open, "hermes", R"({"a": 1, "x": 2}})"));
  EXPECT_TRUE(Takes(one(R"({"type":"object"})"), "hermes", R"({"x": 2}})"));
}

TEST(AnswerGrammarTest, AnyForcedCallIsOneOfTheTools) {
  EXPECT_TRUE(Takes(Forced(""), "hermes", R"(f", "arguments": {"n": 1}})"));
  EXPECT_TRUE(Takes(Forced(""), "hermes", R"(g", "arguments": {}})"));
  EXPECT_FALSE(Takes(Forced(""), "hermes", R"(h", "arguments": {}})"));
  EXPECT_FALSE(Takes(Forced(""), "hermes", R"(f", "arguments": {}})"));
  EXPECT_TRUE(Takes(Forced(""), "openai", R"(f <|constrain|>json<|message|>{"n": 1})"));
}

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

TEST(AnswerGrammarTest, ACallMayHaveAnId) {
  const Asked asked{.chat = WithTools(kTwoTools), .parser = "hermes", .reasoning = "none"};
  const auto call = [](std::string_view more) {
    return StrCat(R"(<tool_call>{"name": "f", "arguments": {"n": 1})", more, "}</tool_call>");
  };
  EXPECT_TRUE(Takes(asked, call("")));
  EXPECT_TRUE(Takes(asked, call(R"(, "id": "a1b2c3d4e")")));
  EXPECT_FALSE(Takes(asked, call(R"(, "x": "a")")));
}

// ---- Tools that take a text ----

Chat TextTool(GrammarSpec::Kind kind, std::string grammar, std::optional<std::string> forced) {
  Chat chat = WithTools(R"([{"function":{"name":"p","parameters":{"type":"object","properties":
      {"input":{"type":"string"}},"required":["input"]}}}])",
                        std::move(forced));
  chat.text_tools["p"] = GrammarSpec{.kind = kind, .text = std::move(grammar)};
  return chat;
}

TEST(AnswerGrammarTest, TextsOfToolsAreHeldToTheirGrammars) {
  using enum GrammarSpec::Kind;
  const std::string lark =
      "start: begin line+\nbegin: \"*** \" /[a-z]+/ LF\n"
      "line: (\"+\" | \"-\") /(.*)/ LF\n%import common.LF\n";
  const Chat chat = TextTool(kEbnf, lark, "p");
  EXPECT_TRUE(Takes(chat, "hermes", R"({"input": "*** go\n+say \"hi\"\n-\n"}})"));
  EXPECT_FALSE(Takes(chat, "hermes", R"({"input": "*** go\n"}})"));
  EXPECT_FALSE(Takes(chat, "hermes", R"({"input": "+x\n"}})"));
  EXPECT_FALSE(Takes(chat, "hermes", R"({"other": "*** go\n+\n"}})"));
  EXPECT_TRUE(Takes(chat, "openai", R"({"input": "*** go\n+x\n"})"));
  // The text itself, which has the line breaks between the tags beside its own.
  EXPECT_TRUE(Takes(chat, "qwen3_coder",
                    "<parameter=input>\n*** go\n+say \"hi\"\n\n</parameter>\n</function>"));
  EXPECT_FALSE(
      Takes(chat, "qwen3_coder", "<parameter=input>\n*** go\n+say\n</parameter>\n</function>"));
  EXPECT_FALSE(Takes(chat, "qwen3_coder",
                     "<parameter=input>\n*** go\n+</parameter>\n\n</parameter>\n</function>"));
  EXPECT_TRUE(Takes(chat, "glm45",
                    "<arg_key>input</arg_key>\n<arg_value>\n*** go\n+a\n\n</arg_value>\n"
                    "</tool_call>"));
  const Chat regex = TextTool(kRegex, "[a-z\"]{2}|</parameter>", "p");
  EXPECT_TRUE(Takes(regex, "hermes", R"({"input": "a\""}})"));
  EXPECT_FALSE(Takes(regex, "hermes", R"({"input": "abc"}})"));
  EXPECT_FALSE(
      Takes(regex, "qwen3_coder", "<parameter=input>\n</parameter>\n</parameter>\n</function>"));
  // The grammar also holds a call that the model makes by itself.
  const Chat free = TextTool(kRegex, "[0-9]+", std::nullopt);
  const Asked asked{.chat = free, .parser = "hermes", .reasoning = "none"};
  const auto call = [](std::string_view input) {
    return StrCat(R"(Well. <tool_call>{"name": "p", "arguments": {"input": ")", input,
                  R"("}}</tool_call>)");
  };
  EXPECT_TRUE(Takes(asked, call("42")));
  EXPECT_FALSE(Takes(asked, call("none")));
}

// Returns the shortest text of a grammar whose alternatives are the first ones. `text` is what the
// tool's own regular expression stands for.
std::string ShortestText(const GrammarSpec& spec, const std::string& regex,
                         const std::string& text) {
  using enum GrammarSpec::Kind;
  std::string whole;
  switch (spec.kind) {
    case kSequence:
      for (const GrammarSpec& part : spec.parts) whole += ShortestText(part, regex, text);
      return whole;
    case kAlternative:
      return ShortestText(spec.parts.front(), regex, text);
    case kRepeat:
      for (int i = 0; i < spec.min; ++i) whole += ShortestText(spec.parts.front(), regex, text);
      return whole;
    case kRegex:
      if (spec.text == regex) {
        if (!spec.in_json_string) return text;
        const std::string quoted = nlohmann::json(text).dump();
        return quoted.substr(1, quoted.size() - 2);
      }
      whole = spec.text;
      for (const char* some : {"[ \\t\\r\\n]{0,4}", "(\" string=\"true)?"}) {
        for (size_t at; (at = whole.find(some)) != whole.npos;) {
          whole.erase(at, std::string_view(some).size());
        }
      }
      for (size_t at; (at = whole.find("\\n")) != whole.npos;) whole.replace(at, 2, "\n");
      std::erase(whole, '\\');
      return whole;
    default:
      return spec.text;
  }
}

// Each form's grammar holds the text of a tool, and its parser reads the text back.
TEST(AnswerGrammarTest, EachFormHoldsAndReadsTheTextOfATool) {
  const std::string regex = "say \"(hi|ho)\"\n'/\\\\(x|y)\u00e9";
  const std::string text = "say \"hi\"\n'/\\x\u00e9";
  for (const std::string& name : OutputFormat::ToolParsers()) {
    if (name == "auto" || name == "none") continue;
    const std::string reasoning = name == "openai" ? "openai_gptoss" : "none";
    const OutputFormat format = *OutputFormat::Choose("", name, reasoning);
    const Chat chat = TextTool(GrammarSpec::Kind::kRegex, regex, "p");
    const auto spec = AnswerGrammar({.chat = &chat}, format);
    ASSERT_TRUE(spec.ok() && spec->has_value()) << name << spec.status();
    const std::string answer = ShortestText((*spec)->grammar, regex, text);
    const auto grammar = Grammar::Compile((*spec)->grammar, kUnhurried);
    ASSERT_TRUE(grammar.ok()) << name << grammar.status();
    EXPECT_TRUE((*grammar)->Matches(answer)) << name << ": " << answer;
    const auto parser =
        format.MakeParser({.tools = true, .chat = true, .signatures = ToolSignatures(chat.tools)});
    OutputDelta delta;
    parser->Add(format.ForcedCall("p", ""), &delta);
    parser->Commit(&delta);
    parser->Add(answer, &delta);
    parser->Finish(AnswerEnd::kWhole, &delta);
    std::string called;
    std::string arguments;
    for (const ToolCallDelta& call : delta.calls) {
      called += call.name;
      arguments += call.arguments;
    }
    EXPECT_EQ(called, "p") << name;
    const auto read = nlohmann::json::parse(arguments, nullptr, /*allow_exceptions=*/false);
    EXPECT_EQ(read, nlohmann::json({{"input", text}})) << name << ": " << answer << arguments;
  }
}

TEST(AnswerGrammarTest, AToolThatIsNotStrictIsHeldToWhatCanBeHeld) {
  const std::string parameters = R"({"type":"object","made_up":1,"minProperties":1,"properties":{
      "u":{"type":"string","format":"made-up"},"p":{"type":"string","pattern":"(a)\\1"},
      "n":{"type":"integer","nullable":true},"l":{"type":"array","items":{"type":"object"},
      "uniqueItems":true,"contains":{"type":"string"}},"t":{"type":"float"},
      "r":{"$ref":"http://elsewhere/x"},"q":{"type":"integer","required":true},
      "o":{"oneOf":[{"type":"integer","multipleOf":2},{"type":"integer","multipleOf":3}]},
      "x":{"not":{"type":"object","additionalProperties":false}},"y":"string"}})";
  const std::string tools = R"([{"function":{"name":"f","parameters":)" + parameters + "}}]";
  const Chat chat = Forced("f", tools);
  EXPECT_TRUE(Takes(chat, "hermes",
                    R"({"u": "x", "p": "b", "n": null, "l": [{}, {}], "t": 1.5, "r": [], "q": 1,)"
                    R"( "o": 6, "x": {}, "y": 2}})"));
  EXPECT_FALSE(Takes(chat, "hermes", R"({"q": "1"}})"));
  EXPECT_FALSE(Takes(chat, "hermes", R"({"l": ["x"]}})"));
  for (const char* parser :
       {"qwen3_coder", "minimax_m2", "deepseek_v32", "mistral", "llama3_json"}) {
    EXPECT_TRUE(Made({.chat = chat, .parser = parser}).ok()) << parser;
  }
  EXPECT_TRUE(Takes(chat, "glm45", "<arg_key>u</arg_key>\n<arg_value>x</arg_value>\n</tool_call>"));
  // A strict one is refused by name.
  const std::string strict =
      R"([{"function":{"name":"f","strict":true,"parameters":)" + parameters + "}}]";
  EXPECT_FALSE(Made({.chat = Forced("f", strict)}).ok());
}

// ---- Each form of calls ----

struct Form {
  const char* parser;
  std::string call;  // of f, with n = 1
  std::string bad;   // n is no integer
  std::string two;   // f and then g
};

std::vector<Form> Forms() {
  const std::string ds = "<｜tool▁calls▁begin｜>", de = "<｜tool▁calls▁end｜>";
  const std::string kimi = "<|tool_calls_section_begin|>";
  const auto kimi_call = [](const std::string& name, const std::string& arguments) {
    return "<|tool_call_begin|>functions." + name + "<|tool_call_argument_begin|>" + arguments +
           "<|tool_call_end|>";
  };
  const auto v3 = [](const std::string& name, const std::string& arguments) {
    return "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + name + "\n```json\n" + arguments +
           "\n```<｜tool▁call▁end｜>";
  };
  const auto coder = [](const std::string& value) {
    return "<tool_call>\n<function=f>\n<parameter=n>\n" + value +
           "\n</parameter>\n</function>\n</tool_call>";
  };
  const auto glm = [](const std::string& value) {
    return "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>" + value + "</arg_value>\n</tool_call>";
  };
  const auto minimax = [](const std::string& value) {
    return "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"n\">" + value +
           "</parameter>\n</invoke>\n";
  };
  const auto v32 = [](const std::string& value) {
    return "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"n\" "
           "string=\"false\">" +
           value + "</｜DSML｜parameter>\n</｜DSML｜invoke>\n";
  };
  return {
      {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>",
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1.5}}\n</tool_call>",
       "<tool_call>{\"name\":\"f\",\"arguments\":{\"n\":1}}</tool_call>\n<tool_call>\n{\"name\": "
       "\"g\", \"arguments\": {\"x\": 1}}\n</tool_call>"},
      {"llama3_json", R"({"name": "f", "parameters": {"n": 1}})",
       R"({"name": "f", "parameters": {"n": "1"}})",
       R"({"type": "function", "name": "f", "parameters": {"n": 1}}; {"name": "g", "parameters": {}})"},
      {"mistral", R"([TOOL_CALLS]f[ARGS]{"n": 1})", R"([TOOL_CALLS]f[ARGS]{"n": "x"})",
       R"([TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"n": 1}[TOOL_CALLS]g[ARGS]{})"},
      {"granite", R"(<|tool_call|>[{"name": "f", "arguments": {"n": 1}}])",
       R"(<|tool_call|>[{"name": "f", "arguments": {"n": []}}])",
       R"(<|tool_call|>[{"name": "f", "arguments": {"n": 1}}, {"name": "g", "arguments": {}}])"},
      {"deepseek_v3", ds + v3("f", R"({"n": 1})") + de, ds + v3("f", R"({"n": "a"})") + de,
       ds + v3("f", R"({"n": 1})") + "\n" + v3("g", "{}") + de},
      {"deepseek_v31",
       ds + R"(<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"n": 1}<｜tool▁call▁end｜>)" + de,
       ds + R"(<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"n": 1.5}<｜tool▁call▁end｜>)" + de, ""},
      {"kimi_k2", kimi + kimi_call("f:0", R"({"n": 1})") + "<|tool_calls_section_end|>",
       kimi + kimi_call("f:0", R"({"n": ""})") + "<|tool_calls_section_end|>",
       kimi + kimi_call("f:0", R"({"n": 1})") + kimi_call("g:1", "{}") +
           "<|tool_calls_section_end|>"},
      {"qwen3_coder", coder("1"), coder("x"),
       coder("1") + "\n<tool_call>\n<function=g>\n</function>\n</tool_call>"},
      {"glm45", glm("1"), glm("x"), glm("1") + "\n<tool_call>g\n</tool_call>"},
      {"minimax_m2", minimax("1") + "</minimax:tool_call>", minimax("x") + "</minimax:tool_call>",
       minimax("1") + "<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>"},
      {"deepseek_v32", v32("1") + "</｜DSML｜function_calls>",
       v32("x") + "</｜DSML｜function_calls>",
       v32("1") + "<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"},
      {"glm47", "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value></tool_call>",
       "<tool_call>f<arg_key>n</arg_key><arg_value>x</arg_value></tool_call>",
       "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value></tool_call><tool_call>g</"
       "tool_call>"},
      {"lfm2", "<|tool_call_start|>[f(n=1, s='it\"s')]<|tool_call_end|>",
       "<|tool_call_start|>[f(n=\"1\")]<|tool_call_end|>",
       "<|tool_call_start|>[f(n=1), g(x={'a': [True, None]})]<|tool_call_end|>"},
      {"pythonic", "[f(n=1)]", "[f(n=None)]", "[f(n=1, s=\"x\"), g()]"},
      {"olmo3", "<function_calls>\nf(n=1)\n</function_calls>",
       "<function_calls>\nf(n='1')\n</function_calls>",
       "<function_calls>\nf(n=1)\ng(y=2)\n</function_calls>"},
      {"gemma4", "<|tool_call>call:f{n:1,s:<|\"|>a \"b\", c<|\"|>}<tool_call|>",
       "<|tool_call>call:f{n:<|\"|>1<|\"|>}<tool_call|>",
       "<|tool_call>call:f{n:1}<tool_call|><|tool_call>call:g{x:{y:[true,<|\"|>z<|\"|>]}}<tool_"
       "call|>"},
      {"functiongemma", "<start_function_call>call:f{n:1}<end_function_call>",
       "<start_function_call>call:f{n:<escape>1<escape>}<end_function_call>", ""},
      {"mirothinker",
       "<use_mcp_tool>\n<server_name>s-1</server_name>\n<tool_name>f</tool_name>\n<arguments>\n"
       "{\"n\": 1}\n</arguments>\n</use_mcp_tool>",
       "<use_mcp_tool>\n<server_name>s-1</server_name>\n<tool_name>f</tool_name>\n<arguments>\n"
       "{\"n\": []}\n</arguments>\n</use_mcp_tool>",
       ""},
      {"openai",
       R"(<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": 1}<|call|>)",
       R"(<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": "x"}<|call|>)",
       R"(<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary )"
       R"(to=functions.f<|message|>{"n": 1}<|call|><|start|>assistant to=functions.g<|channel|>)"
       R"(commentary json<|message|>{}<|call|>)"},
  };
}

std::string ReasoningOf(const Form& form) {
  return std::string(form.parser) == "openai" ? "openai_gptoss" : "qwen3";
}

TEST(AnswerGrammarTest, AStrictToolIsHeldInEachFormWhereTheModelDecides) {
  for (const Form& form : Forms()) {
    const bool channels = ReasoningOf(form) == "openai_gptoss";
    const Asked asked = {
        .chat = WithTools(kTwoTools), .parser = form.parser, .reasoning = ReasoningOf(form)};
    const std::string text = channels ? "<|channel|>final<|message|>Only text." : "Only text.";
    EXPECT_TRUE(Takes(asked, text)) << form.parser;
    EXPECT_TRUE(Takes(asked, form.call)) << form.parser;
    EXPECT_FALSE(Takes(asked, form.bad)) << form.parser;
    EXPECT_TRUE(form.two.empty() || Takes(asked, form.two)) << form.parser;
    if (channels) continue;
    EXPECT_TRUE(Takes(asked, "<think>\na {b}\n</think>\n\n" + form.call)) << form.parser;
    EXPECT_FALSE(Takes(asked, "<think>\na\n</think>\n\n" + form.bad)) << form.parser;
    Asked inside = asked;
    inside.start = AnswerStart::kInReasoning;
    EXPECT_TRUE(Takes(inside, "thoughts</think>" + form.call)) << form.parser;
    EXPECT_FALSE(Takes(inside, form.call)) << form.parser;
    // A call after text, where the form has a marker of its own.
    const std::string_view parser = form.parser;
    if (parser == "llama3_json" || parser == "pythonic") continue;
    EXPECT_TRUE(Takes(asked, "I look. " + form.call)) << form.parser;
    EXPECT_FALSE(Takes(asked, "I look. " + form.bad)) << form.parser;
  }
}

TEST(AnswerGrammarTest, MessagesWithRecipientsAreHeld) {
  const Asked asked = {
      .chat = WithTools(kTwoTools), .parser = "functionary_v32", .reasoning = "none"};
  EXPECT_TRUE(Takes(asked, "all\nOnly text."));
  EXPECT_TRUE(Takes(asked, "f\n{\"n\": 1}"));
  EXPECT_FALSE(Takes(asked, "f\n{\"n\": \"1\"}"));
  EXPECT_TRUE(Takes(asked, "all\nI look.>>>f\n{\"n\": 1}>>>g\n{\"any\": [1]}"));
  EXPECT_FALSE(Takes(asked, "all\nI look.>>>f\n{}"));
  Asked format = asked;
  format.format = "yes|no";
  EXPECT_TRUE(Takes(format, "all\nyes"));
  EXPECT_TRUE(Takes(format, "f\n{\"n\": 1}"));
  EXPECT_FALSE(Takes(format, "all\nI look.>>>f\n{\"n\": 1}"));
  EXPECT_TRUE(Takes(Forced("f"), "functionary_v32", "{\"n\": 1}"));
  EXPECT_TRUE(Takes(Forced(""), "functionary_v32", "f\n{\"n\": 1}"));
}

TEST(AnswerGrammarTest, LiteralsAreHeldToTheirSchemas) {
  const auto takes = [](const char* parser, const std::string& schema, std::string_view value) {
    const std::string tools =
        R"([{"function":{"name":"f","strict":true,"parameters":{"properties":{"a":{"type":"integer"},)"
        R"("v":)" +
        schema + R"(},"required":["v"]}}}])";
    return Takes(Forced("f", tools), parser, value);
  };
  const auto python = [&](const std::string& schema, const std::string& value) {
    return takes("lfm2", schema, "(v=" + value + ")");
  };
  EXPECT_TRUE(python(R"({"type":"string"})", R"('a "b" \'c\'')"));
  EXPECT_TRUE(python(R"({"type":"string"})", R"("it's")"));
  EXPECT_FALSE(python(R"({"type":"string"})", "a"));
  EXPECT_TRUE(python(R"({"type":"string","pattern":"^[a-z]+$"})", R"("abc")"));
  EXPECT_FALSE(python(R"({"type":"string","pattern":"^[a-z]+$"})", R"("aBc")"));
  EXPECT_TRUE(python(R"({"type":["boolean","null"]})", "True"));
  EXPECT_TRUE(python(R"({"type":["boolean","null"]})", "None"));
  EXPECT_FALSE(python(R"({"type":["boolean","null"]})", "true"));
  EXPECT_TRUE(python(R"({"enum":["x y",2,false]})", "'x y'"));
  EXPECT_TRUE(python(R"({"enum":["x y",2,false]})", "\"x y\""));
  EXPECT_TRUE(python(R"({"enum":["x y",2,false]})", "False"));
  EXPECT_FALSE(python(R"({"enum":["x y",2,false]})", "\"z\""));
  EXPECT_TRUE(
      python(R"({"type":"object","properties":{"k":{"type":"boolean"}}})", R"({"k": True})"));
  EXPECT_FALSE(python(R"({"type":"object","properties":{"k":{"type":"boolean"}}})", R"({"x": 1})"));
  EXPECT_TRUE(takes("lfm2", R"({"type":"integer"})", "(a=-1, v=2)"));
  EXPECT_FALSE(takes("lfm2", R"({"type":"integer"})", "(a=1)"));
  EXPECT_FALSE(takes("lfm2", R"({"type":"integer"})", "(v=1, w=2)"));
  const auto gemma = [&](const std::string& schema, const std::string& value) {
    return takes("gemma4", schema, "{v:" + value + "}");
  };
  EXPECT_TRUE(gemma(R"({"type":"string"})", "<|\"|>a, \"b\"\n}<|\"|>"));
  EXPECT_FALSE(gemma(R"({"type":"string"})", "\"a\""));
  EXPECT_TRUE(gemma(R"({"type":"string","pattern":"^[a-z]+$"})", "<|\"|>abc<|\"|>"));
  EXPECT_FALSE(gemma(R"({"type":"string","pattern":"^[a-z]+$"})", "<|\"|>aBc<|\"|>"));
  EXPECT_TRUE(gemma(R"({"type":"string","maxLength":2})", "<|\"|>ab<|\"|>"));
  EXPECT_FALSE(gemma(R"({"type":"string","maxLength":2})", "<|\"|>abc<|\"|>"));
  EXPECT_TRUE(gemma(R"({"enum":["x y",2,null]})", "<|\"|>x y<|\"|>"));
  EXPECT_TRUE(gemma(R"({"enum":["x y",2,null]})", "null"));
  EXPECT_TRUE(
      gemma(R"({"type":"array","items":{"type":"object","properties":{"k":{"type":"string"}}}})",
            "[{k:<|\"|>1<|\"|>},{}]"));
  // The quotation mark may be a special token.
  EXPECT_TRUE(gemma(R"({"type":"string"})",
                    "\xff<|\"|>\xfe"
                    "a"
                    "\xff<|\"|>\xfe"));
  // Alternatives of all arguments, and what cannot be held.
  const std::string either = R"([{"function":{"name":"f","strict":true,"parameters":{"anyOf":[
      {"properties":{"a":{"type":"integer"}},"required":["a"]},
      {"properties":{"b":{"type":"integer"}},"required":["b"]}]}}}])";
  EXPECT_TRUE(Takes(Forced("f", either), "pythonic", "(b=1)"));
  EXPECT_FALSE(Takes(Forced("f", either), "pythonic", "()"));
  EXPECT_FALSE(Made({.chat = Forced("f", R"([{"function":{"name":"f","strict":true,
                       "parameters":{"enum":[{"a":1}]}}}])"),
                     .parser = "lfm2"})
                   .ok());
}

TEST(AnswerGrammarTest, LongIntegersOfSchemasKeepTheirDigits) {
  const Chat chat = Forced("f", R"([{"function":{"name":"f","strict":true,"parameters":
      {"type":"object","properties":{"n":{"enum":[123456789012345678901234567890]}},
       "required":["n"],"additionalProperties":false}}}])");
  const std::string n = "123456789012345678901234567890";
  EXPECT_TRUE(Takes(chat, "hermes", StrCat("{\"n\": ", n, "}}")));
  EXPECT_FALSE(Takes(chat, "hermes", "{\"n\": 1.2345678901234568e+29}}"));
  EXPECT_TRUE(Takes(chat, "lfm2", StrCat("(n=", n, ")")));
  EXPECT_FALSE(Takes(chat, "lfm2", "(n=1.2345678901234568e+29)"));
  EXPECT_TRUE(Takes(chat, "gemma4", StrCat("{n:", n, "}")));
  const auto element = [](std::string_view value) {
    return StrCat("<parameter=n>\n", value, "\n</parameter>\n</function>");
  };
  EXPECT_TRUE(Takes(chat, "qwen3_coder", element(n)));
  EXPECT_FALSE(Takes(chat, "qwen3_coder", element("1.2345678901234568e+29")));
}

TEST(AnswerGrammarTest, AForcedCallHasTheNumberThatTheConversationGivesIt) {
  Chat chat = Forced("");
  chat.messages = {{.role = "user", .content = "q"},
                   {.role = "assistant", .tool_calls = {{.name = "g"}, {.name = "f"}}}};
  EXPECT_TRUE(Takes(chat, "kimi_k2", R"(f:2<|tool_call_argument_begin|>{"n": 1})"));
  EXPECT_FALSE(Takes(chat, "kimi_k2", R"(f:0<|tool_call_argument_begin|>{"n": 1})"));
}

TEST(AnswerGrammarTest, AListOfMistralsIsHeldToo) {
  OutputFormat format = *OutputFormat::Choose("[TOOL_CALLS]", "auto", "none");
  const Chat chat = WithTools(kTwoTools);
  const auto spec = AnswerGrammar({.chat = &chat}, format);
  ASSERT_TRUE(spec.ok() && spec->has_value());
  EXPECT_TRUE((*spec)->free_tokens);
  const auto grammar = *Grammar::Compile((*spec)->grammar, kUnhurried);
  EXPECT_TRUE(grammar->Matches(R"([TOOL_CALLS][{"name": "f", "arguments": {"n": 1}}])"));
  EXPECT_TRUE(grammar->Matches(
      R"([TOOL_CALLS] [{"name": "f", "arguments": {"n": 1}}, {"name": "g", "arguments": {}}])"));
  EXPECT_FALSE(grammar->Matches(R"([TOOL_CALLS][{"name": "f", "arguments": {"n": "1"}}])"));
}

TEST(AnswerGrammarTest, WithAFormatAnAnswerIsCallsOrTheFormatInEachForm) {
  for (const Form& form : Forms()) {
    const bool channels = ReasoningOf(form) == "openai_gptoss";
    for (const char* tools : {kTwoTools, kFreeTools}) {
      Asked asked = {.chat = WithTools(tools),
                     .parser = form.parser,
                     .reasoning = ReasoningOf(form),
                     .format = "yes|no"};
      const std::string begin = channels ? "<|channel|>final<|message|>" : "";
      EXPECT_TRUE(Takes(asked, begin + "yes")) << form.parser;
      EXPECT_FALSE(Takes(asked, begin + "maybe")) << form.parser;
      EXPECT_TRUE(Takes(asked, form.call)) << form.parser;
      EXPECT_EQ(Takes(asked, form.bad), tools == kFreeTools) << form.parser;
      // Text beside a call is no instance of the format.
      EXPECT_FALSE(Takes(asked, "I look. " + form.call)) << form.parser;
      if (tools == kTwoTools && !form.two.empty()) {
        EXPECT_TRUE(Takes(asked, form.two)) << form.parser;
        asked.parallel = false;
        EXPECT_FALSE(Takes(asked, form.two)) << form.parser;
        EXPECT_TRUE(Takes(asked, form.call)) << form.parser;
      }
      if (channels) continue;
      asked.start = AnswerStart::kInReasoning;
      EXPECT_TRUE(Takes(asked, "thoughts</think>\n" + form.call)) << form.parser;
      EXPECT_TRUE(Takes(asked, "thoughts</think>\nyes")) << form.parser;
    }
  }
}

// ---- Reasoning ----

TEST(AnswerGrammarTest, AFormatHoldsTheContentAndNotTheReasoning) {
  const auto takes = [](AnswerStart start, std::string_view text) {
    return Takes({.parser = "none", .format = "yes|no", .start = start}, text);
  };
  EXPECT_TRUE(takes(AnswerStart::kInReasoning, "Is it {\"a\": 1}?\n</think>\n\nyes"));
  EXPECT_TRUE(takes(AnswerStart::kInReasoning, "</think>yes"));
  EXPECT_FALSE(takes(AnswerStart::kInReasoning, "yes"));
  EXPECT_FALSE(takes(AnswerStart::kInReasoning, "It is.</think>It is."));
  EXPECT_FALSE(takes(AnswerStart::kInReasoning, "It is.</think></think>yes"));
  EXPECT_FALSE(takes(AnswerStart::kInReasoning, "It is.</think>" + std::string(9, '\n') + "yes"));
  EXPECT_TRUE(takes(AnswerStart::kMayThink, "yes"));
  EXPECT_TRUE(takes(AnswerStart::kMayThink, "\n<think>It is.</think>yes"));
  EXPECT_FALSE(takes(AnswerStart::kMayThink, "It is.</think>yes"));
  EXPECT_TRUE(takes(AnswerStart::kContent, "yes"));
  EXPECT_FALSE(takes(AnswerStart::kContent, "<think>It is.</think>yes"));
  // Markers may be special tokens.
  const std::string open = "\xff<think>\xfe", close = "\xff</think>\xfe";
  EXPECT_TRUE(takes(AnswerStart::kMayThink, open + "It is." + close + "\n\nyes"));
  // A model without reasoning.
  EXPECT_TRUE(Takes({.parser = "none", .reasoning = "none", .format = "yes"}, "yes"));
  EXPECT_FALSE(
      Takes({.parser = "none", .reasoning = "none", .format = "yes"}, "<think>a</think>yes"));
}

TEST(AnswerGrammarTest, EachSpellingOfTheMarkersOpensAndClosesReasoning) {
  const Asked asked = {.parser = "none", .reasoning = "granite", .format = "yes|no"};
  EXPECT_TRUE(Takes(asked, "Here is my thought process: A b. Here is my response: yes"));
  EXPECT_TRUE(Takes(asked, "<think>A b.</think><response>yes</response>"));
  EXPECT_TRUE(Takes(asked, "yes"));
  EXPECT_FALSE(Takes(asked, "<think>A b.</think><response>maybe</response>"));
}

TEST(AnswerGrammarTest, AFormatHoldsTheFinalChannel) {
  const auto takes = [](std::string_view text, AnswerStart start = AnswerStart::kMayThink) {
    return Takes(
        {.parser = "none", .reasoning = "openai_gptoss", .format = "yes|no", .start = start}, text);
  };
  const std::string analysis = "<|channel|>analysis<|message|>Is it?<|end|><|start|>assistant";
  EXPECT_TRUE(takes("<|channel|>final<|message|>yes"));
  EXPECT_TRUE(takes(analysis + "<|channel|>final<|message|>yes<|return|>"));
  EXPECT_TRUE(takes(analysis + analysis + "<|channel|>final <|constrain|>json<|message|>no"));
  EXPECT_FALSE(takes(analysis + "<|channel|>final<|message|>It is."));
  EXPECT_FALSE(takes(analysis));
  EXPECT_FALSE(
      takes("<|channel|>commentary<|message|>I say.<|end|><|start|>assistant"
            "<|channel|>final<|message|>yes"));
  EXPECT_FALSE(takes("yes"));
  EXPECT_TRUE(takes("yes", AnswerStart::kContent));
}

TEST(AnswerGrammarTest, OtherChatsAreFree) {
  const auto format = *OutputFormat::Choose("", "hermes", "none");
  const Chat none, tools = WithTools(kFreeTools);
  EXPECT_FALSE(AnswerGrammar({.chat = &none}, format)->has_value());
  EXPECT_FALSE(AnswerGrammar({.chat = &tools}, format)->has_value());
  EXPECT_FALSE(AnswerGrammar({}, format)->has_value());
}

}  // namespace
}  // namespace millrace
