// quantization_config of a config.json.
#include "formats/huggingface/hf_quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "base/strings.h"
#include "formats/huggingface/hf_config.h"
#include "formats/json/json.h"
#include "formats/twins/packed_test_util.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A Llama of the size of Llama 3.1 8B.
Json Llama() {
  return Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "torch_dtype": "bfloat16",
    "vocab_size": 128256})");
}

absl::StatusOr<HfConfig> Read(const Json& json) { return ReadHfConfig(json.dump(), "config.json"); }

// The error after a change to the config; a change to null takes the field away.
std::string Error(Json json, const std::string& change) {
  json.merge_patch(Json::parse(change));
  const absl::StatusOr<HfConfig> config = Read(json);
  return config.ok() ? "no error" : std::string(config.status().message());
}

Json CompressedTensors(const std::string& weights, const std::string& inputs) {
  Json json = Llama();
  json["quantization_config"] = Json::parse(R"({
    "quant_method": "compressed-tensors", "format": "float-quantized", "global_compression_ratio": 1.5,
    "ignore": ["lm_head"], "kv_cache_scheme": null, "quantization_status": "compressed",
    "config_groups": {"group_0": {"targets": ["Linear"], "output_activations": null,
      "weights": {"num_bits": 8, "type": "float", "symmetric": true, "dynamic": false,
                  "actorder": null, "group_size": null, "observer": "minmax"},
      "input_activations": {"num_bits": 8, "type": "float", "symmetric": true}}}})");
  Json& group = json["quantization_config"]["config_groups"]["group_0"];
  group["weights"].merge_patch(Json::parse(weights));
  group["input_activations"].merge_patch(Json::parse(inputs));
  return json;
}

Json Fp8(const std::string& fields) {
  Json json = Llama();
  json["quantization_config"] = Json::parse(fields);
  json["quantization_config"]["quant_method"] = "fp8";
  return json;
}

TEST(HfQuantizationTest, ReadsEveryDialectOfFp8) {
  const auto scheme = [](const Json& json) {
    const absl::StatusOr<HfConfig> config = Read(json);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->model.quantization : std::nullopt;
  };
  const auto expect = [&](const Json& json, const QuantGroup& group, bool is_static) {
    const QuantScheme expected{
        .type = TensorType::kFp8E4m3,
        .group = group,
        .activations = is_static ? ActivationScaling::kStatic : ActivationScaling::kDynamic};
    EXPECT_EQ(scheme(json), expected) << json["quantization_config"];
  };
  expect(
      CompressedTensors(R"({"strategy": "channel"})", R"({"strategy": "token", "dynamic": true})"),
      kPerChannel, false);
  expect(
      CompressedTensors(R"({"strategy": "tensor"})", R"({"strategy": "tensor", "dynamic": false})"),
      kPerTensor, true);
  expect(CompressedTensors(R"({"strategy": "block", "block_structure": [128, 128]})",
                           R"({"strategy": "group", "dynamic": true, "group_size": 128})"),
         kFp8Blocks, false);
  expect(Fp8(R"({"activation_scheme": "static", "ignored_layers": ["lm_head"]})"), kPerTensor,
         true);
  expect(Fp8(R"({"activation_scheme": "dynamic"})"), kPerTensor, false);
  expect(Fp8(R"({"activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128],
                 "modules_to_not_convert": null})"),
         kFp8Blocks, false);
  Json fbgemm = Llama();
  fbgemm["quantization_config"] = {{"quant_method", "fbgemm_fp8"},
                                   {"activation_scale_ub", 1200.0},
                                   {"modules_to_not_convert", Json::array({"lm_head"})}};
  expect(fbgemm, kPerChannel, false);
  EXPECT_THAT(Read(fbgemm)->unquantized, ElementsAre("lm_head"));
  EXPECT_THAT(Read(Fp8(R"({"activation_scheme": "static",
                           "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.up_proj"]})"))
                  ->unquantized,
              ElementsAre("lm_head", "model.layers.0.mlp.up_proj"));
  Json optimizer = Llama();
  optimizer["quantization_config"] = Json::parse(R"({"quant_method": "modelopt",
      "quant_algo": "FP8", "ignore": ["lm_head"], "producer": {"name": "modelopt"},
      "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"},
      "config_groups": {"group_0": {"targets": ["Linear"]}}})");
  expect(optimizer, kPerTensor, true);
  EXPECT_THAT(Read(optimizer)->unquantized, ElementsAre("lm_head"));
}

