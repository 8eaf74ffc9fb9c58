// Blocks behind a window are released on the GPU: a sequence's numbers stay the same, bit for bit,
// whatever becomes of them.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executors/cuda/cuda_test_util.h"
#include "executors/cuda/family_twins_test_util.h"
#include "executors/windows_test_util.h"
#include "formats/twins/family_twins.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

class CudaWindowsTest : public TinyModelTest {
 protected:
  // Returns the folder of a twin with windows of so many positions.
  std::string Twin(const std::string& name, int window) const {
    FamilyTwin twin = FamilyTwinOf(name);
    twin.config = WithFactorsOfFour(Widened(twin.config));
    return WriteWindowTwin(std::move(twin), window, Path(name));
  }

  // Returns a memory for so many sequences that their windows alone fill more blocks than
  // kWindowSequences whole ones.
  static CudaSpec Ample() {
    CudaSpec device = Device();
    device.max_num_seqs = 8 * kWindowSequences;
    device.max_num_batched_tokens = 64;
    return device;
  }

  // Expects that releasing changes nothing: in chunks that fill few rows and in long ones, as
  // graphs and launched one by one.
  static void ExpectReleasesChangeNothing(const std::string& path, CudaSpec device) {
    const auto kept = GenerateInWindows(*Load(path, device), /*release=*/false, 64);
    for (const bool eager : {false, true}) {
      device.enforce_eager = eager;
      for (const int chunk : {3, 7, 64}) {
        EXPECT_EQ(GenerateInWindows(*Load(path, device), /*release=*/true, chunk), kept)
            << (eager ? "eager, " : "graphs, ") << chunk;
      }
    }
  }
};

TEST_F(CudaWindowsTest, GroupsAreThoseOfTheLayers) {
  const StepLimits limits = Load(Twin("ministral", 40), Ample())->info().limits;
  ASSERT_EQ(limits.state.num_groups(), 2);
  EXPECT_EQ(limits.state.Paged(0)->window, std::nullopt);
  EXPECT_EQ(limits.state.Paged(1)->window, 40);
  // Two of three layers see everything.
  EXPECT_EQ(limits.state.Paged(0)->block_bytes, 2 * limits.state.Paged(1)->block_bytes);
  ASSERT_EQ(limits.num_blocks.size(), 2);
  EXPECT_LT(limits.num_blocks[1], limits.num_blocks[0]);
  // A window that is longer than any sequence releases nothing.
  EXPECT_EQ(Load(Twin("ministral", 256), Ample())->info().limits.state.num_groups(), 1);
}

// Windows end within a block, at its end, and behind several; all layers have one, or some.
TEST_F(CudaWindowsTest, SequencesDoNotSeeWhatBecomesOfReleasedBlocks) {
  for (const char* const name : {"gpt_oss", "gpt_oss_mxfp4", "mistral", "ministral"}) {
    for (const int window : {9, 16, 40}) {
      SCOPED_TRACE(name + std::to_string(window));
      ExpectReleasesChangeNothing(Twin(name, window), Ample());
    }
  }
}

TEST_F(CudaWindowsTest, EveryKernelKeepsToTheWindow) {
  for (const bool fp8 : {false, true}) {
    for (const bool portable : {false, true}) {
      for (const int block_size : {16, 64}) {
        SCOPED_TRACE(std::to_string(fp8) + std::to_string(portable) + std::to_string(block_size));
        CudaSpec device = Ample();
        device.kv_cache_fp8 = fp8;
        device.portable_kernels = portable;
        device.block_size = block_size;
        ExpectReleasesChangeNothing(Twin("ministral", 20), device);
      }
    }
  }
}

// The windows' blocks would not suffice for whole sequences: most of them are used over and over.
TEST_F(CudaWindowsTest, TheMemoryOfWindowsIsUsedOverAndOver) {
  const std::string path = Twin("ministral", 40);
  const auto kept = GenerateInWindows(*Load(path, Ample()), /*release=*/false, 16);
  const StateLayout state = Load(path, Ample())->info().limits.state;
  CudaSpec small = Ample();
  small.max_num_seqs = kWindowSequences;
  small.max_num_batched_tokens = 16;
  // And a block of each group for padding rows.
  small.kv_cache_memory =
      (4 * 16 + 1) * state.Paged(0)->block_bytes + (24 + 1) * state.Paged(1)->block_bytes;
  const std::unique_ptr<Executor> executor = Load(path, small);
  const std::vector<int32_t>& blocks = executor->info().limits.num_blocks;
  EXPECT_GE(blocks[0], kWindowSequences * state.BlocksFor(kWindowPrompt + kWindowGenerated));
  EXPECT_LE(blocks[1], 24);
  EXPECT_EQ(GenerateInWindows(*executor, /*release=*/true, 16), kept);
}

TEST_F(CudaWindowsTest, APrefixNeedsItsLastWindow) {
  for (const char* const name : {"gpt_oss", "ministral"}) {
    for (const int window : {9, 40}) {
      const std::unique_ptr<Executor> executor = Load(Twin(name, window), Ample());
      const auto kept = GenerateInWindows(*executor, /*release=*/false, 64);
      EXPECT_EQ(GenerateBehindPrefix(*executor, kept), kept) << name << " " << window;
    }
  }
}

// A move copies a block of its group, and of no other.
TEST_F(CudaWindowsTest, MovesAreOfOneGroup) {
  ExpectForkSeesCopies(ForkTwoGroups(*Load(Twin("ministral", 20), Ample())));
}

}  // namespace
}  // namespace millrace::cuda
