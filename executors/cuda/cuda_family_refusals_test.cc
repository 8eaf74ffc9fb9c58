// Tests, without a GPU, that the families which it does not run are refused by name.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "executors/cuda/cuda_model.h"
#include "executors/cuda/family_refusals_test_util.h"
#include "executors/cuda/family_twins_test_util.h"
#include "executors/cuda/model_memory.h"
#include "executors/models/model.h"
#include "formats/open_model.h"
#include "formats/twins/family_twins.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

using ::testing::HasSubstr;

// Places the weights of one rank and runs its steps without a device. Returns the bytes of its
// weights.
absl::StatusOr<size_t> DryRunOf(const OpenedModel& opened, RankSpec rank) {
  CudaWeightPlacer placer(*opened.tensors, opened.config, {}, rank);
  const int length = opened.config.context_length;
  const StepLimits limits{.max_num_seqs = 8,
                          .max_num_batched_tokens = 512,
                          .max_model_len = length,
                          .num_blocks = {},
                          .state = StateLayout::OnePool(16),
                          .vocab_size = opened.config.vocab_size};
  MILLRACE_ASSIGN_OR_RETURN(const auto model, LoadModel(opened.config, length, placer));
  MILLRACE_RETURN_IF_ERROR(DryRun(*model, opened.config, limits, placer.Shapes()).status());
  return placer.bytes();
}

// Expects that every number of ranks can run the model, divided by expert, too, where it has some.
void ExpectRanksRun(const OpenedModel& opened) {
  const auto has_experts = [](const LayerConfig& layer) {
    return std::holds_alternative<ExpertsFeedForward>(layer.feed_forward);
  };
  const std::vector<LayerConfig>& layers = opened.config.layers;
  const bool by_expert = std::any_of(layers.begin(), layers.end(), has_experts);
  for (RankSpec rank{.rank = 0, .size = 2}; rank.size <= 8; ++rank.size) {
    for (const bool expert_parallel : {false, true}) {
      rank.expert_parallel = expert_parallel;
      if (expert_parallel && !by_expert) continue;
      for (rank.rank = 0; rank.rank < rank.size; ++rank.rank) {
        const absl::StatusOr<size_t> bytes = DryRunOf(opened, rank);
        EXPECT_TRUE(bytes.ok()) << "rank " << rank.rank << " of " << rank.size
                                << (expert_parallel ? " by expert" : "") << ": " << bytes.status();
      }
    }
  }
}

// The families that have what the GPU lacks are refused before any weight is read, and no other is.
TEST(CudaFamilyRefusalsTest, NameWhatTheGpuLacks) {
  const std::string path = ::testing::TempDir() + "cuda_ops_test_twin";
  int refused = 0;
  for (FamilyTwin& twin : FamilyTwins()) {
    SCOPED_TRACE(twin.name);
    twin.config = Widened(twin.config);
    // LongRoPE has factors for the twin's own heads.
    if (twin.config.contains("rope_scaling") &&
        twin.config["rope_scaling"].contains("short_factor")) {
      twin.config.erase("rope_scaling");
    }
    WriteTwinFolder(twin, path);
    const auto opened = OpenModel(path);
    ASSERT_TRUE(opened.ok()) << opened.status();
    const absl::Status status = DryRunOf(*opened, {}).status();
    const std::optional<std::string> refusal = RefusalOf(twin.name);
    if (!refusal.has_value()) {
      EXPECT_TRUE(status.ok()) << status;
      ExpectRanksRun(*opened);
      continue;
    }
    ++refused;
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(*refusal));
  }
  EXPECT_GE(refused, 2);
  std::filesystem::remove_all(path);
}

// A layer whose weights have larger blocks of scales may be divided by more heads than another.
TEST(CudaFamilyRefusalsTest, LayersOfUnequalKvHeads) {
  ModelConfig config;
  config.layers.resize(3);
  EXPECT_TRUE(CheckKvHeads(config, {2, 2, 2}).ok());
  const absl::Status status = CheckKvHeads(config, {2, 1, 2});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("has 1 kv heads of layer 1, but 2 of layer 2"));
  // Heads of states are as many as they are.
  config.layers[1].attention = GatedDelta{};
  EXPECT_TRUE(CheckKvHeads(config, {2, 1, 2}).ok());
}

}  // namespace
}  // namespace millrace::cuda
