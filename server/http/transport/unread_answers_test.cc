// Answers whose clients do not read them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/strings.h"
#include "engine/metrics/metrics.h"
#include "engine/request/tenant.h"
#include "server/http/endpoint_test_util.h"
#include "server/http/json/json_reader.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

class ClockOfTest {
 protected:
  ManualClock clock_;
};

// The clock outlives the endpoint.
class UnreadAnswersTest : public testing::Test, protected ClockOfTest, protected TestEndpoint {};

// More than the system's buffers take of an answer whose client keeps 4 KiB (4 MiB).
constexpr size_t kStoredBytes = 6 << 20;

// Returns the path of a stored response.
std::string Store(TestEndpoint& endpoint, size_t bytes) {
  endpoint.engine().set_script([bytes](const GenerateRequest&, ScriptedStream& stream) {
    stream.Push(TextEvent(std::string(bytes, 'x'), {1}));
    stream.Push(FinishEvent());
  });
  const ClientResponse made = endpoint.Ask("POST", "/v1/responses", R"({"input": "p"})");
  EXPECT_EQ(made.status, 200);
  endpoint.engine().set_script(nullptr);
  const size_t id = made.body.find("resp_");
  return "/v1/responses/" + made.body.substr(id, made.body.find('"', id) - id);
}

TEST_F(UnreadAnswersTest, AnswersThatNobodyReadsShareABudget) {
  Start({.all_answer_bytes = 12 << 20}, "", /*threads=*/2, clock_);
  const std::string first = Store(*this, kStoredBytes);
  const std::string second = Store(*this, 8 << 20);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 8; ++i) {  // of one memory
    clients.push_back(std::make_unique<RawClient>(port(), /*receive_buffer=*/4096));
    clients.back()->Request("GET", first);
    EXPECT_EQ(clients.back()->ReadHeader().status, 200);
  }
  const ClientResponse refused = Ask("GET", second);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(Json::parse(refused.body)["error"]["code"], "service_unavailable");
  EXPECT_EQ(Ask("GET", "/v1/models").status, 200);
  EXPECT_EQ(Ask("HEAD", second).status, 200);
  clock_.Advance(std::chrono::seconds(100));  // in which they have read a few MiB at most
  EXPECT_EQ(Ask("GET", second).status, 200);
  for (const auto& client : clients) {
    EXPECT_LT(client->ReadToEnd().size(), kStoredBytes);
  }
}

TEST_F(UnreadAnswersTest, AnAnswerThatIsReadIsWholeHoweverLittleMemoryThereIs) {
  Start({.all_answer_bytes = 1 << 20});
  const std::string stored = Store(*this, kStoredBytes);
  const ClientResponse response = Ask("GET", stored);
  EXPECT_EQ(response.status, 200);
  EXPECT_GT(response.body.size(), kStoredBytes);
  EXPECT_EQ(Ask("GET", stored).body, response.body);
}

TEST_F(UnreadAnswersTest, AStreamThatNobodyReadsGivesWay) {
  Start({.all_answer_bytes = 12 << 20}, "", /*threads=*/1, clock_);
  const std::string stored = Store(*this, kStoredBytes);
  RawClient slow(port(), /*receive_buffer=*/4096);
  slow.Request("POST", "/v1/completions", kStreamBody);
  const auto stream = engine().WaitStream(1);
  stream->Push(TextEvent(std::string(8 << 20, 'x'), {1}));
  while (stream->unread() > 0) std::this_thread::yield();
  EXPECT_EQ(Ask("GET", "/livez").status, 200);  // the thread has tried to send it
  EXPECT_EQ(Ask("GET", stored).status, 503);
  clock_.Advance(std::chrono::seconds(100));
  EXPECT_EQ(Ask("GET", stored).status, 200);
  EXPECT_EQ(stream->WaitCancelled(), CancelReason::kClientGone);
}