TEST(HfQuantizationTest, RefusesOtherQuantizationsByName) {
  const auto error = [](const Json& json) { return Error(json, "{}"); };
  Json optimizer = Llama();
  optimizer["quantization_config"] = {{"quant_method", "modelopt"}};
  EXPECT_THAT(error(optimizer), HasSubstr("quantization_config.quant_algo: is missing"));
  optimizer["quantization_config"]["quant_algo"] = "NVFP4";
  EXPECT_THAT(error(optimizer), HasSubstr("quantization_config.quant_algo: \"NVFP4\" is not"));
  Json other = Llama();
  other["quantization_config"] = {{"quant_method", "hqq"}, {"bits", 4}};
  EXPECT_THAT(error(other),
              HasSubstr("quantization_config.quant_method: \"hqq\" is not supported "
                        "(supported: awq, compressed-tensors, fbgemm_fp8, fp8, gptq, modelopt)"));

  EXPECT_THAT(error(Fp8("{}")), HasSubstr("quantization_config.activation_scheme: is missing"));
  EXPECT_THAT(error(Fp8(R"({"activation_scheme": "none"})")),
              HasSubstr("activation_scheme: \"none\""));
  EXPECT_THAT(error(Fp8(R"({"activation_scheme": "static", "weight_block_size": [128, 128]})")),
              HasSubstr("must be dynamic"));
  EXPECT_THAT(error(Fp8(R"({"activation_scheme": "dynamic", "weight_block_size": [64, 64]})")),
              HasSubstr("weight_block_size: a list of 2 is not supported (supported: [128,128])"));
  EXPECT_THAT(error(Fp8(R"({"activation_scheme": "dynamic", "fmt": "e5m2"})")), HasSubstr("fmt"));
  EXPECT_THAT(error(Fp8(R"({"activation_scheme": "dynamic", "scale_fmt": "ue8m0"})")),
              HasSubstr("scale_fmt: \"ue8m0\" is not supported"));

  const std::string channel = R"({"strategy": "channel"})";
  const std::string token = R"({"strategy": "token", "dynamic": true})";
  EXPECT_THAT(error(CompressedTensors(R"({"strategy": "channel", "num_bits": 4})", token)),
              HasSubstr("config_groups.group_0.weights.num_bits: 4 is not supported"));
  EXPECT_THAT(error(CompressedTensors(R"({"strategy": "channel", "type": "int"})", token)),
              HasSubstr("weights.type: \"int\""));
  EXPECT_THAT(error(CompressedTensors(R"({"strategy": "group"})", token)),
              HasSubstr("weights.strategy: \"group\" is not supported"));
  EXPECT_THAT(
      error(CompressedTensors(channel, R"({"strategy": "tensor", "dynamic": true})")),
      HasSubstr("input_activations.strategy: \"tensor\" is not supported (supported: \"token\")"));
  EXPECT_THAT(error(CompressedTensors(channel, R"({"strategy": "token", "symmetric": false})")),
              HasSubstr("input_activations.symmetric"));
  const auto changed = [&](const std::string& change) {
    return Error(CompressedTensors(channel, token), "{\"quantization_config\":" + change + "}");
  };
  EXPECT_EQ(changed("{}"), "no error");
  EXPECT_THAT(changed(R"({"format": "pack-quantized"})"),
              HasSubstr("group_0.input_activations: an object"));
  EXPECT_THAT(changed(R"({"format": "int-quantized"})"), HasSubstr("format: \"int-quantized\""));
  EXPECT_THAT(changed(R"({"transform_config": {"R1": 1}})"), HasSubstr("transform_config"));
  EXPECT_EQ(changed(R"({"sparsity_config": {"format": "dense"}})"), "no error");
  EXPECT_THAT(changed(R"({"sparsity_config": {"format": "sparse-24-bitmask"}})"),
              HasSubstr("sparsity_config.format"));
  EXPECT_THAT(changed(R"({"config_groups": {"group_1": {}}})"), HasSubstr("2 groups"));
  EXPECT_THAT(changed(R"({"config_groups": {"group_0": {"targets": ["re:.*down_proj"]}}})"),
              HasSubstr("group_0.targets"));
  EXPECT_THAT(changed(R"({"config_groups": {"group_0": {"input_activations": null}}})"),
              HasSubstr("FP8 weights with unquantized inputs"));
  EXPECT_EQ(changed(R"({"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor",
                        "dynamic": false, "symmetric": true}})"),
            "no error");
  EXPECT_THAT(changed(R"({"kv_cache_scheme": {"num_bits": 4, "type": "float"}})"),
              HasSubstr("kv_cache_scheme.num_bits"));
}

// A config with weights of four bits, after a change to quantization_config.
Json Packed(const QuantScheme& scheme, const std::string& change = "{}") {
  Json json = Llama();
  json["quantization_config"] = PackedConfig(scheme);
  json["quantization_config"].merge_patch(Json::parse(change));
  return json;
}

