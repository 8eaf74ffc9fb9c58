// The Llama family on the CPU, from GGUF files and from Hugging Face folders, against double
// precision.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "executors/cpu/cpu_executor.h"
#include "executors/executor_driver_test_util.h"
#include "executors/models/family_reference.h"
#include "executors/tiny_model_test_util.h"
#include "formats/json/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr int kTokens = 60;

class LlamaTest : public TinyModelTest {};

CpuSpec Device() {
  return {
      {.threads = 2, .kv_cache_memory = 1 << 20, .max_num_seqs = 4, .max_num_batched_tokens = 256}};
}

// The log-probabilities of the prompt's tokens but the first, on the CPU.
std::vector<float> Logprobs(const std::string& path,
                            const cpu::Kernels& kernels = cpu::BestKernels(), int weight_bits = 0,
                            bool float_kv = false) {
  CpuSpec device = Device();
  device.weight_bits = weight_bits;
  device.kv_cache_float32 = float_kv;
  auto executor = cpu::LoadCpuExecutor({path}, device, kernels);
  CheckOk(executor.status());
  return PromptLogprobs(**executor, Prompt(kTokens), kTokens);
}

std::vector<double> Reference(const std::string& path) {
  return ReferenceLogprobs(path, Prompt(kTokens));
}

// The root mean square error, over the standard deviation of the reference's.
double RelativeError(const std::vector<float>& logprobs, const std::vector<double>& reference) {
  const double mean = std::accumulate(reference.begin(), reference.end(), 0.0) /
                      static_cast<double>(reference.size());
  double off = 0, spread = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    off += std::pow(logprobs[i] - reference[i], 2);
    spread += std::pow(reference[i] - mean, 2);
  }
  return std::sqrt(off / spread);
}

// Keys and values are float16, and logits spread over some tens.
constexpr double kTolerance = 0.02;

void ExpectAsTheReference(const std::string& path) {
  const std::vector<double> reference = Reference(path);
  const cpu::KernelList list = cpu::SupportedKernels();
  for (int i = 0; i < list.count; ++i) {
    EXPECT_LT(WorstError(Logprobs(path, *list.tables[i]), reference), kTolerance)
        << list.tables[i]->name;
  }
}

TEST_F(LlamaTest, GgufFilesGiveTheReferencesLogprobs) {
  for (const char* architecture : {"llama", "qwen3"}) {
    SCOPED_TRACE(architecture);
    TinyLlama model = Tiny(architecture);
    ExpectAsTheReference(Gguf(model));
    model.rope_factors = true;
    ExpectAsTheReference(Gguf(model));
  }
}

// A bias that a GGUF file leaves out is 0, also where another of the same layer is there.
TEST_F(LlamaTest, BiasesThatAreMissingAreZero) {
  const TinyLlama model = Tiny("llama");
  const auto with = [&](const char* name, bool some, bool all) {
    GgufWriter writer = TinyLlamaWriter(model);
    const auto add = [&](const char* linear, int64_t rows, float value) {
      std::vector<float> values(rows, value);
      for (size_t i = 0; i < values.size(); i += 3) values[i] = -value;
      writer.Tensor(StrCat(linear, ".bias"), TensorType::kF32, {rows}, values);
    };
    const int64_t hidden = model.hidden;
    const int64_t keys = int64_t{model.kv_heads} * model.HeadSize();
    if (some) {
      add("blk.0.attn_v", keys, 0.5f);
      add("blk.1.attn_output", hidden, 0.25f);
      add("blk.1.ffn_up", model.ffn, 0.5f);
    }
    if (all) {
      add("blk.0.attn_q", hidden, 0);
      add("blk.0.attn_k", keys, 0);
      add("blk.0.attn_output", hidden, 0);
      add("blk.1.ffn_gate", model.ffn, 0);
      add("blk.1.ffn_down", hidden, 0);
    }
    writer.Write(Path(name));
    return Logprobs(Path(name));
  };
  const std::vector<float> some = with("some.gguf", true, false);
  EXPECT_EQ(some, with("all.gguf", true, true));
  EXPECT_NE(some, with("none.gguf", false, false));
}

