// config.json's readers refuse by name what a family does not do, and no value of a field makes a
// model that cannot be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/strings.h"
#include "formats/huggingface/hf_config.h"
#include "formats/json/json.h"
#include "formats/twins/family_twins.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Json Twin(const std::string& name) {
  for (const FamilyTwin& twin : FamilyTwins()) {
    if (twin.name == name) return twin.config;
  }
  ADD_FAILURE() << name;
  return {};
}

std::string Error(const Json& json) {
  const absl::StatusOr<HfConfig> config = ReadHfConfig(json.dump(), "config.json");
  return config.ok() ? "no error" : std::string(config.status().message());
}
std::string Error(Json json, const char* change) {
  json.merge_patch(Json::parse(change));
  return Error(json);
}

struct Refusal {
  const char* twin;
  const char* change;
  const char* message;  // behind "config.json: "
};

void ExpectRefused(const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    EXPECT_THAT(Error(Twin(refusal.twin), refusal.change),
                StartsWith(StrCat("config.json: ", refusal.message)))
        << refusal.twin << " " << refusal.change;
  }
}

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

// They are those of transformers' Qwen3_5TextConfig.
TEST(HfFamiliesTest, Qwen35sDefaults) {
  Json config = Twin("qwen3_5");
  config["num_hidden_layers"] = 8;
  for (const char* field :
       {"num_key_value_heads", "head_dim", "partial_rotary_factor", "full_attention_interval",
        "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
        "linear_value_head_dim", "linear_conv_kernel_dim"}) {
    config.erase(field);
  }
  const absl::StatusOr<HfConfig> read = ReadHfConfig(config.dump(), "config.json");
  ASSERT_TRUE(read.ok()) << read.status();
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(read->model.layers[i].FindSoftmax() != nullptr, i == 3 || i == 7) << i;
  }
  const SoftmaxAttention& attention = read->model.layers[3].softmax();
  EXPECT_EQ(attention.kv_heads, 4);
  EXPECT_EQ(attention.head_size, 256);
  EXPECT_EQ(attention.rope.value().dimensions, 64);
  EXPECT_TRUE(attention.output_gate);
  const auto& delta = std::get<GatedDelta>(read->model.layers[0].attention);
  EXPECT_EQ(delta.key_heads, 16);
  EXPECT_EQ(delta.value_heads, 32);
  EXPECT_EQ(delta.key_size, 128);
  EXPECT_EQ(delta.value_size, 128);
}

// A config as Qwen3.5-27B's is: the language model stands in text_config.
TEST(HfFamiliesTest, Qwen35WithinAModelThatSeesImages) {
  Json text = Twin("qwen3_5");
  text.erase("architectures");
  text.erase("rope_theta");
  text.erase("partial_rotary_factor");
  text["rope_parameters"] = {{"rope_type", "default"},
                             {"rope_theta", 1e7},
                             {"partial_rotary_factor", 0.25},
                             {"mrope_interleaved", true},
                             {"mrope_section", {2, 1, 1}}};
  text["layer_types"] = {"linear_attention", "linear_attention", "full_attention",
                         "linear_attention", "full_attention"};
  text["attn_output_gate"] = true;
  text["eos_token_id"] = 7;
  Json config = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                 {"text_config", text},
                 {"vision_config", Json::object()},
                 {"tie_word_embeddings", true}};
  const absl::StatusOr<HfConfig> read = ReadHfConfig(config.dump(), "config.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->model.tied_embeddings);
  EXPECT_EQ(read->model.end_tokens, std::vector<int32_t>{7});
  EXPECT_EQ(read->model.layers[1].FindSoftmax(), nullptr);
  EXPECT_EQ(read->model.layers[2].softmax().rope.value().theta, 1e7);
  EXPECT_EQ(read->model.layers[2].softmax().rope.value().dimensions, 8);
  config["text_config"]["hidden_size"] = 0;
  EXPECT_THAT(Error(config), HasSubstr("config.json: text_config.hidden_size: is 0"));
  config.erase("text_config");
  EXPECT_THAT(Error(config), HasSubstr("config.json: text_config: is missing"));
}

// A config as that of LFM2-1.2B, with the names that its authors gave sizes.
TEST(HfFamiliesTest, Lfm2ByItsAuthorsNames) {
  const Json config = Json::parse(R"({"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2",
      "block_auto_adjust_ff_dim": true, "block_dim": 2048, "block_ff_dim": 12288,
      "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256, "block_norm_eps": 1e-05,
      "conv_L_cache": 3, "conv_bias": false, "conv_dim": 2048, "eos_token_id": 7,
      "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048,
      "max_position_embeddings": 128000, "norm_eps": 1e-05, "num_attention_heads": 32,
      "num_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
      "rope_theta": 1000000.0, "tie_embedding": true, "vocab_size": 65536})");
  const absl::StatusOr<HfConfig> read = ReadHfConfig(config.dump(), "config.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->model.tied_embeddings);
  EXPECT_EQ(read->model.norm_epsilon, 1e-5);
  for (const int layer : {0, 1, 3, 15}) {
    const auto& mixer = std::get<ShortConvolution>(read->model.layers[layer].attention);
    EXPECT_EQ(mixer.channels, 2048);
    EXPECT_EQ(mixer.width, 3);
    EXPECT_FALSE(mixer.bias);
  }
  for (const int layer : {2, 5, 14}) {
    const SoftmaxAttention& attention = read->model.layers[layer].softmax();
    EXPECT_EQ(attention.kv_heads, 8);
    EXPECT_EQ(attention.head_size, 64);
    EXPECT_EQ(attention.qk_norm, QkNorm::kHead);
    EXPECT_EQ(attention.rope.value().theta, 1e6);
  }
  EXPECT_EQ(read->model.layers[0].ffn_size(), 8192);  // two thirds of 12,288
}

