// The default model on the CPU: the same numbers however its steps are cut, and sense in what it
// says.
#include <string>
#include <vector>

#include "executors/cpu/cpu_executor.h"
#include "executors/executor_driver_test_util.h"
#include "formats/twins/gguf_test_util.h"
#include "gtest/gtest.h"

namespace millrace::cpu {
namespace {

// "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
const std::vector<Token> kQuestion = {1,    4093, 198, 1780, 314, 260, 3575, 282,
                                      4649, 47,   2,   198,  1,   520, 9531, 198};

std::unique_ptr<Executor> Load(int threads) {
  auto loaded = LoadCpuExecutor({DefaultModelPath()}, {{.threads = threads,
                                                        .kv_cache_memory = 256 << 20,
                                                        .max_num_seqs = 40,
                                                        .max_num_batched_tokens = 512}});
  CheckOk(loaded.status());
  return *std::move(loaded);
}

std::vector<Token> Prompt(int length, int seed) {
  std::vector<Token> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back((i * 7919 + seed * 104729) % 49152);
  return prompt;
}

constexpr int kGenerated = 12;
const SamplingParams kSampling{.temperature = 0.8f, .top_k = 40, .seed = 3, .top_logprobs = 0};

SequenceOutput Alone(int threads, int chunk) {
  const std::unique_ptr<Executor> executor = Load(threads);
  ExecutorDriver driver(*executor);
  const SlotId slot = driver.Add(Prompt(150, 0), kSampling);
  driver.Generate({slot}, kGenerated, chunk);
  return driver.output(slot);
}

TEST(SmolLm2CpuTest, ASequencesNumbersAreItsOwn) {
  const SequenceOutput alone = Alone(2, 512);
  EXPECT_EQ(Alone(2, 32), alone) << "in chunks of 32";
  EXPECT_EQ(Alone(1, 77), alone) << "one thread, in chunks of 77";
  EXPECT_EQ(Alone(3, 512), alone) << "three threads";

  const std::unique_ptr<Executor> executor = Load(2);
  ExecutorDriver driver(*executor);
  std::vector<SlotId> slots;
  for (int i = 1; i <= 32; ++i) slots.push_back(driver.Add(Prompt(5 * i, i), kSampling));
  slots.insert(slots.begin() + 9, driver.Add(Prompt(150, 0), kSampling));
  driver.Generate(slots, kGenerated, 64);
  EXPECT_EQ(driver.output(slots[9]), alone) << "among 32 others";
  const SlotId cached =
      driver.Add(Prompt(150, 0), kSampling, absl::MakeConstSpan(driver.blocks(slots[9])).first(8));
  driver.Generate({cached}, kGenerated, 512);
  EXPECT_EQ(driver.output(cached), alone) << "from the cache";
}

TEST(SmolLm2CpuTest, KnowsTheCapitalOfFrance) {
  const std::unique_ptr<Executor> executor = Load(2);
  ExecutorDriver driver(*executor);
  const SlotId slot = driver.Add(kQuestion, {.temperature = 0});
  driver.Generate({slot}, 8, 512);
  const std::vector<Token> answer(driver.tokens(slot).begin() + kQuestion.size(),
                                  driver.tokens(slot).end());
  EXPECT_EQ(answer, (std::vector<Token>{504, 3575, 282, 4649, 314, 7042, 30,
                                        2}));  // "The capital of France is Paris."
}

}  // namespace
}  // namespace millrace::cpu