TEST_F(UnreadAnswersTest, AWholeAnswerThatNobodyReadsIsClosedInTime) {
  Start({.write_timeout = absl::Milliseconds(300)});
  const std::string stored = Store(*this, kStoredBytes);
  RawClient slow(port(), /*receive_buffer=*/4096);
  slow.Request("GET", stored);
  slow.Request("GET", stored);  // ahead, and never answered
  EXPECT_EQ(slow.ReadHeader().status, 200);
  while (frontend().metrics().Render().find(
             "millrace_http_refusals_total{reason=\"write_timeout\"} 1") == std::string::npos) {
    std::this_thread::yield();
  }
}

TEST_F(UnreadAnswersTest, AnUnreadAnswerIsOneOfTheTenantsStreams) {
  Start();
  const Tenant tenant(1, {.name = "t", .max_streams = 1}, std::make_shared<TenantUsage>());
  frontend().tenant = std::make_shared<const Tenant>(tenant);
  const auto streams = [&] { return tenant.usage()->counts().streams; };
  const std::string stored = Store(*this, kStoredBytes);
  {
    RawClient slow(port(), /*receive_buffer=*/4096);
    slow.Request("GET", stored);
    EXPECT_EQ(slow.ReadHeader().status, 200);
    EXPECT_EQ(streams(), 1);
    const ClientResponse refused = Ask("GET", stored);
    EXPECT_EQ(refused.status, 429);
    EXPECT_EQ(refused.headers.at("retry-after"), "1");
    EXPECT_THAT(refused.body, HasSubstr("the key has 1 streams at once"));
    EXPECT_EQ(Ask("GET", "/v1/models").status, 200);  // goes out at once
    // An answer that a model worked for is not thrown away.
    EXPECT_NE(Store(*this, kStoredBytes), stored);
  }
  while (streams() > 0) std::this_thread::yield();
  EXPECT_EQ(Ask("GET", stored).status, 200);
  EXPECT_EQ(streams(), 0);
}

// The events of a response repeat its instructions, which are kept once.
TEST_F(UnreadAnswersTest, AllOfAStreamsLastEventsIsChargedUntilTheyAreRead) {
  Start({.all_answer_bytes = 24 << 20}, "", /*threads=*/1, clock_);
  const Tenant tenant(1, {.name = "t"}, std::make_shared<TenantUsage>());
  frontend().tenant = std::make_shared<const Tenant>(tenant);
  const auto streams = [&] { return tenant.usage()->counts().streams; };
  const std::string stored = Store(*this, 8 << 20);  // of the 12 MiB that a tenant has
  engine().set_script(SayHello);
  RawClient slow(port(), /*receive_buffer=*/4096);
  slow.Request("POST", "/v1/responses",
               StrCat(R"({"input": "p", "stream": true, "store": false, "instructions": ")",
                      std::string(kStoredBytes, 'i'), "\"}"));
  EXPECT_EQ(slow.ReadHeader().status, 200);
  EXPECT_EQ(Ask("GET", "/livez").status, 200);  // the thread has tried to send it
  EXPECT_EQ(streams(), 1);
  EXPECT_EQ(Ask("GET", stored).status, 429);
  clock_.Advance(std::chrono::seconds(100));
  // It goes on, and has been slow all the same.
  for (size_t read = 0; read < 3 << 20;) read += slow.ReadSome().size();
  EXPECT_EQ(streams(), 1);
  EXPECT_EQ(Ask("GET", stored).status, 200);
  EXPECT_LT(slow.ReadToEnd().size(), 2 * kStoredBytes);
  while (streams() > 0) std::this_thread::yield();
}

TEST_F(UnreadAnswersTest, ATenantsUnreadAnswersLeaveMemoryToOthers) {
  Start({.all_answer_bytes = 24 << 20}, "", /*threads=*/2, clock_);
  frontend().tenant =
      std::make_shared<const Tenant>(1, TenantLimits{.name = "t"}, std::make_shared<TenantUsage>());
  const std::string first = Store(*this, kStoredBytes);
  const std::string second = Store(*this, 8 << 20);
  RawClient slow(port(), /*receive_buffer=*/4096);
  slow.Request("GET", first);
  EXPECT_EQ(slow.ReadHeader().status, 200);
  const ClientResponse refused = Ask("GET", second);
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("the key's answers"));
}

}  // namespace
}  // namespace millrace
