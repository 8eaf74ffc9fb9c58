#include "engine/answer/answer_text.h"

#include <memory>
#include <vector>

#include "formats/tokenizers/tokenizer_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "text/tokenizer/pipeline_tokenizer.h"
#include "text/tools/output_format.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;

// SentencePiece's way: words carry the space before them, and a text's first one loses it.
std::unique_ptr<const Tokenizer> Spaced() {
  TokenizerSpec spec;
  spec.vocabulary = {{"\u2581a", 0}, {"\u2581b", 1}};
  spec.model = WordLevelModelSpec{"\u2581a"};
  spec.frame = {std::nullopt};
  spec.decoders = {
      {Replacement{{false, "\u2581"}, " "}, SimpleDecoder::kFuse, StripDecoder{" ", 1, 0}}};
  return *PipelineTokenizer::Create(spec);
}

TEST(AnswerTextTest, GoesOnFromThePrompt) {
  const auto tokenizer = Spaced();
  GenerateRequest request;
  request.prompt = std::vector<Token>{0};
  AnswerText answer(tokenizer.get(), &request);
  const StepResult nothing;
  EXPECT_EQ(answer.Echo(std::vector<Token>{0}).text, "a");
  OutputEvent event;
  answer.Add(nothing, {.token = 1}, /*is_stop_token=*/false, &event);
  answer.Flush(&event);
  EXPECT_EQ(event.text, " b");
}

// The byte tokenizer's BOS.
constexpr Token kBos = 256;

// Which of the echoed prompt's tokens are shown.
std::vector<bool> Shown(const Tokenizer& tokenizer, GenerateRequest request,
                        const std::vector<Token>& prompt) {
  request.logprobs = 0;
  AnswerText answer(&tokenizer, &request);
  StepResult result;
  for (size_t i = 1; i < prompt.size(); ++i) {
    result.tokens.push_back({.token = prompt[i], .logprob = -1.0f});
  }
  answer.AddScored(result, {0, static_cast<int32_t>(result.tokens.size())});
  std::vector<bool> shown;
  for (const TokenDetail& detail : answer.Echo(prompt).details) shown.push_back(detail.shown);
  return shown;
}

TEST(AnswerTextTest, SpecialTokensThatAreLeftOutAreNotShown) {
  const ByteTokenizer tokenizer;
  GenerateRequest request;
  request.prompt = std::vector<Token>{kBos, 'a', kBos};
  EXPECT_EQ(Shown(tokenizer, request, {kBos, 'a', kBos}), (std::vector<bool>{false, true, false}));
  request.skip_special_tokens = false;
  EXPECT_EQ(Shown(tokenizer, request, {kBos, 'a', kBos}), (std::vector<bool>{true, true, true}));
}

TEST(AnswerTextTest, OfATextAllIsShownButItsFrame) {
  TokenizerSpec spec;
  spec.added = {{.id = 1, .content = "<s>", .special = true}};
  spec.vocabulary = {{"a", 0}, {"<s>", 1}};
  spec.model = WordLevelModelSpec{"a"};
  spec.frame = {1, std::nullopt, 1};
  const auto tokenizer = *PipelineTokenizer::Create(spec);
  GenerateRequest request;
  request.prompt = "a<s>";
  const std::vector<Token> prompt = *tokenizer->Encode("a<s>", {.parse_special = true});
  ASSERT_EQ(prompt, (std::vector<Token>{1, 0, 1, 1}));
  EXPECT_EQ(Shown(*tokenizer, request, prompt), (std::vector<bool>{false, true, true, false}));
}

TEST(AnswerTextTest, AHiddenStopTokenIsNotShown) {
  const ByteTokenizer tokenizer;
  GenerateRequest request;
  request.prompt = "a";
  request.logprobs = 0;
  AnswerText answer(&tokenizer, &request);
  OutputEvent event;
  answer.Add({}, {.token = 'x', .logprob = -1.0f}, /*is_stop_token=*/false, &event);
  answer.Add({}, {.token = 'y', .logprob = -1.0f}, /*is_stop_token=*/true, &event);
  ASSERT_EQ(event.details.size(), 2);
  EXPECT_TRUE(event.details[0].shown);
  EXPECT_FALSE(event.details[1].shown);
}

