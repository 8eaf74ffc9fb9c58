// Tests of Tokenize and Detokenize, and of the text work of requests.
#include <atomic>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/engine_test_util.h"
#include "engine/request/tenant.h"
#include "engine/text/text_pool.h"
#include "formats/tokenizers/tokenizer_spec.h"
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

// ---- Of tenants ----

std::shared_ptr<const Tenant> TextTenant(uint32_t id, TenantLimits limits = {}) {
  return std::make_shared<Tenant>(id, std::move(limits), std::make_shared<TenantUsage>());
}

// A call that was begun.
class TextCall {
 public:
  static std::unique_ptr<TextCall> OfText(Engine& engine, std::shared_ptr<const Tenant> tenant,
                                          std::string text) {
    auto call = std::make_unique<TextCall>();
    call->give_up_ = engine.Tokenize(
        {.prompt = std::move(text), .tenant = std::move(tenant)},
        [told = call->told_](const auto& result) { told->set_value(result.status()); });
    return call;
  }
  static std::unique_ptr<TextCall> OfTokens(Engine& engine, std::shared_ptr<const Tenant> tenant,
                                            std::vector<Token> tokens) {
    auto call = std::make_unique<TextCall>();
    call->give_up_ = engine.Detokenize(
        {.tokens = std::move(tokens), .tenant = std::move(tenant)},
        [told = call->told_](const auto& result) { told->set_value(result.status()); });
    return call;
  }
  void GiveUp() { give_up_(); }
  absl::Status Get() { return told_->get_future().get(); }

 private:
  std::shared_ptr<std::promise<absl::Status>> told_ =
      std::make_shared<std::promise<absl::Status>>();
  std::function<void()> give_up_;
};

std::unique_ptr<EngineImpl> MakeTextEngine(const std::string& answer = "") {
  EngineOptions options;
  options.text_threads = 2;
  return MakeEngine(std::make_shared<Script>(answer), options);
}

// Holds all threads that the text pool of such an engine has for a tenant, from the first call on.
class BusyText {
 public:
  // Its calls are charged so much: two of three tokens, and a long one.
  static constexpr int64_t kCalls = 3;
  static constexpr int64_t kTokens = 6 + int64_t{TextPool::kLongBytes};

  BusyText(Engine& engine, const std::shared_ptr<const Tenant>& tenant) {
    // Two threads are for short texts, and one is for long ones.
    const std::string texts[] = {"abc", "abc", std::string(TextPool::kLongBytes, 'x')};
    for (size_t i = 0; i < std::size(texts); ++i) {
      std::promise<void>& one = entered_[i];
      engine.Tokenize({.prompt = texts[i], .tenant = tenant},
                      [&one, opened = open_.get_future_shared()](const auto&) {
                        one.set_value();
                        opened.wait();
                      });
      one.get_future().wait();
    }
  }
  void Open() { open_.Set(); }
  ~BusyText() { Open(); }

 private:
  struct Opening {
    std::promise<void> promise;
    std::shared_future<void> future = promise.get_future().share();
    bool set = false;
    std::shared_future<void> get_future_shared() const { return future; }
    void Set() {
      if (!std::exchange(set, true)) promise.set_value();
    }
  };
  Opening open_;
  std::promise<void> entered_[kCalls];
};

TEST(EngineTextTest, TextCallsAreChargedToTheTenant) {
  auto engine = MakeEngine(std::make_shared<Script>(""));
  const auto tenant = TextTenant(1, {.requests_per_minute = 3, .tokens_per_minute = 1000});
  EXPECT_TRUE(TextCall::OfText(*engine, tenant, "abcd")->Get().ok());
  EXPECT_TRUE(TextCall::OfTokens(*engine, tenant, {'a', 'b'})->Get().ok());
  TenantUsage::Counts counts = tenant->usage()->counts();
  EXPECT_EQ(counts.requests, 2);
  EXPECT_EQ(counts.text_tokens, 6);
  EXPECT_EQ(counts.prompt_tokens, 0);
  EXPECT_EQ(counts.streams, 0);
  // A refusal costs the request, and no tokens.
  EXPECT_FALSE(TextCall::OfTokens(*engine, tenant, {'a', 1000})->Get().ok());
  for (const bool text : {true, false}) {
    const absl::Status status = (text ? TextCall::OfText(*engine, tenant, "abc")
                                      : TextCall::OfTokens(*engine, tenant, {'a'}))
                                    ->Get();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr("requests a minute are used up"));
    EXPECT_TRUE(RetryAfter(status).has_value());
  }
  counts = tenant->usage()->counts();
  EXPECT_EQ(counts.requests, 3);
  EXPECT_EQ(counts.refused, 2);
  EXPECT_EQ(counts.text_tokens, 6);
  const auto talker = TextTenant(2, {.tokens_per_minute = 5});
  EXPECT_TRUE(TextCall::OfText(*engine, talker, "abcdefgh")->Get().ok());
  EXPECT_THAT(std::string(TextCall::OfText(*engine, talker, "a")->Get().message()),
              HasSubstr("tokens a minute are used up"));
  // The allowance is the one of requests to generate.
  GenerateRequest request = TextRequest("abc");
  request.tenant = talker;
  EXPECT_THAT(std::string(Reader(engine.get(), request).ReadAll().status.message()),
              HasSubstr("tokens a minute are used up"));
}

