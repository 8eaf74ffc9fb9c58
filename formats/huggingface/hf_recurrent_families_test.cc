// config.json's readers of families with recurrent layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "formats/huggingface/hf_config.h"
#include "formats/huggingface/hf_families_test_util.h"
#include "formats/json/json.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// They are those of transformers' Qwen3_5TextConfig.
TEST(HfRecurrentFamiliesTest, Qwen35sDefaults) {
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
TEST(HfRecurrentFamiliesTest, Qwen35WithinAModelThatSeesImages) {
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

// They are those of transformers' Qwen3NextConfig.
TEST(HfRecurrentFamiliesTest, Qwen3NextsDefaults) {
  Json config = Twin("qwen3_next");
  for (const char* field :
       {"num_key_value_heads", "head_dim", "partial_rotary_factor", "full_attention_interval",
        "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
        "linear_value_head_dim", "linear_conv_kernel_dim", "norm_topk_prob",
        "shared_expert_intermediate_size"}) {
    config.erase(field);
  }
  const absl::StatusOr<HfConfig> read = ReadHfConfig(config.dump(), "config.json");
  ASSERT_TRUE(read.ok()) << read.status();
  const SoftmaxAttention& attention = read->model.layers[3].softmax();
  EXPECT_EQ(attention.kv_heads, 2);
  EXPECT_EQ(attention.head_size, 256);
  EXPECT_EQ(attention.rope.value().dimensions, 64);
  const auto& delta = std::get<GatedDelta>(read->model.layers[2].attention);
  EXPECT_EQ(delta.key_heads, 16);
  EXPECT_EQ(delta.value_heads, 32);
  EXPECT_EQ(delta.key_size, 128);
  EXPECT_EQ(delta.value_size, 128);
  EXPECT_TRUE(delta.fused_qkvz && delta.fused_beta_alpha);
  EXPECT_FALSE(delta.in_turns || delta.converted);
  const auto& experts = std::get<ExpertsFeedForward>(read->model.layers[0].feed_forward);
  EXPECT_TRUE(experts.router.renormalize && experts.shared_gate);
  EXPECT_EQ(experts.shared_size, 512);
}

// A config as that of LFM2-1.2B, with the names that its authors gave sizes.
TEST(HfRecurrentFamiliesTest, Lfm2ByItsAuthorsNames) {
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

TEST(HfRecurrentFamiliesTest, SizesOfLfm2AreAdjustedAsTheirFieldsSay) {
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

TEST(HfRecurrentFamiliesTest, Lfm2IsRefusedByTheField) {
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
TEST(HfRecurrentFamiliesTest, Granite4WithMixersAndExperts) {
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

TEST(HfRecurrentFamiliesTest, Granite4ByOtherNames) {
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

TEST(HfRecurrentFamiliesTest, Granite4IsRefusedByTheField) {
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
      {"granitehybrid", R"({"time_step_limit": [0.5]})", "time_step_limit: is a list of 1"},
      {"granitehybrid", R"({"time_step_limit": [1, 0.5]})", "time_step_limit: is [1, 0.5]"},
      {"granitehybrid", R"({"time_step_limit": [-1, 1]})", "time_step_limit: is [-1, 1]"},
  });
}

// A config as that of Nemotron-3-Nano-30B-A3B.
TEST(HfRecurrentFamiliesTest, NemotronHWithExperts) {
  const Json config = Json::parse(R"({"architectures": ["NemotronHForCausalLM"],
      "attention_bias": false, "chunk_size": 128, "conv_kernel": 4, "expand": 2, "head_dim": 128,
      "hidden_size": 2688, "hybrid_override_pattern": "MEM*E-", "intermediate_size": 1856,
      "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64, "mamba_hidden_act": "silu",
      "mamba_num_heads": 64, "mamba_proj_bias": false, "max_position_embeddings": 262144,
      "mlp_bias": false, "mlp_hidden_act": "relu2", "model_type": "nemotron_h",
      "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_group": 1,
      "n_groups": 8, "n_routed_experts": 128, "n_shared_experts": 1, "norm_topk_prob": true,
      "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 6,
      "num_key_value_heads": 2, "partial_rotary_factor": 1.0, "residual_in_fp32": false,
      "rope_theta": 10000, "routed_scaling_factor": 2.5, "sliding_window": null,
      "ssm_state_size": 128, "tie_word_embeddings": false, "time_step_floor": 0.0001,
      "time_step_limit": [0.0, {"__float__": "Infinity"}], "time_step_max": 0.1,
      "time_step_min": 0.001, "topk_group": 1, "use_bias": false, "use_conv_bias": true,
      "vocab_size": 131072})");
  const absl::StatusOr<HfConfig> read = ReadHfConfig(config.dump(), "config.json");
  ASSERT_TRUE(read.ok()) << read.status();
  const std::vector<LayerConfig>& layers = read->model.layers;
  ASSERT_EQ(layers.size(), 6);
  const auto& mixer = std::get<Mamba2>(layers[2].attention);
  EXPECT_EQ(mixer.inner(), 64 * 64);
  EXPECT_EQ(mixer.channels(), 64 * 64 + 2 * 8 * 128);
  EXPECT_TRUE(mixer.convolution_bias);
  EXPECT_FALSE(mixer.projection_bias);
  EXPECT_EQ(mixer.least_step, 0);
  EXPECT_FALSE(layers[2].has_feed_forward());
  EXPECT_EQ(layers[3].softmax().kv_heads, 2);
  EXPECT_FALSE(layers[3].softmax().rope.has_value());
  EXPECT_FALSE(layers[3].has_feed_forward());
  EXPECT_FALSE(layers[4].has_mixer());
  const auto& experts = std::get<ExpertsFeedForward>(layers[4].feed_forward);
  EXPECT_EQ(experts.size, 1856);
  EXPECT_EQ(experts.shared_size, 3712);
  EXPECT_EQ(experts.function, GateFunction::kSquaredRelu);
  EXPECT_TRUE(experts.router.correction);
  EXPECT_EQ(experts.router.factor, 2.5);
  EXPECT_FALSE(layers[5].has_mixer());
  EXPECT_EQ(std::get<GatedFeedForward>(layers[5].feed_forward).function,
            GateFunction::kSquaredRelu);
}

TEST(HfRecurrentFamiliesTest, NemotronHByOtherNames) {
  const auto layers = [](const char* changes) {
    Json config = Twin("nemotron_h");
    config.merge_patch(Json::parse(changes));
    const absl::StatusOr<HfConfig> read = ReadHfConfig(config.dump(), "config.json");
    EXPECT_TRUE(read.ok()) << read.status();
    return read->model.layers;
  };
  // A list counts, and by itself says how many layers there are.
  const std::vector<LayerConfig> listed = layers(R"({"num_hidden_layers": null,
      "layers_block_type": ["full_attention", "linear_attention"]})");
  ASSERT_EQ(listed.size(), 2);
  EXPECT_NE(listed[0].FindSoftmax(), nullptr);
  EXPECT_TRUE(std::holds_alternative<Mamba2>(listed[1].attention));
  EXPECT_EQ(layers(R"({"head_dim": null})")[3].softmax().head_size, 128);
  EXPECT_EQ(layers(R"({"head_dim": null, "attention_head_dim": 64})")[3].softmax().head_size, 64);
}

TEST(HfRecurrentFamiliesTest, NemotronHIsRefusedByTheField) {
  ExpectRefused({
      {"nemotron_h", R"({"hybrid_override_pattern": null})", "hybrid_override_pattern: is missing"},
      {"nemotron_h", R"({"hybrid_override_pattern": "M-M*"})",
       "hybrid_override_pattern: has 4 layers, must have 5, as num_hidden_layers"},
      {"nemotron_h", R"({"hybrid_override_pattern": "M-M-M"})",
       "hybrid_override_pattern: has no attention"},
      {"nemotron_h", R"({"hybrid_override_pattern": "M-X*-"})",
       "hybrid_override_pattern: \"M-X*-\" is not supported (supported: M, *, -, E, one a layer)"},
      {"nemotron_h", R"({"layers_block_type": ["mamba", "conv"]})",
       "layers_block_type: \"conv\" is not supported"},
      {"nemotron_h", R"({"mlp_hidden_act": "silu"})", "mlp_hidden_act: "},
      {"nemotron_h", R"({"mamba_hidden_act": "gelu"})", "mamba_hidden_act: "},
      {"nemotron_h", R"({"attention_bias": true})", "attention_bias: "},
      {"nemotron_h", R"({"sliding_window": 4096})", "sliding_window: 4096 is not supported"},
      {"nemotron_h", R"({"mamba_num_heads": 3})", "mamba_num_heads: 3 must be a multiple of the 2"},
      {"nemotron_h", R"({"conv_kernel": 1})", "conv_kernel: is 1; supported: 2 to 8"},
      {"nemotron_h", R"({"time_step_limit": [1, 0.5]})", "time_step_limit: is [1, 0.5]"},
      {"nemotron_h_moe", R"({"moe_latent_size": 1024})", "moe_latent_size: "},
      {"nemotron_h_moe", R"({"n_shared_experts": 2})", "n_shared_experts: "},
      {"nemotron_h_moe", R"({"mlp_bias": true})", "mlp_bias: "},
      {"nemotron_h_moe", R"({"n_routed_experts": null})", "n_routed_experts: is missing"},
      {"nemotron_h_moe", R"({"topk_group": 2})", "num_experts_per_tok: 2 groups of 1"},
  });
}

}  // namespace
}  // namespace millrace