TEST(HfFamiliesTest, SizesOfLfm2AreAdjustedAsTheirFieldsSay) {
  const auto size = [](const char* changes) {
    Json config = Twin("lfm2");
    config.merge_patch(Json::parse(changes));
    const absl::StatusOr<HfConfig> read = ReadHfConfig(config.dump(), "config.json");
    return read.ok() ? read->model.layers[0].ffn_size() : -1;
  };
  EXPECT_EQ(size("{}"), 96);  // two thirds of 136 are 90
  EXPECT_EQ(size(R"({"block_ffn_dim_multiplier": 1.5})"), 160);
  EXPECT_EQ(size(R"({"block_multiple_of": 1})"), 90);
  EXPECT_EQ(size(R"({"block_auto_adjust_ff_dim": false})"), 136);
  EXPECT_EQ(size(R"({"block_ff_dim": 48})"), 32);
}

TEST(HfFamiliesTest, Lfm2IsRefusedByTheField) {
  ExpectRefused({
      {"lfm2", R"({"conv_L_cache": 1})", "conv_L_cache: is 1; supported: 2 to 8"},
      {"lfm2", R"({"conv_L_cache": 9})", "conv_L_cache: is 9"},
      {"lfm2", R"({"conv_bias": 1})", "conv_bias: is 1"},
      {"lfm2", R"({"norm_eps": 2})", "norm_eps: is 2"},
      {"lfm2", R"({"theta": 20000})", "theta: "},
      {"lfm2", R"({"full_attn_idxs": [5]})", "full_attn_idxs: "},
      {"lfm2", R"({"full_attn_idxs": []})", "full_attn_idxs: is empty"},
      {"lfm2", R"({"layer_types": ["conv"]})", "layer_types: has 1 items, must have 5"},
      {"lfm2", R"({"layer_types": ["conv", "conv", "conv", "conv", "conv"]})",
       "layer_types: has no full_attention"},
      {"lfm2", R"({"layer_types": ["conv", "conv", "conv", "conv", "sliding_attention"]})",
       "layer_types: \"sliding_attention\" is not supported"},
      {"lfm2", R"({"block_ffn_dim_multiplier": 1e6})",
       "intermediate_size: is 136, of which block_auto_adjust_ff_dim makes "},
      {"lfm2", R"({"block_multiple_of": 0})", "block_multiple_of: is 0"},
      {"lfm2", R"({"intermediate_size": null})", "intermediate_size: is missing"},
      {"lfm2moe", R"({"num_dense_layers": -1})", "num_dense_layers: is -1"},
      {"lfm2moe", R"({"num_experts_per_tok": 9})", "num_experts_per_tok: 9 experts"},
  });
}

// A config as that of Granite-4.0-H-Tiny.
TEST(HfFamiliesTest, Granite4WithMixersAndExperts) {
  const Json config = Json::parse(R"({"architectures": ["GraniteMoeHybridForCausalLM"],
      "attention_bias": false, "attention_multiplier": 0.0078125, "embedding_multiplier": 12,
      "hidden_act": "silu", "hidden_size": 1536, "intermediate_size": 512,
      "layer_types": ["mamba", "mamba", "attention", "mamba"], "logits_scaling": 6,
      "mamba_chunk_size": 256, "mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 64,
      "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 48,
      "mamba_proj_bias": false, "max_position_embeddings": 131072,
      "model_type": "granitemoehybrid", "normalization_function": "rmsnorm",
      "num_attention_heads": 12, "num_experts_per_tok": 6, "num_hidden_layers": 4,
      "num_key_value_heads": 4, "num_local_experts": 64, "position_embedding_type": "nope",
      "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": null,
      "rope_theta": 10000, "shared_intermediate_size": 1024, "tie_word_embeddings": true,
      "vocab_size": 100352})");
  const absl::StatusOr<HfConfig> read = ReadHfConfig(config.dump(), "config.json");
  ASSERT_TRUE(read.ok()) << read.status();
  const auto& mixer = std::get<Mamba2>(read->model.layers[3].attention);
  EXPECT_EQ(mixer.heads, 48);
  EXPECT_EQ(mixer.head_size, 64);
  EXPECT_EQ(mixer.channels(), 48 * 64 + 2 * 128);
  EXPECT_EQ(mixer.width, 4);
  EXPECT_TRUE(mixer.convolution_bias);
  EXPECT_FALSE(mixer.projection_bias);
  EXPECT_EQ(mixer.least_step, 0);
  EXPECT_TRUE(std::isinf(mixer.largest_step));
  const SoftmaxAttention& attention = read->model.layers[2].softmax();
  EXPECT_EQ(attention.scale, 0.0078125);
  EXPECT_FALSE(attention.rope.has_value());
  const auto& experts = std::get<ExpertsFeedForward>(read->model.layers[0].feed_forward);
  EXPECT_EQ(experts.size, 512);
  EXPECT_EQ(experts.shared_size, 1024);
  EXPECT_EQ(experts.router.chosen, 6);
}

