#include "engine/metrics/status_reporter.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace {
namespace {

using std::chrono::milliseconds;

TEST(StatusReporterTest, AStepTakesWhatTheOneBeforeItLeaves) {
  StatusReporter reporter;
  const SteadyTime begin;
  reporter.OnSubmit(begin, 10, 2);
  reporter.OnSubmit(begin + milliseconds(1), 3, 3);  // while the first runs
  EXPECT_EQ(reporter.OnCommit(begin + milliseconds(5)).tokens, 10);
  EXPECT_EQ(reporter.OnCommit(begin + milliseconds(7)).tokens, 3);
  reporter.OnSubmit(begin + milliseconds(20), 1, 1);  // after a pause
  EXPECT_EQ(reporter.OnCommit(begin + milliseconds(24)).tokens, 1);

  std::vector<EngineStatus> answers;
  EXPECT_TRUE(reporter.Ask([&](EngineStatus status) { answers.push_back(std::move(status)); }));
  reporter.Answer([] { return EngineStatus(); });
  ASSERT_EQ(answers.size(), 1u);
  const std::vector<StepRecord>& steps = answers[0].steps;
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].took, milliseconds(5));
  EXPECT_EQ(steps[0].sequences, 2);
  EXPECT_EQ(steps[1].took, milliseconds(2));
  EXPECT_EQ(steps[2].took, milliseconds(4));
  EXPECT_EQ(steps[2].ended, begin + milliseconds(24));
}

TEST(StatusReporterTest, KeepsTheLastSteps) {
  StatusReporter reporter;
  for (int i = 0; i < 1000; ++i) {
    reporter.OnSubmit(SteadyTime(milliseconds(i)), i, 1);
    reporter.OnCommit(SteadyTime(milliseconds(i + 1)));
  }
  bool answered = false;
  EXPECT_TRUE(reporter.Ask([&answered](const EngineStatus& status) {
    answered = true;
    ASSERT_EQ(status.steps.size(), 256u);
    EXPECT_EQ(status.steps.front().tokens, 744);
    EXPECT_EQ(status.steps.back().tokens, 999);
  }));
  reporter.Answer([] { return EngineStatus(); });
  EXPECT_TRUE(answered);
}

TEST(StatusReporterTest, AFewMayAskAndNothingIsMadeForNobody) {
  StatusReporter reporter;
  int made = 0;
  const auto make = [&made] {
    ++made;
    return EngineStatus();
  };
  reporter.Answer(make);
  EXPECT_EQ(made, 0);
  int answered = 0;
  int asked = 0;
  while (asked < 100 && reporter.Ask([&answered](const EngineStatus&) { ++answered; })) ++asked;
  EXPECT_EQ(asked, 4);
  reporter.Answer(make);
  EXPECT_EQ(made, 1);
  EXPECT_EQ(answered, 4);
  EXPECT_TRUE(reporter.Ask([](const EngineStatus&) {}));
}

}  // namespace
}  // namespace millrace
