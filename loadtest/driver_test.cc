#include "loadtest/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace millrace {
namespace {

using testing::ElementsAre;

// Keeps what it is to send, and ends it when the test says so.
class FakeClient : public Client {
 public:
  explicit FakeClient(Driver& driver) : driver_(driver) { driver.set_client(*this); }

  void Send(std::unique_ptr<Exchange> exchange) override { sent.push_back(std::move(exchange)); }
  void AbortAll() override {
    while (!sent.empty()) End(Outcome::kUnfinished, 0);
  }
  void End(Outcome outcome, double now) {
    std::unique_ptr<Exchange> exchange = std::move(sent.front());
    sent.erase(sent.begin());
    exchange->record.outcome = outcome;
    exchange->record.end = now;
    driver_.Done(std::move(exchange));
  }
  std::vector<double> Intended() const {
    std::vector<double> times;
    for (const auto& exchange : sent) times.push_back(exchange->record.intended);
    return times;
  }

  std::vector<std::unique_ptr<Exchange>> sent;

 private:
  Driver& driver_;
};

struct Rig {
  explicit Rig(Options of, int threads = 1)
      : options(std::move(of)),
        workload(*Workload::Make(options, {})),
        shared{.options = options,
               .workload = workload,
               .stop = stop,
               .threads = threads,
               .start = Clock::Real().Now()} {}

