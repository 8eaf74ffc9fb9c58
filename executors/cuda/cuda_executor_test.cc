// Tests the whole GPU executor on small random models and on the default model: a sequence's tokens
// and log-probabilities depend on itself alone, bit for bit; they agree with the CPU's; and
// unsupported models are refused.
#include "executors/cuda/cuda_executor.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "executors/cuda/cuda_test_util.h"
#include "executors/executor_driver_test_util.h"
#include "executors/models/family_reference.h"
#include "formats/twins/gguf_test_util.h"
#include "formats/twins/hf_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

using ::testing::HasSubstr;

constexpr int kGenerated = 24;

// Runs one sequence by itself, with its prompt in chunks.
SequenceOutput Alone(Executor& executor, int chunk = 2000) {
  ExecutorDriver driver(executor);
  const SlotId slot = driver.Add(Prompt(300, 0), kSampling);
  driver.Generate({slot}, kGenerated, chunk);
  return driver.output(slot);
}

// Runs the same sequence among 32 others, and then from the cache.
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
    for (const TinyLlama& model : {SmallModel(TensorType::kQ4_1, TensorType::kQ8_0),
                                   SmallModel(TensorType::kF32, TensorType::kF16)}) {
      SCOPED_TRACE(std::string(Traits(model.linear_type).name) + (fp8 ? ", fp8" : ""));
      const std::string path = ModelPath(model);
      CudaSpec device = Device();
      device.quantize_fp8 = fp8;
      device.kv_cache_fp8 = fp8;
      device.quantize_head = fp8;
      const std::unique_ptr<Executor> executor = Load(path, device);
      const SequenceOutput alone = Alone(*executor);
      ASSERT_EQ(alone.tokens.size(), 300 + kGenerated);
      for (const int chunk : {32, 1, 7, 129}) {
        const std::unique_ptr<Executor> other = Load(path, device);
        EXPECT_EQ(Alone(*other, chunk), alone) << "chunks of " << chunk;
      }
      const std::unique_ptr<Executor> company = Load(path, device);
      ExpectTheSameInCompany(*company, alone);
      CudaSpec changed = device;
      changed.enforce_eager = true;
      EXPECT_EQ(Alone(*Load(path, changed)), alone) << "without graphs";
      changed = device;
      changed.block_size = 64;
      EXPECT_EQ(Alone(*Load(path, changed)), alone) << "blocks of 64";
    }
  }
}

TEST(CudaExecutorTest, PenaltiesCountThePromptAndWhatWasGenerated) {
  const std::unique_ptr<Executor> executor =
      Load(ModelPath(SmallModel(TensorType::kF32, TensorType::kF16)), Device());
  ExpectPenaltiesCountAll(*executor, kGenerated);
}

// A slot's biases follow its banned tokens, and the next sequence in the slot has its own.
TEST(CudaExecutorTest, BiasesAndBansAreTheSlotsOwn) {
  const std::unique_ptr<Executor> executor =
      Load(ModelPath(SmallModel(TensorType::kF32, TensorType::kF16)), Device());
  ExecutorDriver driver(*executor);
  const auto generate = [&](const SamplingParams& sampling) {
    const SlotId slot = driver.Add(Prompt(40, 0), sampling);
    driver.Generate({slot}, 4, 1000);
    std::vector<Token> tokens(driver.tokens(slot).end() - 4, driver.tokens(slot).end());
    driver.Remove(slot);
    return tokens;
  };
  const std::vector<Token> plain = generate({.temperature = 0});
  // The model is tied and tends to repeat itself, by 45; token 14 then has 22.
  const SamplingParams biased{.temperature = 0,
                              .logit_bias = {{14, 100}, {9, 50}},
                              .banned_tokens = {14},
                              .banned_before = 42};
  EXPECT_EQ(generate(biased), (std::vector<Token>{9, 9, 14, 14}));
  EXPECT_EQ(generate({.temperature = 0}), plain);
  EXPECT_EQ(generate({.temperature = 1, .typical_p = 0.9f, .seed = 3}),
            generate({.temperature = 1, .typical_p = 0.9f, .seed = 3}));
}