TEST(HfQuantizationTest, ReadsEveryDialectOfFourBits) {
  for (const Packing packing : {Packing::kGptq, Packing::kAwq, Packing::kPackQuantized}) {
    for (const int group : {0, 32, 64, 128}) {
      for (const bool flag : {false, true}) {
        const bool gptq = packing == Packing::kGptq;
        const QuantScheme scheme{.group = {1, group},
                                 .packing = packing,
                                 .symmetric = flag && packing != Packing::kAwq,
                                 .zeros_less_one = gptq && flag,
                                 .reordered = packing != Packing::kAwq && flag};
        const auto config = Read(Packed(scheme));
        ASSERT_TRUE(config.ok()) << config.status();
        EXPECT_EQ(config->model.quantization, scheme) << PackedConfig(scheme);
      }
    }
  }
  // As AutoGPTQ writes it, and what changes nothing.
  const QuantScheme gptq{.group = {1, 128}, .packing = Packing::kGptq, .zeros_less_one = true};
  EXPECT_EQ(Read(Packed(gptq, R"({"checkpoint_format": null, "true_sequential": true,
                                  "damp_percent": 0.1, "static_groups": false,
                                  "model_file_base_name": "model", "meta": {"quantizer": ["x"]},
                                  "dynamic": {"-:.*gate$": {}}})"))
                ->model.quantization,
            gptq);
  const QuantScheme awq{.group = {1, 64}, .packing = Packing::kAwq, .symmetric = false};
  const auto read = Read(Packed(awq, R"({"modules_to_not_convert": ["visual"], "bits": null,
                                         "w_bit": 4, "group_size": null, "q_group_size": 64,
                                         "version": "GEMM"})"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->model.quantization, awq);
  EXPECT_THAT(read->unquantized, ElementsAre("visual"));
  const QuantScheme compressed{.group = {1, 128}, .packing = Packing::kPackQuantized};
  EXPECT_EQ(Read(Packed(compressed, R"({"config_groups": {"group_0": {"weights": {
                                        "actorder": "weight"}}}})"))
                ->model.quantization,
            compressed);
}

TEST(HfQuantizationTest, RefusesOtherPackedWeightsByName) {
  const auto gptq = [](const std::string& change) {
    return Error(Packed({.group = {1, 128}, .packing = Packing::kGptq}, change), "{}");
  };
  EXPECT_EQ(gptq("{}"), "no error");
  for (const char* bits : {"2", "3", "8"}) {
    EXPECT_THAT(
        gptq(StrCat(R"({"bits": )", bits, "}")),
        HasSubstr(StrCat("quantization_config.bits: ", bits, " is not supported (supported: 4)")));
  }
  EXPECT_THAT(gptq(R"({"bits": null})"), HasSubstr("quantization_config.bits: is missing"));
  EXPECT_THAT(gptq(R"({"group_size": 16})"), HasSubstr("group_size: 16 is not supported"));
  EXPECT_THAT(gptq(R"({"group_size": 0})"), HasSubstr("group_size: 0 is not supported"));
  EXPECT_THAT(gptq(R"({"lm_head": true})"), HasSubstr("lm_head: true is not supported"));
  EXPECT_THAT(gptq(R"({"checkpoint_format": "marlin"})"), HasSubstr("checkpoint_format"));
  EXPECT_THAT(gptq(R"({"is_marlin_format": true})"), HasSubstr("is_marlin_format"));
  EXPECT_THAT(gptq(R"({"pack_dtype": "int64"})"), HasSubstr("pack_dtype"));
  EXPECT_THAT(gptq(R"({"dynamic": {"+:.*down.*": {"bits": 8}}})"),
              HasSubstr("dynamic: \"+:.*down.*\" is not supported"));
  EXPECT_THAT(gptq(R"({"dynamic": {".*down.*": {"bits": 8}}})"), HasSubstr("dynamic"));
  EXPECT_THAT(gptq(R"({"sym": 1})"), HasSubstr("sym: is 1, must be true or false"));

  const auto awq = [](const std::string& change) {
    return Error(Packed({.group = {1, 128}, .packing = Packing::kAwq}, change), "{}");
  };
  EXPECT_EQ(awq("{}"), "no error");
  EXPECT_THAT(awq(R"({"version": "gemv"})"), HasSubstr("version: \"gemv\" is not supported"));
  EXPECT_THAT(awq(R"({"zero_point": false})"), HasSubstr("zero_point: false is not supported"));
  EXPECT_THAT(awq(R"({"bits": 8})"), HasSubstr("bits: 8"));

  const auto compressed = [](const std::string& change) {
    return Error(Packed({.group = {1, 128}, .packing = Packing::kPackQuantized},
                        StrCat(R"({"config_groups": {"group_0": )", change, "}}")),
                 "{}");
  };
  EXPECT_EQ(compressed("{}"), "no error");
  EXPECT_THAT(compressed(R"({"weights": {"num_bits": 8}})"),
              HasSubstr("config_groups.group_0.weights.num_bits: 8"));
  EXPECT_THAT(compressed(R"({"weights": {"type": "float"}})"), HasSubstr("weights.type"));
  EXPECT_THAT(compressed(R"({"weights": {"strategy": "tensor"}})"), HasSubstr("weights.strategy"));
  EXPECT_THAT(compressed(R"({"weights": {"group_size": -1}})"),
              HasSubstr("weights.group_size: -1"));
  EXPECT_THAT(compressed(R"({"weights": {"actorder": "other"}})"), HasSubstr("weights.actorder"));
  EXPECT_THAT(compressed(R"({"input_activations": {"num_bits": 8}})"),
              HasSubstr("group_0.input_activations"));
  EXPECT_THAT(compressed(R"({"format": "int-quantized"})"), HasSubstr("group_0.format"));
}

}  // namespace
}  // namespace millrace
