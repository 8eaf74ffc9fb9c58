// The whole LibTorch executor on small random models, against double precision and against the CPU
// executor.
#include "executors/torch/torch_executor.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "executors/executor_driver_test_util.h"
#include "executors/factory.h"
#include "executors/models/encoder_reference.h"
#include "executors/models/family_reference.h"
#include "executors/tiny_model_test_util.h"
#include "executors/windows_test_util.h"
#include "formats/twins/family_twins.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::aten {
namespace {

using ::testing::HasSubstr;

constexpr int kTokens = 60;

// Sums of tens in float32, in another order; logits spread over some tens.
constexpr double kTolerance = 1e-4;

// Shares of the twins' largest logit, or of their embeddings' largest value.
constexpr double kTwinTolerance = 1e-5;
constexpr double kBfloat16Tolerance = 0.15;  // whatever the processor multiplies bfloat16 with
constexpr double kBfloat16MixtureTolerance = 0.25;  // where rounding chooses other experts
constexpr double kBfloat16EmbeddingTolerance = 0.01;
// That of twins whose embedding is one token's, which transformers in bfloat16 misses by as much.
constexpr double kBfloat16TokenTolerance = 0.03;

class TorchExecutorTest : public TinyModelTest {};

// One thread: tests run beside each other.
constexpr CommonSpec kCommon{
    .threads = 1, .kv_cache_memory = 8 << 20, .max_num_seqs = 40, .max_num_batched_tokens = 512};

TorchSpec Device() { return {kCommon}; }

std::unique_ptr<Executor> Load(const std::string& path, const DeviceSpec& device = Device()) {
  auto loaded = LoadExecutor({path}, device);
  CheckOk(loaded.status());
  return *std::move(loaded);
}

// The log-probabilities of the prompt's tokens but the first, computed `chunk` tokens at a time.
std::vector<float> Logprobs(const std::string& path, int chunk = kTokens,
                            const DeviceSpec& device = Device()) {
  return PromptLogprobs(*Load(path, device), Prompt(kTokens), chunk);
}

std::vector<double> Reference(const std::string& path) {
  return ReferenceLogprobs(path, Prompt(kTokens));
}

// Weights of four bits are expanded to what they stand for.
TEST_F(TorchExecutorTest, PackedFoldersAnswerAsTheirDequantizedTwins) {
  const QuantScheme schemes[] = {
      {.group = {1, 32}, .packing = Packing::kGptq, .zeros_less_one = true, .reordered = true},
      {.group = {1, 128}, .packing = Packing::kAwq, .symmetric = false},
      {.group = kPerChannel, .packing = Packing::kPackQuantized, .symmetric = false}};
  for (const QuantScheme& scheme : schemes) {
    TinyLlama model = Tiny("llama");
    model.hidden = model.ffn = 128;
    const std::vector<double> reference =
        Reference(Folder(model, {.quantization = scheme, .dequantized = true}));
    EXPECT_LT(WorstError(Logprobs(Folder(model, {.quantization = scheme})), reference), kTolerance)
        << PackedConfig(scheme);
  }
}

TEST_F(TorchExecutorTest, PackedRoutersAnswerAsTheirDequantizedTwins) {
  FamilyTwin twin = FamilyTwinOf("qwen2moe");
  twin.config["vocab_size"] = 320;
  WriteTwinFolder(twin, Path("floats"));
  PackFolder({.group = kPerChannel, .packing = Packing::kPackQuantized},
             {.routers = {".gate", ".shared_expert_gate"}}, Path("floats"), Path("packed"),
             Path("twin"));
  EXPECT_EQ(Logprobs(Path("packed")), Logprobs(Path("twin")));
  EXPECT_NE(Logprobs(Path("packed")), Logprobs(Path("floats")));
}

// q, k, v and the gate of Qwen3-Next are one tensor with the rows of each key head together, and
// are placed apart.
TEST_F(TorchExecutorTest, PackedRowsKeyHeadByKeyHeadAnswerAsTheirDequantizedTwins) {
  FamilyTwin twin = FamilyTwinOf("qwen3_next");
  twin.config["vocab_size"] = 320;
  WriteTwinFolder(twin, Path("floats"));
  for (const Packing packing : {Packing::kGptq, Packing::kAwq, Packing::kPackQuantized}) {
    PackFolder({.group = {1, 32}, .packing = packing, .symmetric = false},
               {.linears = {".in_proj_qkvz"}, .routers = {".in_proj_ba"}}, Path("floats"),
               Path("packed"), Path("twin"));
    EXPECT_EQ(Logprobs(Path("packed")), Logprobs(Path("twin")));
    EXPECT_NE(Logprobs(Path("packed")), Logprobs(Path("floats")));
  }
}

TEST_F(TorchExecutorTest, GgufFilesGiveTheReferencesLogprobs) {
  for (const char* architecture : {"llama", "qwen3"}) {
    for (const TensorType type :
         {TensorType::kF32, TensorType::kF16, TensorType::kQ8_0, TensorType::kQ4_1}) {
      SCOPED_TRACE(StrCat(architecture, " ", Traits(type).name));
      TinyLlama model = Tiny(architecture, type);
      model.rope_factors = type == TensorType::kF32;
      const std::string path = Gguf(model);
      const std::vector<double> reference = Reference(path);
      for (const int chunk : {kTokens, 7, 1}) {
        EXPECT_LT(WorstError(Logprobs(path, chunk), reference), kTolerance)
            << "chunks of " << chunk;
      }
    }
  }
}

TEST_F(TorchExecutorTest, FoldersGiveTheReferencesLogprobs) {
  for (const char* architecture : {"llama", "qwen3"}) {
    for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBf16}) {
      SCOPED_TRACE(StrCat(architecture, " ", Traits(type).name));
      const std::string path = Folder(Tiny(architecture), {.files = 2, .type = type});
      EXPECT_LT(WorstError(Logprobs(path), Reference(path)), kTolerance);
    }
  }
}

