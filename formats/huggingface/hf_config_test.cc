#include "formats/huggingface/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/strings.h"
#include "formats/json/json.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Llama 3.1 8B's own config.json, but for what a reader has no use of.
Json Llama() {
  return Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072,
    "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0", "use_cache": true, "vocab_size": 128256})");
}

// Qwen3 8B's.
Json Qwen3() {
  return Json::parse(R"({
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288,
    "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
    "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_sliding_window": false,
    "vocab_size": 151936})");
}

absl::StatusOr<HfConfig> Read(const Json& json) { return ReadHfConfig(json.dump(), "config.json"); }

RopeConfig Rope(const Json& json) { return Read(json)->model.layers[0].softmax().rope.value(); }

TEST(HfConfigTest, TokensThatEndAnAnswer) {
  EXPECT_THAT(Read(Llama())->model.end_tokens, ElementsAre(128001));
  EXPECT_THAT(Read(Qwen3())->model.end_tokens, IsEmpty());
  const auto read = [](const char* json) { return ReadEndTokens(json, "generation_config.json"); };
  EXPECT_THAT(*read(R"({"eos_token_id": [128001, 128008, 128009]})"),
              ElementsAre(128001, 128008, 128009));
  EXPECT_THAT(*read(R"({"eos_token_id": 2})"), ElementsAre(2));
  EXPECT_THAT(*read(R"({"eos_token_id": null})"), IsEmpty());
  EXPECT_EQ(read(R"({"eos_token_id": [1, "2"]})").status().message(),
            "generation_config.json: eos_token_id: is \"2\", must be an integer from 0 to 4194304");
  EXPECT_EQ(
      read(R"({"eos_token_id": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]})").status().message(),
      "generation_config.json: eos_token_id: has 17 tokens, allowed: up to 16");
}

// The error after a change to the config; a change to null takes the field away.
std::string Error(Json json, const std::string& change) {
  json.merge_patch(Json::parse(change));
  const absl::StatusOr<HfConfig> config = Read(json);
  return config.ok() ? "no error" : std::string(config.status().message());
}

TEST(HfConfigTest, ReadsLlama) {
  const absl::StatusOr<HfConfig> config = Read(Llama());
  ASSERT_TRUE(config.ok()) << config.status();
  const ModelConfig& model = config->model;
  EXPECT_EQ(model.architecture, "llama");
  ASSERT_EQ(model.num_layers(), 32);
  EXPECT_EQ(model.hidden_size, 4096);
  EXPECT_EQ(model.layers[0].ffn_size(), 14336);
  const SoftmaxAttention& attention = model.layers[0].softmax();
  EXPECT_EQ(attention.heads, 32);
  EXPECT_EQ(attention.kv_heads, 8);
  EXPECT_EQ(attention.head_size, 128);
  ASSERT_TRUE(attention.rope.has_value());
  EXPECT_EQ(attention.rope->dimensions, 128);
  EXPECT_EQ(attention.rope->theta, 500000);
  EXPECT_FALSE(attention.rope->interleaved);
  EXPECT_EQ(attention.qk_norm, QkNorm::kNone);
  EXPECT_EQ(model.norm_epsilon, 1e-5);
  EXPECT_EQ(model.vocab_size, 128256);
  EXPECT_EQ(model.context_length, 131072);
  EXPECT_FALSE(model.tied_embeddings);
  EXPECT_FALSE(model.quantization.has_value());
  EXPECT_EQ(config->types.all, TensorType::kBf16);
}

TEST(HfConfigTest, Llama3RopeFactorsAreThoseOfTheModel) {
  // rope_freqs.weight of Llama 3.1 8B, as llama.cpp's converter writes it: ones, a ramp, eights.
  const std::vector<float> factors = Rope(Llama()).factors;
  ASSERT_EQ(factors.size(), 64);
  for (int i = 0; i <= 28; ++i) EXPECT_EQ(factors[i], 1) << i;
  // 2 pi 500000^(29/64) is a wave of 2402 positions: 8192 / 2402 = 3.41 turns, (3.41 - 1) / 3 of it
  // kept.
  const double kept = (8192 / (2 * 3.14159265358979 * std::pow(500000.0, 29.0 / 64)) - 1) / 3;
  EXPECT_NEAR(factors[29], 1 / ((1 - kept) / 8 + kept), 1e-5);
  EXPECT_GT(factors[29], 1);
  for (int i = 30; i < 64; ++i) EXPECT_GE(factors[i], factors[i - 1]) << i;
  for (int i = 35; i < 64; ++i) EXPECT_EQ(factors[i], 8) << i;
}

