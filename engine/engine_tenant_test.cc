// An engine's requests of several tenants.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_test_util.h"
#include "engine/request/tenant.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const Tenant> MakeTenant(uint32_t id, TenantLimits limits = {}) {
  return std::make_shared<Tenant>(id, std::move(limits), std::make_shared<TenantUsage>());
}

GenerateRequest Request(std::shared_ptr<const Tenant> tenant, std::string prompt = "abc") {
  GenerateRequest request = TextRequest(std::move(prompt));
  request.tenant = std::move(tenant);
  return request;
}

// Six may be alive: four that run and two that wait.
EngineOptions TwoWait() {
  EngineOptions options;
  options.max_waiting = 2;
  return options;
}

TEST(EngineTenantTest, AFullQueueEvictsTheLatestOfWhoHoldsMost) {
  auto script = std::make_shared<Script>("hello");
  script->Hold();
  auto engine = MakeEngine(script, TwoWait());
  const auto flood = MakeTenant(1);
  const auto light = MakeTenant(2);
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 6; ++i) {
    readers.push_back(std::make_unique<Reader>(engine.get(), Request(flood)));
  }
  Reader beyond(engine.get(), Request(flood));
  EXPECT_EQ(beyond.ReadAll().status.code(), absl::StatusCode::kResourceExhausted);

  Reader other(engine.get(), Request(light));
  const Finish& evicted = readers[5]->ReadAll();
  EXPECT_EQ(evicted.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryAfter(evicted.status).has_value());
  EXPECT_THAT(std::string(evicted.status.message()), HasSubstr("the queue is full"));
  EXPECT_EQ(readers[5]->events().size(), 1u);
  EXPECT_EQ(Metric(*engine, "millrace_requests_cancelled_total", "reason=\"evicted\""), 1);

  script->Release();
  EXPECT_EQ(other.ReadAll().reason, FinishReason::kStop);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(readers[i]->ReadAll().reason, FinishReason::kStop) << i;
  EXPECT_EQ(flood->usage()->counts().streams, 0);
  EXPECT_EQ(light->usage()->counts().generation_tokens, 6);
}

TEST(EngineTenantTest, AFullQueueTakesNothingOfAMinutesRequests) {
  auto script = std::make_shared<Script>("hello");
  script->Hold();
  auto engine = MakeEngine(script, TwoWait());
  const auto tenant = MakeTenant(1, {.requests_per_minute = 7});
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 6; ++i) {
    readers.push_back(std::make_unique<Reader>(engine.get(), Request(tenant)));
  }
  for (int i = 0; i < 3; ++i) {
    Reader beyond(engine.get(), Request(tenant));
    EXPECT_THAT(std::string(beyond.ReadAll().status.message()), HasSubstr("the queue is full"));
  }
  EXPECT_EQ(tenant->usage()->counts().requests, 6);
  script->Release();
  for (const auto& reader : readers) EXPECT_EQ(reader->ReadAll().reason, FinishReason::kStop);
  Reader seventh(engine.get(), Request(tenant));
  EXPECT_EQ(seventh.ReadAll().reason, FinishReason::kStop);
}

TEST(EngineTenantTest, WhoWasSentSomethingIsNotEvicted) {
  auto script = std::make_shared<Script>("hello");
  script->Hold();
  auto engine = MakeEngine(script, TwoWait());
  GenerateRequest four = Request(MakeTenant(1));
  four.n = 4;  // all run, and are one request
  std::vector<Reader> begun = Reader::OfChoices(engine.get(), four);
  script->Finish();
  script->Finish();
  for (Reader& reader : begun) reader.ReadTokens(1);
  Reader first(engine.get(), Request(MakeTenant(3)));
  Reader second(engine.get(), Request(MakeTenant(4)));
  // The one with most has sent something; of the others none holds more than the newcomer.
  Reader newcomer(engine.get(), Request(MakeTenant(2)));
  EXPECT_EQ(newcomer.ReadAll().status.code(), absl::StatusCode::kResourceExhausted);
  script->Release();
  for (Reader& reader : begun) EXPECT_EQ(reader.ReadAll().reason, FinishReason::kStop);
  EXPECT_EQ(first.ReadAll().reason, FinishReason::kStop);
  EXPECT_EQ(second.ReadAll().reason, FinishReason::kStop);
}

