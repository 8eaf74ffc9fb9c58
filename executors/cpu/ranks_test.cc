// The CPU executor on several ranks: its numbers depend on how many there are and on nothing else,
// and a rank that fails or hangs ends the step. That ranks give what one gives, the tests of the
// families show.
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fault_points.h"
#include "executors/cpu/cpu_executor.h"
#include "executors/executor_driver_test_util.h"
#include "executors/models/family_reference.h"
#include "executors/tiny_model_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::cpu {
namespace {

using ::testing::HasSubstr;

constexpr int kGenerated = 12;

class RanksTest : public TinyModelTest {
 protected:
  ~RanksTest() override { DisarmFaultPoints(); }
};

CpuSpec Device(int ranks, int threads = 2) {
  CpuSpec device{{.threads = threads,
                  .kv_cache_memory = 32 << 20,
                  .max_num_seqs = 40,
                  .max_num_batched_tokens = 512}};
  device.tensor_parallel_size = ranks;
  return device;
}

std::unique_ptr<Executor> Load(const std::string& path, const CpuSpec& device) {
  auto loaded = LoadCpuExecutor({path}, device);
  CheckOk(loaded.status());
  return *std::move(loaded);
}

// Nine heads on three kv heads, as SmolLM2 has: no number of ranks but 3 divides them.
TinyLlama Model(TensorType type) {
  TinyLlama model = Tiny("llama", type);
  model.heads = 9;
  model.kv_heads = 3;
  model.head_size = 32;
  model.ffn = 160;
  return model;
}

SamplingParams Sampling(uint64_t seed) {
  return {.temperature = 0.9f, .top_p = 0.95f, .seed = seed, .top_logprobs = 2};
}

// One sequence by itself, its prompt in chunks.
SequenceOutput Alone(Executor& executor, int chunk = 1000) {
  ExecutorDriver driver(executor);
  const SlotId slot = driver.Add(Prompt(75, 0), Sampling(5));
  driver.Generate({slot}, kGenerated, chunk);
  return driver.output(slot);
}

// The same among others, whose rows other ranks sample.
SequenceOutput AmongOthers(Executor& executor) {
  ExecutorDriver driver(executor);
  std::vector<SlotId> slots;
  for (int i = 1; i <= 5; ++i) slots.push_back(driver.Add(Prompt(9 * i, i), Sampling(i)));
  const SlotId slot = driver.Add(Prompt(75, 0), Sampling(5));
  slots.push_back(slot);
  driver.Generate(slots, kGenerated, 32);
  return driver.output(slot);
}

TEST_F(RanksTest, NumbersDependOnTheNumberOfRanksAlone) {
  for (const TensorType type : {TensorType::kF32, TensorType::kQ8_0}) {
    const std::string path = Gguf(Model(type));
    const SequenceOutput one = Alone(*Load(path, Device(1)));
    for (const int ranks : {2, 3, 8}) {
      SCOPED_TRACE(StrCat(ranks, " ranks, ", Traits(type).name));
      const SequenceOutput alone = Alone(*Load(path, Device(ranks)));
      ASSERT_EQ(alone.tokens.size(), 75 + kGenerated);
      // Ranks add in another order, which eight-bit inputs of linears may round away.
      if (type == TensorType::kF32) {
        EXPECT_NE(alone, one);
      }
      EXPECT_EQ(Alone(*Load(path, Device(ranks))), alone) << "again";
      EXPECT_EQ(Alone(*Load(path, Device(ranks)), 7), alone) << "chunks of 7";
      for (const int threads : {1, 5}) {
        EXPECT_EQ(Alone(*Load(path, Device(ranks, threads))), alone) << threads << " threads";
      }
      EXPECT_EQ(AmongOthers(*Load(path, Device(ranks))), alone) << "among others";
    }
  }
}

TEST_F(RanksTest, ExpertsOfTheirOwnGiveNumbersOfTheirOwn) {
  for (const FamilyTwin& twin : FamilyTwins()) {
    if (twin.name != "qwen3moe") continue;
    WriteTwinFolder(twin, Path("twin"));
    std::vector<std::vector<float>> results;
    const auto one = Load(Path("twin"), Device(1));
    PromptLogprobs(*one, Prompt(40, 0, 100), 40);
    for (const bool expert_parallel : {false, true}) {
      CpuSpec device = Device(2);
      device.expert_parallel = expert_parallel;
      const auto executor = Load(Path("twin"), device);
      EXPECT_EQ(executor->info().expert_parallel, expert_parallel);
      results.push_back(PromptLogprobs(*executor, Prompt(40, 0, 100), 40));
      for (size_t i = 0; i < one->MixtureUses()->size(); ++i) {
        const MixtureUse use = executor->MixtureUses()->at(i);
        const MixtureUse whole = one->MixtureUses()->at(i);
        EXPECT_EQ(use.experts, whole.experts);
        EXPECT_EQ(use.touched, whole.touched);
        EXPECT_GE(use.expert_bytes, whole.expert_bytes);  // zeros fill shares up
        EXPECT_LE(use.expert_bytes, 2 * whole.expert_bytes);
      }
      EXPECT_EQ(PromptLogprobs(*Load(Path("twin"), device), Prompt(40, 0, 100), 7), results.back());
    }
    EXPECT_NE(results[0], results[1]);
  }
}

TEST_F(RanksTest, PenaltiesAndCopiesAreOnEveryRank) {
  const std::string path = Gguf(Model(TensorType::kF32));
  ExpectPenaltiesCountAll(*Load(path, Device(2)), kGenerated);
  const auto tokens = ForkByCopy(*Load(path, Device(3)), Prompt(10, 2), Sampling(1));
  ASSERT_EQ(tokens.size(), 2);
  EXPECT_EQ(tokens[0].token, tokens[1].token);
  EXPECT_EQ(*tokens[0].logprob, *tokens[1].logprob);
}

TEST_F(RanksTest, InfoIsOfAllRanksTogether) {
  const std::string path = Gguf(Model(TensorType::kF32));
  const auto one = Load(path, Device(1));
  const auto two = Load(path, Device(2));
  EXPECT_EQ(one->info().tensor_parallel_size, 1);
  EXPECT_EQ(two->info().tensor_parallel_size, 2);
  EXPECT_TRUE(two->info().batch_invariant);
  EXPECT_EQ(two->info().digest, one->info().digest);
  EXPECT_EQ(two->info().load_phases.size(), one->info().load_phases.size());
  // Each rank has two of the three kv heads, and zeros for what is not there.
  const int64_t block = one->info().limits.state.Paged(0)->block_bytes;
  EXPECT_EQ(two->info().limits.state.Paged(0)->block_bytes, block / 3 * 4);
  EXPECT_EQ(two->info().limits.num_blocks[0], (32 << 20) / (block / 3 * 4));
  EXPECT_GT(two->info().weight_bytes, one->info().weight_bytes);
  EXPECT_LT(two->info().weight_bytes, one->info().weight_bytes * 3 / 2);
}

TEST_F(RanksTest, RefusesByName) {
  const std::string path = Gguf(Model(TensorType::kF32));
  CpuSpec device = Device(2);
  device.expert_parallel = true;
  EXPECT_THAT(std::string(LoadCpuExecutor({path}, device).status().message()),
              HasSubstr("enable_expert_parallel is true, but llama is no mixture of experts"));
  device = Device(2);
  device.kv_cache_memory = 100;
  EXPECT_THAT(std::string(LoadCpuExecutor({path}, device).status().message()),
              HasSubstr("kv_cache_memory is 100 bytes, allowed: at least one block's"));
}

// A step of one token. Returns what it ended with.
absl::Status Step(Executor& executor, StepId id) {
  StepPlan plan;
  plan.id = id;
  plan.tokens = {5};
  plan.blocks = {0};
  plan.logits = {{.offset = 0}};
  plan.starts.push_back({0, std::make_shared<SamplingParams>()});
  plan.rows.push_back(
      {.slot = 0, .num_tokens = 1, .tokens = {0, 1}, .blocks = {0, 1}, .logits = {0, 1}});
  if (absl::Status submitted = executor.Submit(plan); !submitted.ok()) return submitted;
  return executor.Wait()->status;
}

TEST_F(RanksTest, ARankThatFailsFailsTheStepAndAllAfterIt) {
  const auto executor = Load(Gguf(Model(TensorType::kF32)), Device(3));
  EXPECT_TRUE(Step(*executor, 1).ok());
  CheckOk(ArmFaultPoints("cpu.rank_error@3"));
  const absl::Status failed = absl::UnavailableError("a rank failed (fault point cpu.rank_error)");
  EXPECT_EQ(Step(*executor, 2), failed);
  EXPECT_EQ(Step(*executor, 3), failed);
}

TEST_F(RanksTest, ARankThatHangsEndsTheStepByTheTimeout) {
  CpuSpec device = Device(3);
  device.step_timeout = std::chrono::seconds(1);
  const std::string path = Gguf(Model(TensorType::kF32));
  for (const bool comes_back : {true, false}) {
    auto executor = Load(path, device);
    CheckOk(ArmFaultPoints("cpu.rank_hang=1000000@4"));
    EXPECT_EQ(Step(*executor, 1),
              absl::UnavailableError("rank 2 of 3 got no further for 1 s (--step-timeout)"));
    EXPECT_EQ(Step(*executor, 2).code(), absl::StatusCode::kUnavailable);
    if (comes_back) DisarmFaultPoints();
    executor.reset();  // does not wait for ever
    DisarmFaultPoints();
  }
}

TEST_F(RanksTest, ARankThatHangsEndsTheLoad) {
  CpuSpec device = Device(2);
  device.step_timeout = std::chrono::seconds(1);
  CheckOk(ArmFaultPoints("cpu.rank_hang=1000000"));
  EXPECT_THAT(LoadCpuExecutor({Gguf(Model(TensorType::kF32))}, device).status(),
              absl::UnavailableError("rank 1 of 2 got no further for 1 s (--step-timeout)"));
}

}  // namespace
}  // namespace millrace::cpu