TEST(HfConfigTest, ReadsQwen3) {
  const absl::StatusOr<HfConfig> config = Read(Qwen3());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model.architecture, "qwen3");
  const SoftmaxAttention& attention = config->model.layers[0].softmax();
  EXPECT_EQ(attention.qk_norm, QkNorm::kHead);
  EXPECT_EQ(attention.head_size, 128);
  ASSERT_TRUE(attention.rope.has_value());
  EXPECT_FALSE(attention.rope->interleaved);
  EXPECT_EQ(attention.rope->theta, 1000000);
  EXPECT_TRUE(attention.rope->factors.empty());
}

TEST(HfConfigTest, ReadsOtherSpellings) {
  // transformers 5.
  Json json = Llama();
  json["rope_parameters"] = json["rope_scaling"];
  json["rope_parameters"]["rope_theta"] = 500000.0;
  json.erase("rope_scaling");
  json.erase("rope_theta");
  json["dtype"] = "float16";
  json.erase("torch_dtype");
  const absl::StatusOr<HfConfig> config = Read(json);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(Rope(json), Rope(Llama()));
  EXPECT_EQ(config->types.all, TensorType::kF16);

  EXPECT_EQ(Error(Llama(), R"({"rope_scaling": {"type": "llama3", "rope_type": null}})"),
            "no error");
  EXPECT_EQ(Error(Llama(), R"({"architectures": ["MistralForCausalLM"]})"), "no error");
  EXPECT_EQ(Error(Qwen3(), R"({"rope_scaling": {"rope_type": "default"}})"), "no error");
  EXPECT_EQ(Error(Qwen3(), R"({"num_hidden_layers": 2,
                               "layer_types": ["full_attention", "full_attention"]})"),
            "no error");
  json = Llama();
  json.erase("num_key_value_heads");
  EXPECT_EQ(Read(json)->model.layers[0].softmax().kv_heads, 32);
}

// The values are those of transformers 5.23's configuration classes.
TEST(HfConfigTest, WhatIsLeftOutHasItsClassesDefault) {
  const auto read = [](const char* architecture, const std::vector<const char*>& missing) {
    Json json = Qwen3();
    json["architectures"] = {architecture};
    for (const char* field : missing) json.erase(field);
    const absl::StatusOr<HfConfig> config = Read(json);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->model : ModelConfig{.layers = {{}}};
  };
  struct Default {
    const char* architecture;
    int context;
    double epsilon;
  };
  for (const auto& [architecture, context, epsilon] :
       {Default{"LlamaForCausalLM", 2048, 1e-6}, Default{"MistralForCausalLM", 131072, 1e-6},
        Default{"Qwen2ForCausalLM", 32768, 1e-6}, Default{"Qwen3ForCausalLM", 32768, 1e-6},
        Default{"Phi3ForCausalLM", 4096, 1e-5}, Default{"Olmo2ForCausalLM", 2048, 1e-5},
        Default{"GraniteForCausalLM", 2048, 1e-6}, Default{"SmolLM3ForCausalLM", 32768, 1e-6}}) {
    SCOPED_TRACE(architecture);
    const ModelConfig model =
        read(architecture, {"max_position_embeddings", "rms_norm_eps", "hidden_act"});
    EXPECT_EQ(model.context_length, context);
    EXPECT_EQ(model.norm_epsilon, epsilon);
  }
  EXPECT_EQ(read("MistralForCausalLM", {"num_key_value_heads"}).layers[0].softmax().kv_heads, 8);
  EXPECT_EQ(read("SmolLM3ForCausalLM", {"num_key_value_heads"}).layers[0].softmax().kv_heads, 4);
  Json null = Qwen3();
  null["architectures"] = {"MistralForCausalLM"};
  null["num_key_value_heads"] = nullptr;
  EXPECT_EQ(Read(null)->model.layers[0].softmax().kv_heads, 32);  // as many as heads
}

TEST(HfConfigTest, WhatOtherToolsWriteIsRead) {
  const auto read = [](const char* change) {
    Json json = Llama();
    json.merge_patch(Json::parse(change));
    absl::StatusOr<HfConfig> config = Read(json);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? *std::move(config) : HfConfig{};
  };
  EXPECT_EQ(read(R"({"torch_dtype": "auto", "hidden_act": "swish"})").types.all, StoredTypes().all);
  EXPECT_EQ(read(R"({"torch_dtype": "torch.float16"})").types.all, TensorType::kF16);
  EXPECT_EQ(read(R"({"torch_dtype": "half"})").types.all, TensorType::kF16);
  EXPECT_THAT(read(R"({"eos_token_id": -1})").model.end_tokens, IsEmpty());
  EXPECT_THAT(read(R"({"eos_token_id": [-1, 7, 8]})").model.end_tokens, ElementsAre(7, 8));
  EXPECT_THAT(Error(Llama(), R"({"eos_token_id": -2})"), HasSubstr("eos_token_id: is -2"));
  // An empty object says nothing, and the other one counts.
  Json json = Llama();
  const RopeConfig rope = Rope(json);
  json["rope_parameters"] = json["rope_scaling"];
  json["rope_parameters"]["rope_theta"] = json["rope_theta"];
  json.erase("rope_theta");
  json["rope_scaling"] = Json::object();
  EXPECT_EQ(Rope(json), rope);
  const Json gptq = {{"quant_method", "gptq"}, {"bits", "4"}, {"group_size", "128"}, {"sym", true}};
  EXPECT_EQ(read(Json({{"quantization_config", gptq}}).dump().c_str()).model.quantization->group,
            (QuantGroup{1, 128}));
  EXPECT_THAT(Error(Llama(), R"({"quantization_config": {"quant_method": "gptq", "bits": "four",
                               "group_size": 128}})"),
              HasSubstr("bits: is \"four\", must be an integer"));
}