  std::atomic<bool> stop = false;
  Options options;
  Workload workload;
  RunShared shared;
  ThreadProgress progress;
};

Options OpenLoop(double rate) {
  Options options;
  options.rate = rate;
  options.arrival = ArrivalKind::kConstant;
  options.num_prompts = 1000;
  return options;
}

TEST(DriverTest, LateRequestsKeepTheTimeAtWhichTheyWereDue) {
  Rig rig(OpenLoop(10));
  Driver driver(rig.shared, 0, rig.progress);
  FakeClient client(driver);
  EXPECT_DOUBLE_EQ(driver.Tick(0), 0.1);
  EXPECT_THAT(client.Intended(), ElementsAre(0));
  // This thread did not run for a while.
  driver.Tick(0.35);
  ASSERT_EQ(client.sent.size(), 4U);
  EXPECT_DOUBLE_EQ(client.sent[1]->record.intended, 0.1);
  EXPECT_DOUBLE_EQ(client.sent[1]->record.sent, 0.35);
  EXPECT_NEAR(driver.lag().Max(), 0.25, 1e-9);
}

TEST(DriverTest, RequestsThatWaitForCapacityKeepTheirTimeToo) {
  Options options = OpenLoop(10);
  options.concurrency = 1;
  Rig rig(options);
  Driver driver(rig.shared, 0, rig.progress);
  FakeClient client(driver);
  driver.Tick(0);
  driver.Tick(0.25);
  ASSERT_EQ(client.sent.size(), 1U);
  client.End(Outcome::kCompleted, 1);
  driver.Tick(1);
  ASSERT_EQ(client.sent.size(), 1U);
  EXPECT_DOUBLE_EQ(client.sent[0]->record.intended, 0.1);
  EXPECT_DOUBLE_EQ(client.sent[0]->record.sent, 1);
  // It was the server's time, not this program's.
  EXPECT_NEAR(driver.lag().Max(), 0, 1e-9);
}

TEST(DriverTest, ThreadsShareTheArrivals) {
  Rig rig(OpenLoop(10), 2);
  ThreadProgress other;
  Driver a(rig.shared, 0, rig.progress);
  Driver b(rig.shared, 1, other);
  FakeClient client_a(a);
  FakeClient client_b(b);
  a.Tick(0.35);
  b.Tick(0.35);
  EXPECT_THAT(client_a.Intended(), ElementsAre(0, testing::DoubleEq(0.2)));
  EXPECT_THAT(client_b.Intended(), ElementsAre(0.1, testing::DoubleEq(0.3)));
}

TEST(DriverTest, AnOpenLoopEndsAfterItsRequests) {
  Options options = OpenLoop(10);
  options.num_prompts = 3;
  Rig rig(options);
  Driver driver(rig.shared, 0, rig.progress);
  FakeClient client(driver);
  driver.Tick(100);
  EXPECT_EQ(client.sent.size(), 3U);
  EXPECT_FALSE(driver.finished());
  while (!client.sent.empty()) client.End(Outcome::kCompleted, 100);
  driver.Tick(101);
  EXPECT_TRUE(driver.finished());
  EXPECT_EQ(driver.measurements().records.size(), 3U);
}

TEST(DriverTest, AfterTheDurationWhatWasDueIsStillSentUntilTheGraceEnds) {
  Options options = OpenLoop(10);
  options.num_prompts = 0;
  options.duration = 0.5;
  options.grace = 2;
  options.concurrency = 1;
  Rig rig(options);
  Driver driver(rig.shared, 0, rig.progress);
  FakeClient client(driver);
  driver.Tick(0);
  driver.Tick(0.6);
  client.End(Outcome::kCompleted, 0.7);
  driver.Tick(0.7);
  ASSERT_EQ(client.sent.size(), 1U);
  EXPECT_DOUBLE_EQ(client.sent[0]->record.intended, 0.1);
  driver.Tick(2.6);
  driver.Tick(2.6);
  EXPECT_TRUE(driver.finished());
  // 0 was completed; 0.1 ran; 0.2, 0.3 and 0.4 were never sent, and must not vanish.
  int unfinished = 0;
  for (const RequestRecord& record : driver.measurements().records) {
    unfinished += record.outcome == Outcome::kUnfinished ? 1 : 0;
  }
  EXPECT_EQ(driver.measurements().records.size(), 5U);
  EXPECT_EQ(unfinished, 4);
}

TEST(DriverTest, AClosedLoopSendsAsOthersEnd) {
  Options options;
  options.concurrency = 2;
  options.num_prompts = 3;
  Rig rig(options);
  Driver driver(rig.shared, 0, rig.progress);
  FakeClient client(driver);
  driver.Tick(0);
  EXPECT_EQ(client.sent.size(), 2U);
  client.End(Outcome::kCompleted, 1);
  EXPECT_EQ(client.sent.size(), 2U);
  client.End(Outcome::kCancelled, 1);
  client.End(Outcome::kCompleted, 1);
  EXPECT_EQ(client.sent.size(), 0U);
  driver.Tick(1);
  EXPECT_TRUE(driver.finished());
}

TEST(DriverTest, AClosedLoopRestsAfterAFailure) {
  Options options;
  options.num_prompts = 2;
  Rig rig(options);
  Driver driver(rig.shared, 0, rig.progress);
  FakeClient client(driver);
  driver.Tick(0);
  client.End(Outcome::kFailed, 0);
  EXPECT_EQ(client.sent.size(), 0U);
  driver.Tick(0);
  EXPECT_FALSE(driver.finished());
  driver.Tick(driver.Now() + 1);
  EXPECT_EQ(client.sent.size(), 1U);
}

TEST(DriverTest, ASessionGoesOnAfterItsAnswerAndItsPause) {
  Options options;
  options.num_prompts = 1;
  options.turns = Lengths(2);
  options.think_time = 5;
  options.endpoint = "/v1/chat/completions";
  Rig rig(options);
  Driver driver(rig.shared, 0, rig.progress);
  FakeClient client(driver);
  driver.Tick(0);
  ASSERT_EQ(client.sent.size(), 1U);
  EXPECT_TRUE(client.sent[0]->keep_text);
  client.sent[0]->record.text = "the answer";
  client.End(Outcome::kCompleted, 1);
  driver.Tick(5.9);
  EXPECT_EQ(client.sent.size(), 0U);
  EXPECT_FALSE(driver.finished());
  driver.Tick(6.5);
  ASSERT_EQ(client.sent.size(), 1U);
  EXPECT_DOUBLE_EQ(client.sent[0]->record.intended, 6);
  EXPECT_EQ(client.sent[0]->record.turn, 1U);
  EXPECT_EQ(client.sent[0]->request.messages[1].text, "the answer");
}

TEST(DriverTest, BranchesRunAtOnceAndASessionEndsWithTheLast) {
  Options options;
  options.command = LoadCommand::kReplay;
  options.endpoint = "/v1/chat/completions";
  options.turns = Lengths(2);
  options.branches = 3;
  options.num_prompts = 2;
  Rig rig(options);
  Driver driver(rig.shared, 0, rig.progress);
  FakeClient client(driver);
  driver.Tick(0);
  ASSERT_EQ(client.sent.size(), 1U);
  EXPECT_TRUE(client.sent[0]->keep_text);
  client.sent[0]->record.prompt_tokens = 50;
  client.End(Outcome::kCompleted, 1);
  driver.Tick(1);
  // Three go on from the first turn, though one session runs at once.
  ASSERT_EQ(client.sent.size(), 3U);
  EXPECT_EQ(client.sent[2]->record.turn, 1U);
  EXPECT_EQ(client.sent[2]->record.prompt_before, 50);
  client.End(Outcome::kFailed, 2);
  client.End(Outcome::kCompleted, 2);
  EXPECT_EQ(client.sent.size(), 1U);
  client.End(Outcome::kCompleted, 2);
  // The next session begins when the last branch has ended.
  ASSERT_EQ(client.sent.size(), 1U);
  EXPECT_EQ(client.sent[0]->record.session, 1U);
  client.End(Outcome::kCancelled, 3);
  driver.Tick(3);
  EXPECT_TRUE(driver.finished());
  const SessionCounts& sessions = driver.measurements().sessions;
  EXPECT_EQ(sessions.begun, 2);
  EXPECT_EQ(sessions.failed, 1);
  EXPECT_EQ(sessions.completed, 0);
}

TEST(DriverTest, TheUserCanEndIt) {
  Rig rig(OpenLoop(10));
  Driver driver(rig.shared, 0, rig.progress);
  FakeClient client(driver);
  driver.Tick(0.25);
  rig.stop = true;
  driver.Tick(0.3);
  driver.Tick(0.3);
  EXPECT_TRUE(driver.finished());
  EXPECT_EQ(driver.measurements().records.size(), 3U);
}

}  // namespace
}  // namespace millrace