LoadTwin TwinLoader(bool bfloat16) {
  return [bfloat16](const std::string& path, int max_model_len) {
    TorchSpec device = Device();
    device.kv_cache_memory = 64 << 20;  // no block is released
    device.max_num_seqs = 130;
    device.max_model_len = max_model_len;
    device.bfloat16 = bfloat16;
    return LoadExecutor({path}, device);
  };
}

TEST_F(TorchExecutorTest, FamiliesAreWhatTransformersMakesOfThem) {
  for (const bool bfloat16 : {false, true}) {
    SCOPED_TRACE(bfloat16 ? "bfloat16" : "float32");
    std::map<std::string, double> errors;
    const std::vector<TwinResult> results = RunFamilies(TwinLoader(bfloat16), Path("twins"));
    EXPECT_EQ(results.size(), ReadFamilyReference().twins.size());
    for (const TwinResult& result : results) {
      const double rounded = result.mixture ? kBfloat16MixtureTolerance : kBfloat16Tolerance;
      EXPECT_LT(result.error, bfloat16 ? rounded : kTwinTolerance) << result.name;
      // For docs/accuracy.md's tables: --gtest_output=xml.
      RecordProperty(StrCat(result.name, bfloat16 ? "_bfloat16" : "_float32"),
                     StrCat(result.error));
      errors[result.name] = result.error;
    }
    // A wrong computation shows: in bfloat16 it is further away than the twin itself.
    const MutantResults mutants = RunMutants(TwinLoader(bfloat16), Path("mutants"));
    EXPECT_GT(mutants.results.size(), 5 * results.size());
    for (const TwinResult& mutant : mutants.results) {
      if (bfloat16 && mutant.mixture) continue;  // float32 shows it
      EXPECT_GT(mutant.error, bfloat16 ? errors[mutant.name] : 10 * kTwinTolerance)
          << mutant.name << " " << mutant.change;
    }
  }
}