// Returns how many kernels whose names contain `part` run when this executor computes `Alone`.
int Launches(Executor& executor, const std::string& part) {
  auto trace = StartTrace(CudaSpec{});
  CheckOk(trace.status());
  Alone(executor);
  const auto operations = (*trace)->Stop();
  CheckOk(operations.status());
  return static_cast<int>(std::count_if(
      operations->begin(), operations->end(),
      [&](const DeviceOperation& o) { return o.name.find(part) != std::string::npos; }));
}

TEST(CudaExecutorTest, EveryChoiceOfKernelsGivesTheSameBits) {
  TinyLlama model = SmallModel(TensorType::kF32, TensorType::kF16);
  model.hidden = 256;
  model.heads = 2;  // of 128, which sm_90a has kernels for
  model.ffn = 384;  // no padding, which a linear with a fused gate does not support
  const std::string stored = ::testing::TempDir() + "/cuda_test_fp8_" + std::to_string(getpid());
  WriteHfFolder(model, stored,
                {.quantization = QuantScheme{.activations = ActivationScaling::kStatic}});
  const struct {
    std::string path;
    bool quantize;
    bool rows_scaled;  // an input has a scale per row, known only with the whole row
  } cases[] = {
      {ModelPath(model), false, false}, {ModelPath(model), true, true}, {stored, false, false}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.path + (c.quantize ? " quantized" : ""));
    CudaSpec device = Device();
    device.quantize_fp8 = c.quantize;
    const SequenceOutput all = Alone(*Load(c.path, device));
    const auto launches = [&](const std::string& part) {
      return Launches(*Load(c.path, device), part);
    };
    EXPECT_GT(launches("PrefillSm90Kernel"), 0);
    EXPECT_GT(launches("SkinnyKernel"), 0);
    EXPECT_EQ(launches("GatedActivationKernel") > 0, c.rows_scaled);  // of clusters
    // Without scales per row, only the prompt's linears leave the gate to a separate kernel.
    if (!c.rows_scaled) {
      EXPECT_EQ(launches("Gated"), model.layers);
      EXPECT_EQ(launches("Quantize"), 0);
    }
    device.cublaslt_linears = true;
    EXPECT_EQ(Alone(*Load(c.path, device)), all) << "linears on cuBLASLt";
    EXPECT_EQ(launches("SkinnyKernel"), 0);
    EXPECT_GT(launches("PrefillSm90Kernel"), 0);
    EXPECT_GT(launches("Gated"), model.layers);
    device.cublaslt_linears = false;
    device.portable_kernels = true;
    EXPECT_EQ(Alone(*Load(c.path, device)), all) << "portable kernels";
    for (const char* kernel : {"PrefillSm90Kernel", "SkinnyKernel", "GatedActivationKernel"}) {
      EXPECT_EQ(launches(kernel), 0);
    }
  }
}

TEST(CudaExecutorTest, ACopiedBlockIsTheSame) {
  for (const bool fp8 : {false, true}) {
    CudaSpec device = Device();
    device.kv_cache_fp8 = fp8;
    const std::unique_ptr<Executor> executor =
        Load(ModelPath(SmallModel(TensorType::kF32, TensorType::kF32)), device);
    const std::vector<TokenResult> tokens = ForkByCopy(*executor, Prompt(10, 2), kSampling);
    ASSERT_EQ(tokens.size(), 2);
    EXPECT_EQ(tokens[0].token, tokens[1].token);
    EXPECT_EQ(*tokens[0].logprob, *tokens[1].logprob);
  }
}

// Returns the root mean square of the differences to the reference, divided by the reference's own
// deviation. BF16's 8 bits are 0.2 % of each rounded number.
double RelativeDifference(const std::string& path) {
  const std::vector<Token> prompt = Prompt(300, 3);
  const std::vector<float> ours =
      PromptLogprobs(*Load(path, Device()), prompt, static_cast<int>(prompt.size()));
  const std::vector<double> reference = ReferenceLogprobs(path, prompt);
  double squares = 0, sum = 0, reference_squares = 0;
  const double count = static_cast<double>(ours.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    squares += (ours[i] - reference[i]) * (ours[i] - reference[i]) / count;
    sum += reference[i] / count;
    reference_squares += reference[i] * reference[i] / count;
  }
  const double relative = std::sqrt(squares / (reference_squares - sum * sum));
  std::printf("relative difference %.4f, of %.3f\n", relative,
              std::sqrt(reference_squares - sum * sum));
  return relative;
}

