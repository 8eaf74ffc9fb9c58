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
#include "executors/states_test_util.h"
#include "executors/tiny_model_test_util.h"
#include "formats/huggingface/safetensors.h"
#include "formats/json/json.h"
#include "formats/twins/family_twins.h"
#include "formats/twins/hf_test_util.h"
#include "formats/twins/tensor_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::cpu {
namespace {

using ::testing::HasSubstr;

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
                         testing::Values("qwen3_5", "qwen3_next", "lfm2", "lfm2_biased", "lfm2moe",
                                         "granitehybrid", "granitehybrid_biased", "nemotron_h",
                                         "nemotron_h_moe"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(StatesOfAllKindsTest, CrowdsAndCutsChangeNothing) {
  for (const Kernels* kernels : {&PlainKernels(), &BestKernels()}) {
    SCOPED_TRACE(kernels->name);
    const std::vector<SequenceOutput> alone = StatesAlone(*Load(Device(), *kernels));
    for (const int chunk : {1, 2, 3, 5, 64, kStateChunk}) {
      EXPECT_EQ(StatesInACrowd(*Load(Device(), *kernels), chunk), alone) << chunk;
    }
  }
}

// Prompts and decoding tokens of several sequences share each step.
TEST_P(StatesOfAllKindsTest, MixedStepsChangeNothing) {
  EXPECT_EQ(StatesInMixedSteps(*Load()), StatesAlone(*Load()));
}

TEST_P(StatesOfAllKindsTest, ASequenceGoesOnFromItsTokens) { ExpectGoesOnFromItsTokens(*Load()); }

TEST_P(StatesOfAllKindsTest, ThreadsChangeNothing) {
  const std::vector<SequenceOutput> outputs = StatesAlone(*Load());
  CpuSpec device = Device();
  device.threads = 1;
  EXPECT_EQ(StatesAlone(*Load(device)), outputs);
}

// Ranks have numbers of their own, which depend on how many there are alone.
TEST_P(StatesOfAllKindsTest, CrowdsAndCutsChangeNothingOnRanks) {
  const bool mixture = FamilyTwinOf(GetParam()).config.contains("num_experts_per_tok");
  for (const int ranks : {2, 4}) {
    for (const bool expert_parallel : {false, true}) {
      if (expert_parallel && !mixture) continue;
      CpuSpec device = Device();
      device.tensor_parallel_size = ranks;
      device.expert_parallel = expert_parallel;
      const std::vector<SequenceOutput> alone = StatesAlone(*Load(device));
      EXPECT_EQ(StatesInACrowd(*Load(device), 64), alone) << ranks << expert_parallel;
    }
  }
}

TEST_F(StatesTest, ASlotWithoutItsStateIsRefused) {
  const auto executor = Load();
  ExecutorDriver driver(*executor);
  const SlotId slot = driver.Add(StatePrompt(1), StateSampling(1));
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

TEST_P(StatesOfAllKindsTest, ASequenceBeginsFromACheckpoint) {
  CpuSpec device = Device();
  const int64_t bytes = std::get<SlotState>(Load()->info().limits.state.groups[1]).bytes;
  device.state_cache_memory = 3 * bytes;
  const auto executor = Load(device);
  ASSERT_EQ(executor->info().limits.num_checkpoints(), 3);
  ExpectBeginsFromACheckpoint(*executor);
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
    return PromptLogprobs(**loaded, Prompt(90, 0, kStateVocabulary), 90);
  };
  EXPECT_EQ(logprobs("nested"), logprobs("plain"));
}

// Qwen3-Next has the rows of q, k, v and the gate key head by key head. Placed apart, each keeps
// the scale of its block of 128 rows. Tensors that predict further tokens are left alone.
TEST_F(StatesTest, RowsKeyHeadByKeyHeadKeepTheirFp8Scales) {
  FamilyTwin twin = FamilyTwinOf("qwen3_next");
  WriteTwinFolder(twin, Path("bf16"));
  const auto file = SafetensorsFile::Open(Path("bf16") + "/model.safetensors");
  CheckOk(file.status());
  SafetensorsWriter fp8, bf16;
  int fused = 0;
  for (const TensorInfo& tensor : file->tensors) {
    const std::string name(tensor.name);
    std::vector<float> values =
        DecodeTensor(tensor.type, file->file.bytes().subspan(tensor.offset, tensor.bytes));
    if (!name.ends_with(".in_proj_qkvz.weight")) {
      fp8.Tensor(name, TensorType::kF32, tensor.shape, values);
      bf16.Tensor(name, TensorType::kF32, tensor.shape, values);
      continue;
    }
    ++fused;
    const std::vector<float> scales = {1, 0.25f, 4};
    ASSERT_EQ(tensor.shape, (std::vector<int64_t>{384, 64}));
    const std::string codes = EncodeTensor(TensorType::kFp8E4m3, values);
    values = DecodeTensor(TensorType::kFp8E4m3,
                          {reinterpret_cast<const uint8_t*>(codes.data()), codes.size()});
    fp8.Tensor(name, TensorType::kFp8E4m3, tensor.shape, values)
        .Tensor(name + "_scale_inv", TensorType::kF32, {3, 1}, scales);
    for (size_t i = 0; i < values.size(); ++i) values[i] *= scales[i / (128 * 64)];
    bf16.Tensor(name, TensorType::kBf16, tensor.shape, values);
  }
  EXPECT_EQ(fused, 2);
  fp8.Tensor("mtp.fc.weight", TensorType::kF32, {1}, {1.0f});
  std::filesystem::create_directories(Path("fp8"));
  fp8.Write(Path("fp8") + "/model.safetensors");
  bf16.Write(Path("bf16") + "/model.safetensors");
  twin.config["quantization_config"] = {
      {"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}};
  WriteFile(Path("fp8") + "/config.json", twin.config.dump());
  for (const int ranks : {1, 2, 4}) {
    const auto logprobs = [&](const char* folder) {
      CpuSpec device = Device();
      device.tensor_parallel_size = ranks;
      const auto loaded = LoadCpuExecutor({Path(folder)}, device);
      CheckOk(loaded.status());
      return PromptLogprobs(**loaded, Prompt(90, 0, kStateVocabulary), 90);
    };
    EXPECT_EQ(logprobs("fp8"), logprobs("bf16")) << ranks;
  }
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