TEST(HfFamiliesTest, Granite4ByOtherNames) {
  const auto read = [](const char* changes) {
    Json config = Twin("granitehybrid");
    config.merge_patch(Json::parse(changes));
    return ReadHfConfig(config.dump(), "config.json");
  };
  const auto mixer = [&](const char* changes) {
    const absl::StatusOr<HfConfig> config = read(changes);
    EXPECT_TRUE(config.ok()) << config.status();
    return std::get<Mamba2>(config->model.layers[0].attention);
  };
  EXPECT_EQ(mixer(R"({"mamba_d_head": "auto"})").head_size, 32);
  EXPECT_EQ(mixer(R"({"mamba_d_head": null, "mamba_n_heads": 8})").head_size, 16);
  EXPECT_TRUE(mixer(R"({"layer_types": null,
      "layers_block_type": ["mamba", "mamba", "mamba", "attention"]})")
                  .convolution_bias);
  EXPECT_EQ(mixer(R"({"layer_types": ["linear_attention", "linear_attention", "full_attention",
      "linear_attention"]})")
                .heads,
            4);
  const Mamba2 bounded = mixer(R"({"time_step_limit": [0.5, {"__float__": "Infinity"}]})");
  EXPECT_EQ(bounded.least_step, 0.5);
  EXPECT_TRUE(std::isinf(bounded.largest_step));
  // Without mixers nothing is read of them.
  EXPECT_TRUE(read(R"({"layer_types": ["attention", "attention", "attention", "attention"],
      "mamba_d_head": 7})")
                  .ok());
}

TEST(HfFamiliesTest, Granite4IsRefusedByTheField) {
  ExpectRefused({
      {"granitehybrid", R"({"layer_types": ["mamba"]})", "layer_types: has 1 items, must have 4"},
      {"granitehybrid", R"({"layer_types": null})", "layer_types: is missing"},
      {"granitehybrid", R"({"layer_types": ["mamba", "mamba", "mamba", "mamba"]})",
       "layer_types: has no attention"},
      {"granitehybrid", R"({"layer_types": ["mamba", "mamba", "attention", "conv"]})",
       "layer_types: \"conv\" is not supported (supported: attention, "},
      {"granitehybrid", R"({"position_embedding_type": "alibi"})", "position_embedding_type: "},
      {"granitehybrid", R"({"num_local_experts": null})", "num_local_experts: is missing"},
      {"granitehybrid", R"({"num_local_experts": -1})", "num_local_experts: is -1"},
      {"granitehybrid", R"({"num_experts_per_tok": 7})", "num_experts_per_tok: 7 experts"},
      {"granitehybrid", R"({"shared_intermediate_size": 0})", "shared_intermediate_size: is 0"},
      {"granitehybrid", R"({"mamba_n_heads": 5})", "mamba_d_head: 5 heads (mamba_n_heads) of 32"},
      {"granitehybrid", R"({"mamba_n_groups": 3})", "mamba_n_heads: 4 must be a multiple of"},
      {"granitehybrid", R"({"mamba_d_head": "64"})", "mamba_d_head: is \"64\""},
      {"granitehybrid", R"({"mamba_expand": 3})", "mamba_d_head: 4 heads (mamba_n_heads) of 32"},
      {"granitehybrid", R"({"mamba_d_state": 0})", "mamba_d_state: is 0"},
      {"granitehybrid", R"({"mamba_d_conv": 1})", "mamba_d_conv: is 1; supported: 2 to 8"},
      {"granitehybrid", R"({"mamba_d_conv": 9})", "mamba_d_conv: is 9"},
      {"granitehybrid", R"({"mamba_conv_bias": 1})", "mamba_conv_bias: is 1"},
      {"granitehybrid", R"({"mamba_proj_bias": 0})", "mamba_proj_bias: is 0"},
      {"granitehybrid", R"({"time_step_limit": [0.5]})", "time_step_limit: is [0.5]"},
      {"granitehybrid", R"({"time_step_limit": [1, 0.5]})", "time_step_limit: is [1,0.5]"},
      {"granitehybrid", R"({"time_step_limit": [-1, 1]})", "time_step_limit: is [-1,1]"},
  });
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
  EXPECT_TRUE(layer.ffn_size() >= 1 && layer.ffn_size() <= kMaxContext) << json;
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
TEST(HfFamiliesTest, HostileValuesNeverMakeAHostileConfig) {
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
    twins.push_back({.name = "quantized", .config = Twin("llama"), .gguf_keys = {}});
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
