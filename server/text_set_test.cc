#include "server/text_set.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPlenty = 1 << 20;

TokenizeRequest Text(std::string text) {
  TokenizeRequest request;
  request.prompt.emplace<std::string>(std::move(text));
  return request;
}

TokenizeRequest Chat(std::string content) {
  TokenizeRequest request;
  request.prompt = std::vector<ChatMessage>{{.role = "user", .content = std::move(content)}};
  return request;
}

std::unique_ptr<const TextSet> WithTemplate(const std::string& source) {
  return std::make_unique<const TextSet>(std::make_unique<ByteTokenizer>(),
                                         ChatTemplate::Parse(source, {}));
}

std::string Characters(const std::vector<Token>& tokens) { return {tokens.begin(), tokens.end()}; }

TEST(TextSetTest, TokensAreTakenAsTheyAre) {
  TokenizeRequest request;
  request.prompt = std::vector<Token>{5, 6};
  EXPECT_EQ(*(*TextSet::Bytes())->PromptTokens(request, kPlenty, SteadyTime::max()),
            (std::vector<Token>{5, 6}));
}

TEST(TextSetTest, RendersWithAndWithoutTheAnswersHeader) {
  const auto text = *TextSet::Bytes();
  TokenizeRequest request = Chat("hi");
  EXPECT_EQ(Characters(*text->PromptTokens(request, kPlenty, SteadyTime::max())),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
  request.add_generation_prompt = false;
  EXPECT_EQ(Characters(*text->PromptTokens(request, kPlenty, SteadyTime::max())),
            "<|im_start|>user\nhi<|im_end|>\n");
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
  EXPECT_EQ(text->PromptTokens(Chat("hi"), kPlenty, SteadyTime::max()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(text->PromptTokens(Text("hi"), kPlenty, SteadyTime::max()).ok());
}

TEST(TextSetTest, ATemplateMayRefuseAConversation) {
  const auto text = WithTemplate("{{ raise_exception('no') }}");
  const auto refused = text->PromptTokens(Chat("hi"), kPlenty, SteadyTime::max());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("no"));
}

}  // namespace
}  // namespace millrace