TEST(AnswerTextTest, WithoutDetokenizingTokensAndEndsAreTheSame) {
  const ByteTokenizer tokenizer;
  for (const bool detokenize : {true, false}) {
    GenerateRequest request;
    request.prompt = std::vector<Token>{'p'};
    request.stop = {"yz"};
    request.logprobs = 0;
    request.detokenize = detokenize;
    AnswerText answer(&tokenizer, &request);
    EXPECT_EQ(answer.Echo(std::vector<Token>{'p'}).text, detokenize ? "p" : "");
    OutputEvent event;
    for (const Token token : {Token{'x'}, Token{'y'}, Token{'z'}}) {
      EXPECT_FALSE(answer.ended());
      answer.Add({}, {.token = token, .logprob = -1.0f}, /*is_stop_token=*/false, &event);
    }
    EXPECT_TRUE(answer.ended());
    EXPECT_EQ(event.text, detokenize ? "x" : "");
    EXPECT_THAT(event.tokens, ElementsAre('x', 'y', 'z'));
    EXPECT_EQ(event.details[2].bytes, "z");
  }
}

// The model's vocabulary may be padded: it can draw ids that the tokenizer does not have.
TEST(AnswerTextTest, AnIdBeyondTheTokenizersHasNoText) {
  const ByteTokenizer tokenizer;
  GenerateRequest request;
  request.prompt = std::vector<Token>{300};
  AnswerText answer(&tokenizer, &request);
  EXPECT_EQ(answer.Echo(std::vector<Token>{300}).text, "");
  OutputEvent event;
  answer.Add({}, {.token = 301}, /*is_stop_token=*/false, &event);
  answer.Flush(&event);
  EXPECT_EQ(event.text, "");
  EXPECT_THAT(event.tokens, ElementsAre(301));
}

// A BPEDecoder leaves out the space of the last word: here the prompt's, which the answer follows.
TEST(AnswerTextTest, BeginsWithTheSpaceOfThePromptsLastWord) {
  TokenizerSpec spec;
  spec.vocabulary = {{"low</w>", 0}, {"er</w>", 1}};
  spec.model = WordLevelModelSpec{"er</w>"};
  spec.frame = {std::nullopt};
  spec.decoders = {{SuffixDecoder{"</w>"}}};
  const auto tokenizer = *PipelineTokenizer::Create(spec);
  GenerateRequest request;
  request.prompt = std::vector<Token>{0};
  AnswerText answer(tokenizer.get(), &request);
  answer.Follow(std::vector<Token>{0});
  const StepResult nothing;
  EXPECT_EQ(answer.Echo(std::vector<Token>{0}).text, "low");
  OutputEvent event;
  answer.Add(nothing, {.token = 1}, /*is_stop_token=*/false, &event);
  answer.Add(nothing, {.token = 0}, /*is_stop_token=*/false, &event);
  answer.Flush(&event);
  EXPECT_EQ(event.text, " er low");
}

// Returns the answer that these bytes make, with the parsers of Qwen 3. `inside`: the prompt has
// opened the reasoning.
OutputEvent Parsed(const GenerateRequest& request, std::string_view text, bool inside,
                   bool separates = true) {
  const ByteTokenizer tokenizer;
  const auto format = *OutputFormat::Choose("", "hermes", "qwen3");
  AnswerText answer(&tokenizer, &request);
  const std::vector<Token> kept;
  answer.Parse(format.MakeParser({.tools = true,
                                  .reasoning = separates,
                                  .keeps_reasoning = !separates,
                                  .inside_reasoning = inside}),
               "", &kept, /*one_call=*/!request.parallel_tool_calls);
  OutputEvent event;
  for (const char c : text) {
    if (answer.ended()) break;
    answer.Add({}, {.token = static_cast<Token>(static_cast<unsigned char>(c))},
               /*is_stop_token=*/false, &event);
  }
  if (!answer.ended()) answer.Flush(&event);
  answer.FinishParsing(AnswerEnd::kWhole, &event);
  return event;
}

