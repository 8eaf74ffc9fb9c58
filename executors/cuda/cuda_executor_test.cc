// The whole GPU executor on small random models and on the default model: that a sequence's tokens
// and log-probabilities are its own, bit for bit, that they agree with the CPU's, and that what
// cannot run is refused.
#include "executors/cuda/cuda_executor.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/fault_points.h"
#include "executors/executor_driver.h"
#include "executors/models/reference_forward.h"
#include "formats/gguf_test_util.h"
#include "formats/open_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

using ::testing::HasSubstr;

constexpr int kGenerated = 24;

std::string ModelPath(const TinyLlama& model) {
  static int count = 0;
  std::string path =
      ::testing::TempDir() + "/cuda_executor_test_" + std::to_string(count++) + ".gguf";
  TinyLlamaWriter(model).Write(path);
  return path;
}

// Heads of 64, as the GPU's attention wants them; widths that are no multiple of 128.
TinyLlama Model(TensorType linear, TensorType embedding) {
  TinyLlama model;
  model.hidden = 192;
  model.heads = 3;
  model.kv_heads = 1;
  model.ffn = 352;
  model.context = 1024;
  model.linear_type = linear;
  model.embedding_type = embedding;
  return model;
}

DeviceSpec Device() {
  return {.kind = DeviceKind::kCuda,
          .kv_cache_memory = 64 << 20,
          .block_size = 16,
          .max_num_seqs = 40,
          .max_num_batched_tokens = 2048};
}

std::unique_ptr<Executor> Load(const std::string& path, const DeviceSpec& device) {
  auto loaded = LoadExecutor({path}, device);
  CheckOk(loaded.status());
  return *std::move(loaded);
}

std::vector<Token> Prompt(int length, int seed, int vocab = 261) {
  std::vector<Token> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back((i * 37 + seed * 101 + i * i) % vocab);
  return prompt;
}

const SamplingParams kSampling{.temperature = 0.9f, .top_p = 0.95f, .seed = 5, .top_logprobs = 2};

// One sequence by itself, its prompt in chunks.
SequenceOutput Alone(Executor& executor, int chunk = 2000) {
  ExecutorDriver driver(executor);
  const SlotId slot = driver.Add(Prompt(300, 0), kSampling);
  driver.Generate({slot}, kGenerated, chunk);
  return driver.output(slot);
}

// The same among 32 others, and then from the cache.
void ExpectTheSameInCompany(Executor& executor, const SequenceOutput& alone) {
  ExecutorDriver driver(executor);
  std::vector<SlotId> slots;
  for (int i = 1; i <= 32; ++i) {
    SamplingParams other = kSampling;
    other.seed = i;
    slots.push_back(driver.Add(Prompt(9 * i, i), other));
  }
  slots.insert(slots.begin() + 9, driver.Add(Prompt(300, 0), kSampling));
  driver.Generate(slots, kGenerated, 64);
  EXPECT_EQ(driver.output(slots[9]), alone) << "among 32 others";
  const SlotId cached =
      driver.Add(Prompt(300, 0), kSampling, absl::MakeConstSpan(driver.blocks(slots[9])).first(8));
  driver.Generate({cached}, kGenerated, 512);
  EXPECT_EQ(driver.output(cached), alone) << "from the cache";
}

TEST(CudaExecutorTest, ASequencesNumbersAreItsOwn) {
  for (const bool fp8 : {false, true}) {
    for (const TinyLlama& model :
         {Model(TensorType::kQ4_1, TensorType::kQ8_0), Model(TensorType::kF32, TensorType::kF16)}) {
      SCOPED_TRACE(std::string(Traits(model.linear_type).name) + (fp8 ? ", fp8" : ""));
      const std::string path = ModelPath(model);
      DeviceSpec device = Device();
      device.quantize_fp8 = fp8;
      device.kv_cache_fp8 = fp8;
      const std::unique_ptr<Executor> executor = Load(path, device);
      const SequenceOutput alone = Alone(*executor);
      ASSERT_EQ(alone.tokens.size(), 300 + kGenerated);
      for (const int chunk : {32, 1, 7, 129}) {
        const std::unique_ptr<Executor> other = Load(path, device);
        EXPECT_EQ(Alone(*other, chunk), alone) << "chunks of " << chunk;
      }
      const std::unique_ptr<Executor> company = Load(path, device);
      ExpectTheSameInCompany(*company, alone);
      DeviceSpec changed = device;
      changed.enforce_eager = true;
      EXPECT_EQ(Alone(*Load(path, changed)), alone) << "without graphs";
      changed = device;
      changed.block_size = 64;
      EXPECT_EQ(Alone(*Load(path, changed)), alone) << "blocks of 64";
    }
  }
}

