// No value of a field of config.json makes a model that cannot be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "formats/huggingface/hf_config.h"
#include "formats/json/json.h"
#include "formats/twins/family_twins.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

void ExpectPossible(const RopeConfig& rope, const Json& json) {
  EXPECT_TRUE(rope.theta >= 1 && rope.theta <= 1e12) << json;
  EXPECT_TRUE(rope.magnitude > 0 && rope.magnitude < 1e7) << json;
  EXPECT_GE(rope.trained, 0) << json;
  for (const std::vector<float>* factors : {&rope.factors, &rope.long_factors}) {
    for (const float factor : *factors) EXPECT_TRUE(factor > 0 && factor < 1e7) << json;
    EXPECT_TRUE(factors->empty() || factors->size() == static_cast<size_t>(rope.dimensions) / 2)
        << json;
  }
}

void ExpectPossible(const GatedDelta& delta, const Json& json) {
  for (const int count : {delta.key_heads, delta.value_heads, delta.key_size, delta.value_size}) {
    EXPECT_GE(count, 1) << json;
    EXPECT_LE(count, kMaxContext) << json;
  }
  EXPECT_EQ(delta.value_heads % delta.key_heads, 0) << json;
}

void ExpectPossible(const ShortConvolution& convolution, const Json& json) {
  EXPECT_TRUE(convolution.channels >= 1 && convolution.channels <= kMaxContext) << json;
  EXPECT_TRUE(convolution.width >= 2 && convolution.width <= kMaxConvolutionWidth) << json;
}

void ExpectPossible(const Mamba2& mixer, const Json& json) {
  for (const int count : {mixer.heads, mixer.head_size, mixer.groups, mixer.state_size}) {
    EXPECT_GE(count, 1) << json;
    EXPECT_LE(count, kMaxContext) << json;
  }
  EXPECT_EQ(mixer.heads % mixer.groups, 0) << json;
  EXPECT_TRUE(mixer.width >= 2 && mixer.width <= kMaxConvolutionWidth) << json;
  EXPECT_TRUE(mixer.least_step >= 0 && mixer.least_step <= mixer.largest_step) << json;
}

void ExpectPossible(const LayerConfig& layer, bool encoder, const Json& json) {
  EXPECT_TRUE(layer.has_mixer() || layer.has_feed_forward()) << json;
  EXPECT_TRUE(!layer.has_feed_forward() ||
              (layer.ffn_size() >= 1 && layer.ffn_size() <= kMaxContext))
      << json;
  if (!layer.has_mixer()) return;
  if (const auto* const delta = std::get_if<GatedDelta>(&layer.attention)) {
    return ExpectPossible(*delta, json);
  }
  if (const auto* const convolution = std::get_if<ShortConvolution>(&layer.attention)) {
    return ExpectPossible(*convolution, json);
  }
  if (const auto* const mixer = std::get_if<Mamba2>(&layer.attention)) {
    return ExpectPossible(*mixer, json);
  }
  const SoftmaxAttention& attention = layer.softmax();
  for (const int count : {attention.heads, attention.kv_heads, attention.head_size}) {
    EXPECT_GE(count, 1) << json;
    EXPECT_LE(count, kMaxContext) << json;
  }
  EXPECT_EQ(attention.heads % attention.kv_heads, 0) << json;
  EXPECT_TRUE(encoder || attention.head_size % 2 == 0) << json;
  EXPECT_TRUE(std::isfinite(attention.scale) && attention.scale > 0) << json;
  EXPECT_TRUE(attention.window >= 0 && attention.window <= kMaxContext) << json;
  if (!attention.rope.has_value()) return;
  EXPECT_EQ(attention.head_size % 2, 0) << json;
  EXPECT_LE(attention.rope->dimensions, attention.head_size) << json;
  EXPECT_EQ(attention.rope->dimensions % 2, 0) << json;
  ExpectPossible(*attention.rope, json);
}

// A model can be made of it.
void ExpectPossible(const ModelConfig& model, const Json& json) {
  for (const int count :
       {model.num_layers(), model.hidden_size, model.vocab_size, model.context_length}) {
    EXPECT_GE(count, 1) << json;
    EXPECT_LE(count, kMaxContext) << json;
  }
  EXPECT_GT(model.norm_epsilon, 0) << json;
  for (const double factor : {model.embedding_factor, model.residual_factor, model.logit_factor}) {
    EXPECT_TRUE(std::isfinite(factor) && factor > 0) << json;
  }
  for (const LayerConfig& layer : model.layers) {
    ExpectPossible(layer, model.encoder.has_value(), json);
  }
}

// Whatever stands in a field, a config that is read is one that a model can be made of.
TEST(HfHostileConfigTest, HostileValuesNeverMakeAHostileConfig) {
  const Json values = Json::parse(R"([null, true, -1, 0, 1, 2, 3, 1e308, -0.0, 9223372036854775807,
      18446744073709551615, 4194304, "", "x", [], [1], ["x"], {}, {"a": 1}, [[[]]]])");
  int read = 0;
  const auto check = [&](const Json& json) {
    const absl::StatusOr<HfConfig> config = ReadHfConfig(json.dump(), "config.json");
    if (!config.ok()) {
      EXPECT_THAT(std::string(config.status().message()), HasSubstr("config.json: "));
      return;
    }
    ++read;
    ExpectPossible(config->model, json);
  };
  // Every field of every object and every item of every list, one at a time.
  const std::function<void(const Json&, Json&)> visit = [&](const Json& root, Json& parent) {
    for (auto& [name, field] : parent.items()) {
      const Json before = field;
      for (const Json& value : values) {
        field = value;
        check(root);
      }
      field = before;
      if (field.is_structured()) visit(root, field);
    }
  };
  std::vector<FamilyTwin> twins = FamilyTwins();
  for (const FamilyTwin& twin : EncoderTwins()) twins.push_back(twin);
  for (
      const char* quantization :
      {R"({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})",
       R"({"quant_method": "compressed-tensors", "format": "float-quantized",
            "ignore": ["lm_head"], "kv_cache_scheme": null, "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "output_activations": null,
              "weights": {"num_bits": 8, "type": "float", "symmetric": true, "dynamic": false,
                          "strategy": "channel"},
              "input_activations": {"num_bits": 8, "type": "float", "symmetric": true,
                                    "strategy": "token", "dynamic": true}}}})"}) {
    twins.push_back({.name = "quantized", .config = FamilyTwinOf("llama").config, .gguf_keys = {}});
    twins.back().config["quantization_config"] = Json::parse(quantization);
  }
  for (FamilyTwin& twin : twins) {
    SCOPED_TRACE(twin.name);
    const int before = read;
    check(twin.config);
    EXPECT_EQ(read, before + 1);
    visit(twin.config, twin.config);
    EXPECT_GT(read, before + 20);  // many fields change nothing
  }
}

}  // namespace
}  // namespace millrace
