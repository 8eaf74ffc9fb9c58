// Tests of Tokenize and Detokenize, and of the text work of requests.
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/engine_test_util.h"
#include "formats/tokenizer_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "text/tokenizer/pipeline_tokenizer.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMostBytes = Tokenizer::kMaxTextBytes;
constexpr Token kEnd = 257;  // "</s>", the longest of the byte tokenizer's
constexpr size_t kEndBytes = 4;

absl::StatusOr<TokenizeResult> Tokenize(Engine& engine, Prompt prompt, bool token_strs = false) {
  std::promise<absl::StatusOr<TokenizeResult>> result;
  engine.Tokenize({.prompt = std::move(prompt), .return_token_strs = token_strs},
                  [&](auto tokenized) { result.set_value(std::move(tokenized)); });
  return result.get_future().get();
}

absl::StatusOr<std::string> Detokenize(Engine& engine, std::vector<Token> tokens) {
  std::promise<absl::StatusOr<std::string>> result;
  engine.Detokenize({.tokens = std::move(tokens)},
                    [&](auto text) { result.set_value(std::move(text)); });
  return result.get_future().get();
}

TEST(EngineTextTest, DetokenizesIdsOfAPaddedVocabularyAsNothing) {
  StepLimits limits = SmallLimits();
  limits.vocab_size = 300;
  auto engine = MakeEngine(std::make_shared<Script>(""), {}, limits);
  EXPECT_EQ(*Detokenize(*engine, {'a', 299, 'b'}), "ab");
  EXPECT_THAT(std::string(Detokenize(*engine, {'a', 300}).status().message()),
              HasSubstr("tokens[1] is 300; allowed: 0 to 299"));
}

TEST(EngineTextTest, TokenizesAndDetokenizes) {
  auto engine = MakeEngine(std::make_shared<Script>(""));
  const auto tokens = Tokenize(*engine, "ab", /*token_strs=*/true);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->tokens, (std::vector<Token>{'a', 'b'}));
  EXPECT_EQ(tokens->token_strs, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(*Detokenize(*engine, {'a', 256}), "a<s>");
  EXPECT_THAT(std::string(Detokenize(*engine, {'a', 258}).status().message()),
              HasSubstr("tokens[1] is 258; allowed: 0 to 257"));
}

TEST(EngineTextTest, WhatIsExpiredIsNotTokenized) {
  auto engine = MakeEngine(std::make_shared<Script>(""));
  const absl::Time passed = absl::Now() - absl::Seconds(1);
  const auto tokenize = [&](absl::Time deadline) {
    std::promise<absl::Status> result;
    engine->Tokenize({.prompt = "ab", .deadline = deadline},
                     [&](const auto& tokenized) { result.set_value(tokenized.status()); });
    return result.get_future().get();
  };
  const auto detokenize = [&](absl::Time deadline) {
    std::promise<absl::Status> result;
    engine->Detokenize({.tokens = {'a'}, .deadline = deadline},
                       [&](const auto& text) { result.set_value(text.status()); });
    return result.get_future().get();
  };
  for (const absl::Status& status : {tokenize(passed), detokenize(passed)}) {
    EXPECT_EQ(status, absl::DeadlineExceededError("the request's deadline has passed"));
  }
  const absl::Time later = absl::Now() + absl::Hours(1);
  EXPECT_TRUE(tokenize(later).ok() && detokenize(later).ok());
}

TEST(EngineTextTest, TheTextOfTokensIsBounded) {
  auto engine = MakeEngine(std::make_shared<Script>(""));
  std::vector<Token> tokens(kMostBytes / kEndBytes, kEnd);
  EXPECT_EQ(Detokenize(*engine, tokens)->size(), kMostBytes);
  tokens.push_back('a');
  const absl::Status refused = Detokenize(*engine, tokens).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(), "tokens has 8388609 bytes of text; allowed: at most 8388608");
}