// The log-probabilities of a prompt's own tokens but the first.
std::vector<double> Score(Executor& executor, const std::vector<Token>& prompt) {
  ExecutorDriver driver(executor);
  const SlotId slot = driver.Add(prompt, {.temperature = 0, .top_logprobs = 0});
  const ExecutorDriver::Share share{slot, static_cast<int32_t>(prompt.size())};
  const StepResult result = driver.Step({&share, 1}, 1);
  std::vector<double> logprobs;
  for (const TokenResult& token : result.tokens) logprobs.push_back(*token.logprob);
  logprobs.resize(prompt.size() - 1);  // without the one that was sampled
  return logprobs;
}

// The root mean square of the differences to the reference, over the reference's own deviation:
// BF16's 8 bits are 0.2 % of each number that is rounded.
TEST(CudaExecutorTest, AgreesWithDoublePrecision) {
  for (const bool factors : {false, true}) {
    TinyLlama model = Model(TensorType::kF32, TensorType::kF32);
    model.rope_factors = factors;
    model.tied = factors;
    const std::string path = ModelPath(model);
    const std::vector<Token> prompt = Prompt(300, 3);
    const std::vector<double> ours = Score(*Load(path, Device()), prompt);
    const absl::StatusOr<OpenedModel> opened = OpenModel(path);
    CheckOk(opened.status());
    const std::vector<std::vector<double>> logits = ReferenceLogits(*opened, prompt);
    std::vector<double> reference;
    for (size_t i = 0; i + 1 < prompt.size(); ++i) {
      reference.push_back(ReferenceLogprob(logits[i], prompt[i + 1]));
    }
    double squares = 0, sum = 0, reference_squares = 0;
    const double count = static_cast<double>(ours.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      squares += (ours[i] - reference[i]) * (ours[i] - reference[i]) / count;
      sum += reference[i] / count;
      reference_squares += reference[i] * reference[i] / count;
    }
    const double relative = std::sqrt(squares / (reference_squares - sum * sum));
    EXPECT_LT(relative, 0.02);
    std::printf("relative difference %.4f, of %.3f\n", relative,
                std::sqrt(reference_squares - sum * sum));
  }
}

TEST(CudaExecutorTest, KnowsTheCapitalOfFrance) {
  // "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
  const std::vector<Token> question = {1,    4093, 198, 1780, 314, 260, 3575, 282,
                                       4649, 47,   2,   198,  1,   520, 9531, 198};
  for (const bool fp8 : {false, true}) {
    DeviceSpec device = Device();
    device.kv_cache_memory = 512 << 20;
    device.quantize_fp8 = fp8;
    const std::unique_ptr<Executor> executor = Load(DefaultModelPath(), device);
    ExecutorDriver driver(*executor);
    const SlotId slot = driver.Add(question, {.temperature = 0});
    driver.Generate({slot}, 8, 512);
    const std::vector<Token> answer(driver.tokens(slot).begin() + question.size(),
                                    driver.tokens(slot).end());
    // "The capital of France is Paris."
    EXPECT_EQ(answer, (std::vector<Token>{504, 3575, 282, 4649, 314, 7042, 30, 2}));
  }
}

TEST(CudaExecutorTest, TakesNoMemoryWhileItRuns) {
  const std::unique_ptr<Executor> executor =
      Load(ModelPath(Model(TensorType::kF32, TensorType::kF32)), Device());
  ExecutorDriver driver(*executor);
  std::vector<SlotId> slots;
  for (int i = 0; i < 40; ++i) slots.push_back(driver.Add(Prompt(30 + i, i), kSampling));
  driver.Generate(slots, 4, 64);
  size_t before = 0;
  size_t after = 0;
  size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  driver.Decode(slots, 200);
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_EQ(before, after);
}

