// The plan of memory is what a load takes, part by part, and what steps take at the most.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/strings.h"
#include "executors/cpu/cpu_model.h"
#include "executors/executor_driver_test_util.h"
#include "executors/factory.h"
#include "executors/models/memory_plan.h"
#include "executors/phase_timer.h"
#include "executors/tiny_model_test_util.h"
#include "formats/open_model.h"
#include "formats/twins/family_twins.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::cpu {
namespace {

using ::testing::HasSubstr;

constexpr int kMostTokens = 40;

class CpuMemoryPlanTest : public TinyModelTest {};

CpuSpec PlannedDevice(int max_model_len, int ranks = 1) {
  CpuSpec device{{.threads = 2,
                  .kv_cache_memory = 1 << 20,
                  .state_cache_memory = 1 << 18,
                  .max_num_seqs = 4,
                  .max_num_batched_tokens = kMostTokens,
                  .max_model_len = max_model_len}};
  device.tensor_parallel_size = ranks;
  return device;
}

MemoryPlan PlanOf(const std::string& path, const CpuSpec& device) {
  const absl::StatusOr<OpenedModel> opened = OpenModel(path);
  CheckOk(opened.status());
  absl::StatusOr<MemoryPlan> plan = PlanMemory(*opened, device);
  CheckOk(plan.status());
  return *std::move(plan);
}

// Compares the plan with what the ranks of a loaded model have.
void ExpectTaken(const MemoryPlan& plan, absl::Span<const std::unique_ptr<CpuModel>> ranks) {
  int64_t weights = 0, activations = 0, logits = 0;
  std::vector<int64_t> state(plan.state.num_groups());
  for (const auto& rank : ranks) {
    weights += static_cast<int64_t>(rank->weights.memory.bytes() + rank->weights.TableBytes());
    activations += static_cast<int64_t>(rank->ops->memory().activations.bytes());
    logits += static_cast<int64_t>(rank->ops->memory().logits.bytes());
    for (size_t group = 0; group < state.size(); ++group) {
      state[group] += static_cast<int64_t>(rank->kv.groups[group].memory.bytes());
    }
  }
  EXPECT_EQ(plan.weights, weights);
  EXPECT_EQ(plan.activations, activations);
  EXPECT_GT(plan.workspaces, logits);
  EXPECT_EQ(plan.graphs, 0);
  for (int group = 0; group < plan.state.num_groups(); ++group) {
    EXPECT_EQ(plan.GroupBytes(group), state[group]) << "group " << group;
  }
  EXPECT_EQ(plan.StateBytes(), std::accumulate(state.begin(), state.end(), int64_t{0}));
  EXPECT_GT(plan.StateBytes(), 0);
  EXPECT_EQ(plan.num_blocks, ranks[0]->info.limits.num_blocks);
}

TEST_F(CpuMemoryPlanTest, ALoadTakesWhatWasPlanned) {
  std::vector<FamilyTwin> twins = FamilyTwins();
  for (auto* more : {&PoolerTwins, &EncoderTwins, &ClassifierTwins}) {
    for (FamilyTwin& twin : more()) twins.push_back(std::move(twin));
  }
  for (const FamilyTwin& twin : twins) {
    const std::string path = Path(twin.name);
    WriteTwinFolder(twin, path);
    for (const int size : {1, 2, 4, 8}) {
      SCOPED_TRACE(StrCat(twin.name, " on ", size, " ranks"));
      const CpuSpec device = PlannedDevice(twin.max_model_len, size);
      PhaseTimer phases;
      const auto ranks = LoadCpuRanks({path}, device, BestKernels(),
                                      {.first = 0, .count = size, .collectives = {}}, phases);
      ASSERT_TRUE(ranks.ok()) << ranks.status();
      ExpectTaken(PlanOf(path, device), *ranks);
    }
  }
}

// A step of one row, the logits of all of whose tokens are wanted where the model has a head.
struct PlannedStep {
  PlannedStep(int tokens, const StepLimits& limits) : tables(limits.state.num_groups()) {
    for (std::vector<BlockId>& table : tables) {
      table.resize((tokens - 1) / limits.state.block_size + 1);
      std::iota(table.begin(), table.end(), 0);
    }
    input.rows = {{.first_token = 0, .num_tokens = tokens, .block_tables = tables}};
    input.tokens = Prompt(tokens, 0, limits.vocab_size);
    input.positions.resize(tokens);
    std::iota(input.positions.begin(), input.positions.end(), 0);
    input.types.assign(tokens, 0);
    input.row_of.assign(tokens, 0);
    for (int i = 0; i < tokens && limits.embedding_size == 0; ++i) {
      input.wanted.push_back(i);
      input.samples.push_back({.params = &greedy, .position = i + 1, .target = std::nullopt});
    }
  }

