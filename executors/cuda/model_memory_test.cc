// Tests, without a GPU, the plan of the memory that a model takes of one.
#include "executors/cuda/model_memory.h"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "base/strings.h"
#include "executors/cuda/cuda_model.h"
#include "executors/cuda/cuda_test_util.h"
#include "executors/cuda/family_twins_test_util.h"
#include "formats/open_model.h"
#include "formats/twins/family_twins.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/recurrent/delta_types.h"

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

// States of all slots and of padding rows come out of the KV cache's memory; checkpoints do not.
TEST(CudaMemoryPlanTest, StatesAreCounted) {
  FamilyTwin twin = FamilyTwinOf("qwen3_5");
  twin.config = Widened(twin.config);
  const std::string path = StrCat(::testing::TempDir(), "cuda_memory_plan_test_", getpid());
  WriteTwinFolder(twin, path);
  auto model = OpenModel(path);
  std::filesystem::remove_all(path);
  ASSERT_TRUE(model.ok()) << model.status();
  for (const int ranks : {1, 2}) {
    CudaSpec device = Device();
    device.tensor_parallel_size = ranks;
    const int64_t slots = device.max_num_seqs + 1;
    const auto unsized = PlanCudaMemory(*model, device);
    ASSERT_TRUE(unsized.ok()) << unsized.status();
    // Three of five layers have 4 value heads of 2 key heads.
    EXPECT_EQ(unsized->state.SlotBytes(),
              3 * 4 * kernels::StateFloats({.key_heads = 2 / ranks, .value_heads = 4 / ranks}));
    device.kv_cache_memory =
        slots * unsized->state.SlotBytes() + 101 * BytesOfABlockEach(unsized->state);
    device.state_cache_memory = 7 * unsized->state.SlotBytes();
    const auto plan = PlanCudaMemory(*model, device);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_THAT(plan->num_blocks, ElementsAre(100, 7));
    EXPECT_EQ(plan->StateBytes(), device.kv_cache_memory + device.state_cache_memory);
    EXPECT_EQ(plan->GroupBytes(1), (slots + 7) * plan->state.SlotBytes());
    // A GPU with too little for them is refused with what each setting takes.
    const absl::Status refused = CheckMemory(device, {.free = 0, .total = 0}, *plan, 2);
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(StrCat("KV cache (kv_cache_memory) ", 2 * device.kv_cache_memory >> 20,
                                 ", checkpoints (state_cache_memory) ",
                                 2 * device.state_cache_memory >> 20, "; 0 MiB of 0 are free")));
  }
}

TEST(CudaMemoryPlanTest, GraphsGrowWithLayersAndSizes) {
  const StepLimits few = {.max_num_seqs = 8};
  const StepLimits many = {.max_num_seqs = 256};
  CudaSpec device = Device();
  EXPECT_GT(GraphBytes(64, few, device), GraphBytes(32, few, device));
  EXPECT_GT(GraphBytes(32, many, device), GraphBytes(32, few, device));
  const int64_t all = GraphBytes(32, few, device);
  device.graph_tokens = 0;  // only those of decode steps
  const int64_t decode = GraphBytes(32, few, device);
  EXPECT_LT(decode, all);
  device.enforce_eager = true;
  EXPECT_LT(GraphBytes(32, few, device), decode);
  EXPECT_EQ(GraphBytes(64, many, device), GraphBytes(32, few, device));
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
