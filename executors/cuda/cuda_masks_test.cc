// Tests masks on the GPU: in graphs and without, known before their step and late, on one rank and
// on virtual ones.
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executors/cuda/cuda_test_util.h"
#include "executors/mask_test_util.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

// Virtual ranks need their kernels loaded at once. CUDA reads these when a test first uses it.
const bool kEnvironmentSet = [] {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  return true;
}();

std::string Path() {
  static const std::string path = ModelPath(SmallModel(TensorType::kF32, TensorType::kF16));
  return path;
}

TEST(CudaMasksTest, MasksHoldTheirRowsAlone) {
  CudaSpec device = Device();
  const std::vector<SequenceOutput> outputs = ExpectMasksHold(*Load(Path(), device));
  device.enforce_eager = true;
  EXPECT_EQ(ExpectMasksHold(*Load(Path(), device)), outputs) << "without graphs";
}

TEST(CudaMasksTest, MasksOfTwoRanks) {
  CudaSpec device = Device();
  device.max_num_seqs = 16;
  device.tensor_parallel_size = 2;
  device.virtual_ranks = true;
  ExpectMasksHold(*Load(Path(), device));
  for (const bool late : {false, true}) ExpectMasksAreTheStepsOwn(*Load(Path(), device), late);
}

TEST(CudaMasksTest, EachStepHasItsOwnMasks) {
  CudaSpec device = Device();
  for (const bool eager : {false, true}) {
    device.enforce_eager = eager;
    for (const bool late : {false, true}) ExpectMasksAreTheStepsOwn(*Load(Path(), device), late);
  }
}

TEST(CudaMasksTest, MasksAreAppliedLast) { ExpectMasksAreAppliedLast(*Load(Path(), Device())); }

// A mask that never comes fails its row or the device, by --step-timeout: nothing waits longer.
TEST(CudaMasksTest, AMaskThatNeverComesIsNotWaitedForLonger) {
  CudaSpec device = Device();
  device.step_timeout = std::chrono::milliseconds(300);
  const std::unique_ptr<Executor> executor = Load(Path(), device);
  StepPlan plan;
  plan.id = 1;
  plan.starts = {{0, std::make_shared<const SamplingParams>()}};
  plan.tokens = {1};
  plan.blocks = {0};
  plan.logits = {{.offset = 0, .late_mask = true}};
  plan.rows = {{.slot = 0,
                .start = 0,
                .num_tokens = 1,
                .tokens = {0, 1},
                .blocks = {0, 1},
                .logits = {0, 1}}};
  CheckOk(executor->Submit(std::move(plan)));
  const std::optional<StepResult> result = executor->Wait();
  EXPECT_FALSE(result->status.ok() && result->rows[0].status.ok());
}

// A step of many rows, each with another mask, in a graph that has padding rows.
TEST(CudaMasksTest, EveryRowOfALargeStepHasItsOwnMask) {
  const std::unique_ptr<Executor> executor = Load(Path(), Device());
  ExecutorDriver driver(*executor);
  std::vector<SlotId> slots;
  for (int i = 0; i < 37; ++i) {
    SamplingParams sampling = kSampling;
    sampling.seed = i;
    slots.push_back(driver.Add(Prompt(20 + i, i), sampling));
    if (i % 3 != 0) driver.SetMask(slots[i], MaskOf(*executor, {7 * i, 7 * i + 1}));
  }
  driver.Generate(slots, 9, 2000);
  for (int i = 0; i < 37; ++i) {
    const std::vector<Token>& tokens = driver.tokens(slots[i]);
    for (int at = 20 + i; i % 3 != 0 && at < 29 + i; ++at) EXPECT_EQ(tokens[at] / 7, i) << i;
  }
}

}  // namespace
}  // namespace millrace::cuda