  const SamplingParams greedy{.temperature = 0};
  std::vector<std::vector<BlockId>> tables;
  CpuStepInput input;
};

// A dry run without tokens measures the bytes that every step takes for each of its tokens.
TEST_F(CpuMemoryPlanTest, NoStepTakesMoreThanWasPlanned) {
  std::vector<FamilyTwin> twins = FamilyTwins();
  for (FamilyTwin& twin : EncoderTwins()) twins.push_back(std::move(twin));
  for (const FamilyTwin& twin : twins) {
    SCOPED_TRACE(twin.name);
    const std::string path = Path(twin.name);
    WriteTwinFolder(twin, path);
    const auto model = LoadCpuModel({path}, PlannedDevice(twin.max_model_len), BestKernels());
    ASSERT_TRUE(model.ok()) << model.status();
    for (int tokens = 1; tokens <= kMostTokens; ++tokens) {
      const PlannedStep step(tokens, (*model)->info.limits);
      ASSERT_TRUE((*model)->Run(step.input).ok());
      ASSERT_TRUE((*model)->CheckMemory().ok()) << tokens << " tokens";
      ASSERT_EQ(static_cast<int64_t>((*model)->ops->token_bytes()) * kMostTokens,
                (*model)->plan.activations)
          << tokens << " tokens";
    }
  }
}

TEST_F(CpuMemoryPlanTest, NeedsNeitherWeightsNorASizeOfTheCache) {
  const std::string path = Folder({.tied = true}, {.type = TensorType::kBf16});
  CpuSpec device = PlannedDevice(64);
  const MemoryPlan with_weights = PlanOf(path, device);
  std::filesystem::remove(StrCat(path, "/model.safetensors"));
  device.kv_cache_memory = 0;
  const MemoryPlan plan = PlanOf(path, device);
  EXPECT_EQ(plan.weights, with_weights.weights);
  EXPECT_EQ(plan.BesideState(), with_weights.BesideState());
  EXPECT_TRUE(plan.num_blocks.empty());
  EXPECT_EQ(plan.Divide(1 << 20), with_weights.num_blocks);
  EXPECT_LE(plan.LeastStateBytes(), plan.MostStateBytes());
  EXPECT_EQ(plan.Divide(plan.LeastStateBytes()), std::vector<int32_t>{1});
}

TEST_F(CpuMemoryPlanTest, RefusesWhatTheLoadRefuses) {
  const std::string path = Gguf({});
  const absl::StatusOr<OpenedModel> opened = OpenModel(path);
  CheckOk(opened.status());
  CpuSpec device = PlannedDevice(64);
  device.kv_cache_memory = 1;
  EXPECT_THAT(PlanMemory(*opened, device).status().message(), HasSubstr("kv_cache_memory is 1"));
  device = PlannedDevice(64);
  device.block_size = 8;
  EXPECT_THAT(PlanMemory(*opened, device).status().message(), HasSubstr("block_size is 8"));
  EXPECT_EQ(PlanMemory(*opened, FakeSpec{}).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace millrace::cpu
