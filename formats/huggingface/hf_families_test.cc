// config.json's readers refuse by name what a family does not do, and have the defaults of its
// class.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "formats/huggingface/hf_config.h"
#include "formats/huggingface/hf_families_test_util.h"
#include "formats/json/json.h"
#include "formats/twins/family_twins.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

TEST(HfFamiliesTest, NoneAttendsToWhatFollows) {
  for (const FamilyTwin& twin : FamilyTwins()) {
    Json config = twin.config;
    config["is_causal"] = true;
    EXPECT_EQ(Error(config), "no error") << twin.name;
    // Whatever is not true, to transformers.
    for (const Json& value : {Json(false), Json(), Json(0)}) {
      config["is_causal"] = value;
      EXPECT_THAT(Error(config), HasSubstr("config.json: is_causal: ")) << twin.name;
    }
  }
}

TEST(HfFamiliesTest, EachRefusesWhatItsOwnCodeDoesNotDo) {
  ExpectRefused({
      {"mistral", R"({"hidden_act": "gelu"})", "hidden_act: \"gelu\" is not supported"},
      {"mistral_layers", R"({"layer_types": ["full_attention"]})",
       "layer_types: has 1 items, must have 3"},
      {"ministral", R"({"sliding_window": 0})", "sliding_window: is 0"},
      {"qwen2", R"({"layer_types": ["full_attention", "chunked_attention", "full_attention"]})",
       "layer_types: \"chunked_attention\" is not supported"},
      {"qwen2_window", R"({"max_window_layers": -1})", "max_window_layers: is -1"},
      {"gemma2", R"({"hidden_activation": "gelu"})", "hidden_activation: \"gelu\" is not"},
      {"gemma2", R"({"query_pre_attn_scalar": 0})", "query_pre_attn_scalar: is 0"},
      {"gemma2", R"({"use_bidirectional_attention": true})", "use_bidirectional_attention: true"},
      {"gemma3", R"({"attn_logit_softcapping": 50.0})", "attn_logit_softcapping: 50"},
      {"gemma3", R"({"sliding_window_pattern": 0})", "sliding_window_pattern: is 0"},
      {"gemma3", R"({"rope_local_base_freq": 0.5})", "rope_local_base_freq: is 0.5"},
      {"phi3", R"({"partial_rotary_factor": 0.2})", "partial_rotary_factor: gives 3 of"},
      {"olmo2", R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor: 0.5 is not"},
      {"granite", R"({"logits_scaling": 0})", "logits_scaling: is 0"},
      {"smollm3", R"({"no_rope_layers": [1, 1]})", "no_rope_layers: has 2 items, must have 5"},
      {"smollm3", R"({"no_rope_layers": [1, 1, 2, 1, 1]})", "no_rope_layers: is 2"},
      {"glm4", R"({"hidden_act": "gelu"})", "hidden_act: \"gelu\" is not supported"},
      {"glm4", R"({"attention_bias": 1})", "attention_bias: is 1"},
      {"glm4", R"({"partial_rotary_factor": 0.3})", "partial_rotary_factor: gives 9 of"},
      {"glm4_plain", R"({"head_dim": 6})", "partial_rotary_factor: gives 3 of"},
      {"qwen3_5", R"({"layer_types": ["full_attention"]})",
       "layer_types: has 1 items, must have 5"},
      {"qwen3_5_tied", R"({"layer_types": ["sliding_attention", "full_attention"]})",
       "layer_types: \"sliding_attention\" is not supported"},
      {"qwen3_5_tied", R"({"layer_types": ["linear_attention", "linear_attention"]})",
       "layer_types: has no full_attention"},
      {"qwen3_5", R"({"full_attention_interval": 0})", "full_attention_interval: is 0"},
      {"qwen3_5", R"({"linear_num_value_heads": 3})",
       "linear_num_value_heads: 3 must be a multiple of the 2 of linear_num_key_heads"},
      {"qwen3_5", R"({"linear_key_head_dim": 0})", "linear_key_head_dim: is 0"},
      {"qwen3_5", R"({"linear_conv_kernel_dim": 3})", "linear_conv_kernel_dim: 3 is not supported"},
      {"qwen3_5", R"({"attn_output_gate": false})", "attn_output_gate: false is not supported"},
      {"qwen3_5", R"({"hidden_act": "gelu"})", "hidden_act: \"gelu\" is not supported"},
      {"qwen3_next", R"({"linear_num_value_heads": 3})",
       "linear_num_value_heads: 3 must be a multiple of the 2 of linear_num_key_heads"},
      {"qwen3_next", R"({"linear_conv_kernel_dim": 3})",
       "linear_conv_kernel_dim: 3 is not supported"},
      {"qwen3_next", R"({"decoder_sparse_step": 0})", "decoder_sparse_step: is 0"},
      {"qwen3_next", R"({"mlp_only_layers": [-1]})", "mlp_only_layers: "},
      {"qwen3_next", R"({"num_experts_per_tok": 9})", "num_experts_per_tok: 9 experts of 8"},
  });
}

// Configs keep fields of the models that they were made from. transformers' classes of these names
// do not read them.
TEST(HfFamiliesTest, LeftOverFieldsChangeNothing) {
  const auto with = [](const char* twin, const char* change) {
    SCOPED_TRACE(twin);
    Json config = Twin(twin);
    config.merge_patch(Json::parse(change));
    const absl::StatusOr<HfConfig> read = ReadHfConfig(config.dump(), "config.json");
    EXPECT_TRUE(read.ok()) << read.status();
    return read.ok() ? read->model : ModelConfig{};
  };
  for (const char* twin : {"llama", "olmo2", "granite", "glm4", "olmoe", "granitemoe", "glm4moe"}) {
    EXPECT_EQ(with(twin, R"({"sliding_window": 9})").layers[0].softmax().window, 0);
  }
  for (const char* twin : {"mistral", "mixtral", "phi3", "qwen2", "qwen2moe"}) {
    const ModelConfig model = with(twin, R"({"attention_bias": true, "mlp_bias": true})");
    EXPECT_FALSE(model.layers[0].softmax().output_bias);
  }
  for (const char* twin : {"llama", "granite", "smollm3"}) {
    const ModelConfig model = with(twin, R"({"attention_bias": true, "mlp_bias": true})");
    EXPECT_TRUE(model.layers[0].softmax().qkv_bias && model.layers[0].softmax().output_bias);
    EXPECT_TRUE(std::get<GatedFeedForward>(model.layers[0].feed_forward).biases);
  }
  for (const char* twin :
       {"qwen3", "qwen3moe", "olmo2", "olmoe", "gemma2", "gemma3", "granitemoe"}) {
    EXPECT_TRUE(with(twin, R"({"attention_bias": true})").layers[0].softmax().output_bias);
  }
}

TEST(HfFamiliesTest, MixturesRefuseWhatTheirRoutersDoNotDo) {
  ExpectRefused({
      {"mixtral", R"({"num_local_experts": null})", "num_local_experts: is missing"},
      {"mixtral", R"({"num_local_experts": 5000})", "num_local_experts: is 5000"},
      {"mixtral", R"({"num_experts_per_tok": 7})", "num_experts_per_tok: 7 experts of 6"},
      {"mixtral", R"({"hidden_act": "gelu"})", "hidden_act: \"gelu\" is not supported"},
      {"qwen2moe", R"({"use_sliding_window": true})", "use_sliding_window: true is not"},
      {"qwen2moe", R"({"shared_expert_intermediate_size": 0})",
       "shared_expert_intermediate_size: is 0"},
      {"qwen2moe", R"({"qkv_bias": 1})", "qkv_bias: is 1"},
      {"qwen3moe", R"({"num_local_experts": 7})", "num_local_experts: is 7, but num_experts is 8"},
      {"qwen3moe", R"({"decoder_sparse_step": 0})", "decoder_sparse_step: is 0"},
      {"qwen3moe", R"({"mlp_only_layers": [-1]})", "mlp_only_layers: "},
      {"qwen3moe", R"({"num_experts": 1000, "num_hidden_layers": 1000})",
       "num_experts: is 1000, times 1000 layers; allowed: 131072 in all"},
      {"qwen3moe", R"({"norm_topk_prob": "yes"})", "norm_topk_prob: is \"yes\""},
      {"qwen3moe", R"({"moe_intermediate_size": null})", "moe_intermediate_size: is missing"},
      {"olmoe", R"({"clip_qkv": 8.0})", "clip_qkv: 8"},
      {"granitemoeshared", R"({"shared_intermediate_size": -1})",
       "shared_intermediate_size: is -1"},
      {"gpt_oss", R"({"swiglu_limit": 6.5})", "swiglu_limit: 6.5 is not supported"},
      {"gpt_oss", R"({"swiglu_alpha": 1.5})", "swiglu_alpha: 1.5 is not supported"},
      {"gpt_oss", R"({"attention_bias": false})", "attention_bias: false is not supported"},
      {"gpt_oss", R"({"rope_scaling": null})", "rope_scaling: is missing"},
      {"gpt_oss_mxfp4", R"({"quantization_config": {"modules_to_not_convert": ["x.experts"]}})",
       "quantization_config.modules_to_not_convert: \"x.experts\" is not supported"},
      {"qwen3moe", R"({"quantization_config": {"quant_method": "mxfp4"}})",
       "quantization_config.quant_method: \"mxfp4\" is not supported of qwen3moe"},
      {"glm4moe", R"({"n_group": 3})", "num_experts_per_tok: 3 groups do not divide the 8"},
      {"glm4moe", R"({"n_group": 8})", "num_experts_per_tok: groups of one expert"},
      {"glm4moe", R"({"topk_group": 5})", "num_experts_per_tok: 5 groups of 4"},
      {"glm4moe", R"({"topk_group": 1})", "num_experts_per_tok: 3 experts of 2"},
      {"glm4moe", R"({"routed_scaling_factor": 0})", "routed_scaling_factor: is 0"},
      {"glm4moe", R"({"first_k_dense_replace": -1})", "first_k_dense_replace: is -1"},
  });
}

TEST(HfFamiliesTest, MixturesHaveTheDefaultsOfTheirClasses) {
  Json config = Twin("glm4moe");
  for (const char* field :
       {"n_group", "topk_group", "routed_scaling_factor", "norm_topk_prob", "first_k_dense_replace",
        "use_qk_norm", "partial_rotary_factor", "attention_bias", "n_shared_experts"}) {
    config.erase(field);
  }
  absl::StatusOr<HfConfig> read = ReadHfConfig(config.dump(), "config.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(std::holds_alternative<GatedFeedForward>(read->model.layers[0].feed_forward));
  const auto& glm = std::get<ExpertsFeedForward>(read->model.layers[1].feed_forward);
  EXPECT_EQ(glm.router, (RouterConfig{.experts = 8,
                                      .chosen = 3,
                                      .scores = RouterConfig::Scores::kSigmoid,
                                      .renormalize = true,
                                      .correction = true}));
  EXPECT_EQ(glm.shared_size, 32);
  EXPECT_FALSE(glm.shared_gate);
  EXPECT_EQ(read->model.layers[1].softmax().rope.value().dimensions, 16);
  EXPECT_EQ(read->model.layers[1].softmax().qk_norm, QkNorm::kNone);
  config = Twin("gpt_oss");
  config["num_key_value_heads"] = 1;
  for (const char* field : {"sliding_window", "attention_bias", "swiglu_limit", "head_dim"}) {
    config.erase(field);
  }
  read = ReadHfConfig(config.dump(), "config.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->model.layers[0].softmax().window, 128);
  EXPECT_EQ(read->model.layers[1].softmax().window, 0);
  EXPECT_EQ(read->model.layers[1].softmax().head_size, 64);
  EXPECT_TRUE(read->model.layers[1].softmax().sinks);
  EXPECT_TRUE(read->model.layers[1].softmax().output_bias);
  const auto& oss = std::get<ExpertsFeedForward>(read->model.layers[0].feed_forward);
  EXPECT_EQ(oss.function, GateFunction::kClampedSwish);
  EXPECT_TRUE(oss.biases);
  EXPECT_TRUE(oss.router.bias);
  // transformers' name for the number of experts of any family.
  config = Twin("olmoe");
  config["num_local_experts"] = config["num_experts"];
  config.erase("num_experts");
  read = ReadHfConfig(config.dump(), "config.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(std::get<ExpertsFeedForward>(read->model.layers[0].feed_forward).router.experts, 8);
}

// They are those of transformers' Glm4Config.
TEST(HfFamiliesTest, Glm4sDefaults) {
  Json config = Twin("glm4");
  for (const char* field :
       {"num_key_value_heads", "head_dim", "attention_bias", "partial_rotary_factor"}) {
    config.erase(field);
  }
  const absl::StatusOr<HfConfig> read = ReadHfConfig(config.dump(), "config.json");
  ASSERT_TRUE(read.ok()) << read.status();
  const SoftmaxAttention& attention = read->model.layers[0].softmax();
  EXPECT_EQ(attention.kv_heads, 2);
  EXPECT_EQ(attention.head_size, 128);
  EXPECT_TRUE(attention.qkv_bias);
  EXPECT_EQ(attention.rope.value().dimensions, 64);
}

TEST(HfFamiliesTest, ScaledPositionsAreCheckedByName) {
  ExpectRefused({
      {"llama_linear", R"({"rope_scaling": {"factor": null}})", "rope_scaling.factor: is missing"},
      {"llama_linear", R"({"rope_scaling": {"factor": 0.5}})", "rope_scaling.factor: is 0.5"},
      {"llama_dynamic", R"({"rope_scaling": {"factor": "4"}})", "rope_scaling.factor: is \"4\""},
      {"llama_dynamic", R"({"head_dim": 2})", "rope_scaling.rope_type: dynamic of 2 dimensions"},
      {"llama_llama3", R"({"rope_scaling": {"low_freq_factor": null}})",
       "rope_scaling.low_freq_factor: is missing"},
      {"llama_yarn", R"({"rope_scaling": {"factor": null}})", "rope_scaling.factor: is missing"},
      {"llama_yarn", R"({"rope_scaling": {"original_max_position_embeddings": 1}})",
       "rope_scaling.original_max_position_embeddings: is 1"},
      {"llama_yarn", R"({"rope_scaling": {"beta_fast": 0}})", "rope_scaling.beta_fast: is 0"},
      {"llama_yarn", R"({"rope_scaling": {"beta_slow": []}})", "rope_scaling.beta_slow: is []"},
      {"llama_yarn", R"({"rope_scaling": {"truncate": 1}})", "rope_scaling.truncate: is 1"},
      {"llama_yarn", R"({"rope_scaling": {"attention_factor": -1}})",
       "rope_scaling.attention_factor: is -1"},
      {"llama_yarn", R"({"rope_theta": 1.0})", "rope_scaling.rope_theta: must be above 1"},
      {"llama_yarn_mscale", R"({"rope_scaling": {"mscale": "x"}})",
       "rope_scaling.mscale: is \"x\""},
      {"llama_yarn_mscale", R"({"rope_scaling": {"mscale_all_dim": -1}})",
       "rope_scaling.mscale_all_dim: is -1"},
      {"phi4_short", R"({"rope_scaling": {"short_factor": [1.0, 1.0]}})",
       "rope_scaling.short_factor: must be a list of 6 numbers"},
      {"phi4_short", R"({"rope_scaling": {"long_factor": [1, 1, 1, 1, 1, "1"]}})",
       "rope_scaling.long_factor: must be a list of 6 numbers"},
      {"phi4_long", R"({"rope_scaling": {"long_factor": [1, 1, 1, 1, 1, 0]}})",
       "rope_scaling.long_factor: must be a list of 6 numbers"},
      {"phi4_long", R"({"rope_scaling": {"short_factor": null}})",
       "rope_scaling.short_factor: must be a list of 6 numbers"},
      {"phi4_long", R"({"rope_scaling": {"attention_factor": "x"}})",
       "rope_scaling.attention_factor: is \"x\""},
      {"phi4_long", R"({"original_max_position_embeddings": 0})",
       "original_max_position_embeddings: is 0"},
  });
}

}  // namespace
}  // namespace millrace
