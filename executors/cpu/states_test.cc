// The states of recurrent layers: a sequence's numbers are the same, bit for bit, whatever else is
// in the step, however its prompt was cut, and whichever sequence had its slot before.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "executors/cpu/cpu_executor.h"
#include "executors/models/family_reference.h"
#include "executors/tiny_model_test_util.h"
#include "formats/json/json.h"
#include "formats/twins/family_twins.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::cpu {
namespace {

using ::testing::HasSubstr;

constexpr int kVocabulary = 128;
constexpr int kSequences = 7;
constexpr int kGenerated = 40;

CpuSpec Device() {
  return {{.threads = 2,
           .kv_cache_memory = 32 << 20,
           .block_size = 16,
           .max_num_seqs = 12,
           .max_num_batched_tokens = 512}};
}

class StatesTest : public TinyModelTest {
 protected:
  explicit StatesTest(const std::string& twin = "qwen3_5") {
    WriteTwinFolder(FamilyTwinOf(twin), Path("twin"));
  }

  std::unique_ptr<Executor> Load(const CpuSpec& device = Device(),
                                 const Kernels& kernels = BestKernels()) const {
    auto loaded = LoadCpuExecutor({Path("twin")}, device, kernels);
    CheckOk(loaded.status());
    return *std::move(loaded);
  }
};

// Runs for each kind of state.
class StatesOfAllKindsTest : public StatesTest, public testing::WithParamInterface<const char*> {
 protected:
  StatesOfAllKindsTest() : StatesTest(GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(Twins, StatesOfAllKindsTest,
                         testing::Values("qwen3_5", "lfm2", "lfm2_biased", "lfm2moe",
                                         "granitehybrid", "granitehybrid_biased"),
                         [](const auto& info) { return std::string(info.param); });

std::vector<Token> PromptOf(int sequence) {
  return Prompt(1 + 61 * sequence % 130, sequence, kVocabulary);
}

SamplingParams SamplingOf(int sequence) {
  return {.temperature = 0.9f, .seed = static_cast<uint64_t>(sequence), .top_logprobs = 2};
}

// Returns each sequence's output, computed by itself.
std::vector<SequenceOutput> Alone(Executor& executor) {
  ExecutorDriver driver(executor);
  std::vector<SequenceOutput> outputs;
  for (int i = 0; i < kSequences; ++i) {
    const SlotId slot = driver.Add(PromptOf(i), SamplingOf(i));
    driver.Generate({slot}, kGenerated, 512);
    outputs.push_back(driver.output(slot));
    driver.Remove(slot);  // and the next one takes the slot, with what is left there
  }
  return outputs;
}

TEST_P(StatesOfAllKindsTest, CrowdsAndCutsChangeNothing) {
  for (const Kernels* kernels : {&PlainKernels(), &BestKernels()}) {
    SCOPED_TRACE(kernels->name);
    const std::vector<SequenceOutput> alone = Alone(*Load(Device(), *kernels));
    for (const int chunk : {1, 2, 3, 5, 64, 512}) {
      SCOPED_TRACE(chunk);
      const auto executor = Load(Device(), *kernels);
      ExecutorDriver driver(*executor);
      std::vector<SlotId> slots;
      for (int i = 0; i < kSequences; ++i) {
        slots.push_back(driver.Add(PromptOf(i), SamplingOf(i)));
      }
      driver.Generate(slots, kGenerated, chunk);
      for (int i = 0; i < kSequences; ++i) EXPECT_EQ(driver.output(slots[i]), alone[i]) << i;
    }
  }
}

// Prompts and decoding tokens of several sequences share each step.
TEST_P(StatesOfAllKindsTest, MixedStepsChangeNothing) {
  const std::vector<SequenceOutput> alone = Alone(*Load());
  const auto executor = Load();
  ExecutorDriver driver(*executor);
  std::vector<SlotId> slots;
  for (int i = 0; i < kSequences; ++i) slots.push_back(driver.Add(PromptOf(i), SamplingOf(i)));
  const auto is_done = [&](int i) {
    return driver.tokens(slots[i]).size() == PromptOf(i).size() + kGenerated;
  };
  std::vector<int32_t> computed(kSequences);
  for (int step = 0;; ++step) {
    std::vector<ExecutorDriver::Share> shares;
    for (int i = 0; i < kSequences; ++i) {
      if (is_done(i)) continue;
      const auto known = static_cast<int32_t>(driver.tokens(slots[i]).size());
      const int32_t count = std::min(known - computed[i], 1 + (step + i) % 6);
      shares.push_back({slots[i], count});
      computed[i] += count;
    }
    if (shares.empty()) break;
    driver.Step(shares);
  }
  for (int i = 0; i < kSequences; ++i) EXPECT_EQ(driver.output(slots[i]), alone[i]) << i;
}

// As after a preemption: the tokens so far are computed again, in another slot.
TEST_P(StatesOfAllKindsTest, ASequenceGoesOnFromItsTokens) {
  const auto executor = Load();
  ExecutorDriver driver(*executor);
  const SlotId slot = driver.Add(PromptOf(3), SamplingOf(3));
  driver.Generate({slot}, kGenerated, 512);
  const SequenceOutput whole = driver.output(slot);
  std::vector<Token> half = whole.tokens;
  half.resize(half.size() - kGenerated / 2);
  const SlotId other = driver.Add(half, SamplingOf(3));
  driver.Generate({other}, kGenerated / 2, 7);
  EXPECT_EQ(driver.tokens(other), whole.tokens);
  EXPECT_TRUE(std::equal(driver.logprobs(other).begin(), driver.logprobs(other).end(),
                         whole.logprobs.begin() + kGenerated / 2));
}

TEST_P(StatesOfAllKindsTest, ThreadsChangeNothing) {
  const std::vector<SequenceOutput> outputs = Alone(*Load());
  CpuSpec device = Device();
  device.threads = 1;
  EXPECT_EQ(Alone(*Load(device)), outputs);
}

TEST_F(StatesTest, ASlotWithoutItsStateIsRefused) {
  const auto executor = Load();
  ExecutorDriver driver(*executor);
  const SlotId slot = driver.Add(PromptOf(1), SamplingOf(1));
  driver.Generate({slot}, 1, 512);
  StepPlan plan{.id = driver.last_id() + 1};
  plan.starts = {{5, std::make_shared<const SamplingParams>()}};
  plan.tokens = {7};
  plan.blocks = {driver.blocks(slot)[0], 9};
  plan.rows = {{.slot = 5, .start = 16, .num_tokens = 1, .tokens = {0, 1}, .blocks = {0, 2}}};
  const absl::Status status = executor->Submit(std::move(plan));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rows[0].start is 16 in a new slot; allowed: 0, or a move of a state"));
}

// A sequence that begins from a checkpoint of another's state goes on as that one does, although
// the slot that the state was copied from has gone on, too.
TEST_P(StatesOfAllKindsTest, ASequenceBeginsFromACheckpoint) {
  constexpr int kShared = 4;  // blocks
  CpuSpec device = Device();
  const int64_t bytes = std::get<SlotState>(Load()->info().limits.state.groups[1]).bytes;
  device.state_cache_memory = 3 * bytes;
  const auto executor = Load(device);
  const StepLimits& limits = executor->info().limits;
  ASSERT_EQ(limits.num_checkpoints(), 3);
  const BlockId checkpoint = limits.max_num_seqs + 2;
  const auto tokens = Prompt(16 * kShared + 20, 0, kVocabulary);
  const auto params =
      std::make_shared<const SamplingParams>(SamplingParams{.temperature = 0, .top_logprobs = 0});
  const auto run = [&](StepPlan plan) {
    CheckOk(executor->Submit(std::move(plan)));
    std::optional<StepResult> result = executor->Wait();
    CheckOk(result->status);
    return std::move(result->tokens);
  };
  StepPlan prompt{.id = 1};
  prompt.starts = {{0, params}};
  prompt.tokens.assign(tokens.begin(), tokens.begin() + 16 * kShared);
  prompt.blocks = {0, 1, 2, 3};
  prompt.rows = {{.slot = 0,
                  .start = 0,
                  .num_tokens = 16 * kShared,
                  .tokens = {0, 16 * kShared},
                  .blocks = {0, kShared}}};
  run(std::move(prompt));
  // The rest of the prompt, in two blocks of its own for each sequence.
  const auto rest = [&](SlotId slot, StepPlan plan) {
    plan.tokens.assign(tokens.begin() + 16 * kShared, tokens.end());
    const auto first = static_cast<int32_t>(plan.blocks.size());
    plan.blocks.insert(plan.blocks.end(), {10 + 2 * slot, 11 + 2 * slot});
    plan.logits = {{.offset = 0, .target = 5}, {.offset = 7, .target = 6}, {.offset = 19}};
    plan.rows = {{.slot = slot,
                  .start = 16 * kShared,
                  .num_tokens = 20,
                  .tokens = {0, 20},
                  .blocks = {first > 0 ? 0 : first, first + 2},
                  .logits = {0, 3}}};
    return run(std::move(plan));
  };
  StepPlan copies{.id = 2};
  copies.moves = {{.group = 1, .from = {0}, .to = {checkpoint}}};
  const std::vector<TokenResult> first = rest(0, std::move(copies));
  StepPlan begins{.id = 3};
  begins.moves = {{.group = 1, .from = {checkpoint}, .to = {7}}};
  begins.starts = {{7, params}};
  begins.blocks = {0, 1, 2, 3};
  const std::vector<TokenResult> second = rest(7, std::move(begins));
  ASSERT_EQ(first.size(), 3u);
  ASSERT_EQ(second.size(), first.size());
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(second[i].token, first[i].token);
    EXPECT_EQ(second[i].logprob, first[i].logprob);
  }
}

// A memory that holds blocks, but not the states of all sequences.
TEST_F(StatesTest, TheLeastMemoryIsSaid) {
  const int64_t bytes = std::get<SlotState>(Load()->info().limits.state.groups[1]).bytes;
  EXPECT_EQ(bytes, 3 * 4 * (3 * (2 * 2 * 32 + 4 * 32) + 4 * 32 * 32));
  CpuSpec device = Device();
  device.kv_cache_memory = 12 * bytes;
  const auto loaded = LoadCpuExecutor({Path("twin")}, device);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(loaded.status().message()),
      HasSubstr(StrCat(" and the ", 12 * bytes, " of the states of max_num_seqs = 12 sequences")));
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A folder as models that also see images have it, with tensors that are not read.
TEST_F(StatesTest, AModelThatSeesImagesIsServedWithoutThem) {
  FamilyTwin twin = FamilyTwinOf("qwen3_5");
  WriteTwinFolder(twin, Path("plain"));
  const Json text = twin.config;
  twin.spelled = {"language_model."};
  WriteTwinFolder(twin, Path("nested"));
  const Json config = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                       {"model_type", "qwen3_5"},
                       {"image_token_id", 5},
                       {"vision_config", {{"depth", 1}}},
                       {"tie_word_embeddings", false},
                       {"text_config", text}};
  WriteFile(Path("nested") + "/config.json", config.dump());
  std::filesystem::rename(Path("nested") + "/model.safetensors", Path("nested") + "/a.safetensors");
  SafetensorsWriter()
      .Tensor("model.visual.patch_embed.proj.weight", TensorType::kF32, {1}, {1.0f})
      .Tensor("mtp.fc.weight", TensorType::kF32, {1}, {1.0f})
      .Write(Path("nested") + "/b.safetensors");
  WriteFile(Path("nested") + "/model.safetensors.index.json",
            R"({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}})");
  const auto logprobs = [&](const char* folder) {
    const auto loaded = LoadCpuExecutor({Path(folder)}, Device());
    CheckOk(loaded.status());
    return PromptLogprobs(**loaded, Prompt(90, 0, kVocabulary), 90);
  };
  EXPECT_EQ(logprobs("nested"), logprobs("plain"));
}

// Prompts of many lengths, against transformers in double precision.
TEST_F(StatesTest, PromptsOfAllLengthsAreWhatTransformersMakesOfThem) {
  constexpr double kTolerance = 1e-5;  // of the largest logit
  const absl::StatusOr<Json> reference =
      ParseJson(ReadAll("tests/reference/prompt_lengths_reference.json"), {});
  CheckOk(reference.status());
  CpuSpec device = Device();
  device.kv_cache_float32 = true;
  for (const auto& [name, twin] : (*reference)["twins"].items()) {
    WriteTwinFolder(FamilyTwinOf(name), Path("twin"));
    const auto executor = Load(device);
    ExecutorDriver driver(*executor);
    ASSERT_EQ(twin["prompts"].size(), 7);
    for (const Json& prompt : twin["prompts"]) {
      const int length = prompt["length"];
      const std::vector<double> expected = prompt["logprobs"];
      // The prompt's tokens, and then a greedy answer.
      const std::vector<Token> tokens = prompt["tokens"];
      ASSERT_EQ(tokens.size(), length + prompt["answer"].get<size_t>());
      const SlotId slot = driver.Add(tokens, {.temperature = 0, .top_logprobs = 0});
      std::vector<float> logprobs;
      for (int begin = 0; begin < static_cast<int>(tokens.size()); begin += 64) {
        const int count = std::min<int>(64, static_cast<int>(tokens.size()) - begin);
        const StepResult result = driver.Step({{slot, count}}, 1);
        for (const TokenResult& token : result.tokens) logprobs.push_back(*token.logprob);
      }
      logprobs.pop_back();  // of the sampled token
      driver.Remove(slot);
      ASSERT_EQ(logprobs.size(), expected.size());
      EXPECT_LT(WorstError(logprobs, expected) / twin["largest"].get<double>(), kTolerance)
          << name << " " << length;
    }
  }
}

}  // namespace
}  // namespace millrace::cpu
