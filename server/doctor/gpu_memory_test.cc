// Tests, without a GPU, what is reported of the memory of GPUs, and how caches are sized by it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "executors/factory.h"
#include "executors/models/memory_plan.h"
#include "formats/open_model.h"
#include "formats/twins/family_twins.h"
#include "formats/twins/gguf_test_util.h"
#include "server/device_spec.h"
#include "server/doctor/gpu_driver.h"
#include "server/doctor/memory_report.h"

namespace millrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kGib = int64_t{1} << 30;

Settings OnGpu() {
  Settings settings;
  settings.device = Device::kCuda;
  settings.block_size = 16;
  settings.max_num_seqs = 8;
  settings.max_num_batched_tokens = 512;
  settings.gpu_memory = 80 * kGib;
  return settings;
}

std::map<std::string, int64_t> RowsOf(const Settings& settings, const std::string& path) {
  const auto report = ReportMemory(settings, path);
  EXPECT_TRUE(report.ok()) << report.status();
  std::map<std::string, int64_t> rows;
  if (!report.ok()) return rows;
  for (const MemoryPart& part : report->parts) rows[part.name] += static_cast<int64_t>(part.bytes);
  return rows;
}

Settings Sized(Settings settings, const std::string& path) {
  SizeCaches(path, settings);
  return settings;
}

TEST(GpuMemoryTest, IsPlannedWhereTheServerHasGpus) {
  const std::string path =
      StrCat(::testing::TempDir(), "memory_report_gpu_test_", getpid(), ".gguf");
  TinyLlamaWriter({.hidden = 256, .ffn = 256}).Write(path);
  const auto report = ReportMemory(OnGpu(), path);
  if (CudaKernelTable().ok()) {
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->fits());
    EXPECT_EQ(report->place, "GPU memory");
    // Virtual ranks have a cache of that size each, as they load.
    Settings settings = OnGpu();
    settings.kv_cache_memory = 64 << 20;
    settings.tensor_parallel_size = 2;
    settings.virtual_ranks = true;
    const auto plan = PlanMemory(*OpenModel(path), MakeDeviceSpec(settings));
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(RowsOf(settings, path)["KV cache"], plan->StateBytes());
    EXPECT_GT(plan->StateBytes(), settings.kv_cache_memory);
  } else {
    EXPECT_THAT(report.status().message(), HasSubstr("cuda is not built into this server"));
  }
  std::filesystem::remove(path);
}

TEST(GpuMemoryTest, TheGpuWithTheLeastFreeMemoryDecides) {
  const std::vector<GpuFacts> gpus = {
      {.name = "a", .total = 100, .free = 90},
      {.name = "b", .total = 100, .free = 40},
      {.name = "c", .total = 200, .free = 30},
  };
  Settings settings;
  const auto least = [&](int ranks, std::vector<int32_t> devices = {}) {
    settings.tensor_parallel_size = ranks;
    settings.devices = std::move(devices);
    return LeastGpu(settings, gpus).name;
  };
  EXPECT_EQ(least(1), "a");
  EXPECT_EQ(least(2), "b");
  EXPECT_EQ(least(3), "c");
  EXPECT_EQ(least(4), "c");
  EXPECT_EQ(least(2, {2, 0}), "c");
  settings.virtual_ranks = true;
  EXPECT_EQ(least(2), "a");
  EXPECT_EQ(least(2, {1}), "b");
}

// A model with recurrent layers that GPUs run.
class GpuStatesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!CudaKernelTable().ok()) GTEST_SKIP() << "cuda is not built into this server";
    FamilyTwin twin = FamilyTwinOf("qwen3_5");
    twin.config.merge_patch({{"hidden_size", 256},
                             {"head_dim", 64},
                             {"linear_key_head_dim", 128},
                             {"linear_value_head_dim", 128}});
    WriteTwinFolder(twin, path_);
  }
  ~GpuStatesTest() override { std::filesystem::remove_all(path_); }

  MemoryPlan Plan(const Settings& settings) const {
    const auto plan = PlanMemory(*OpenModel(path_), MakeDeviceSpec(settings));
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *plan : MemoryPlan{};
  }

  // Returns settings for a GPU with `bytes` for the state.
  Settings WithRoomFor(int64_t bytes) const {
    Settings settings = OnGpu();
    settings.gpu_memory_utilization = 1;
    settings.gpu_memory = bytes;
    for (const auto& [name, part] : RowsOf(settings, path_)) {
      const bool state = name.starts_with("KV cache") || name == "state of sequences" ||
                         name == "checkpoints of states";
      if (!state) settings.gpu_memory += part;
    }
    return settings;
  }

  const std::string path_ = StrCat(::testing::TempDir(), "memory_report_gpu_states_", getpid());
};

