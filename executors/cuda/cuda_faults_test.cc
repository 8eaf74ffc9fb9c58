// Tests GPU faults: a bad row fails alone; a device that fails or hangs fails every step in flight,
// once, and nothing waits for it; memory that cannot be allocated, and graphs that cannot be
// captured.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fault_points.h"
#include "executors/cuda/cuda_test_util.h"
#include "executors/executor_driver_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

std::string TinyPath() { return ModelPath(SmallModel(TensorType::kF32, TensorType::kF32)); }

// Arms fault points for its lifetime.
class Faults {
 public:
  explicit Faults(const std::string& spec) { CheckOk(ArmFaultPoints(spec)); }
  ~Faults() { DisarmFaultPoints(); }
};

// Returns step `id`, 1 or 2, of an executor: `rows` prompts of 10 tokens, each of which samples, in
// slots of their own.
StepPlan Prompts(StepId id, int rows) {
  StepPlan plan;
  plan.id = id;
  const int32_t first = id == 1 ? 0 : 20;
  for (int32_t r = 0; r < rows; ++r) {
    const SlotId slot = first + r;
    plan.starts.push_back({slot, std::make_shared<const SamplingParams>(kSampling)});
    plan.rows.push_back({.slot = slot,
                         .start = 0,
                         .num_tokens = 10,
                         .tokens = {10 * r, 10 * r + 10},
                         .blocks = {r, r + 1},
                         .logits = {r, r + 1}});
    const std::vector<Token> prompt = Prompt(10, r);
    plan.tokens.insert(plan.tokens.end(), prompt.begin(), prompt.end());
    plan.blocks.push_back(slot);
    plan.logits.push_back({.offset = 9});
  }
  return plan;
}

TEST(CudaFaultsTest, ARowOfNaNFailsAlone) {
  const std::unique_ptr<Executor> executor = Load(TinyPath(), Device());
  const Faults faults("cuda.nan_row=1@1");
  CheckOk(executor->Submit(Prompts(1, 3)));
  const StepResult result = *executor->Wait();
  ASSERT_TRUE(result.status.ok());
  EXPECT_TRUE(result.rows[0].status.ok());
  EXPECT_EQ(result.rows[1].status.message(), "the model's logits were not finite numbers");
  EXPECT_TRUE(result.rows[2].status.ok());
  EXPECT_EQ(result.tokens.size(), 2);
}

// Runs two steps in flight, of which the first meets `fault`. Both fail, a third is refused, and
// the executor can be destroyed. Returns the process's exit status: 70, or the place of a failed
// check.
[[noreturn]] void FailWithTwoInFlight(const std::string& fault, const std::string& reason) {
  alarm(60);
  CudaSpec device = Device();
  device.step_timeout = std::chrono::milliseconds(500);
  std::unique_ptr<Executor> executor = Load(TinyPath(), device);
  const Faults faults(fault);
  for (const StepId id : {1, 2}) CheckOk(executor->Submit(Prompts(id, 1)));
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = executor->Wait()->status;
    if (status.code() != absl::StatusCode::kUnavailable) std::_Exit(1);
    if (status.message().find(reason) == std::string::npos) std::_Exit(2);
  }
  if (executor->Submit(Prompts(3, 1)).code() != absl::StatusCode::kUnavailable) std::_Exit(3);
  executor.reset();
  std::_Exit(70);
}

// Each case runs in a process of its own, which loses its device.
class CudaFaultsDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(CudaFaultsDeathTest, AnErrorOfTheDeviceFailsWhatIsInFlight) {
  EXPECT_EXIT(FailWithTwoInFlight("cuda.device_error", "CUDA error"), ExitedWithCode(70), "");
}

TEST_F(CudaFaultsDeathTest, AKernelThatNeverEndsFailsWhatIsInFlight) {
  EXPECT_EXIT(FailWithTwoInFlight("cuda.hang", "did not end in 0.5 s"), ExitedWithCode(70), "");
}

size_t FreeMemory() {
  size_t free = 0;
  size_t total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return free;
}

TEST(CudaFaultsTest, WithoutMemoryLoadingFailsAndLeavesNothing) {
  const std::string path = TinyPath();
  Load(path, Device());  // makes the driver allocate what it retains
  const size_t before = FreeMemory();
  CudaSpec greedy = Device();
  greedy.kv_cache_memory = int64_t{1} << 50;
  const absl::Status too_much = LoadExecutor({path}, greedy).status();
  EXPECT_EQ(too_much.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(too_much.message(), HasSubstr("KV cache (kv_cache_memory) 1073741824; "));
  EXPECT_GE(FreeMemory(), before);

  // Other allocations hold nearly all memory.
  void* others = nullptr;
  ASSERT_EQ(cudaMalloc(&others, before - (size_t{96} << 20)), cudaSuccess);
  const absl::Status no_room = LoadExecutor({path}, Device()).status();
  EXPECT_EQ(no_room.code(), absl::StatusCode::kResourceExhausted) << no_room;
  EXPECT_THAT(no_room.message(), HasSubstr("GPU's memory"));
  ASSERT_EQ(cudaFree(others), cudaSuccess);
  EXPECT_GE(FreeMemory(), before);
  Load(path, Device());
}

// Runs five sequences in steps of different sizes.
std::vector<SequenceOutput> Five(Executor& executor) {
  ExecutorDriver driver(executor);
  std::vector<SlotId> slots;
  std::vector<SequenceOutput> outputs;
  for (int i = 0; i < 5; ++i) {
    slots.push_back(driver.Add(Prompt(20 + i, i), kSampling));
    driver.Step({{slots.back(), 20 + i}});
    driver.Decode(slots, 3);
  }
  for (const SlotId slot : slots) outputs.push_back(driver.output(slot));
  return outputs;
}

TEST(CudaFaultsTest, WhatCannotBeCapturedRunsWithoutAGraph) {
  const std::string path = TinyPath();
  const std::unique_ptr<Executor> whole = Load(path, Device());
  EXPECT_EQ(whole->info().graphs_failed, 0);
  const std::vector<SequenceOutput> outputs = Five(*whole);

  std::unique_ptr<Executor> without_two;
  {
    const Faults faults("cuda.graph_capture=2@1");  // batches of 2 and 4
    without_two = Load(path, Device());
  }
  EXPECT_EQ(without_two->info().graphs_failed, 2);
  EXPECT_EQ(without_two->info().graphs, whole->info().graphs - 2);
  EXPECT_EQ(Five(*without_two), outputs);

  std::unique_ptr<Executor> without_any;
  {
    const Faults faults("cuda.graph_capture=1000");
    without_any = Load(path, Device());
  }
  EXPECT_EQ(without_any->info().graphs, 0);
  EXPECT_EQ(Five(*without_any), outputs);
}

}  // namespace
}  // namespace millrace::cuda