TEST(CudaExecutorTest, AgreesWithDoublePrecision) {
  for (const bool factors : {false, true}) {
    TinyLlama model = SmallModel(TensorType::kF32, TensorType::kF32);
    model.rope_factors = factors;
    model.tied = factors;
    EXPECT_LT(RelativeDifference(ModelPath(model)), 0.02);
  }
}

TEST(CudaExecutorTest, QuantizedFilesOfEveryKindAgreeWithDoublePrecision) {
  using enum TensorType;
  for (const TensorType type :
       {kQ4_0,  kQ4_1,  kQ5_0,  kQ5_1, kQ8_0,   kQ2K,  kQ3K,   kQ4K,    kQ5K,  kQ6K,
        kIq4Nl, kMxfp4, kIq4Xs, kIq3S, kIq3Xxs, kIq2S, kIq2Xs, kIq2Xxs, kIq1S, kIq1M}) {
    TinyLlama model = SmallModel(type, type);
    model.hidden = 256;
    model.heads = 4;
    model.kv_heads = 2;
    model.ffn = 512;
    EXPECT_LT(RelativeDifference(ModelPath(model)), 0.02) << Traits(type).name;
  }
}

TEST(CudaExecutorTest, KnowsTheCapitalOfFrance) {
  // "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
  const std::vector<Token> question = {1,    4093, 198, 1780, 314, 260, 3575, 282,
                                       4649, 47,   2,   198,  1,   520, 9531, 198};
  for (const bool fp8 : {false, true}) {
    CudaSpec device = Device();
    device.kv_cache_memory = 512 << 20;
    device.quantize_fp8 = fp8;
    device.quantize_head = fp8;
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
      Load(ModelPath(SmallModel(TensorType::kF32, TensorType::kF32)), Device());
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
      Load(ModelPath(SmallModel(TensorType::kF32, TensorType::kF32)), Device());
  std::vector<Token> banned;
  for (Token token = 0; token < 200; ++token) banned.push_back(token);
  ExecutorDriver driver(*executor);
  const SlotId slot = driver.Add(
      Prompt(20, 1),
      {.temperature = 1, .seed = 9, .banned_tokens = banned, .banned_before = 20 + kGenerated});
  driver.Generate({slot}, kGenerated, 512);
  for (size_t i = 20; i < driver.tokens(slot).size(); ++i) EXPECT_GE(driver.tokens(slot)[i], 200);
}

TEST(CudaExecutorTest, SaysWhatItCannotDo) {
  const std::string path = ModelPath(SmallModel(TensorType::kF32, TensorType::kF32));
  const auto error = [&](const CudaSpec& device) {
    return std::string(LoadExecutor({path}, device).status().message());
  };
  CudaSpec device = Device();
  device.block_size = 48;
  EXPECT_THAT(error(device), HasSubstr("block_size is 48; allowed on the GPU: 16, 32, 64, 128"));
  device = Device();
  device.kv_cache_memory = 100;
  EXPECT_THAT(error(device), HasSubstr("kv_cache_memory is 100 bytes"));
  device = Device();
  device.kv_cache_memory = int64_t{1} << 50;
  EXPECT_THAT(error(device), HasSubstr("KV cache (kv_cache_memory) 1073741824; "));
  device = Device();
  device.max_model_len = 5000;
  EXPECT_THAT(error(device), HasSubstr("max_model_len is 5000, allowed: up to the model's 1024"));
  TinyLlama narrow;  // heads of 16
  EXPECT_THAT(LoadExecutor({ModelPath(narrow)}, Device()).status().message(),
              HasSubstr("head size is 16; allowed on the GPU: 64, 96, 128, 256"));
}

}  // namespace
}  // namespace millrace::cuda