TEST(AnswerTextTest, StopStringsAreNotSearchedInTheReasoning) {
  GenerateRequest request;
  request.stop = {"Q:", "</th"};
  const OutputEvent inside = Parsed(request, "a Q: b</think>\n\nc Q: d", /*inside=*/true);
  EXPECT_EQ(inside.reasoning, "a Q: b");
  EXPECT_EQ(inside.text, "c ");
  const OutputEvent opened = Parsed(request, "<think>a Q: b</think>c Q: d", /*inside=*/false);
  EXPECT_EQ(opened.reasoning, "a Q: b");
  EXPECT_EQ(opened.text, "c ");
  // Reasoning that is left in the content is searched.
  const OutputEvent left = Parsed(request, "<think>a Q: b", /*inside=*/false, /*separates=*/false);
  EXPECT_EQ(left.reasoning, "");
  EXPECT_EQ(left.text, "<think>a ");
}

TEST(AnswerTextTest, OneCallIsOneInAThoughtThatNeverCloses) {
  GenerateRequest request;
  request.parallel_tool_calls = false;
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  const OutputEvent event = Parsed(request, "a" + call + call, /*inside=*/true);
  EXPECT_EQ(event.reasoning, "a");
  ASSERT_EQ(event.calls.size(), 1);
  EXPECT_EQ(event.calls[0].name, "f");
}

TEST(AnswerTextTest, WithoutDetokenizingReasoningAndCallsAreNotShownAndTheOnlyCallEnds) {
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
  GenerateRequest request;
  request.parallel_tool_calls = false;
  const OutputEvent whole = Parsed(request, "a</think>b" + call + "c", /*inside=*/true);
  request.detokenize = false;
  const OutputEvent tokens = Parsed(request, "a</think>b" + call + "c", /*inside=*/true);
  EXPECT_EQ(whole.reasoning + whole.text, "ab");
  ASSERT_FALSE(whole.calls.empty());
  for (const ToolCallDelta& call : whole.calls) EXPECT_EQ(call.index, 0);
  EXPECT_EQ(tokens.reasoning + tokens.text, "");
  EXPECT_TRUE(tokens.calls.empty());
  EXPECT_EQ(tokens.tokens, whole.tokens);
}

TEST(AnswerTextTest, ACallInAThoughtThatNeverClosesIsNoReasoning) {
  const ByteTokenizer tokenizer;
  GenerateRequest request;
  const auto format = *OutputFormat::Choose("", "hermes", "qwen3");
  const auto count = [&](const std::string& text) {
    AnswerText answer(&tokenizer, &request);
    answer.Parse(format.MakeParser({.tools = true, .reasoning = true, .inside_reasoning = true}),
                 "", nullptr, /*one_call=*/false);
    OutputEvent event;
    for (const char c : text) {
      answer.Add(StepResult(), {.token = c}, /*is_stop_token=*/false, &event);
    }
    answer.Flush(&event);
    answer.FinishParsing(AnswerEnd::kWhole, &event);
    return answer.num_reasoning_tokens();
  };
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
  EXPECT_EQ(count("Hm." + call), 3);
  EXPECT_EQ(count("Hm." + call + "</think>Yes."), static_cast<int>(call.size()) + 11);
  EXPECT_EQ(count("Hm.<tool_call>no call"), 21);
  EXPECT_EQ(count("Hm.</think>" + call), 11);
  EXPECT_EQ(count("Hm.<tool"), 8);
}

}  // namespace
}  // namespace millrace
