// Blocks behind a window are released: a sequence's numbers stay the same, bit for bit, whatever
// becomes of them.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executors/cpu/cpu_executor.h"
#include "executors/tiny_model_test_util.h"
#include "executors/windows_test_util.h"
#include "formats/twins/family_twins.h"
#include "gtest/gtest.h"

namespace millrace::cpu {
namespace {

std::unique_ptr<Executor> Load(const std::string& path, const CpuSpec& device,
                               const Kernels& kernels = BestKernels()) {
  auto loaded = LoadCpuExecutor({path}, device, kernels);
  CheckOk(loaded.status());
  return *std::move(loaded);
}

// Returns a memory for so many sequences that their windows alone fill more blocks than
// kWindowSequences whole ones.
CpuSpec Ample() {
  return {{.threads = 2,
           .kv_cache_memory = 16 << 20,
           .block_size = 16,
           .max_num_seqs = 8 * kWindowSequences,
           .max_num_batched_tokens = 64}};
}

class WindowsTest : public TinyModelTest {
 protected:
  // Returns the folder of a twin with windows of so many positions.
  std::string Twin(const std::string& name, int window) const {
    return WriteWindowTwin(FamilyTwinOf(name), window, Path(name));
  }
};

TEST_F(WindowsTest, GroupsAreThoseOfTheLayers) {
  const StepLimits limits = Load(Twin("gemma3", 40), Ample())->info().limits;
  ASSERT_EQ(limits.state.num_groups(), 2);
  EXPECT_EQ(limits.state.Paged(0)->window, std::nullopt);
  EXPECT_EQ(limits.state.Paged(1)->window, 40);
  // One of seven layers sees everything.
  EXPECT_EQ(limits.state.Paged(1)->block_bytes, 6 * limits.state.Paged(0)->block_bytes);
  // A window that is longer than any sequence releases nothing.
  EXPECT_EQ(Load(Twin("gemma3", 256), Ample())->info().limits.state.num_groups(), 1);
}

TEST_F(WindowsTest, SequencesDoNotSeeWhatBecomesOfReleasedBlocks) {
  for (const char* const name : {"gpt_oss", "gemma3", "gemma2", "ministral"}) {
    for (const int window : {9, 40}) {
      const std::string path = Twin(name, window);
      const auto kept = GenerateInWindows(*Load(path, Ample()), /*release=*/false, 64);
      for (const int chunk : {7, 64}) {
        EXPECT_EQ(GenerateInWindows(*Load(path, Ample()), /*release=*/true, chunk), kept)
            << name << " " << window << " " << chunk;
      }
    }
  }
}

// The windows' blocks would not suffice for whole sequences: most of them are used over and over.
TEST_F(WindowsTest, TheMemoryOfWindowsIsUsedOverAndOver) {
  const std::string path = Twin("gemma3", 40);
  const auto kept = GenerateInWindows(*Load(path, Ample()), /*release=*/false, 16);
  const StateLayout state = Load(path, Ample())->info().limits.state;
  CpuSpec small = Ample();
  small.max_num_seqs = kWindowSequences;
  small.max_num_batched_tokens = 16;
  small.kv_cache_memory = 4 * 16 * state.Paged(0)->block_bytes + 24 * state.Paged(1)->block_bytes;
  const std::unique_ptr<Executor> executor = Load(path, small);
  const std::vector<int32_t>& blocks = executor->info().limits.num_blocks;
  EXPECT_GE(blocks[0], kWindowSequences * state.BlocksFor(kWindowPrompt + kWindowGenerated));
  EXPECT_LE(blocks[1], 24);
  EXPECT_EQ(GenerateInWindows(*executor, /*release=*/true, 16), kept);
}

TEST_F(WindowsTest, EveryKernelKeepsToTheWindow) {
  for (const char* const name : {"gpt_oss", "gemma3"}) {
    const std::string path = Twin(name, 20);
    for (const bool float32 : {false, true}) {
      CpuSpec device = Ample();
      device.kv_cache_float32 = float32;
      const KernelList supported = SupportedKernels();
      for (int i = 0; i < supported.count; ++i) {
        const Kernels& kernels = *supported.tables[i];
        EXPECT_EQ(GenerateInWindows(*Load(path, device, kernels), /*release=*/true, 16),
                  GenerateInWindows(*Load(path, device, kernels), /*release=*/false, 16))
            << name << " " << kernels.name << " " << float32;
      }
    }
  }
}

TEST_F(WindowsTest, RanksReleaseAlike) {
  const std::string path = Twin("gemma3", 20);
  CpuSpec device = Ample();
  device.tensor_parallel_size = 2;
  EXPECT_EQ(GenerateInWindows(*Load(path, device), /*release=*/true, 16),
            GenerateInWindows(*Load(path, device), /*release=*/false, 16));
}

TEST_F(WindowsTest, APrefixNeedsItsLastWindow) {
  for (const char* const name : {"gpt_oss", "gemma3"}) {
    for (const int window : {9, 40}) {
      const std::unique_ptr<Executor> executor = Load(Twin(name, window), Ample());
      const auto kept = GenerateInWindows(*executor, /*release=*/false, 64);
      EXPECT_EQ(GenerateBehindPrefix(*executor, kept), kept) << name << " " << window;
    }
  }
}

// A move copies a block of its group, and of no other.
TEST_F(WindowsTest, MovesAreOfOneGroup) {
  const std::unique_ptr<Executor> executor = Load(Twin("gemma3", 20), Ample());
  ExpectForkSeesCopies(ForkTwoGroups(*executor));
  StepPlan to_host{.id = 3};
  to_host.moves = {{.group = 1, .from = {1}, .to = {.block = 0, .tier = StatePlace::Tier::kHost}}};
  EXPECT_EQ(executor->Submit(to_host).code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace millrace::cpu