// States get half of a GPU's memory at most, and checkpoints a quarter, four for each sequence.
TEST_F(GpuStatesTest, AreSizedByTheMemory) {
  const int64_t each = Plan(OnGpu()).state.SlotBytes();
  ASSERT_GT(each, 0);
  Settings sized = Sized(OnGpu(), path_);
  EXPECT_EQ(sized.max_num_seqs, 8);
  EXPECT_EQ(sized.kv_cache_memory, 0);  // the executor's
  EXPECT_EQ(sized.state_cache_memory, 4 * 8 * each);

  // Room for the states of four sequences, and as much besides.
  Settings settings = WithRoomFor(8 * each + each / 2);
  sized = Sized(settings, path_);
  EXPECT_EQ(sized.max_num_seqs, 4);
  EXPECT_EQ(sized.state_cache_memory, 2 * each);
  settings.prefix_caching = false;
  EXPECT_EQ(Sized(settings, path_).state_cache_memory, 0);
}

TEST_F(GpuStatesTest, AreSizedBesideCheckpointsOfASetSize) {
  const int64_t each = Plan(OnGpu()).state.SlotBytes();
  Settings settings = WithRoomFor(8 * each + each / 2);
  settings.state_cache_memory = 4 * each;
  EXPECT_EQ(Sized(settings, path_).max_num_seqs, 2);
  settings.state_cache_memory = 20 * each;
  EXPECT_EQ(Sized(settings, path_).max_num_seqs, 1);
}

// Settings are of a rank; what is reported is of all that share the GPU.
TEST_F(GpuStatesTest, OfVirtualRanksAreThoseOfALoad) {
  Settings settings = OnGpu();
  settings.tensor_parallel_size = 2;
  settings.virtual_ranks = true;
  settings.kv_cache_memory = 64 << 20;
  settings.state_cache_memory = 16 << 20;
  const auto expect_plan = [&](const Settings& reported, const Settings& loaded) {
    const MemoryPlan plan = Plan(loaded);
    std::map<std::string, int64_t> rows = RowsOf(reported, path_);
    EXPECT_EQ(rows["KV cache"], plan.GroupBytes(0));
    EXPECT_EQ(rows["checkpoints of states"], plan.CheckpointBytes(1));
    EXPECT_GT(plan.num_blocks[1], 0);
    EXPECT_EQ(rows["state of sequences"], plan.GroupBytes(1) - plan.CheckpointBytes(1));
  };
  expect_plan(settings, settings);
  settings.state_cache_memory = 0;
  const Settings sized = Sized(settings, path_);
  expect_plan(settings, sized);
  EXPECT_EQ(sized.state_cache_memory, 4 * 8 * Plan(settings).state.SlotBytes() / 2);
}

TEST_F(GpuStatesTest, HaveAGibibyteOfCheckpointsInUnknownMemory) {
  if (ReadDriver().ok()) GTEST_SKIP() << "a driver tells the memory";
  Settings settings = OnGpu();
  settings.gpu_memory = 0;
  const Settings sized = Sized(settings, path_);
  const int64_t each = Plan(settings).state.SlotBytes();
  EXPECT_EQ(sized.max_num_seqs, 8);
  EXPECT_EQ(sized.state_cache_memory, kGib / each * each);
  settings.tensor_parallel_size = 2;
  settings.virtual_ranks = true;
  const int64_t of_rank = Plan(settings).state.SlotBytes() / 2;
  EXPECT_EQ(Sized(settings, path_).state_cache_memory, kGib / of_rank * of_rank);
}

TEST(GpuMemoryTest, CheckpointsOfWhatCannotBePlannedHaveAGibibyte) {
  const std::string path = StrCat(::testing::TempDir(), "memory_report_gpu_unplanned_", getpid());
  WriteTwinFolder(FamilyTwinOf("qwen3_5"), path);  // of heads that GPUs do not run
  EXPECT_FALSE(ReportMemory(OnGpu(), path).ok());
  EXPECT_EQ(Sized(OnGpu(), path).state_cache_memory, kGib);
  std::filesystem::remove_all(path);
}

}  // namespace
}  // namespace millrace