TEST_F(TorchExecutorTest, EncodersAreWhatTransformersMakesOfThem) {
  const EncoderReference reference = ReadEncoderReference();
  for (const FamilyTwin& twin : EncoderTwins()) {
    const bool token = twin.name == "distilbert" || twin.name == "modern_bert_silu";
    const double tolerance = token ? kBfloat16TokenTolerance : kBfloat16EmbeddingTolerance;
    const auto error = [&](const std::string& path, bool bfloat16) {
      TorchSpec device = Device();
      device.bfloat16 = bfloat16;
      const auto executor = Load(path, device);
      // The other text is of another length, and reads none of this one's.
      const Embeddings embeddings = Embed(*executor, {{9, 8, 7}, reference.prompt});
      EXPECT_LT(EmbeddingError(embeddings[0], Json(Embed(*executor, {{9, 8, 7}}, 2)[0])),
                bfloat16 ? tolerance : kTwinTolerance);
      return EmbeddingError(embeddings[1], reference.twins[twin.name]["embedding"]);
    };
    const std::string path = Path(twin.name);
    WriteTwinFolder(twin, path);
    std::map<bool, double> errors;
    for (const bool bfloat16 : {false, true}) {
      errors[bfloat16] = error(path, bfloat16);
      EXPECT_LT(errors[bfloat16], bfloat16 ? tolerance : kTwinTolerance) << twin.name;
      RecordProperty(StrCat(twin.name, bfloat16 ? "_bfloat16" : "_float32"),
                     StrCat(errors[bfloat16]));
    }
    if (twin.in_gguf) {
      WriteTwinGguf(twin, path + ".gguf");
      EXPECT_LT(error(path + ".gguf", false), kTwinTolerance) << twin.name;
    }
    for (const EncoderMutant& mutant : EncoderMutants(twin)) {
      SCOPED_TRACE(StrCat(twin.name, " ", mutant.change));
      WriteTwinFolder(mutant.twin, Path("mutant"), mutant.fault);
      EXPECT_GT(error(Path("mutant"), false), 10 * kTwinTolerance);
      EXPECT_GT(error(Path("mutant"), true), errors[true]);
    }
  }
}

TEST_F(TorchExecutorTest, IsCloseToTheCpu) {
  for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kQ8_0}) {
    const std::string path = Gguf(Tiny("qwen3", type));
    // The CPU's keys and values are float16, and its activations int8 where the weights are.
    EXPECT_LT(WorstError(Logprobs(path, kTokens, CpuSpec{kCommon}), Logprobs(path)),
              type == TensorType::kQ8_0 ? 0.5 : 0.02)
        << Traits(type).name;
  }
}

TEST_F(TorchExecutorTest, Bfloat16IsOtherNumbersButNear) {
  const std::string path = Gguf(Tiny("llama"));
  TorchSpec device = Device();
  device.bfloat16 = true;
  const double worst = WorstError(Logprobs(path, 7, device), Reference(path));
  EXPECT_LT(worst, 1);
  EXPECT_GT(worst, kTolerance);
}

TEST_F(TorchExecutorTest, ASequenceAmongOthersAndFromTheCache) {
  const std::string path = Gguf(Tiny("llama"));
  const SamplingParams sampling{.temperature = 0.9f, .top_p = 0.95f, .seed = 5, .top_logprobs = 2};
  constexpr int kGenerated = 8;
  const auto expect_alike = [](const SequenceOutput& a, const SequenceOutput& b) {
    EXPECT_EQ(a.tokens, b.tokens);
    ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
    for (size_t i = 0; i < a.logprobs.size(); ++i) {
      EXPECT_NEAR(a.logprobs[i], b.logprobs[i], kTolerance);
    }
  };
  const std::unique_ptr<Executor> alone_executor = Load(path);
  ExecutorDriver alone_driver(*alone_executor);
  const SlotId alone = alone_driver.Add(Prompt(75), sampling);
  alone_driver.Generate({alone}, kGenerated, 1000);

  const std::unique_ptr<Executor> executor = Load(path);
  ExecutorDriver driver(*executor);
  std::vector<SlotId> slots;
  for (int i = 1; i <= 8; ++i) slots.push_back(driver.Add(Prompt(9 * i, i), sampling));
  slots.insert(slots.begin() + 3, driver.Add(Prompt(75), sampling));
  driver.Generate(slots, kGenerated, 32);
  expect_alike(driver.output(slots[3]), alone_driver.output(alone));

  const SlotId cached =
      driver.Add(Prompt(75), sampling, absl::MakeConstSpan(driver.blocks(slots[3])).first(4));
  driver.Generate({cached}, kGenerated, 1000);
  expect_alike(driver.output(cached), alone_driver.output(alone));
}

TEST_F(TorchExecutorTest, ACopiedBlockIsTheSame) {
  const std::unique_ptr<Executor> executor = Load(Gguf(Tiny("llama")));
  const std::vector<TokenResult> tokens =
      ForkByCopy(*executor, Prompt(10, 2), {.seed = 1, .top_logprobs = 1});
  ASSERT_EQ(tokens.size(), 2);
  EXPECT_EQ(tokens[0].token, tokens[1].token);
  EXPECT_EQ(*tokens[0].logprob, *tokens[1].logprob);
}

