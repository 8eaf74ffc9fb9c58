#include "engine/text_set.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "base/strings.h"
#include "engine/answer/answer_text.h"
#include "formats/json/json.h"
#include "formats/tokenizers/tokenizer_spec.h"
#include "formats/twins/gguf_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "text/tokenizer/pipeline_tokenizer.h"
#include "text/tools/output_format.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPlenty = 1 << 20;

TokenizeRequest Text(std::string text) {
  TokenizeRequest request;
  request.prompt.emplace<std::string>(std::move(text));
  return request;
}

TokenizeRequest User(std::string content, Chat chat = {}) {
  TokenizeRequest request;
  chat.messages.push_back({.role = "user", .content = std::move(content)});
  request.prompt = std::move(chat);
  return request;
}

std::unique_ptr<const TextSet> WithTemplate(const std::string& source) {
  return std::make_unique<const TextSet>(std::make_unique<ByteTokenizer>(),
                                         ChatTemplate::Parse(source, {}));
}

std::string Characters(const std::vector<Token>& tokens) { return {tokens.begin(), tokens.end()}; }

// Counts are those of llama.cpp's server (tests/reference/make_gguf_reference.py).
TEST(TextSetTest, AChatOfAGgufFileIsFramedAsByLlamaCpp) {
  std::ifstream file("tests/reference/gguf_reference.json");
  const absl::StatusOr<Json> cases =
      ParseJson(std::string(std::istreambuf_iterator<char>(file), {}), {});
  ASSERT_TRUE(cases.ok()) << cases.status();
  const std::string path = StrCat(::testing::TempDir(), "text_set_test_", getpid(), ".gguf");
  int chats = 0;
  for (const Json& reference : *cases) {
    if (!reference.contains("chat_tokens")) continue;
    SCOPED_TRACE(reference["name"]);
    ++chats;
    WriterOf(reference["keys"]).Write(path);
    const auto text = TextSet::Load(path, {});
    unlink(path.c_str());
    ASSERT_TRUE(text.ok()) << text.status();
    const auto tokens = (*text)->PromptTokens(User("Hi there"), kPlenty, SteadyTime::max());
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(tokens->size(), reference["chat_tokens"].get<size_t>());
  }
  EXPECT_EQ(chats, 6);
}

TEST(TextSetTest, TokensAreTakenAsTheyAre) {
  TokenizeRequest request;
  request.prompt = std::vector<Token>{5, 6};
  EXPECT_EQ(*(*TextSet::Bytes())->PromptTokens(request, kPlenty, SteadyTime::max()),
            (std::vector<Token>{5, 6}));
}

TEST(TextSetTest, RendersWithAndWithoutTheAnswersHeader) {
  const auto text = *TextSet::Bytes();
  const auto render = [&](Chat chat) {
    return Characters(*text->PromptTokens(User("hi", std::move(chat)), kPlenty, SteadyTime::max()));
  };
  EXPECT_EQ(render({}), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(render({.add_generation_prompt = false}), "<|im_start|>user\nhi<|im_end|>\n");
  EXPECT_EQ(render({.add_generation_prompt = false, .continue_final_message = true}),
            "<|im_start|>user\nhi");
}

TEST(TextSetTest, GivesATemplateItsOwnVariables) {
  const auto text = WithTemplate("{{ a.b }}{{ c is defined }}{{ messages[0].content }}");
  const auto render = [&](std::string kwargs) {
    return text->PromptTokens(User("hi", {.template_kwargs = std::move(kwargs)}), kPlenty,
                              SteadyTime::max());
  };
  EXPECT_EQ(Characters(*render(R"({"a": {"b": [1, "é"]}, "z": 1})")), "[1, 'é']Falsehi");
  EXPECT_EQ(Characters(*render(R"({"a": {"b": [123456789012345678901234567890]}})")),
            "[123456789012345678901234567890]Falsehi");
  EXPECT_THAT(std::string(render("[]").status().message()), HasSubstr("chat_template_kwargs"));
  EXPECT_THAT(std::string(render("{").status().message()), HasSubstr("chat_template_kwargs"));
}

// A character that has stood for long integers is any other one in a text.
TEST(TextSetTest, ATextIsAText) {
  const auto text = WithTemplate("{{ messages[0].content is string }}{{ messages[0].content }}");
  const std::string content =
      "\ufdd0"
      "5";
  EXPECT_EQ(Characters(*text->PromptTokens(User(content), kPlenty, SteadyTime::max())),
            StrCat("True", content));
}

TEST(TextSetTest, ATextThatCannotFitIsNotTokenized) {
  const auto text = *TextSet::Bytes();  // its longest token is "</s>"
  EXPECT_TRUE(text->PromptTokens(Text(std::string(400, 'x')), 100, SteadyTime::max()).ok());
  const auto refused = text->PromptTokens(Text(std::string(401, 'x')), 100, SteadyTime::max());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("prompt has 401 bytes, at most 400 can fit in 100 tokens"));
}

