#include "executors/step_worker.h"

#include <atomic>
#include <future>
#include <memory>

#include "gtest/gtest.h"

namespace millrace {
namespace {

StepPlan Plan(StepId id) {
  StepPlan plan;
  plan.id = id;
  return plan;
}

TEST(StepWorkerTest, HandsResultsOutInOrder) {
  StepWorker worker([](const StepPlan&) { return StepResult{}; });
  EXPECT_FALSE(worker.Poll().has_value());
  EXPECT_FALSE(worker.Wait().has_value());
  for (StepId id = 1; id < 100; id += 2) {
    ASSERT_TRUE(worker.Submit(Plan(id)).ok());
    ASSERT_TRUE(worker.Submit(Plan(id + 1)).ok());
    EXPECT_EQ(worker.Wait()->id, id);
    EXPECT_EQ(worker.Wait()->id, id + 1);
  }
}

TEST(StepWorkerTest, TakesTwoStepsAndNoMore) {
  std::promise<void> go;
  std::shared_future<void> may_go = go.get_future().share();
  StepWorker worker([&](const StepPlan&) {
    may_go.wait();
    return StepResult{};
  });
  ASSERT_TRUE(worker.Submit(Plan(1)).ok());
  ASSERT_TRUE(worker.Submit(Plan(2)).ok());
  EXPECT_EQ(worker.Ready().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(worker.Submit(Plan(3)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(worker.Poll().has_value());
  go.set_value();
  EXPECT_EQ(worker.Wait()->id, 1);
  EXPECT_TRUE(worker.Submit(Plan(3)).ok());
  EXPECT_EQ(worker.Wait()->id, 2);
  EXPECT_EQ(worker.Wait()->id, 3);
}

TEST(StepWorkerTest, AFailedDeviceFailsWhatIsInFlightAndTakesNoMore) {
  std::atomic<int> runs{0};
  std::promise<void> go;
  std::shared_future<void> may_go = go.get_future().share();
  StepWorker worker([&](const StepPlan&) {
    may_go.wait();
    ++runs;
    StepResult result;
    result.status = absl::UnavailableError("broken");
    return result;
  });
  ASSERT_TRUE(worker.Submit(Plan(1)).ok());
  ASSERT_TRUE(worker.Submit(Plan(2)).ok());
  go.set_value();
  for (StepId id : {1, 2}) {
    const std::optional<StepResult> result = worker.Wait();
    EXPECT_EQ(result->id, id);
    EXPECT_EQ(result->status.message(), "broken");
  }
  EXPECT_EQ(runs.load(), 1);
  EXPECT_EQ(worker.Submit(Plan(3)).code(), absl::StatusCode::kUnavailable);
}

TEST(StepWorkerTest, WakesForEachResultAndFinishesBeforeItGoes) {
  std::atomic<int> wakes{0};
  {
    StepWorker worker([](const StepPlan&) { return StepResult{}; });
    worker.OnResult([&] { ++wakes; });
    ASSERT_TRUE(worker.Submit(Plan(1)).ok());
    ASSERT_TRUE(worker.Submit(Plan(2)).ok());
  }
  EXPECT_EQ(wakes.load(), 2);
}

}  // namespace
}  // namespace millrace