// Steps of the same rows have the same numbers, whatever becomes of blocks behind windows.
TEST_F(TorchExecutorTest, BlocksBehindWindowsAreReleased) {
  TorchSpec device = Device();
  device.max_num_batched_tokens = 64;
  for (const auto& [name, window] : {std::pair("gpt_oss", 16), {"ministral", 40}, {"mistral", 9}}) {
    SCOPED_TRACE(name);
    const std::string path = WriteWindowTwin(FamilyTwinOf(name), window, Path(name));
    const std::unique_ptr<Executor> executor = Load(path, device);
    // All layers of a Mistral have the window, some of the others.
    EXPECT_EQ(executor->info().limits.state.num_groups(), name == std::string("mistral") ? 1 : 2);
    const auto kept = GenerateInWindows(*executor, /*release=*/false, 16);
    EXPECT_EQ(GenerateInWindows(*Load(path, device), /*release=*/true, 16), kept);
  }
  const std::string path = WriteWindowTwin(FamilyTwinOf("ministral"), 20, Path("ministral"));
  ExpectForkSeesCopies(ForkTwoGroups(*Load(path, device)));
}

TEST_F(TorchExecutorTest, InfoSaysWhatWasLoaded) {
  TinyLlama model = Tiny("llama", TensorType::kQ4_1);
  const std::unique_ptr<Executor> executor = Load(Gguf(model));
  const ModelInfo& info = executor->info();
  EXPECT_EQ(info.architecture, "llama");
  EXPECT_FALSE(info.batch_invariant);
  EXPECT_EQ(info.digest.size(), 32);
  EXPECT_EQ(info.limits.vocab_size, 320);
  EXPECT_EQ(info.kv_type, "float32");
  ASSERT_EQ(info.limits.state.num_groups(), 1);
  // Keys and values, layers, tokens, heads, elements, bytes.
  EXPECT_EQ(info.limits.state.Paged(0)->block_bytes, 2 * 2 * 16 * 2 * 16 * 4);
  EXPECT_EQ(info.limits.num_blocks[0], (8 << 20) / info.limits.state.Paged(0)->block_bytes);
  EXPECT_EQ(Load(Gguf(model))->info().digest, info.digest);
  TorchSpec device = Device();
  device.bfloat16 = true;
  const std::unique_ptr<Executor> half = Load(Gguf(model), device);
  EXPECT_NE(half->info().digest, info.digest);
  EXPECT_EQ(half->info().kv_type, "bfloat16");
  EXPECT_LT(half->info().weight_bytes, info.weight_bytes * 3 / 4);
  model.seed = 2;
  EXPECT_NE(Load(Gguf(model))->info().digest, info.digest);
}

TEST_F(TorchExecutorTest, Fp8FoldersGiveTheReferencesLogprobs) {
  for (const QuantGroup& group : {kPerTensor, kPerChannel, kFp8Blocks}) {
    TinyLlama model = Tiny("llama");
    model.hidden = 192;
    const std::string path = Folder(model, {.quantization = QuantScheme{.group = group}});
    const std::vector<double> reference = Reference(path);
    const std::vector<float> logprobs = PromptLogprobs(*Load(path), Prompt(kTokens), kTokens);
    for (size_t i = 0; i < reference.size(); ++i) {
      EXPECT_NEAR(logprobs[i], reference[i], kTolerance) << group.rows << "x" << group.columns;
    }
  }
}

TEST_F(TorchExecutorTest, RefusesByName) {
  const auto error = [](const std::string& path, const TorchSpec& device = Device()) {
    return std::string(LoadExecutor({path}, device).status().message());
  };
  TorchSpec device = Device();
  device.kv_cache_memory = 100;
  EXPECT_THAT(error(Gguf(Tiny("llama")), device),
              HasSubstr("kv_cache_memory is 100 bytes, allowed: at least one block's 8192"));
  device = Device();
  device.max_model_len = 257;
  EXPECT_THAT(error(Gguf(Tiny("llama")), device),
              HasSubstr("max_model_len is 257, allowed: up to the model's 256"));
  // An exception of LibTorch.
  device = Device();
  device.kv_cache_memory = int64_t{1} << 60;
  EXPECT_THAT(error(Gguf(Tiny("llama")), device), HasSubstr("LibTorch: "));
}

}  // namespace
}  // namespace millrace::aten