TEST(TextSetTest, ATemplateBeyondUsRefusesChatsAndNothingElse) {
  const auto text = WithTemplate("{% include 'x' %}");
  EXPECT_FALSE(text->has_chat_template());
  EXPECT_EQ(text->PromptTokens(User("hi"), kPlenty, SteadyTime::max()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(text->PromptTokens(Text("hi"), kPlenty, SteadyTime::max()).ok());
}

TEST(TextSetTest, ATemplateMayRefuseAConversation) {
  const auto text = WithTemplate("{{ raise_exception('no') }}");
  const auto refused = text->PromptTokens(User("hi"), kPlenty, SteadyTime::max());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("no"));
}

TEST(TextSetTest, AChatThatCameRenderedHasItsRecipientTakenAway) {
  TokenizerSpec spec;
  spec.vocabulary = {{"a", 0}, {"all\n", 1}};
  spec.model = WordLevelModelSpec{"a"};
  spec.frame = {std::nullopt};
  spec.decoders = std::vector<DecoderSpec>{SimpleDecoder::kFuse};
  const TextSet text(*PipelineTokenizer::Create(spec), absl::UnimplementedError(""),
                     {.output = *OutputFormat::Choose("", "functionary_v32", "none")});
  const auto answer_to = [&](const GenerateRequest& request) {
    AnswerText answer(&text.tokenizer(), &request);
    answer.Parse(text.MakeParser(request, {}), "", &text.marker_tokens(), /*one_call=*/false);
    OutputEvent event;
    for (const Token token : {1, 0}) {
      answer.Add({}, {.token = token}, /*is_stop_token=*/false, &event);
    }
    answer.FinishParsing(AnswerEnd::kWhole, &event);
    return event.text;
  };
  GenerateRequest request;
  request.prompt = "a";
  EXPECT_EQ(answer_to(request), "all\na");
  request.is_rendered_chat = true;
  EXPECT_EQ(answer_to(request), "a");
}

TEST(TextSetTest, ReasoningThatIsLeftInTheContentKeepsItsMarkers) {
  TokenizerSpec spec;
  spec.added = {{.id = 1, .content = "[THINK]", .special = true},
                {.id = 2, .content = "[/THINK]", .special = true}};
  spec.vocabulary = {{"a", 0}, {"[THINK]", 1}, {"[/THINK]", 2}};
  spec.model = WordLevelModelSpec{"a"};
  spec.frame = {std::nullopt};
  spec.decoders = std::vector<DecoderSpec>{SimpleDecoder::kFuse};
  const TextSet text(*PipelineTokenizer::Create(spec), absl::UnimplementedError(""),
                     {.output = *OutputFormat::Choose("", "none", "mistral")});
  const auto answer_to = [&](const GenerateRequest& request) {
    AnswerText answer(&text.tokenizer(), &request);
    answer.Parse(text.MakeParser(request, {}), "", &text.marker_tokens(), /*one_call=*/false);
    OutputEvent event;
    for (const Token token : {1, 0, 2, 0}) {
      answer.Add({}, {.token = token}, /*is_stop_token=*/false, &event);
    }
    answer.FinishParsing(AnswerEnd::kWhole, &event);
    return event;
  };
  GenerateRequest request;
  request.prompt = Chat();
  EXPECT_EQ(answer_to(request).text, "[THINK]a[/THINK]a");
  request.parse_reasoning = true;
  EXPECT_EQ(answer_to(request).text, "a");
  EXPECT_EQ(answer_to(request).reasoning, "a");
  // A text has no reasoning: special tokens are left out as they are asked to.
  request.prompt = "a";
  request.parse_reasoning = false;
  EXPECT_EQ(answer_to(request).text, "aa");
}

TEST(TextSetTest, TruncatesAFramedTextToAnyLength) {
  TokenizerSpec spec;
  spec.vocabulary = {{"a", 0}, {"[", 1}, {"]", 2}};
  spec.model = WordLevelModelSpec{"a"};
  spec.frame = {1, std::nullopt, 2, 2, 2};
  const TextSet text(*PipelineTokenizer::Create(spec), absl::UnimplementedError(""));
  const std::vector<Token> whole = {1, 0, 2, 2, 2};
  const auto truncated = [&](int32_t most) {
    std::vector<Token> tokens = whole;
    text.Truncate("a", most, &tokens);
    return tokens;
  };
  EXPECT_EQ(truncated(5), whole);
  EXPECT_EQ(truncated(4), (std::vector<Token>{1, 2, 2, 2}));
  EXPECT_EQ(truncated(3), (std::vector<Token>{2, 2, 2}));
  EXPECT_EQ(truncated(2), (std::vector<Token>{2, 2}));  // less than closes every text
  EXPECT_EQ(truncated(0), std::vector<Token>());
}

}  // namespace
}  // namespace millrace