TEST(EngineTextTest, TextCallsAreStreamsOfTheTenant) {
  std::promise<void> open;  // these outlive the engine, whose thread uses them
  std::promise<void> entered;
  std::promise<void> left;
  auto engine = MakeTextEngine();
  BusyText busy(*engine, TextTenant(2));
  const auto other = TextTenant(3, {.max_streams = 1});
  engine->Tokenize({.prompt = "abc", .tenant = other}, [&](const auto&) {
    entered.set_value();
    open.get_future().wait();
    left.set_value();
  });
  entered.get_future().wait();
  EXPECT_EQ(other->usage()->counts().streams, 0);
  auto waits = TextCall::OfText(*engine, other, "abc");
  EXPECT_EQ(other->usage()->counts().streams, 1);
  EXPECT_THAT(std::string(TextCall::OfText(*engine, other, "abc")->Get().message()),
              HasSubstr("streams at once"));
  waits->GiveUp();
  EXPECT_EQ(waits->Get().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(other->usage()->counts().streams, 0);
  EXPECT_EQ(other->usage()->counts().text_tokens, 3);
  open.set_value();
  left.get_future().wait();
}

TEST(EngineTextTest, AnotherTenantsTextsDoNotWaitForAFlood) {
  auto engine = MakeTextEngine("hello");
  const auto flood = TextTenant(1);
  const auto light = TextTenant(2);
  BusyText busy(*engine, flood);
  std::vector<std::unique_ptr<TextCall>> waiting;
  for (int i = 0; i < 20; ++i) {
    waiting.push_back(TextCall::OfText(*engine, flood, std::string(1 << 20, 'x')));
  }
  EXPECT_TRUE(TextCall::OfText(*engine, light, std::string(1 << 20, 'x'))->Get().ok());
  EXPECT_TRUE(TextCall::OfTokens(*engine, light, {'a'})->Get().ok());
  GenerateRequest request = TextRequest("abc");
  request.tenant = light;
  request.grammar = {.kind = GrammarSpec::Kind::kJsonSchema, .text = R"({"type": "array"})"};
  request.grammar_field = "response_format";
  EXPECT_EQ(Reader(engine.get(), request).ReadAll().status.code(),
            absl::StatusCode::kUnimplemented)  // masks are beyond this device: it was its turn
      << "hangs if it waits for the flood";
  EXPECT_EQ(flood->usage()->counts().streams, 20);
  busy.Open();
  for (const auto& call : waiting) EXPECT_TRUE(call->Get().ok());
}

TEST(EngineTextTest, WhatNobodyWaitsForIsNotWorkedOn) {
  auto engine = MakeTextEngine();
  const auto tenant = TextTenant(1);
  BusyText busy(*engine, tenant);
  std::vector<std::unique_ptr<TextCall>> gone;
  gone.push_back(TextCall::OfText(*engine, tenant, std::string(1 << 20, 'x')));
  gone.push_back(TextCall::OfTokens(*engine, tenant, {'a'}));
  for (const auto& call : gone) call->GiveUp();
  // The watchdog takes them out while the threads are busy.
  for (const auto& call : gone) EXPECT_EQ(call->Get(), CancelStatus(CancelReason::kClientGone));
  EXPECT_EQ(tenant->usage()->counts().streams, 0);
  EXPECT_EQ(tenant->usage()->counts().text_tokens, BusyText::kTokens);
}

TEST(EngineTextTest, AnEndWaitsForNoTexts) {
  auto engine = MakeTextEngine();
  const auto tenant = TextTenant(1);
  auto busy = std::make_unique<BusyText>(*engine, tenant);
  auto call = TextCall::OfText(*engine, tenant, std::string(1 << 20, 'x'));
  engine->CancelAll(CancelReason::kDrain);
  EXPECT_EQ(call->Get(), CancelStatus(CancelReason::kDrain));
  busy.reset();
  engine.reset();
}

TEST(EngineTextTest, WorkWithoutAResultIsChargedByItsBytes) {
  auto engine = MakeEngine(std::make_shared<Script>(""));
  const auto tenant = TextTenant(1);
  std::promise<absl::Status> told;
  engine->Tokenize(
      {.prompt = std::string((1 << 20) + 4, 'x'), .return_token_strs = true, .tenant = tenant},
      [&](const auto& result) { told.set_value(result.status()); });
  EXPECT_EQ(told.get_future().get().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tenant->usage()->counts().text_tokens, (1 << 18) + 1);
}

TEST(EngineTextTest, ADrainRefusesNewTextsAndWaitsForOthers) {
  auto engine = MakeTextEngine();
  const auto tenant = TextTenant(1);
  BusyText busy(*engine, tenant);
  auto accepted = TextCall::OfText(*engine, tenant, "abc");
  engine->BeginDrain();
  for (const absl::Status& refused : {TextCall::OfText(*engine, tenant, "abc")->Get(),
                                      TextCall::OfTokens(*engine, tenant, {'a'})->Get()}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(RetryAfter(refused).has_value());
  }
  EXPECT_FALSE(engine->WaitIdle(Clock::Real().Now()));
  engine->CancelAll(CancelReason::kDrain);
  EXPECT_TRUE(engine->WaitIdle(SteadyTime::max()));
  EXPECT_EQ(accepted->Get(), CancelStatus(CancelReason::kDrain));
  EXPECT_EQ(tenant->usage()->counts().requests, BusyText::kCalls + 1);
}

// ---- The text set ----

TEST(TextSetTest, WorkEndsWhenItIsCancelled) {
  const auto text = TextSet::Bytes();
  ASSERT_TRUE(text.ok());
  const std::atomic<bool> cancelled = true;
  const Chat chat = {.messages = {{.role = "user", .content = std::string(1 << 20, 'x')}}};
  for (const Prompt& prompt : {Prompt("abc"), Prompt(chat)}) {
    EXPECT_EQ((*text)
                  ->PromptTokens({.prompt = prompt}, Tokenizer::kMaxTextBytes, SteadyTime::max(),
                                 &cancelled)
                  .status()
                  .code(),
              absl::StatusCode::kCancelled);
  }
}

}  // namespace
}  // namespace millrace
