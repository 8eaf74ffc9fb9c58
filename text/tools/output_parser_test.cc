#include "text/tools/output_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/strings.h"
#include "text/tools/output_cases_test_util.h"
#include "text/tools/output_format.h"

namespace millrace {
namespace {

using Case = OutputCase;
using Whole = WholeOutput;

class Joiner {
 public:
  void Add(const OutputDelta& delta) {
    whole_.content += delta.content;
    whole_.reasoning += delta.reasoning;
    for (const ToolCallDelta& call : delta.calls) {
      const auto index = static_cast<size_t>(call.index);
      if (index == whole_.calls.size()) {
        EXPECT_NE(call.name, "");
        whole_.calls.push_back(call.name + "(");
      } else {
        ASSERT_EQ(index + 1, whole_.calls.size());
        EXPECT_EQ(call.name, "");
      }
      whole_.calls.back() += call.arguments;
    }
  }
  Whole Take() {
    for (std::string& call : whole_.calls) call += ")";
    return std::move(whole_);
  }

 private:
  Whole whole_;
};

const std::vector<ToolSignature> kTools = {
    {"f", R"({"type":"object","properties":{"a":{"type":"integer"},"s":{"type":"string"}}})"},
    {"get_weather", R"({"type":"object","properties":{"city":{"type":"string"}}})"},
    {"look", R"({"type":"object","properties":{"for":{"type":["string","null"]}}})"},
    {"typed",
     R"({"properties":{"opt":{"anyOf":[{"type":"string"},{"type":"null"}]},)"
     R"("ref":{"$ref":"#/$defs/Zip"},"en":{"enum":["1","2"]},"all":{"allOf":[{"type":"string"}]},)"
     R"("one":{"oneOf":[{"type":"string"},{"type":"array"}]},"cst":{"const":"7"},)"
     R"("pat":{"pattern":"^[0-9]+$"},"n":{"$ref":"#/$defs/Count"},"b":{"type":"boolean"},)"
     R"("list":{"type":"array"},"two":{"type":["string","integer"]},"mixed":{"enum":["2",2,null]}},)"
     R"("$defs":{"Zip":{"type":"string"},"Count":{"anyOf":[{"type":"integer"},{"type":"null"}]}}})"}};

std::unique_ptr<OutputParser> MakeParser(const OutputFormat& format, bool inside) {
  return format.MakeParser(
      {.tools = true, .reasoning = true, .signatures = kTools, .inside_reasoning = inside});
}

Whole Parse(const OutputFormat& format, bool inside, const std::vector<std::string>& pieces,
            AnswerEnd end = AnswerEnd::kWhole) {
  const auto parser = MakeParser(format, inside);
  Joiner joiner;
  for (const std::string& piece : pieces) {
    OutputDelta delta;
    parser->Add(piece, &delta);
    joiner.Add(delta);
  }
  OutputDelta last;
  parser->Finish(end, &last);
  joiner.Add(last);
  return joiner.Take();
}

const std::vector<Case>& Cases() {
  static const auto& cases = *new std::vector<Case>([] {
    std::vector<Case> all;
    for (const auto& some : {JsonOutputCases(), ElementOutputCases(), OtherOutputCases()}) {
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }());
  return cases;
}

OutputFormat FormatOf(const Case& one) {
  return *OutputFormat::Choose("", one.tools, one.reasoning);
}

TEST(OutputParserTest, SplitsAnswers) {
  for (const Case& one : Cases()) {
    EXPECT_EQ(Parse(FormatOf(one), one.inside, {one.text}), one.whole) << one.tools << one.text;
  }
}

// Cuts a text at random places; pieces may be empty.
std::vector<std::string> Split(const std::string& text, std::mt19937& random) {
  std::vector<std::string> pieces(1);
  const unsigned every = 1 + random() % 20;
  for (const char c : text) {
    while (random() % every == 0 && random() % 4 != 0) pieces.emplace_back();
    pieces.back() += c;
  }
  return pieces;
}

// Mixes pieces of the cases' texts, so that markers stand where no model puts them.
std::string Scrambled(std::mt19937& random) {
  std::string text;
  for (int i = 0; i < 4; ++i) {
    const std::string& from = Cases()[random() % Cases().size()].text;
    const size_t begin = random() % from.size();
    text += from.substr(begin, random() % (from.size() - begin + 1));
  }
  return text;
}

TEST(OutputParserTest, HowTheTextIsSplitChangesNothing) {
  std::mt19937 random(1);
  for (int round = 0; round < 4000; ++round) {
    const Case& one = Cases()[round % Cases().size()];
    const bool scrambled = round % 3 == 0;
    const std::string text = scrambled ? Scrambled(random) : one.text;
    const OutputFormat format = FormatOf(one);
    const Whole whole = Parse(format, one.inside, {text});
    if (!scrambled) {
      ASSERT_EQ(whole, one.whole);
    }
    ASSERT_EQ(Parse(format, one.inside, Split(text, random)), whole) << one.tools << ": " << text;
  }
}

TEST(OutputParserTest, LosesNoTextThatIsNoCall) {
  std::mt19937 random(2);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 40; ++i) text += "<>|[{}]\"\\tool_callTHINK/ä\n: ,"[random() % 30];
    const Whole whole = Parse(*OutputFormat::Choose("", "hermes", "qwen3"), false, {text});
    ASSERT_EQ(whole.content, text);
  }
}

TEST(OutputParserTest, ArgumentsInLiteralsAreJsonWhateverIsWritten) {
  std::mt19937 random(3);
  const std::pair<const char*, const char*> forms[] = {
      {"lfm2", "<|tool_call_start|>[f("},
      {"gemma4", "<|tool_call>call:f{"},
      {"functiongemma", "<start_function_call>call:g{"}};
  const std::string pieces[] = {
      "a",    "=",  "'",  "\"",     "\\",       ",",  "[",      "]",        "(",     ")",
      "{",    "}",  ":",  " ",      "\n",       "1",  "x4",     "u00",      "ud83d", "None",
      "True", "r'", "-.", "<|\"|>", "<escape>", "<|", "\"\"\"", "\xc3\xa4", "_0"};
  for (int round = 0; round < 6000; ++round) {
    const auto& [name, begin] = forms[round % 3];
    const OutputFormat format = *OutputFormat::Choose("", name, "none");
    std::string text = begin;
    for (unsigned i = random() % 30; i > 0; --i) text += pieces[random() % std::size(pieces)];
    const Whole whole = Parse(format, false, {text});
    ASSERT_FALSE(whole.calls.empty()) << text;
    const std::string& call = whole.calls[0];
    ASSERT_TRUE(nlohmann::json::accept(call.substr(2, call.size() - 3))) << text << "\n" << call;
    ASSERT_EQ(Parse(format, false, Split(text, random)), whole) << text;
  }
}

TEST(OutputParserTest, StringsInLiteralsComeAsTheyAreWritten) {
  for (const auto& [name, begin] : {std::pair{"lfm2", "<|tool_call_start|>[f(s='"},
                                    {"gemma4", "<|tool_call>call:f{s:<|\"|>"}}) {
    const OutputFormat format = *OutputFormat::Choose("", name, "none");
    const auto parser = MakeParser(format, false);
    OutputDelta delta;
    parser->Add(begin, &delta);
    for (int i = 0; i < 10; ++i) {
      OutputDelta piece;
      parser->Add("line \"a\"\n", &piece);
      ASSERT_EQ(piece.calls.size(), 1U) << name;
    }
  }
}

TEST(OutputParserTest, KeepsTheModelsOwnIds) {
  const auto ids = [](std::string_view tools, std::string_view text) {
    const auto format = *OutputFormat::Choose("", tools, "none");
    OutputDelta delta;
    MakeParser(format, false)->Add(text, &delta);
    std::vector<std::string> found;
    for (const ToolCallDelta& call : delta.calls) found.push_back(call.id);
    return found;
  };
  const std::string call = "<|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{}";
  EXPECT_THAT(ids("kimi_k2", "<|tool_calls_section_begin|>" + call + "<|tool_call_end|>" + call),
              testing::ElementsAre("functions.f:3", ""));  // an id is given once
  EXPECT_THAT(ids("mistral", "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{}[TOOL_CALLS]g[ARGS]{}"),
              testing::ElementsAre("123456789", ""));
  EXPECT_THAT(ids("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"),
              testing::ElementsAre(""));
}

TEST(OutputParserTest, TellsWhereReasoningEnds) {
  const auto format = *OutputFormat::Choose("", "hermes", "qwen3");
  const auto parser = MakeParser(format, false);
  OutputDelta delta;
  EXPECT_FALSE(parser->in_reasoning());
  parser->Add("<think>", &delta);
  EXPECT_TRUE(parser->in_reasoning());
  parser->Add("a</think>", &delta);
  EXPECT_FALSE(parser->in_reasoning());
  EXPECT_EQ(parser->complete_calls(), 0);
  parser->Add("<tool_call>{\"name\": \"f\", \"arguments\": {}}", &delta);
  EXPECT_EQ(parser->complete_calls(), 1);
}

TEST(OutputParserTest, ACutAnswerLeavesItsCallOpen) {
  const auto format = *OutputFormat::Choose("", "qwen3_coder", "none");
  const auto cut = [&](const std::string& text) {
    return Parse(format, false, {text}, AnswerEnd::kCut).calls;
  };
  EXPECT_THAT(cut("<function=f><parameter=s>ab"), testing::ElementsAre(R"(f({"s": "ab))"));
  EXPECT_THAT(cut("<function=f><parameter=a>12"), testing::ElementsAre(R"(f({"a": 12))"));
  EXPECT_THAT(cut("<function=f><parameter=a>12</parameter>"),
              testing::ElementsAre(R"(f({"a": 12))"));
  EXPECT_THAT(cut("<function=f><parameter=a>12</parameter></function>"),
              testing::ElementsAre(R"(f({"a": 12}))"));
}

TEST(OutputParserTest, LongStringsComeAsTheyAreWritten) {
  for (const char* key : {"s", "any", "opt"}) {
    const auto format = *OutputFormat::Choose("", "qwen3_coder", "none");
    const auto parser = format.MakeParser(
        {.tools = true,
         .signatures = {{"f", R"({"properties":{"s":{"type":"string"},"any":{},)"
                              R"("opt":{"anyOf":[{"type":"string"},{"type":"integer"}]}}})"}}});
    OutputDelta delta;
    parser->Add("<function=f>\n<parameter=" + std::string(key) + ">\nline", &delta);
    for (int i = 0; i < 10; ++i) {
      OutputDelta piece;
      parser->Add(" \"a\"\n", &piece);
      ASSERT_EQ(piece.calls.size(), 1U) << key;
    }
  }
}

TEST(OutputParserTest, DeepArgumentsEndNoProgram) {
  const std::string deep =
      "<tool_call>{\"name\": \"f\", \"arguments\": " + std::string(100000, '[');
  const Whole whole = Parse(*OutputFormat::Choose("", "hermes", "none"), false, {deep});
  EXPECT_EQ(whole.calls.size(), 1U);
}

TEST(OutputParserTest, ACallHasTheModelsOwnIdIfTheModelWritesOne) {
  const auto ids = [](std::string_view name, std::string_view answer) {
    const auto format = OutputFormat::Choose("", name, "none");
    auto parser = format->MakeParser({.tools = true, .signatures = kTools});
    OutputDelta delta;
    parser->Add(answer, &delta);
    parser->Finish(AnswerEnd::kWhole, &delta);
    std::vector<std::string> ids;
    for (const ToolCallDelta& call : delta.calls) {
      if (!call.name.empty()) ids.push_back(call.id);
    }
    return ids;
  };
  EXPECT_THAT(ids("kimi_k2",
                  "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3"
                  "<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_call_begin|>f"
                  "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"),
              testing::ElementsAre("functions.f:3", ""));
  EXPECT_THAT(ids("deepseek_v31",
                  "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}"
                  "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
              testing::ElementsAre(""));
}

}  // namespace
}  // namespace millrace
