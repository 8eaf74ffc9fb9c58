// Tests, without a GPU, the plan of the memory that a model takes of one.
#include "executors/cuda/model_memory.h"

#include <cstdint>
#include <string>
#include <utility>

#include "base/strings.h"
#include "executors/cuda/cuda_model.h"
#include "executors/cuda/cuda_test_util.h"
#include "formats/open_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

OpenedModel OpenSmallModel() {
  auto opened = OpenModel(ModelPath(SmallModel(TensorType::kF16, TensorType::kF16)));
  CheckOk(opened.status());
  return *std::move(opened);
}

TEST(CudaMemoryPlanTest, OneBlockIsThatOfPadding) {
  const OpenedModel model = OpenSmallModel();
  CudaSpec device = Device();
  // Keys and values of a head of 64, in 16 bits.
  const auto block = static_cast<int64_t>(model.config.layers.size()) * 2 * 64 * 16 * 2;
  device.kv_cache_memory = 5 * block;
  const auto plan = PlanCudaMemory(model, device);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->num_blocks, ElementsAre(4));
  EXPECT_EQ(plan->StateBytes(), device.kv_cache_memory);
  device.kv_cache_memory = 2 * block - 1;
  const absl::Status none = PlanCudaMemory(model, device).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kInvalidArgument) << none;
  EXPECT_EQ(none.message(), StrCat("kv_cache_memory is ", 2 * block - 1,
                                   " bytes, needed: at least two blocks of ", block));
}

// No device decides these.
TEST(CudaMemoryPlanTest, RefusesTheSettingsThatTheLoadRefuses) {
  const OpenedModel model = OpenSmallModel();
  const auto refusal = [&](auto set) {
    CudaSpec device = Device();
    set(device);
    return std::string(PlanCudaMemory(model, device).status().message());
  };
  EXPECT_THAT(refusal([](CudaSpec& device) { device.max_num_batched_tokens = 39; }),
              HasSubstr("max_num_batched_tokens is 39"));
  EXPECT_THAT(refusal([](CudaSpec& device) { device.expert_parallel = true; }),
              HasSubstr("enable_expert_parallel is true"));
  EXPECT_THAT(refusal([](CudaSpec& device) { device.skewed_routers = true; }),
              HasSubstr("routing is real"));
}

}  // namespace
}  // namespace millrace::cuda