TEST_F(LlamaTest, FoldersGiveTheReferencesLogprobsAndThoseOfTransformers) {
  // Made by tests/reference/make_tiny_reference.py, in float64 but for the rotation.
  std::ifstream file("tests/reference/tiny_reference.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const absl::StatusOr<Json> json = ParseJson(text, {});
  ASSERT_TRUE(json.ok()) << json.status();
  ASSERT_EQ((*json)["prompt"], Json(Prompt(kTokens)));
  const auto folders = ReferenceFolders();
  ASSERT_EQ((*json)["logprobs"].size(), folders.size());
  std::vector<std::vector<double>> all;
  for (const ReferenceFolder& folder : folders) {
    SCOPED_TRACE(folder.name);
    const std::string path = Folder(folder.model, folder.form);
    ExpectAsTheReference(path);
    const std::vector<double> reference = Reference(path);
    const std::vector<double> transformers = (*json)["logprobs"][folder.name];
    EXPECT_LT(WorstError(reference, transformers), 1e-4);
    all.push_back(reference);
  }
  // Stretching matters: else the test would see nothing of it.
  EXPECT_GT(WorstError(all[0], all[2]), 10 * kTolerance);
  EXPECT_GT(WorstError(all[4], all[5]), 10 * kTolerance);
}

TEST_F(LlamaTest, FoldersOfBf16GiveTheReferencesLogprobs) {
  const std::string path = Folder(Tiny("qwen3"), {.type = TensorType::kBf16});
  const std::vector<double> reference = Reference(path);
  const cpu::KernelList list = cpu::SupportedKernels();
  for (int i = 0; i < list.count; ++i) {
    const cpu::Kernels& kernels = *list.tables[i];
    // Where the machine multiplies BF16, activations are rounded to it.
    const double tolerance = kernels.bf16_input == cpu::Form::kBf16 ? 0.05 : kTolerance;
    EXPECT_LT(WorstError(Logprobs(path, kernels), reference), tolerance) << kernels.name;
  }
}

// FP8 weights are kept as BF16, and the inputs that a GPU would round to FP8 are not rounded. The
// reference multiplies codes by their scales in double precision.
TEST_F(LlamaTest, Fp8FoldersGiveTheReferencesLogprobs) {
  for (const QuantGroup& group : {kPerTensor, kPerChannel, kFp8Blocks}) {
    for (const bool compressed_tensors : {true, false}) {
      const bool is_static = group == kPerTensor && compressed_tensors;
      if (group == kPerChannel && !compressed_tensors) continue;  // the dialect has none
      TinyLlama model = Tiny("llama");
      model.hidden = 192;  // a block and a half
      model.ffn = 320;
      model.heads = 6;
      model.kv_heads = 2;
      const std::string path = Folder(
          model,
          {.quantization = QuantScheme{.group = group,
                                       .activations = is_static ? ActivationScaling::kStatic
                                                                : ActivationScaling::kDynamic},
           .compressed_tensors = compressed_tensors});
      const std::vector<double> reference = Reference(path);
      const cpu::KernelList list = cpu::SupportedKernels();
      for (int i = 0; i < list.count; ++i) {
        SCOPED_TRACE(StrCat(group.rows, "x", group.columns, ", ", list.tables[i]->name));
        const double error = RelativeError(Logprobs(path, *list.tables[i]), reference);
        const double error8 = RelativeError(Logprobs(path, *list.tables[i], 8), reference);
        EXPECT_LT(error, 0.012);
        EXPECT_GT(error8, 2 * error) << "BF16 is to lose less than int8";
        EXPECT_LT(error8, 0.042);
      }
    }
  }
}

TEST_F(LlamaTest, RanksOfFp8WeightsAreOneModel) {
  TinyLlama model = Tiny("llama");
  model.hidden = model.ffn = 320;  // ranks cut through blocks
  model.heads = 10;
  model.kv_heads = 2;
  for (const QuantGroup& group : {kPerChannel, kFp8Blocks}) {
    const std::string path = Folder(model, {.quantization = QuantScheme{.group = group}});
    const std::vector<float> one = Logprobs(path, cpu::PlainKernels(), 0, true);
    const std::vector<double> whole(one.begin(), one.end());
    CpuSpec device = Device();
    device.kv_cache_float32 = true;
    device.tensor_parallel_size = 2;
    const auto divided = cpu::LoadCpuExecutor({path}, device, cpu::PlainKernels());
    CheckOk(divided.status());
    EXPECT_LT(RelativeError(PromptLogprobs(**divided, Prompt(kTokens), kTokens), whole), 1e-5)
        << group.rows << "x" << group.columns;
  }
}

// Two models whose codes are equal and whose scales are not must not share a prefix cache.
TEST_F(LlamaTest, ScalesOfFp8WeightsArePartOfTheDigest) {
  const auto digest = [](const std::string& path) {
    const auto executor = cpu::LoadCpuExecutor({path}, Device());
    CheckOk(executor.status());
    return (*executor)->info().digest;
  };
  const std::string path = Folder(Tiny("llama"), {.quantization = QuantScheme{}});
  const std::string before = digest(path);
  const std::string file = path + "/model.safetensors";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  uint64_t header_bytes;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const Json header = Json::parse(bytes.substr(8, header_bytes));
  const auto at = header["model.layers.0.mlp.up_proj.weight_scale"]["data_offsets"][0].get<int>();
  float scale;
  std::memcpy(&scale, &bytes[8 + header_bytes + at], sizeof(scale));
  scale *= 2;
  stream.clear();
  stream.seekp(static_cast<std::streamoff>(8 + header_bytes + at));
  stream.write(reinterpret_cast<const char*>(&scale), sizeof(scale));
  stream.close();
  EXPECT_NE(digest(path), before);
}

// Activations in 8 bits move logprobs by about so much, whatever the weights' type.
TEST_F(LlamaTest, QuantizedFilesOfEveryKindAreNearTheReference) {
  using enum TensorType;
  for (const TensorType type :
       {kQ4_0,  kQ4_1,  kQ5_0,  kQ5_1, kQ8_0,   kQ2K,  kQ3K,   kQ4K,    kQ5K,  kQ6K,
        kIq4Nl, kMxfp4, kIq4Xs, kIq3S, kIq3Xxs, kIq2S, kIq2Xs, kIq2Xxs, kIq1S, kIq1M}) {
    TinyLlama model = Tiny("llama");
    model.hidden = model.ffn = 256;
    model.linear_type = model.embedding_type = type;
    const std::string path = Gguf(model);
    const std::vector<double> reference = Reference(path);
    const cpu::KernelList list = cpu::SupportedKernels();
    for (int i = 0; i < list.count; ++i) {
      EXPECT_LT(WorstError(Logprobs(path, *list.tables[i]), reference), 1.0)
          << Traits(type).name << ", " << list.tables[i]->name;
    }
  }
}

TEST_F(LlamaTest, HeadsOfAnySizeGiveTheReferencesLogprobs) {
  for (const int head_size : {2, 20, 50, 100}) {
    for (const char* architecture : {"llama", "qwen3"}) {
      TinyLlama model = Tiny(architecture);
      model.head_size = head_size;
      model.heads = 6;
      model.kv_heads = 3;
      const std::string path = Gguf(model);
      const std::vector<double> reference = Reference(path);
      const cpu::KernelList list = cpu::SupportedKernels();
      for (int i = 0; i < list.count; ++i) {
        SCOPED_TRACE(StrCat(architecture, ", heads of ", head_size, ", ", list.tables[i]->name));
        EXPECT_LT(WorstError(Logprobs(path, *list.tables[i], 0, true), reference), 2e-4);
        EXPECT_LT(WorstError(Logprobs(path, *list.tables[i]), reference), kTolerance);
      }
    }
  }
}

TEST_F(LlamaTest, QuantizedWeightsAndHeadsOfAnySizeAreNearTheReference) {
  for (const int head_size : {20, 50, 100}) {
    TinyLlama model = Tiny("llama", TensorType::kQ8_0);
    model.head_size = head_size;
    model.heads = 16;
    model.kv_heads = 8;
    const std::string path = Gguf(model);
    const std::vector<double> reference = Reference(path);
    const cpu::KernelList list = cpu::SupportedKernels();
    for (int i = 0; i < list.count; ++i) {
      EXPECT_LT(RelativeError(Logprobs(path, *list.tables[i]), reference), 0.042)
          << head_size << ", " << list.tables[i]->name;
    }
  }
}

// v and up have other types than q, k and gate: their linears read x in two forms.
TEST_F(LlamaTest, QuantizedTensorsBesideFloatOnesAreNearTheReference) {
  using enum TensorType;
  constexpr std::pair<TensorType, TensorType> kTypes[] = {
      {kQ8_0, kF32}, {kQ8_0, kF16}, {kQ8_0, kBf16}, {kF16, kQ8_0}, {kBf16, kQ8_0},
      {kF32, kBf16}, {kQ4K, kF16},  {kBf16, kQ6K},  {kQ8_0, kQ5_1}};
  for (const auto& [type, mixed] : kTypes) {
    const bool large = Traits(type).block_elements > 32 || Traits(mixed).block_elements > 32;
    for (const int head_size : {32, 20}) {     // the rows of k are 64 or 60
      if (large && head_size == 20) continue;  // the output's columns are no whole blocks
      TinyLlama model = Tiny("llama", type);
      model.hidden = model.ffn = large ? 256 : 64;
      model.head_size = head_size;
      model.kv_heads = head_size == 32 ? 2 : 3;
      model.heads = head_size == 32 ? 8 : 24;
      model.mixed_type = mixed;
      const std::string path = Gguf(model);
      const std::vector<double> reference = Reference(path);
      const cpu::KernelList list = cpu::SupportedKernels();
      for (int i = 0; i < list.count; ++i) {
        EXPECT_LT(RelativeError(Logprobs(path, *list.tables[i]), reference), 0.042)
            << Traits(type).name << " and " << Traits(mixed).name << ", heads of " << head_size
            << ", " << list.tables[i]->name;
      }
    }
  }
}

// The shape of SmolLM2's heads, which few numbers divide, and types with blocks of 32 and 256.
// Ranks divide whole blocks, so that they differ by the order of sums, and where that moves an
// activation from one of its 8-bit steps to the next.
TEST_F(LlamaTest, RanksOfQuantizedWeightsAreOneModel) {
  using enum TensorType;
  for (const TensorType type : {kF32, kQ8_0, kQ4K}) {
    TinyLlama model = Tiny("llama", type);
    model.heads = 36;
    model.kv_heads = 12;
    model.head_size = 64;
    model.hidden = 256;
    model.ffn = 1280;
    model.vocab = 300;
    if (type != kF32) model.mixed_type = kQ8_0;
    const std::string path = Gguf(model);
    const std::vector<float> one = Logprobs(path, cpu::BestKernels(), 0, true);
    const std::vector<double> whole(one.begin(), one.end());
    CpuSpec device = Device();
    device.kv_cache_memory = 64 << 20;
    device.kv_cache_float32 = true;
    for (const int ranks : {2, 3, 8}) {
      device.tensor_parallel_size = ranks;
      const auto divided = cpu::LoadCpuExecutor({path}, device);
      CheckOk(divided.status());
      EXPECT_LT(RelativeError(PromptLogprobs(**divided, Prompt(kTokens), kTokens), whole),
                type == kF32 ? 1e-5 : 0.01)
          << Traits(type).name << " on " << ranks << " ranks";
    }
  }
}

// docs/accuracy.md has these errors.
TEST_F(LlamaTest, FloatWeightsAreQuantizedAtTheErrorThatIsSaid) {
  for (const char* architecture : {"llama", "qwen3"}) {
    for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBf16}) {
      const std::string folder = Folder(Tiny(architecture), {.type = type});
      const std::vector<double> reference = Reference(folder);
      const cpu::KernelList list = cpu::SupportedKernels();
      for (int i = 0; i < list.count; ++i) {
        SCOPED_TRACE(StrCat(architecture, ", ", Traits(type).name, ", ", list.tables[i]->name));
        const double error8 = RelativeError(Logprobs(folder, *list.tables[i], 8), reference);
        const double error4 = RelativeError(Logprobs(folder, *list.tables[i], 4), reference);
        EXPECT_LT(error8, 0.042);  // 0.028 at most
        EXPECT_GT(error8, 0.01) << "nothing was quantized";
        EXPECT_LT(error4, 0.25);  // 0.17 at most
        EXPECT_GT(error4, 0.1) << "not to 4 bits";
      }
    }
  }
}