TEST(CudaExecutorTest, BannedTokensAreNotSampled) {
  const std::unique_ptr<Executor> executor =
      Load(ModelPath(Model(TensorType::kF32, TensorType::kF32)), Device());
  std::vector<Token> banned;
  for (Token token = 0; token < 200; ++token) banned.push_back(token);
  ExecutorDriver driver(*executor);
  const SlotId slot = driver.Add(
      Prompt(20, 1),
      {.temperature = 1, .seed = 9, .banned_tokens = banned, .banned_before = 20 + kGenerated});
  driver.Generate({slot}, kGenerated, 512);
  for (size_t i = 20; i < driver.tokens(slot).size(); ++i) EXPECT_GE(driver.tokens(slot)[i], 200);
}

// The first step of an executor: `rows` prompts of 10 tokens, each of which samples.
StepResult FirstStep(Executor& executor, int rows) {
  StepPlan plan;
  plan.id = 1;
  for (int32_t r = 0; r < rows; ++r) {
    plan.starts.push_back({r, std::make_shared<const SamplingParams>(kSampling)});
    plan.rows.push_back({.slot = r,
                         .start = 0,
                         .num_tokens = 10,
                         .tokens = {10 * r, 10 * r + 10},
                         .blocks = {r, r + 1},
                         .logits = {r, r + 1}});
    const std::vector<Token> prompt = Prompt(10, r);
    plan.tokens.insert(plan.tokens.end(), prompt.begin(), prompt.end());
    plan.blocks.push_back(r);
    plan.logits.push_back({.offset = 9});
  }
  CheckOk(executor.Submit(plan));
  return *executor.Wait();
}

TEST(CudaExecutorTest, ARowOfNaNFailsAlone) {
  const std::unique_ptr<Executor> executor =
      Load(ModelPath(Model(TensorType::kF32, TensorType::kF32)), Device());
  ASSERT_TRUE(ArmFaultPoints("cuda.nan_row=1@1").ok());
  const StepResult result = FirstStep(*executor, 3);
  DisarmFaultPoints();
  ASSERT_TRUE(result.status.ok());
  EXPECT_TRUE(result.rows[0].status.ok());
  EXPECT_EQ(result.rows[1].status.message(), "the model's logits were not finite numbers");
  EXPECT_TRUE(result.rows[2].status.ok());
  EXPECT_EQ(result.tokens.size(), 2);
}

TEST(CudaExecutorTest, SaysWhatItCannotDo) {
  const std::string path = ModelPath(Model(TensorType::kF32, TensorType::kF32));
  const auto error = [&](const DeviceSpec& device) {
    return std::string(LoadExecutor({path}, device).status().message());
  };
  DeviceSpec device = Device();
  device.block_size = 48;
  EXPECT_THAT(error(device), HasSubstr("block_size is 48; allowed on the GPU: 16, 32, 64, 128"));
  device = Device();
  device.kv_cache_memory = 100;
  EXPECT_THAT(error(device), HasSubstr("kv_cache_memory is 100 bytes"));
  device = Device();
  device.kv_cache_memory = int64_t{1} << 50;
  EXPECT_THAT(error(device), HasSubstr("memory for the KV cache"));
  device = Device();
  device.max_model_len = 5000;
  EXPECT_THAT(error(device), HasSubstr("max_model_len is 5000, allowed: up to the model's 1024"));
  TinyLlama narrow;  // heads of 16
  EXPECT_THAT(LoadExecutor({ModelPath(narrow)}, Device()).status().message(),
              HasSubstr("heads have 16 elements; allowed on the GPU: 64, 96, 128, 256"));
}

// The last one: the process has no device afterwards.
TEST(CudaExecutorTest, TheEndOfADeviceFailsWhatIsInFlight) {
  const std::unique_ptr<Executor> executor =
      Load(ModelPath(Model(TensorType::kF32, TensorType::kF32)), Device());
  ASSERT_TRUE(ArmFaultPoints("cuda.device_error=1").ok());
  const StepResult result = FirstStep(*executor, 1);
  DisarmFaultPoints();
  EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(executor->Submit({}).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace millrace::cuda
