// Work on bodies, in the turns of those who sent them.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "base/strings.h"
#include "engine/metrics/metrics.h"
#include "engine/request/tenant.h"
#include "server/http/endpoint_test_util.h"
#include "server/http/transport/server_state.h"

namespace millrace {
namespace {

// The first request stays in the hands of its thread until the gate opens.
class TurnsTest : public testing::Test, protected TestEndpoint {
 protected:
  void Begin(const HttpLimits& limits = {}) {
    Start(limits, "", /*threads=*/1);
    engine().set_script([this](const GenerateRequest& request, ScriptedStream& stream) {
      bool first = false;
      {
        const std::lock_guard lock(mutex_);
        first = served_.empty();
        served_.push_back(std::get<std::string>(request.prompt).substr(0, 1));
      }
      if (first) {
        entered_.set_value();
        gate_.get_future().wait();
      }
      SayHello(request, stream);
    });
  }

  // A large body, whose text consists of this letter.
  static std::string Body(char letter, size_t times = 1) {
    return StrCat(R"({"prompt": ")", std::string(HttpLimits().large_body_bytes * times, letter),
                  "\"}");
  }
  // The beginning of a request with a body of so many bytes, which is to follow.
  static std::string HeadOf(size_t bytes, const std::string& headers) {
    return StrCat("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n",
                  "Content-Type: application/json\r\nContent-Length: ", bytes, "\r\n", headers,
                  "\r\n");
  }
  // Has the tenants a and b, by their keys.
  void AddTenants() {
    const auto tenant = [](uint32_t id) {
      return std::make_shared<const Tenant>(id, TenantLimits(), std::make_shared<TenantUsage>());
    };
    frontend().of_headers = {{"Bearer a", tenant(1)}, {"Bearer b", tenant(2)}};
  }
  // Sends three requests with the letter a, of which the first holds the only thread for them.
  void Flood(const std::string& headers, const char* from) {
    for (int i = 0; i < 3; ++i) {
      flood_.push_back(std::make_unique<RawClient>(port(), 0, from));
      flood_.back()->Request("POST", "/v1/completions", Body('a'), headers);
      if (i == 0) entered_.get_future().wait();
    }
  }
  std::vector<ClientResponse> ReadFlood() {
    gate_.set_value();
    std::vector<ClientResponse> responses;
    for (const auto& client : flood_) responses.push_back(client->Read());
    return responses;
  }
  std::vector<std::string> EndFlood() {
    for (const ClientResponse& response : ReadFlood()) EXPECT_EQ(response.status, 200);
    return Served();
  }
  std::vector<std::string> Served() {
    const std::lock_guard lock(mutex_);
    return served_;
  }

  std::promise<void> entered_, gate_;

 private:
  std::mutex mutex_;
  std::vector<std::string> served_;  // guarded by mutex_: the first letters of the texts
  std::vector<std::unique_ptr<RawClient>> flood_;
};

const std::vector<std::string> kSecondBetween = {"a", "b", "a", "a"};

TEST_F(TurnsTest, LargeBodiesOfOneTenantDoNotHoldUpThoseOfAnother) {
  Begin();
  AddTenants();
  Flood("Authorization: Bearer a\r\n", nullptr);
  EXPECT_EQ(Ask("POST", "/v1/completions", Body('b'), "Authorization: Bearer b\r\n").status, 200);
  EXPECT_EQ(EndFlood(), kSecondBetween);
}

// There is memory for three bodies and a half.
TEST_F(TurnsTest, BodiesOfOneTenantThatWaitLeaveRoomToAnother) {
  Begin({.all_bodies_bytes = 7 * (HttpLimits().large_body_bytes / 2)});
  AddTenants();
  Flood("Authorization: Bearer a\r\n", nullptr);
  EXPECT_EQ(Ask("POST", "/v1/completions", Body('b'), "Authorization: Bearer b\r\n").status, 200);
  size_t refused = 0;
  for (const ClientResponse& response : ReadFlood()) {
    if (response.status == 200) continue;
    ++refused;
    EXPECT_EQ(response.status, 503);
    EXPECT_NE(response.body.find("the queue is full: texts of "), std::string::npos);
    EXPECT_EQ(response.body.find("are coming in"), std::string::npos);
  }
  EXPECT_EQ(refused, 1u);
}

// The second body of the tenant stays in its socket until the first one has been parsed; the other
// tenant's does not wait for it.
TEST_F(TurnsTest, ALargeBodyIsReadWhenThereIsPlaceForIt) {
  const uint64_t body = Body('a').size();
  Begin({.large_bodies_bytes = 3 * body, .place_timeout = absl::InfiniteDuration()});
  AddTenants();
  RawClient first(port()), second(port());
  first.Request("POST", "/v1/completions", Body('a'), "Authorization: Bearer a\r\n");
  entered_.get_future().wait();
  second.Send(HeadOf(body, "Authorization: Bearer a\r\n"));
  EXPECT_EQ(Ask("POST", "/v1/completions", Body('b'), "Authorization: Bearer b\r\n").status, 200);
  EXPECT_EQ(Served(), (std::vector<std::string>{"a", "b"}));
  gate_.set_value();
  EXPECT_EQ(first.Read().status, 200);
  second.Send(Body('a'));
  EXPECT_EQ(second.Read().status, 200);
}

TEST_F(TurnsTest, ABodyThatWaitsIsNotOvertakenByASmallerOneOfItsTenant) {
  const uint64_t body = Body('a').size();
  Begin({.large_bodies_bytes = 5 * body, .place_timeout = absl::InfiniteDuration()});
  AddTenants();
  RawClient first(port()), second(port()), third(port());
  const std::string headers = "Authorization: Bearer a\r\n";
  first.Request("POST", "/v1/completions", Body('a'), headers);
  entered_.get_future().wait();
  second.Request("POST", "/v1/completions", Body('b', 2), headers);  // for which there is no place
  EXPECT_EQ(Ask("GET", "/livez").status, 200);                       // the only thread has seen it
  third.Request("POST", "/v1/completions", Body('c'), headers);      // for which there is
  EXPECT_EQ(Ask("GET", "/livez").status, 200);
  gate_.set_value();
  for (RawClient* client : {&first, &second, &third}) EXPECT_EQ(client->Read().status, 200);
  EXPECT_EQ(Served(), (std::vector<std::string>{"a", "b", "c"}));
}

TEST_F(TurnsTest, ALargeBodyForWhichThereIsNoPlaceInTimeIsRefused) {
  Begin({.large_bodies_bytes = 3 * Body('a').size(), .place_timeout = absl::ZeroDuration()});
  AddTenants();
  RawClient first(port());
  first.Request("POST", "/v1/completions", Body('a'), "Authorization: Bearer a\r\n");
  entered_.get_future().wait();
  EXPECT_EQ(Ask("POST", "/v1/completions", Body('b'), "Authorization: Bearer b\r\n").status, 200);
  const ClientResponse refused =
      Ask("POST", "/v1/completions", Body('a'), "Authorization: Bearer a\r\n");
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("too many large requests"), std::string::npos);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  gate_.set_value();
  EXPECT_EQ(first.Read().status, 200);
  EXPECT_EQ(Ask("POST", "/v1/completions", Body('a'), "Authorization: Bearer a\r\n").status, 200);
}

