// Rows check drafts: a sequence's tokens and log-probabilities stay the same, bit for bit, however
// good or bad its drafts are.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "executors/cpu/cpu_executor.h"
#include "executors/tiny_model_test_util.h"
#include "executors/windows_test_util.h"
#include "formats/twins/family_twins.h"
#include "gtest/gtest.h"

namespace millrace::cpu {
namespace {

constexpr int kPrompt = 37;
constexpr int kGenerated = 60;

CpuSpec Device(int ranks = 1) {
  CpuSpec device{{.threads = 2,
                  .kv_cache_memory = 16 << 20,
                  .block_size = 16,
                  .max_num_seqs = 64,  // so that windows alone fill enough blocks
                  .max_num_batched_tokens = 128}};
  device.tensor_parallel_size = ranks;
  return device;
}

// Sequences that are sampled in all ways that a draft's tokens could disturb.
std::vector<SamplingParams> Samplings() {
  std::vector<Token> banned = {3, 4, 5};
  return {
      {.temperature = 0, .top_logprobs = 3},
      {.temperature = 0.9f, .seed = 1, .top_logprobs = 0},
      {.temperature = 1, .top_k = 20, .top_p = 0.8f, .seed = 2, .top_logprobs = 5},
      {.temperature = 0, .repetition_penalty = 3, .top_logprobs = 1},
      {.temperature = 0.7f,
       .frequency_penalty = 1.5f,
       .presence_penalty = 0.7f,
       .seed = 3,
       .top_logprobs = 1},
      {.temperature = 1,
       .seed = 4,
       .top_logprobs = 0,
       .banned_tokens = banned,
       .banned_before = kPrompt + 30},
  };
}

std::vector<SequenceOutput> FirstTokens(const ExecutorDriver& driver,
                                        const std::vector<SlotId>& slots) {
  std::vector<SequenceOutput> outputs;
  for (const SlotId slot : slots) {
    SequenceOutput& output = outputs.emplace_back(driver.output(slot));
    output.tokens.resize(kPrompt + kGenerated);
    output.logprobs.resize(kGenerated);
  }
  return outputs;
}

std::vector<SlotId> AddAll(ExecutorDriver& driver) {
  std::vector<SlotId> slots;
  for (const SamplingParams& sampling : Samplings()) {
    slots.push_back(
        driver.Add(Prompt(kPrompt, static_cast<int>(slots.size()), kTwinVocabulary), sampling));
  }
  return slots;
}

std::vector<SequenceOutput> Plain(Executor& executor) {
  ExecutorDriver driver(executor);
  const std::vector<SlotId> slots = AddAll(driver);
  driver.Generate(slots, kGenerated, 64);
  return FirstTokens(driver, slots);
}

// Each token of a draft is the one that comes with this probability, in percent.
std::vector<SequenceOutput> WithDrafts(Executor& executor, int32_t most, int percent,
                                       const std::vector<SequenceOutput>& plain,
                                       bool release = false) {
  most = std::min(most,
                  executor.info().max_step_draft_tokens / static_cast<int32_t>(Samplings().size()));
  ExecutorDriver driver(executor);
  if (release) driver.ReleaseBehindWindows();
  const std::vector<SlotId> slots = AddAll(driver);
  std::mt19937 random(7);
  driver.GenerateWithDrafts(slots, kGenerated, 64, most, [&](SlotId slot, size_t known) {
    const std::vector<Token>& tokens = plain[slot].tokens;
    std::vector<Token> draft;
    const size_t length = random() % (most + 1);
    for (size_t at = known; at < std::min(tokens.size(), known + length); ++at) {
      const bool is_right = static_cast<int>(random() % 100) < percent;
      draft.push_back(is_right ? tokens[at] : static_cast<Token>(random() % kTwinVocabulary));
    }
    return draft;
  });
  // Right drafts take few steps: those of the prompts, and then one for several tokens.
  if (percent == 100 && most > 2) {
    EXPECT_LT(driver.last_id(), static_cast<StepId>(slots.size()) * 2 + kGenerated * 2 / 3);
  }
  return FirstTokens(driver, slots);
}

class DraftsTest : public TinyModelTest {
 protected:
  std::unique_ptr<Executor> Load(const FamilyTwin& twin, const CpuSpec& device) const {
    const std::string path = Path(twin.name);
    if (!std::filesystem::exists(path)) WriteTwinFolder(twin, path);
    auto loaded = LoadCpuExecutor({path}, device, BestKernels());
    CheckOk(loaded.status());
    return *std::move(loaded);
  }
};

TEST_F(DraftsTest, NoDraftChangesABit) {
  for (const char* const name : {"llama", "qwen2moe", "gemma3", "gpt_oss", "qwen3_5", "qwen3_next",
                                 "lfm2", "granitehybrid"}) {
    const std::unique_ptr<Executor> executor = Load(FamilyTwinOf(name), Device());
    ASSERT_EQ(executor->info().max_draft_tokens, kMaxDraftTokens) << name;
    const std::vector<SequenceOutput> plain = Plain(*executor);
    for (const int percent : {0, 60, 100}) {
      for (const int32_t most : {1, 4, 15}) {
        const std::unique_ptr<Executor> fresh = Load(FamilyTwinOf(name), Device());
        EXPECT_EQ(WithDrafts(*fresh, most, percent, plain), plain)
            << name << " " << most << " " << percent;
      }
    }
  }
}

TEST_F(DraftsTest, WindowsAreReleasedBehindWhatIsAccepted) {
  for (const char* const name : {"gemma3", "gpt_oss"}) {
    FamilyTwin twin = FamilyTwinOf(name);
    twin.config["sliding_window"] = 9;
    const std::vector<SequenceOutput> plain = Plain(*Load(twin, Device()));
    EXPECT_EQ(WithDrafts(*Load(twin, Device()), 6, 60, plain, /*release=*/true), plain) << name;
  }
}

TEST_F(DraftsTest, RanksCheckDraftsTogether) {
  for (const char* const name : {"llama", "qwen3_5", "granitehybrid"}) {
    const FamilyTwin twin = FamilyTwinOf(name);
    const std::vector<SequenceOutput> plain = Plain(*Load(twin, Device(2)));
    EXPECT_EQ(WithDrafts(*Load(twin, Device(2)), 5, 60, plain), plain) << name;
  }
}

}  // namespace
}  // namespace millrace::cpu
