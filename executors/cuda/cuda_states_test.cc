// The states of recurrent layers on the GPU: a sequence's numbers are the same, bit for bit,
// whatever else is in the step, however its prompt was cut, whichever sequence had its slot before,
// and from a checkpoint.
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "executors/cuda/cuda_test_util.h"
#include "executors/cuda/family_twins_test_util.h"
#include "executors/states_test_util.h"
#include "formats/twins/family_twins.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

class CudaStatesTest : public TinyModelTest, public testing::WithParamInterface<const char*> {
 protected:
  CudaStatesTest() : path_(Path(GetParam())) {
    FamilyTwin twin = FamilyTwinOf(GetParam());
    twin.config = Widened(twin.config);
    WriteTwinFolder(twin, path_);
  }

  static CudaSpec Small(int ranks = 1) {
    CudaSpec device = Device();
    device.max_num_seqs = 12;
    device.max_num_batched_tokens = 512;
    device.tensor_parallel_size = ranks;
    device.virtual_ranks = ranks > 1;
    return device;
  }

  // Expects that neither neighbours nor cuts change a sequence, launched one by one and as graphs.
  void ExpectNothingChangesStates(CudaSpec device, const std::vector<int>& chunks) const {
    const std::vector<SequenceOutput> alone = StatesAlone(*Load(path_, device));
    for (const bool eager : {false, true}) {
      SCOPED_TRACE(eager ? "eager" : "graphs");
      device.enforce_eager = eager;
      for (const int chunk : chunks) {
        EXPECT_EQ(StatesInACrowd(*Load(path_, device), chunk), alone) << chunk;
      }
      EXPECT_EQ(StatesInMixedSteps(*Load(path_, device)), alone);
    }
  }

  const std::string path_;
};
INSTANTIATE_TEST_SUITE_P(Twins, CudaStatesTest,
                         testing::Values("qwen3_5", "qwen3_5_tied", "qwen3_5_moe", "lfm2",
                                         "lfm2_biased", "lfm2moe", "granitehybrid",
                                         "granitehybrid_dense"),
                         [](const auto& info) { return std::string(info.param); });

// Prompts are cut within blocks of the rule's eight tokens, at their ends, and behind several.
TEST_P(CudaStatesTest, CrowdsAndCutsChangeNothing) {
  ExpectNothingChangesStates(Small(), {1, 2, 3, 7, 8, 9, 64, kStateChunk});
}

TEST_P(CudaStatesTest, NorInOtherPrecisions) {
  CudaSpec device = Small();
  device.quantize_fp8 = true;
  device.kv_cache_fp8 = true;
  ExpectNothingChangesStates(device, {3, 64});
  device = Small();
  device.quantize_int4 = true;
  ExpectNothingChangesStates(device, {3, 64});
}

TEST_P(CudaStatesTest, ASequenceGoesOnFromItsTokens) {
  ExpectGoesOnFromItsTokens(*Load(path_, Small()));
}

// The place of padding rows lies between those of slots and of checkpoints: graphs that are filled
// up with rows do not touch either.
TEST_P(CudaStatesTest, ASequenceBeginsFromACheckpoint) {
  for (const int ranks : {1, 2}) {
    for (const bool eager : {false, true}) {
      for (const int checkpoints : {1, 3}) {
        CudaSpec device = Small(ranks);
        device.enforce_eager = eager;
        // The setting is for one rank, and the executor says the bytes of all of them.
        const StateLayout state = Load(path_, device)->info().limits.state;
        device.state_cache_memory = checkpoints * state.SlotBytes() / ranks;
        const std::unique_ptr<Executor> executor = Load(path_, device);
        ASSERT_EQ(executor->info().limits.num_checkpoints(), checkpoints);
        ExpectBeginsFromACheckpoint(*executor);
      }
    }
  }
}

}  // namespace
}  // namespace millrace::cuda