TEST_F(TurnsTest, ABodyThatHasPlaceAndDoesNotComeGivesWay) {
  Begin({.large_bodies_bytes = Body('a').size(), .place_timeout = absl::Seconds(5)});
  RawClient slow(port());
  slow.Send(HeadOf(Body('a').size(), ""));
  EXPECT_EQ(Ask("GET", "/livez").status, 200);  // the only thread has seen it
  gate_.set_value();
  EXPECT_EQ(Ask("POST", "/v1/completions", Body('b')).status, 200);
  EXPECT_EQ(slow.Read().status, 503);
}

TEST_F(TurnsTest, AClientThatAsksIsToldToContinueWhenThereIsPlace) {
  Begin({.large_bodies_bytes = Body('a').size(), .place_timeout = absl::InfiniteDuration()});
  RawClient first(port()), second(port());
  first.Request("POST", "/v1/completions", Body('a'));
  entered_.get_future().wait();
  second.Send(HeadOf(Body('b').size(), "Expect: 100-continue\r\n"));
  EXPECT_EQ(Ask("GET", "/livez").status, 200);
  gate_.set_value();
  const ClientResponse answer = first.Read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(second.ReadSome().substr(0, 12), "HTTP/1.1 100");
  second.Send(Body('b'));
  EXPECT_EQ(second.Read().status, 200);
}

TEST_F(TurnsTest, ALargeBodyBeyondTheKeysLimitsIsRefusedBeforeItHasCome) {
  Begin();
  const auto tenant = std::make_shared<const Tenant>(1, TenantLimits{.max_streams = 1},
                                                     std::make_shared<TenantUsage>());
  frontend().of_headers = {{"Bearer a", tenant}};
  ASSERT_TRUE(tenant->Enter(1, SteadyTime()).ok());
  RawClient client(port());
  client.Send(HeadOf(Body('a').size(), "Authorization: Bearer a\r\n"));
  const ClientResponse refused = client.Read();
  EXPECT_EQ(refused.status, 429);
  EXPECT_NE(refused.body.find("the key has 1 streams at once"), std::string::npos);
  EXPECT_EQ(tenant->usage()->counts().refused, 1);
}

TEST_F(TurnsTest, LargeBodiesOfOneAddressDoNotHoldUpThoseOfAnotherWhereNoKeyTellsThemApart) {
  Begin();
  Flood("", "127.0.0.1");
  RawClient other(port(), 0, "127.0.0.2");
  other.Request("POST", "/v1/completions", Body('b'));
  EXPECT_EQ(other.Read().status, 200);
  EXPECT_EQ(EndFlood(), kSecondBetween);
}

TEST_F(TurnsTest, ABodyWhoseClientHasGoneIsNotRead) {
  Begin();
  Flood("", "127.0.0.1");
  {
    RawClient gone(port(), 0, "127.0.0.1");
    gone.Request("POST", "/v1/completions", Body('g'));
  }
  // 499, once the server has seen its end.
  while (frontend().metrics().Render().find(R"(status="4xx")") == std::string::npos) {
    std::this_thread::yield();
  }
  EXPECT_EQ(EndFlood(), (std::vector<std::string>{"a", "a", "a"}));
}

}  // namespace
}  // namespace millrace
