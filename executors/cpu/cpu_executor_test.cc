// The whole CPU executor on small random models: that a sequence's tokens and log-probabilities are
// its own, bit for bit, and that what cannot run is refused.
#include "executors/cpu/cpu_executor.h"

#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fault_points.h"
#include "executors/executor_driver_test_util.h"
#include "executors/mask_test_util.h"
#include "executors/tiny_model_test_util.h"
#include "formats/gguf/gguf.h"
#include "formats/twins/family_twins.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::cpu {
namespace {

using ::testing::HasSubstr;

constexpr int kGenerated = 24;

class CpuExecutorTest : public TinyModelTest {
 protected:
  ~CpuExecutorTest() override { DisarmFaultPoints(); }
};

CpuSpec Device(int threads = 2, int block_size = 16) {
  return {{.threads = threads,
           .kv_cache_memory = 8 << 20,
           .block_size = block_size,
           .max_num_seqs = 40,
           .max_num_batched_tokens = 2048}};
}

std::unique_ptr<Executor> Load(const std::string& path, const CpuSpec& device,
                               const Kernels& kernels = BestKernels()) {
  auto loaded = LoadCpuExecutor({path}, device, kernels);
  CheckOk(loaded.status());
  return *std::move(loaded);
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

TinyLlama Quantized(TensorType linear, TensorType embedding) {
  TinyLlama model;
  model.linear_type = linear;
  model.embedding_type = embedding;
  return model;
}

// The head sizes of note: one that fills blocks of 32 activations, one that does not, and one that
// does not fill a register either.
std::vector<TinyLlama> Models() {
  std::vector<TinyLlama> models = {Quantized(TensorType::kQ4_1, TensorType::kQ8_0),
                                   Quantized(TensorType::kQ8_0, TensorType::kF16),
                                   Quantized(TensorType::kF16, TensorType::kQ4_1),
                                   Quantized(TensorType::kF32, TensorType::kF32)};
  models[0].hidden = 192;
  models[0].heads = 3;
  models[0].kv_heads = 1;
  models[0].ffn = 160;
  models[1].tied = false;
  models[1].rope_factors = true;
  models[3].ffn = 100;  // not a multiple of 32: floats need none
  models.push_back(models[0]);
  models.back().head_size = 20;
  models.back().heads = 24;
  models.back().kv_heads = 3;  // 60 rows of k, and then other weights' v
  models.back().ffn = 160;
  models.back().hidden = 64;
  models.back().mixed_type = TensorType::kF16;
  return models;
}

TEST_F(CpuExecutorTest, ASequencesNumbersAreItsOwn) {
  for (const TinyLlama& model : Models()) {
    const std::string path = Gguf(model);
    for (const Kernels* kernels : {&PlainKernels(), &BestKernels()}) {
      SCOPED_TRACE(std::string(kernels->name) + ", " + std::string(Traits(model.linear_type).name));
      const std::unique_ptr<Executor> executor = Load(path, Device(), *kernels);
      const SequenceOutput alone = Alone(*executor);
      ASSERT_EQ(alone.tokens.size(), 75 + kGenerated);

      for (const int chunk : {32, 1, 7, 33}) {
        const std::unique_ptr<Executor> other = Load(path, Device(), *kernels);
        EXPECT_EQ(Alone(*other, chunk), alone) << "chunks of " << chunk;
      }
      for (const int threads : {1, 3}) {
        const std::unique_ptr<Executor> other = Load(path, Device(threads), *kernels);
        EXPECT_EQ(Alone(*other), alone) << threads << " threads";
      }
      const std::unique_ptr<Executor> large_blocks = Load(path, Device(2, 48), *kernels);
      EXPECT_EQ(Alone(*large_blocks), alone) << "blocks of 48";
    }
  }
}

TEST_F(CpuExecutorTest, AmongThirtyTwoOthersAndFromTheCache) {
  for (const TinyLlama& model : Models()) {
    SCOPED_TRACE(std::string(Traits(model.linear_type).name));
    const std::string path = Gguf(model);
    const std::unique_ptr<Executor> alone_executor = Load(path, Device());
    const SequenceOutput alone = Alone(*alone_executor);

    const std::unique_ptr<Executor> executor = Load(path, Device());
    ExecutorDriver driver(*executor);
    std::vector<SlotId> slots;
    for (int i = 1; i <= 16; ++i)
      slots.push_back(driver.Add(Prompt(9 * i % 50 + 1, i), Sampling(i)));
    const SlotId slot = driver.Add(Prompt(75, 0), Sampling(5));
    slots.push_back(slot);
    for (int i = 17; i <= 32; ++i)
      slots.push_back(driver.Add(Prompt(5 * i % 70 + 1, i), Sampling(i)));
    driver.Generate(slots, kGenerated, 32);
    EXPECT_EQ(driver.output(slot), alone) << "among 32 others";

    // A second sequence begins with the first one's full blocks.
    const SlotId cached =
        driver.Add(Prompt(75, 0), Sampling(5), absl::MakeConstSpan(driver.blocks(slot)).first(4));
    driver.Generate({cached}, kGenerated, 1000);
    EXPECT_EQ(driver.output(cached), alone) << "from cached blocks";
  }
}

TEST_F(CpuExecutorTest, PrefillAndDecodeInOneStep) {
  const std::string path = Gguf(Models()[0]);
  const std::unique_ptr<Executor> alone_executor = Load(path, Device());
  const SequenceOutput alone = Alone(*alone_executor);

  const std::unique_ptr<Executor> executor = Load(path, Device());
  ExecutorDriver driver(*executor);
  const SlotId other = driver.Add(Prompt(20, 3), Sampling(9));
  driver.Step({{other, 20}});
  const SlotId slot = driver.Add(Prompt(75, 0), Sampling(5));
  driver.Step({{other, 1}, {slot, 50}});
  driver.Step({{slot, 25}, {other, 1}});
  for (int i = 1; i < kGenerated; ++i) driver.Step({{other, 1}, {slot, 1}});
  EXPECT_EQ(driver.output(slot), alone);
}

TEST_F(CpuExecutorTest, PenaltiesCountThePromptAndWhatWasGenerated) {
  const std::unique_ptr<Executor> executor = Load(Gguf(Models()[0]), Device());
  ExpectPenaltiesCountAll(*executor, kGenerated);
}

TEST_F(CpuExecutorTest, MasksHoldTheirRowsAlone) {
  const std::string path = Gguf(Models()[0]);
  ExpectMasksHold(*Load(path, Device()));
  ExpectMasksAreTheStepsOwn(*Load(path, Device()));
  ExpectMasksAreAppliedLast(*Load(path, Device()));
}

TEST_F(CpuExecutorTest, ScoresAreTheLogprobsThatSamplingSaw) {
  const std::string path = Gguf(Models()[0]);
  const std::unique_ptr<Executor> executor = Load(path, Device());
  const SequenceOutput alone = Alone(*executor);
  const std::unique_ptr<Executor> other = Load(path, Device());
  ExecutorDriver driver(*other);
  // More wanted positions than logits exist at a time.
  const SlotId slot = driver.Add(alone.tokens, Sampling(5));
  const StepResult result = driver.Step({{slot, static_cast<int32_t>(alone.tokens.size())}}, 1);
  ASSERT_EQ(result.tokens.size(), alone.tokens.size());  // all but the first, and one sampled
  for (int i = 0; i < kGenerated; ++i) {
    const TokenResult& scored = result.tokens[74 + i];
    EXPECT_EQ(scored.token, alone.tokens[75 + i]);
    EXPECT_EQ(*scored.logprob, alone.logprobs[i]) << i;
  }
}

TEST_F(CpuExecutorTest, PlainAndBestKernelsAreClose) {
  for (const TinyLlama& model : Models()) {
    const std::string path = Gguf(model);
    std::vector<std::vector<float>> logprobs;
    for (const Kernels* kernels : {&PlainKernels(), &BestKernels()}) {
      const std::unique_ptr<Executor> executor = Load(path, Device(), *kernels);
      ExecutorDriver driver(*executor);
      const SlotId slot = driver.Add(Prompt(75, 0), Sampling(5));
      const StepResult result = driver.Step({{slot, 75}}, 1);
      std::vector<float>& scores = logprobs.emplace_back();
      for (int i = 0; i < 74; ++i) scores.push_back(*result.tokens[i].logprob);
    }
    // Logits of these models spread over a hundred; int8 activations round one way or the other.
    const bool quantized =
        model.linear_type == TensorType::kQ4_1 || model.linear_type == TensorType::kQ8_0;
    for (int i = 0; i < 74; ++i) {
      EXPECT_NEAR(logprobs[0][i], logprobs[1][i], quantized ? 0.5 : 0.15)
          << Traits(model.linear_type).name << ", " << i;
    }
  }
}

TEST_F(CpuExecutorTest, ACopiedBlockIsTheSame) {
  const std::unique_ptr<Executor> executor = Load(Gguf(Models()[0]), Device());
  const std::vector<TokenResult> tokens = ForkByCopy(*executor, Prompt(10, 2), Sampling(1));
  ASSERT_EQ(tokens.size(), 2);
  EXPECT_EQ(tokens[0].token, tokens[1].token);
  EXPECT_EQ(*tokens[0].logprob, *tokens[1].logprob);
}

TEST_F(CpuExecutorTest, ARowWithoutFiniteLogitsFailsAlone) {
  // A token whose embedding is not a number.
  TinyLlama model = Quantized(TensorType::kF32, TensorType::kF32);
  model.tied = false;
  std::string bytes = TinyLlamaWriter(model).Bytes();
  const std::string path = ::testing::TempDir() + "/cpu_executor_test_nan.gguf";
  WriteFile(path, bytes);
  {
    const auto file = GgufFile::Open(path);
    ASSERT_TRUE(file.ok());
    const uint32_t nan = 0x7fc00000;
    std::memcpy(&bytes[file->FindTensor("token_embd.weight")->offset + 77 * 64 * 4], &nan, 4);
  }
  WriteFile(path, bytes);
  const std::unique_ptr<Executor> executor = Load(path, Device());
  StepPlan plan;
  plan.id = 1;
  plan.tokens = {77, 5};
  plan.blocks = {0, 1};
  plan.logits = {{.offset = 0}, {.offset = 0}};
  for (const SlotId slot : {0, 1}) {
    plan.starts.push_back({slot, std::make_shared<SamplingParams>()});
    plan.rows.push_back({.slot = slot,
                         .start = 0,
                         .num_tokens = 1,
                         .tokens = {slot, slot + 1},
                         .blocks = {slot, slot + 1},
                         .logits = {slot, slot + 1}});
  }
  CheckOk(executor->Submit(plan));
  const std::optional<StepResult> result = executor->Wait();
  EXPECT_TRUE(result->status.ok());
  EXPECT_EQ(result->rows[0].status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(result->rows[0].tokens.size(), 0);
  EXPECT_TRUE(result->rows[1].status.ok());
  EXPECT_EQ(result->rows[1].tokens.size(), 1);
}

// Steps take memory that was reserved by the weights' shapes; a step that needs more ends the
// process.
TEST_F(CpuExecutorTest, TheWidestOutputMayBeThatOfQkv) {
  TinyLlama model;
  model.hidden = 512;
  model.heads = model.kv_heads = 32;
  model.ffn = 128;
  CpuSpec device = Device();
  device.max_num_batched_tokens = 80;
  const std::unique_ptr<Executor> executor = Load(Gguf(model), device);
  EXPECT_EQ(Alone(*executor, 75), Alone(*Load(Gguf(model), device), 20));
}

TEST_F(CpuExecutorTest, InfoSaysWhatWasLoaded) {
  TinyLlama model = Models()[0];
  const std::unique_ptr<Executor> executor = Load(Gguf(model), Device());
  const ModelInfo& info = executor->info();
  EXPECT_EQ(info.architecture, "llama");
  EXPECT_EQ(info.digest.size(), 32);
  EXPECT_EQ(info.limits.vocab_size, 320);
  EXPECT_EQ(info.limits.max_model_len, 256);
  EXPECT_EQ(info.kv_type, "float16");
  ASSERT_EQ(info.limits.state.num_groups(), 1);
  EXPECT_EQ(info.limits.state.Paged(0)->block_bytes,
            2 * 16 * 64 * 2 * 2);  // k and v, tokens, head, bytes, layers
  EXPECT_EQ(info.limits.num_blocks[0], (8 << 20) / info.limits.state.Paged(0)->block_bytes);
  ASSERT_EQ(info.load_phases.size(), 4);
  EXPECT_EQ(info.load_phases[1].name, "place the weights");

  EXPECT_EQ(Load(Gguf(model), Device(1), PlainKernels())->info().digest, info.digest);
  model.seed = 2;
  EXPECT_NE(Load(Gguf(model), Device())->info().digest, info.digest);
}

// A decoding row touches as many experts of each mixture as a token has; a prompt touches up to
// all.
TEST_F(CpuExecutorTest, CountsTheExpertsThatStepsTouch) {
  for (const FamilyTwin& twin : FamilyTwins()) {
    if (twin.name != "qwen3moe" && twin.name != "qwen3moe_dense") continue;
    SCOPED_TRACE(twin.name);
    const bool dense_too = twin.name == "qwen3moe_dense";  // three of its four layers
    const int experts = twin.config["num_experts"], chosen = twin.config["num_experts_per_tok"];
    const int64_t hidden = twin.config["hidden_size"], size = twin.config["moe_intermediate_size"];
    std::filesystem::remove_all(Path("twin"));
    WriteTwinFolder(twin, Path("twin"));
    const std::unique_ptr<Executor> executor = Load(Path("twin"), Device());
    const auto uses = [&] {
      const absl::StatusOr<std::vector<MixtureUse>> uses = executor->MixtureUses();
      CheckOk(uses.status());
      return *uses;
    };
    const std::vector<MixtureUse> before = uses();
    ASSERT_EQ(before.size(), dense_too ? 1u : 2u);
    ExecutorDriver driver(*executor);
    const SlotId slot = driver.Add(Prompt(40, 0, 50), Sampling(5));
    driver.Generate({slot}, 1, 40);  // the prompt
    const std::vector<MixtureUse> prompt = uses();
    driver.Decode({slot}, 10);
    const std::vector<MixtureUse> after = uses();
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(after[i].experts, experts);
      EXPECT_GE(after[i].expert_bytes, 3 * hidden * size * 4);  // in float32, and padding
      EXPECT_LT(after[i].expert_bytes, 2 * 3 * hidden * size * 4);
      EXPECT_GT(prompt[i].touched - before[i].touched, chosen);
      EXPECT_LE(prompt[i].touched - before[i].touched, experts);
      EXPECT_EQ(after[i].touched - prompt[i].touched, 10 * chosen);
    }
  }
  EXPECT_TRUE(Load(Gguf(Models()[0]), Device())->MixtureUses()->empty());
}

TEST_F(CpuExecutorTest, RefusesByName) {
  const std::string path = Gguf(Models()[0]);
  const auto error = [&](const CpuSpec& device) {
    return std::string(LoadCpuExecutor({path}, device).status().message());
  };
  CpuSpec device = Device();
  device.block_size = 24;
  EXPECT_THAT(error(device), HasSubstr("block_size is 24"));
  device = Device();
  device.max_model_len = 257;
  EXPECT_THAT(error(device), HasSubstr("max_model_len is 257, allowed: up to the model's 256"));
  device = Device();
  device.kv_cache_memory = 100;
  EXPECT_THAT(error(device),
              HasSubstr("kv_cache_memory is 100 bytes, allowed: at least one block's 8192"));
  EXPECT_FALSE(LoadCpuExecutor({"/nowhere.gguf"}, Device()).ok());

  const std::unique_ptr<Executor> executor = Load(path, Device());
  StepPlan plan;
  EXPECT_EQ(executor->Submit(plan).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CpuExecutorTest, SaysHowMuchOfTheWeightsIsPlaced) {
  LoadProgress progress;
  progress.Begin("loading the model");
  for (const int ranks : {1, 2}) {
    CpuSpec device = Device();
    device.tensor_parallel_size = ranks;
    const auto path = Gguf(Quantized(TensorType::kQ4_0, TensorType::kQ8_0));
    ASSERT_TRUE(LoadCpuExecutor({.path = path, .progress = &progress}, device).ok());
    EXPECT_THAT(progress.Describe(), HasSubstr("loading the model: 100 % of"));
  }
}

// Appends a row of `count` tokens at `start`, in blocks from `block` on where it begins some, whose
// last position is sampled if `samples`.
void AddRow(SlotId slot, int32_t start, int32_t count, BlockId block, bool samples,
            StepPlan& plan) {
  StepRow row{.slot = slot, .start = start, .num_tokens = count};
  if (start == 0) {
    plan.starts.push_back(
        {.slot = slot, .sampling = std::make_shared<SamplingParams>(Sampling(slot))});
  }
  row.tokens.begin = static_cast<int32_t>(plan.tokens.size());
  row.blocks.begin = static_cast<int32_t>(plan.blocks.size());
  row.logits.begin = static_cast<int32_t>(plan.logits.size());
  for (int32_t i = start; i < start + count; ++i) plan.tokens.push_back(i);
  for (int32_t i = (start + 15) / 16; i < (start + count + 15) / 16; ++i) {
    plan.blocks.push_back(block++);
  }
  if (samples) plan.logits.push_back({.offset = count - 1});
  row.tokens.end = static_cast<int32_t>(plan.tokens.size());
  row.blocks.end = static_cast<int32_t>(plan.blocks.size());
  row.logits.end = static_cast<int32_t>(plan.logits.size());
  plan.rows.push_back(row);
}

// A step that does not fit the memory fails its own rows, with those that its slots run later, and
// no others. Slots that start anew run again.
TEST_F(CpuExecutorTest, AStepWithoutMemoryFailsAlone) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(StrCat(ranks, " ranks"));
    CpuSpec device = Device();
    device.tensor_parallel_size = ranks;
    const std::string path = Gguf(Quantized(TensorType::kF32, TensorType::kF32));
    const SequenceOutput alone = Alone(*Load(path, device));
    const auto executor = Load(path, device);
    StepPlan plan{.id = 1};
    AddRow(0, 0, 20, 0, /*samples=*/true, plan);
    AddRow(1, 0, 10, 2, /*samples=*/false, plan);
    StepPlan later{.id = 2};
    AddRow(1, 10, 20, 3, /*samples=*/true, later);
    AddRow(2, 0, 5, 4, /*samples=*/true, later);
    // One rank of several has too little: the others do not wait for it.
    CheckOk(ArmFaultPoints("cpu.small_arena"));
    CheckOk(executor->Submit(std::move(plan)));
    CheckOk(executor->Submit(std::move(later)));
    const std::optional<StepResult> failed = executor->Wait();
    EXPECT_TRUE(failed->status.ok()) << failed->status;
    ASSERT_EQ(failed->rows.size(), 2);
    for (const RowResult& row : failed->rows) {
      EXPECT_EQ(row.status.code(), absl::StatusCode::kInternal) << row.status;
      EXPECT_EQ(row.tokens.size(), 0);
    }
    const std::optional<StepResult> next = executor->Wait();
    EXPECT_TRUE(next->status.ok()) << next->status;
    ASSERT_EQ(next->rows.size(), 2);
    EXPECT_EQ(next->rows[0].status.code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(next->rows[1].status.ok()) << next->rows[1].status;
    ExecutorDriver driver(*executor, 2);
    const SlotId again = driver.Add(Prompt(75, 0), Sampling(5));
    driver.Generate({again}, kGenerated, 1000);
    EXPECT_EQ(driver.output(again), alone);
  }
}

}  // namespace
}  // namespace millrace::cpu
