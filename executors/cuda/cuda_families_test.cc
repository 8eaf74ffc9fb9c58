// Compares every family that the GPU runs with the CPU in float32, and checks that what changes the
// CPU's result changes the GPU's.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/strings.h"
#include "executors/cpu/cpu_executor.h"
#include "executors/cuda/cuda_test_util.h"
#include "executors/cuda/family_refusals_test_util.h"
#include "executors/cuda/family_twins_test_util.h"
#include "executors/models/family_reference.h"
#include "formats/open_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/gemm/grouped_linear.h"

namespace millrace::cuda {
namespace {

using ::testing::HasSubstr;

class CudaFamiliesTest : public TinyModelTest {
 protected:
  std::vector<float> OnTheGpu(const FamilyTwin& twin, const std::string& path, int chunk,
                              bool eager) {
    CudaSpec device = Device();
    device.max_model_len = twin.max_model_len;
    device.enforce_eager = eager;
    return PromptLogprobs(*Load(path, device), prompt_, chunk);
  }

  std::vector<float> OnTheCpu(const FamilyTwin& twin, const std::string& path) {
    const auto executor = cpu::LoadCpuExecutor({path}, {{.threads = 2,
                                                         .kv_cache_memory = 8 << 20,
                                                         .max_num_seqs = 1,
                                                         .max_num_batched_tokens = 128,
                                                         .max_model_len = twin.max_model_len},
                                                        /*kv_cache_float32=*/true});
    CheckOk(executor.status());
    return PromptLogprobs(**executor, prompt_, static_cast<int>(prompt_.size()));
  }

  // Writes the twin with `change` applied.
  std::string Write(FamilyTwin twin, const Json& change, TwinFault fault = TwinFault::kNone) {
    twin.config.merge_patch(change);
    std::string path = Path(StrCat("twin", count_++));
    WriteTwinFolder(twin, path, fault);
    return path;
  }

  const std::vector<Token> prompt_ = ReadFamilyReference().prompt;
  int count_ = 0;
};

TEST_F(CudaFamiliesTest, AreWhatTheCpuMakesOfThem) {
  int ran = 0;
  for (FamilyTwin& twin : FamilyTwins()) {
    SCOPED_TRACE(twin.name);
    twin.config = WithFactorsOfFour(Widened(twin.config));
    const std::string path = Write(twin, Json::object());
    const absl::Status status = LoadExecutor({path}, Device()).status();
    if (const auto refusal = RefusalOf(twin.name)) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(*refusal));
      continue;
    }
    ASSERT_TRUE(status.ok()) << status;
    ++ran;
    const std::vector<float> expected = OnTheCpu(twin, path);
    const int all = static_cast<int>(prompt_.size());
    const std::vector<float> whole = OnTheGpu(twin, path, all, /*eager=*/false);
    EXPECT_EQ(OnTheGpu(twin, path, 7, /*eager=*/true), whole);
    EXPECT_EQ(OnTheGpu(twin, path, 1, /*eager=*/false), whole);
    const double own = Distance(whole, expected);
    EXPECT_LT(own, Tolerance(twin.name));
    RecordProperty(twin.name, StrCat(own));  // --gtest_output=xml

    const auto expect_shows = [&](const std::string& mutant, const std::string& change) {
      const std::vector<float> changed = OnTheGpu(twin, mutant, all, /*eager=*/true);
      EXPECT_GT(3 * Distance(changed, whole), Distance(OnTheCpu(twin, mutant), expected)) << change;
    };
    for (const Json& mutation : twin.mutations) {
      if (mutation.contains("head_dim")) continue;  // head sizes that the GPU does not support
      expect_shows(Write(twin, WithFactorsOfFour(mutation)), mutation.dump());
    }
    expect_shows(Write(twin, Json::object(), TwinFault::kOtherKvHeads),
                 "another grouping of heads");
    expect_shows(Write(twin, Json::object(), TwinFault::kOtherScale), "another scale of scores");
  }
  EXPECT_GE(ran, 19);
}

// Many rows of an expert are multiplied by the kernel for prompts, from rows in the order of the
// experts, and few by another.
TEST_F(CudaFamiliesTest, LongPromptsOfExpertsAreTheSameInPieces) {
  std::vector<Token> prompt;
  for (int i = 0; i < 240; ++i) prompt.push_back(prompt_[i * (i + 1) / 2 % prompt_.size()]);
  int ran = 0;
  for (FamilyTwin& twin : FamilyTwins()) {
    SCOPED_TRACE(twin.name);
    twin.config = WithFactorsOfFour(Widened(twin.config));
    const std::string path = Write(twin, Json::object());
    const auto opened = OpenModel(path);
    ASSERT_TRUE(opened.ok()) << opened.status();
    const auto* experts =
        std::get_if<ExpertsFeedForward>(&opened->config.layers.back().feed_forward);
    if (experts == nullptr || RefusalOf(twin.name).has_value()) continue;
    ++ran;
    const int64_t pairs = static_cast<int64_t>(prompt.size()) * experts->router.chosen;
    kernels::GroupedWeight weight{};
    weight.groups = experts->router.experts;
    ASSERT_EQ(kernels::DefaultGroupedConfig(weight, static_cast<int>(pairs)).tile_tokens,
              kernels::kPromptTile);
    const auto logprobs = [&](int chunk) {
      return PromptLogprobs(*Load(path, Device()), prompt, chunk);
    };
    const std::vector<float> whole = logprobs(static_cast<int>(prompt.size()));
    EXPECT_EQ(logprobs(9), whole);
    EXPECT_EQ(logprobs(100), whole);
  }
  EXPECT_GE(ran, 7);
}

}  // namespace
}  // namespace millrace::cuda