TEST_F(LlamaTest, AFolderIsTheSameModelAsItsGgufFile) {
  // Llama's q and k lie in another order in each, and turn in another way.
  const TinyLlama llama = Tiny("llama");
  const std::vector<double> reference = Reference(Gguf(llama));
  const std::vector<double> from_folder = Reference(Folder(llama));
  for (size_t i = 0; i < reference.size(); ++i) EXPECT_NEAR(reference[i], from_folder[i], 1e-9);
  EXPECT_LT(WorstError(Logprobs(Folder(llama)), reference), kTolerance);

  // Qwen3's do not: bit for bit.
  const TinyLlama qwen3 = Tiny("qwen3");
  EXPECT_EQ(Logprobs(Folder(qwen3)), Logprobs(Gguf(qwen3)));
  EXPECT_EQ(Logprobs(Folder(qwen3, {.files = 2})), Logprobs(Gguf(qwen3)));
}

TEST_F(LlamaTest, TheCpuRefusesByName) {
  const auto error = [](const std::string& path) {
    return std::string(cpu::LoadCpuExecutor({path}, Device()).status().message());
  };
  TinyLlama quantized = Tiny("llama");
  quantized.linear_type = quantized.embedding_type = TensorType::kQ8_0;
  CpuSpec device = Device();
  device.weight_bits = 4;
  EXPECT_THAT(std::string(cpu::LoadCpuExecutor({Gguf(quantized)}, device).status().message()),
              HasSubstr("quantization is int4"));
  const std::string shapes = Folder(Tiny("llama"));
  std::filesystem::remove(shapes + "/model.safetensors");
  EXPECT_THAT(error(shapes), HasSubstr("has no .safetensors files"));
}

}  // namespace
}  // namespace millrace