// The answers to several prompts may be one stream.
TEST(EngineTenantTest, NorAreTheOtherPromptsOfItsStream) {
  auto script = std::make_shared<Script>("hello");
  script->Hold();
  auto engine = MakeEngine(script, TwoWait());
  GenerateRequest request = Request(MakeTenant(1));
  request.joint_output = std::make_shared<std::atomic<OutputState>>(OutputState::kNone);
  request.n = 4;
  std::vector<Reader> begun = Reader::OfChoices(engine.get(), request);
  script->Finish();
  script->Finish();
  for (Reader& reader : begun) reader.ReadTokens(1);
  EXPECT_TRUE(begun[0].events()[0].admitted);
  request.n = 1;
  Reader first(engine.get(), request);
  Reader second(engine.get(), request);
  Reader newcomer(engine.get(), Request(MakeTenant(2)));
  EXPECT_EQ(newcomer.ReadAll().status.code(), absl::StatusCode::kResourceExhausted);
  script->Release();
  for (Reader& reader : begun) EXPECT_EQ(reader.ReadAll().reason, FinishReason::kStop);
  EXPECT_EQ(first.ReadAll().reason, FinishReason::kStop);
  EXPECT_EQ(second.ReadAll().reason, FinishReason::kStop);
}

// An answer of one token is sent as its end, all at once.
TEST(EngineTenantTest, NorAfterAWholeAnswerOfTheStream) {
  auto script = std::make_shared<Script>("hello");
  auto engine = MakeEngine(script, TwoWait());
  GenerateRequest request = Request(MakeTenant(1));
  request.joint_output = std::make_shared<std::atomic<OutputState>>(OutputState::kNone);
  request.max_tokens = 1;
  EXPECT_EQ(Reader(engine.get(), request).ReadAll().reason, FinishReason::kLength);
  script->Hold();
  request.max_tokens.reset();
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 6; ++i) readers.push_back(std::make_unique<Reader>(engine.get(), request));
  Reader newcomer(engine.get(), Request(MakeTenant(2)));
  EXPECT_EQ(newcomer.ReadAll().status.code(), absl::StatusCode::kResourceExhausted);
  script->Release();
  for (const auto& reader : readers) EXPECT_EQ(reader->ReadAll().reason, FinishReason::kStop);
}

TEST(EngineTenantTest, PrefixesAreFoundByTheSameSaltAlone) {
  auto engine = MakeEngine(std::make_shared<Script>("hello"));
  const std::string prompt(100, 'p');
  const auto cached = [&](std::shared_ptr<const Tenant> tenant) {
    Reader reader(engine.get(), Request(std::move(tenant), prompt));
    return reader.ReadAll().usage.cached_tokens;
  };
  EXPECT_EQ(cached(MakeTenant(1, {.cache_salt = "a"})), 0);
  EXPECT_GT(cached(MakeTenant(2, {.cache_salt = "a"})), 0);
  EXPECT_EQ(cached(MakeTenant(3, {.cache_salt = "b"})), 0);
  EXPECT_EQ(cached(nullptr), 0);
  EXPECT_EQ(cached(MakeTenant(4)), cached(nullptr)) << "shared by all that have none";
}

TEST(EngineTenantTest, LimitsAndPrioritiesAreTheKeys) {
  auto engine = MakeEngine(std::make_shared<Script>("hello"));
  const auto tenant = MakeTenant(1, {.requests_per_minute = 2, .least_priority = 0});
  GenerateRequest ahead = Request(tenant);
  ahead.priority = -1;
  Reader refused(engine.get(), ahead);
  EXPECT_EQ(refused.ReadAll().status.code(), absl::StatusCode::kInvalidArgument);
  for (int i = 0; i < 2; ++i) {
    Reader reader(engine.get(), Request(tenant));
    EXPECT_EQ(reader.ReadAll().reason, FinishReason::kStop);
  }
  Reader third(engine.get(), Request(tenant));
  EXPECT_EQ(third.ReadAll().status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryAfter(third.finish().status).has_value());
  const TenantUsage::Counts counts = tenant->usage()->counts();
  EXPECT_EQ(counts.streams, 0);
  EXPECT_EQ(counts.requests, 2);
  EXPECT_EQ(counts.refused, 1);
  EXPECT_EQ(counts.generation_tokens, 12);
}

}  // namespace
}  // namespace millrace