TEST(HfConfigTest, RefusesByNameWhatWouldChangeTheMaths) {
  const auto llama = [](const std::string& change) { return Error(Llama(), change); };
  EXPECT_THAT(llama(R"({"architectures": ["MambaForCausalLM"]})"),
              HasSubstr("config.json: architectures: \"MambaForCausalLM\" is not supported"));
  EXPECT_THAT(llama(R"({"architectures": null})"), HasSubstr("architectures: is missing"));
  EXPECT_THAT(llama(R"({"attention_bias": 1})"), HasSubstr("attention_bias: is 1, must be"));
  EXPECT_THAT(llama(R"({"mlp_bias": "no"})"), HasSubstr("mlp_bias: is \"no\", must be"));
  EXPECT_THAT(llama(R"({"hidden_act": "gelu"})"),
              HasSubstr("hidden_act: \"gelu\" is not supported (supported: \"silu\", \"swish\")"));
  EXPECT_THAT(llama(R"({"partial_rotary_factor": 0.5})"), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(llama(R"({"rope_scaling": {"rope_type": "su"}})"),
              HasSubstr("config.json: rope_scaling.rope_type: \"su\" is not supported"));
  EXPECT_THAT(llama(R"({"rope_scaling": {"rope_type": null}})"),
              HasSubstr("rope_scaling.type: is missing"));
  EXPECT_THAT(llama(R"({"rope_scaling": "llama3"})"), HasSubstr("must be an object"));
  EXPECT_THAT(llama(R"({"rope_scaling": {"high_freq_factor": 1.0}})"),
              HasSubstr("high_freq_factor: 1, must be above low_freq_factor 1"));
  EXPECT_THAT(llama(R"({"rope_scaling": {"factor": 0.0}})"), HasSubstr("rope_scaling.factor"));
  EXPECT_THAT(llama(R"({"torch_dtype": "float64"})"), HasSubstr("torch_dtype: \"float64\""));
  EXPECT_THAT(Error(Qwen3(), R"({"num_hidden_layers": 2,
                               "layer_types": ["full_attention", "sliding_attention"]})"),
              HasSubstr("layer_types: \"sliding_attention\" is not supported"));
}

TEST(HfConfigTest, ChecksLimits) {
  const auto llama = [](const std::string& change) { return Error(Llama(), change); };
  EXPECT_THAT(llama(R"({"num_hidden_layers": 0})"),
              HasSubstr("num_hidden_layers: is 0, must be an integer from 1 to 1024"));
  EXPECT_THAT(llama(R"({"hidden_size": 18446744073709551615})"), HasSubstr("hidden_size"));
  EXPECT_THAT(llama(R"({"hidden_size": 1e3})"), HasSubstr("must be an integer"));
  EXPECT_THAT(llama(R"({"vocab_size": "many"})"), HasSubstr("vocab_size: is \"many\""));
  EXPECT_THAT(llama(R"({"num_key_value_heads": 3})"), HasSubstr("3 does not divide the 32 heads"));
  EXPECT_THAT(llama(R"({"num_attention_heads": 24, "num_key_value_heads": 8})"),
              HasSubstr("24 does not divide the hidden size 4096"));
  EXPECT_THAT(llama(R"({"head_dim": 33})"), HasSubstr("33 must be even"));
  EXPECT_THAT(llama(R"({"rms_norm_eps": 0})"), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(llama(R"({"rope_theta": 0.5})"), HasSubstr("rope_theta"));
  EXPECT_THAT(llama(R"({"intermediate_size": null})"), HasSubstr("intermediate_size: is missing"));
  EXPECT_THAT(std::string(ReadHfConfig("[]", "config.json").status().message()),
              HasSubstr("config.json: is []"));
  EXPECT_THAT(std::string(ReadHfConfig("{", "config.json").status().message()),
              HasSubstr("config.json: "));
}

}  // namespace
}  // namespace millrace