TEST(EngineTextTest, TheTextsOfTokensOneByOneAreBounded) {
  auto engine = MakeEngine(std::make_shared<Script>(""));
  const std::string text((1 << 20) + 1, 'x');
  EXPECT_EQ(Tokenize(*engine, text)->tokens.size(), text.size());
  const absl::Status refused = Tokenize(*engine, text, /*token_strs=*/true).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            "return_token_strs is true for 1048577 tokens; allowed: at most 1048576");
}

// Where the caller is told, and no other thread: the text waits for nothing.
TEST(EngineTextTest, ATextBeyondTheLimitIsRefusedAtOnce) {
  auto generator = MakeEngine(std::make_shared<Script>(""));
  StepLimits limits = SmallLimits();
  limits.max_model_len = 64;
  limits.embedding_size = 2;
  auto encoder = MakeEngine(std::make_shared<Script>(""), {}, limits);
  const std::string text(kMostBytes + 1, 'x');
  const Chat chat = {.messages = {{.role = "user", .content = text}}};
  const auto generate_one = [](Engine& engine, const GenerateRequest& request) {
    std::thread::id told;
    const auto streams = engine.Generate(request, [&] { told = std::this_thread::get_id(); });
    EXPECT_EQ(told, std::this_thread::get_id());
    return streams.front()->Next()->finish->status;
  };
  const auto generate = [&](Engine& engine, Prompt prompt) {
    GenerateRequest request = TextRequest("");
    request.prompt = std::move(prompt);
    return generate_one(engine, request);
  };
  GenerateRequest guided = TextRequest("x");
  guided.grammar = {.kind = GrammarSpec::Kind::kSequence,
                    .parts = {{.kind = GrammarSpec::Kind::kRegex, .text = text}}};
  guided.grammar_field = "regex";
  EXPECT_EQ(generate_one(*generator, guided),
            absl::InvalidArgumentError("regex: it has 8388609 bytes; allowed: at most 1048576"));
  std::thread::id told;
  absl::Status status;
  const auto tell = [&](const auto& result) {
    told = std::this_thread::get_id();
    status = result.status();
  };
  const auto tokenize = [&](Engine& engine, Prompt prompt) {
    told = {};
    engine.Tokenize({.prompt = std::move(prompt)}, tell);
    EXPECT_EQ(told, std::this_thread::get_id());
    return status;
  };
  const auto embed = [&](Prompt prompt) {
    told = {};
    encoder->Embed({.id = "embd-test", .inputs = {std::move(prompt)}}, tell);
    EXPECT_EQ(told, std::this_thread::get_id());
    return status;
  };
  EXPECT_EQ(embed(text),
            absl::InvalidArgumentError("input has 8388609 bytes; allowed: at most 8388608"));
  EXPECT_EQ(tokenize(*encoder, text),
            absl::InvalidArgumentError("prompt has 8388609 bytes; allowed: at most 8388608"));
  for (const absl::Status& refused : {generate(*generator, chat), tokenize(*generator, chat)}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(refused.message(),
              absl::StrCat("messages has ", text.size() + 4 + sizeof(ChatMessage),
                           " bytes; allowed: at most 8388608"));
  }
}

TEST(EngineTextTest, AnEncoderMustTakeMoreThanTheFrame) {
  TokenizerSpec spec;
  spec.vocabulary = {{"a", 0}, {"[", 1}, {"]", 2}};
  spec.model = WordLevelModelSpec{"a"};
  spec.frame = {1, std::nullopt, 2};
  const auto create = [&](int32_t max_model_len) {
    StepLimits limits = SmallLimits();
    limits.max_model_len = max_model_len;
    limits.embedding_size = 2;
    Metrics metrics;
    return EngineImpl::Create(
               {.model_name = "encoder"},
               std::make_unique<ScriptedExecutor>(limits, std::make_shared<Script>("")),
               std::make_unique<const TextSet>(*PipelineTokenizer::Create(spec),
                                               absl::UnimplementedError("")),
               metrics)
        .status();
  };
  EXPECT_EQ(create(3), absl::OkStatus());
  EXPECT_EQ(create(2), absl::InvalidArgumentError(
                           "max_model_len is 2; allowed: at least 3, since the tokenizer puts 2 "
                           "tokens around each text"));
}

}  // namespace
}  // namespace millrace
