#include "engine/constraints/answer_grammar.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/strings.h"
#include "engine/constraints/answer_grammar_test_util.h"

namespace millrace {
namespace {

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

TEST(AnswerGrammarTest, ACallMayHaveAnId) {
  const Asked asked{.chat = WithTools(kTwoTools), .parser = "hermes", .reasoning = "none"};
  const auto call = [](std::string_view more) {
    return StrCat(R"(<tool_call>{"name": "f", "arguments": {"n": 1})", more, "}</tool_call>");
  };
  EXPECT_TRUE(Takes(asked, call("")));
  EXPECT_TRUE(Takes(asked, call(R"(, "id": "a1b2c3d4e")")));
  EXPECT_FALSE(Takes(asked, call(R"(, "x": "a")")));
}

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

TEST(AnswerGrammarTest, OtherChatsAreFree) {
  const auto format = *OutputFormat::Choose("", "hermes", "none");
  const Chat none, tools = WithTools(kFreeTools);
  EXPECT_FALSE(AnswerGrammar({.chat = &none}, format)->has_value());
  EXPECT_FALSE(AnswerGrammar({.chat = &tools}, format)->has_value());
  EXPECT_FALSE(AnswerGrammar({}, format)->has_value());
}

}  // namespace
}  // namespace millrace