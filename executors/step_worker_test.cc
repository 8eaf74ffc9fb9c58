#include "executors/step_worker.h"

#include <atomic>
#include <future>
#include <memory>
#include <thread>

#include "gtest/gtest.h"

namespace millrace {
namespace {

StepPlan Plan(StepId id) {
  StepPlan plan;
  plan.id = id;
  return plan;
}

TEST(StepWorkerTest, HandsResultsOutInOrder) {
  SerialStepRunner runner([](const StepPlan&) { return StepResult{}; });
  StepWorker worker(runner);
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
  SerialStepRunner runner([&](const StepPlan&) {
    may_go.wait();
    return StepResult{};
  });
  StepWorker worker(runner);
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
  SerialStepRunner runner([&](const StepPlan&) {
    may_go.wait();
    ++runs;
    StepResult result;
    result.status = absl::UnavailableError("broken");
    return result;
  });
  StepWorker worker(runner);
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
    SerialStepRunner runner([](const StepPlan&) { return StepResult{}; });
    StepWorker worker(runner);
    worker.OnResult([&] { ++wakes; });
    ASSERT_TRUE(worker.Submit(Plan(1)).ok());
    ASSERT_TRUE(worker.Submit(Plan(2)).ok());
  }
  EXPECT_EQ(wakes.load(), 2);
}

// A device with a queue of its own, which finishes steps on request.
class DeviceRunner : public StepRunner {
 public:
  void Start(StepPlan) override { ++started_; }
  bool Done() override { return finished_ > 0; }
  StepResult Finish() override {
    --finished_;
    return {};
  }
  std::atomic<int> started_{0};
  std::atomic<int> finished_{0};
};

TEST(StepWorkerTest, StartsTheNextStepWhileOneRuns) {
  DeviceRunner runner;
  StepWorker worker(runner);
  ASSERT_TRUE(worker.Submit(Plan(1)).ok());
  while (runner.started_ < 1) std::this_thread::yield();
  ASSERT_TRUE(worker.Submit(Plan(2)).ok());
  while (runner.started_ < 2) std::this_thread::yield();
  EXPECT_FALSE(worker.Poll().has_value());
  ++runner.finished_;
  EXPECT_EQ(worker.Wait()->id, 1);
  ++runner.finished_;
  EXPECT_EQ(worker.Wait()->id, 2);
}

}  // namespace
}  // namespace millrace
