#include "formats/gguf_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/strings.h"
#include "formats/twins/gguf_test_util.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

std::string Path() { return StrCat(::testing::TempDir(), "gguf_model_test_", getpid(), ".gguf"); }

absl::StatusOr<ModelConfig> Read(const GgufWriter& writer) {
  writer.Write(Path());
  const absl::StatusOr<GgufFile> file = OpenGgufModel(Path());
  unlink(Path().c_str());
  if (!file.ok()) return file.status();
  return ReadModelConfig(*file);
}

std::string ErrorOf(const absl::StatusOr<ModelConfig>& config) {
  return config.ok() ? "no error" : std::string(config.status().message());
}

TEST(GgufModelTest, ReadsTinyModelsOfEveryType) {
  for (const TensorType type :
       {TensorType::kF32, TensorType::kF16, TensorType::kQ8_0, TensorType::kQ4_1}) {
    for (const bool tied : {true, false}) {
      TinyLlama model;
      model.linear_type = model.embedding_type = type;
      model.tied = tied;
      model.rope_factors = !tied;
      const absl::StatusOr<ModelConfig> config = Read(TinyLlamaWriter(model));
      ASSERT_TRUE(config.ok()) << config.status();
      EXPECT_EQ(config->architecture, "llama");
      EXPECT_EQ(config->name, "Tiny Llama for tests");
      ASSERT_EQ(config->num_layers(), 2);
      EXPECT_EQ(config->hidden_size, 64);
      EXPECT_EQ(config->norm_epsilon, 1e-5f);
      EXPECT_EQ(config->vocab_size, 320);
      EXPECT_EQ(config->context_length, 256);
      EXPECT_EQ(config->tied_embeddings, tied);
      for (const LayerConfig& layer : config->layers) {
        EXPECT_EQ(layer.norms, NormPlacement::kPre);
        EXPECT_EQ(layer.ffn_size(), 128);
        const SoftmaxAttention& attention = layer.softmax();
        EXPECT_EQ(attention.heads, 4);
        EXPECT_EQ(attention.kv_heads, 2);
        EXPECT_EQ(attention.head_size, 16);
        EXPECT_EQ(attention.qk_norm, QkNorm::kNone);
        ASSERT_TRUE(attention.rope.has_value());
        EXPECT_EQ(attention.rope->dimensions, 16);
        EXPECT_EQ(attention.rope->theta, 10000);
        EXPECT_EQ(attention.rope->factors.size(), tied ? 0 : 8);
        EXPECT_TRUE(attention.rope->interleaved);
      }
      EXPECT_FALSE(config->quantization.has_value());
    }
  }
}

TEST(GgufModelTest, HeadsThatLayersDoNotShareAreRefusedByTheLayer) {
  ModelConfig config;
  SoftmaxAttention attention;
  attention.heads = 8;
  attention.kv_heads = 4;
  attention.head_size = 32;
  config.layers.assign(3, {.attention = attention, .feed_forward = {}});
  EXPECT_EQ(*SharedHeadShape(config), (HeadShape{.heads = 8, .kv_heads = 4, .head_size = 32}));
  config.layers[2].softmax().kv_heads = 2;
  const absl::Status status = SharedHeadShape(config).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(),
            "layer 2 has 8 heads and 2 kv heads of 32 elements, layer 0 has 8 and 4 of 32; "
            "supported: the same in all layers");
}

TEST(GgufModelTest, RecurrentLayersHaveNoShapeOfHeads) {
  const SoftmaxAttention attention{.heads = 8, .kv_heads = 4, .head_size = 32};
  ModelConfig config;
  config.layers.assign(4, {.attention = attention, .feed_forward = {}});
  config.layers[0].attention = GatedDelta{.key_heads = 16, .value_heads = 48};
  config.layers[2].attention = ShortConvolution{};
  EXPECT_EQ(*SharedHeadShape(config), (HeadShape{.heads = 8, .kv_heads = 4, .head_size = 32}));
  config.layers[3].softmax().head_size = 64;
  EXPECT_EQ(SharedHeadShape(config).status().message(),
            "layer 3 has 8 heads and 4 kv heads of 64 elements, layer 1 has 8 and 4 of 32; "
            "supported: the same in all layers");
}

TEST(GgufModelTest, RefusesGatedDeltaRulesByTheKey) {
  const auto with = [](const char* changed, uint32_t number) {
    std::map<std::string, uint32_t> keys = {
        {"block_count", 4},          {"context_length", 256},     {"embedding_length", 64},
        {"feed_forward_length", 96}, {"attention.head_count", 4}, {"full_attention_interval", 2},
        {"ssm.conv_kernel", 4},      {"ssm.state_size", 32},      {"ssm.group_count", 2},
        {"ssm.time_step_rank", 4},   {"ssm.inner_size", 128}};
    keys[changed] = number;
    GgufWriter writer;
    writer.String("general.architecture", "qwen35")
        .Float32("qwen35.attention.layer_norm_rms_epsilon", 1e-5f)
        .Tensor("token_embd.weight", TensorType::kF32, {8, 64}, std::vector<float>(512));
    for (const auto& [key, value] : keys) writer.Uint32("qwen35." + key, value);
    return ErrorOf(Read(writer));
  };
  // All is well up to the tensors, of which there are none.
  EXPECT_THAT(with("block_count", 4), HasSubstr("tensor blk.0.attn_norm.weight: is missing"));
  EXPECT_THAT(with("ssm.conv_kernel", 3), HasSubstr("ssm.conv_kernel: 3 is not supported, only 4"));
  EXPECT_THAT(with("ssm.group_count", 3), HasSubstr("ssm.time_step_rank: 4 must divide"));
  EXPECT_THAT(with("ssm.inner_size", 130), HasSubstr("ssm.inner_size, 130"));
  EXPECT_THAT(with("ssm.state_size", 0), HasSubstr("ssm.state_size"));
  EXPECT_THAT(with("full_attention_interval", 5),
              HasSubstr("full_attention_interval: 5 is not supported of 4 layers"));
  EXPECT_THAT(with("nextn_predict_layers", 4), HasSubstr("nextn_predict_layers"));
  EXPECT_THAT(with("attention.sliding_window", 8), HasSubstr("attention.sliding_window: 8"));
}

TEST(GgufModelTest, RefusesShortConvolutionsByTheKey) {
  const auto with = [](const std::vector<int32_t>& heads, uint32_t width, bool window = false) {
    GgufWriter writer;
    writer.String("general.architecture", "lfm2")
        .Float32("lfm2.attention.layer_norm_rms_epsilon", 1e-5f)
        .Int32s("lfm2.attention.head_count_kv", heads)
        .Tensor("token_embd.weight", TensorType::kF32, {8, 64}, std::vector<float>(512));
    const std::map<std::string, uint32_t> keys = {
        {"block_count", 3},          {"context_length", 256},
        {"embedding_length", 64},    {"feed_forward_length", 96},
        {"attention.head_count", 4}, {"attention.sliding_window", window ? 8 : 0},
        {"shortconv.l_cache", width}};
    for (const auto& [key, value] : keys) writer.Uint32("lfm2." + key, value);
    return ErrorOf(Read(writer));
  };
  // All is well up to the tensors, of which there are none.
  EXPECT_THAT(with({0, 2, 0}, 3), HasSubstr("tensor blk.0.attn_norm.weight: is missing"));
  EXPECT_THAT(with({0, 2}, 3), HasSubstr("attention.head_count_kv: is an array of 2 numbers"));
  EXPECT_THAT(with({0, 2, 1}, 3), HasSubstr("head_count_kv: layers have 1 and 2 heads"));
  EXPECT_THAT(with({0, 2, -1}, 3), HasSubstr("head_count_kv: -1 is outside of 0 to "));
  EXPECT_THAT(with({0, 0, 0}, 3), HasSubstr("head_count_kv: the most is 0"));
  EXPECT_THAT(with({0, 3, 0}, 3), HasSubstr("head_count_kv: 3 does not divide the 4 heads"));
  EXPECT_THAT(with({0, 2, 0}, 1), HasSubstr("shortconv.l_cache"));
  EXPECT_THAT(with({0, 2, 0}, 9), HasSubstr("shortconv.l_cache"));
  EXPECT_THAT(with({0, 2, 0}, 3, true), HasSubstr("attention.sliding_window: 8"));
}

TEST(GgufModelTest, RefusesMamba2ByTheKey) {
  const auto with = [](const std::string& changed, uint32_t number) {
    std::map<std::string, uint32_t> keys = {
        {"block_count", 3},          {"context_length", 256},     {"embedding_length", 64},
        {"feed_forward_length", 96}, {"attention.head_count", 4}, {"ssm.conv_kernel", 4},
        {"ssm.state_size", 32},      {"ssm.group_count", 1},      {"ssm.time_step_rank", 4},
        {"ssm.inner_size", 128}};
    keys[changed] = number;
    GgufWriter writer;
    writer.String("general.architecture", "granitehybrid")
        .Float32("granitehybrid.attention.layer_norm_rms_epsilon", 1e-5f)
        .Int32s("granitehybrid.attention.head_count_kv", {0, 2, 0})
        .Tensor("token_embd.weight", TensorType::kF32, {8, 64}, std::vector<float>(512));
    for (const auto& [key, value] : keys) writer.Uint32("granitehybrid." + key, value);
    return ErrorOf(Read(writer));
  };
  // All is well up to the tensors, of which there are none.
  EXPECT_THAT(with("block_count", 3), HasSubstr("tensor blk.0.attn_norm.weight: is missing"));
  EXPECT_THAT(with("block_count", 4), HasSubstr("attention.head_count_kv: is an array of 3"));
  EXPECT_THAT(with("ssm.conv_kernel", 1), HasSubstr("ssm.conv_kernel"));
  EXPECT_THAT(with("ssm.conv_kernel", 9), HasSubstr("ssm.conv_kernel"));
  EXPECT_THAT(with("ssm.state_size", 0), HasSubstr("ssm.state_size"));
  EXPECT_THAT(with("ssm.inner_size", 130), HasSubstr("ssm.inner_size, 130"));
  EXPECT_THAT(with("ssm.group_count", 3), HasSubstr("a multiple of ssm.group_count, 3"));
  EXPECT_THAT(with("ssm.time_step_rank", 0), HasSubstr("ssm.time_step_rank"));
  EXPECT_THAT(with("expert_count", 4), HasSubstr("expert_used_count"));
  EXPECT_THAT(with("attention.sliding_window", 8), HasSubstr("attention.sliding_window: 8"));
}

TEST(GgufModelTest, ReadsWhichPartALayerIs) {
  const auto with = [](const std::vector<int32_t>& heads, const std::vector<int32_t>& sizes,
                       uint32_t further, uint32_t latent = 0) {
    const std::map<std::string, uint32_t> keys = {{"block_count", 4},
                                                  {"context_length", 256},
                                                  {"embedding_length", 64},
                                                  {"attention.head_count", 4},
                                                  {"ssm.conv_kernel", 4},
                                                  {"ssm.state_size", 32},
                                                  {"ssm.group_count", 2},
                                                  {"ssm.time_step_rank", 4},
                                                  {"ssm.inner_size", 128},
                                                  {"expert_count", 4},
                                                  {"expert_used_count", 2},
                                                  {"expert_feed_forward_length", 32},
                                                  {"moe_latent_size", latent},
                                                  {"expert_shared_feed_forward_length", 48},
                                                  {"nextn_predict_layers", further}};
    GgufWriter writer;
    writer.String("general.architecture", "nemotron_h_moe")
        .Float32("nemotron_h_moe.attention.layer_norm_rms_epsilon", 1e-5f)
        .Int32s("nemotron_h_moe.attention.head_count_kv", heads)
        .Int32s("nemotron_h_moe.feed_forward_length", sizes)
        .Tensor("token_embd.weight", TensorType::kF32, {8, 64}, std::vector<float>(512));
    for (const auto& [key, value] : keys) writer.Uint32("nemotron_h_moe." + key, value);
    return ErrorOf(Read(writer));
  };
  // All is well up to the tensors, of which there are none.
  EXPECT_THAT(with({0, 0, 2, 0}, {0, 32, 0, 32}, 0),
              HasSubstr("tensor blk.0.attn_norm.weight: is missing"));
  // A layer that predicts further tokens has both parts.
  EXPECT_THAT(with({0, 2, 0, 2}, {0, 0, 32, 32}, 1),
              HasSubstr("tensor blk.0.attn_norm.weight: is missing"));
  EXPECT_THAT(with({0, 0, 0, 2}, {0, 32, 32, 32}, 1),
              HasSubstr("head_count_kv: no layer has attention alone"));
  EXPECT_THAT(with({0, 0, 2, 0}, {0, 32, 0}, 0), HasSubstr("is an array of 3 numbers"));
  EXPECT_THAT(with({0, 0, 2, 0}, {0, 32, 0, -1}, 0), HasSubstr("feed_forward_length: -1 is "));
  EXPECT_THAT(with({0, 0, 2, 0}, {0, 32, 0, 32}, 4), HasSubstr("nextn_predict_layers"));
  EXPECT_THAT(with({0, 0, 2, 0}, {0, 32, 0, 32}, 0, 8), HasSubstr("moe_latent_size: 8 is not"));
}

TEST(GgufModelTest, RefusesByNameWhatWouldChangeTheMaths) {
  const auto with = [](const std::function<void(GgufWriter*)>& change) {
    GgufWriter writer = TinyLlamaWriter({});
    change(&writer);
    const absl::StatusOr<ModelConfig> config = Read(writer);
    if (!config.ok()) {
      EXPECT_EQ(config.status().code(), absl::StatusCode::kUnimplemented);
    }
    return ErrorOf(config);
  };
  GgufWriter dense = TinyLlamaWriter({.architecture = "qwen3"});
  dense.Uint32("qwen3.expert_count", 8);
  EXPECT_THAT(ErrorOf(Read(dense)), HasSubstr("key qwen3.expert_count: 8 is not supported"));
  EXPECT_THAT(with([](GgufWriter* w) {
                w->Uint32("llama.expert_count", 8)
                    .Uint32("llama.expert_used_count", 2)
                    .Uint32("llama.expert_gating_func", 2);
              }),
              HasSubstr("key llama.expert_gating_func: 2 is not supported, only 1"));
  EXPECT_THAT(with([](GgufWriter* w) {
                w->Uint32("llama.expert_count", 8)
                    .Uint32("llama.expert_used_count", 2)
                    .Uint32("llama.expert_group_count", 4);
              }),
              HasSubstr("key llama.expert_group_count: 4 is not supported, only 1"));
  EXPECT_THAT(with([](GgufWriter* w) {
                w->Uint32("llama.expert_count", 8)
                    .Uint32("llama.expert_used_count", 2)
                    .Bool("llama.expert_weights_norm", false);
              }),
              HasSubstr("key llama.expert_weights_norm: false is not supported"));
  EXPECT_EQ(with([](GgufWriter* w) { w->Uint32("llama.expert_count", 0); }), "no error");
  EXPECT_THAT(
      with([](GgufWriter* w) { w->String("llama.rope.scaling.type", "su"); }),
      HasSubstr("rope.scaling.type: \"su\" is not supported (supported: none, linear, yarn"));
  EXPECT_THAT(with([](GgufWriter* w) { w->Float32("llama.rope.scaling.attn_factor", 2); }),
              HasSubstr("rope.scaling.type"));
  EXPECT_EQ(
      with([](GgufWriter* w) {
        w->String("llama.rope.scaling.type", "linear").Float32("llama.rope.scaling.factor", 1);
      }),
      "no error");
  EXPECT_THAT(with([](GgufWriter* w) { w->Float32("llama.logit_scale", 0.5f); }),
              HasSubstr("logit_scale"));
  EXPECT_THAT(with([](GgufWriter* w) { w->Bool("llama.attention.causal", false); }),
              HasSubstr("causal"));
  EXPECT_THAT(
      with([](GgufWriter* w) {
        w->Uint32("llama.attention.key_length", 16).Uint32("llama.attention.value_length", 32);
      }),
      HasSubstr("value_length"));
  EXPECT_THAT(with([](GgufWriter* w) {
                w->Tensor("blk.0.attn_norm.bias", TensorType::kF32, {64}, std::vector<float>(64));
              }),
              HasSubstr("tensor blk.0.attn_norm.bias: is not one"));
  GgufWriter vision = TinyLlamaWriter({.architecture = "glm4"});
  vision.Int32s("glm4.rope.dimension_sections", {8, 12, 12, 0});
  EXPECT_THAT(ErrorOf(Read(vision)), HasSubstr("key glm4.rope.dimension_sections: rotations in"));
  GgufWriter other;
  other.String("general.architecture", "mamba");
  EXPECT_THAT(ErrorOf(Read(other)),
              HasSubstr("\"mamba\" is not supported (supported: llama, qwen2, qwen3"));
}

TEST(GgufModelTest, ChecksLimitsAndShapes) {
  const auto with = [](const std::function<void(TinyLlama*)>& change) {
    TinyLlama model;
    change(&model);
    return ErrorOf(Read(TinyLlamaWriter(model)));
  };
  EXPECT_THAT(with([](TinyLlama* m) { m->layers = 0; }),
              HasSubstr("llama.block_count: 0 is outside of 1"));
  EXPECT_THAT(with([](TinyLlama* m) { m->heads = 4, m->kv_heads = 3; }),
              HasSubstr("3 does not divide the 4 heads"));
  EXPECT_THAT(with([](TinyLlama* m) { m->hidden = 60, m->heads = 8, m->kv_heads = 8; }),
              HasSubstr("8 does not divide the hidden size 60"));
  EXPECT_THAT(with([](TinyLlama* m) { m->rope_base = 0; }), HasSubstr("llama.rope.freq_base"));
  EXPECT_THAT(with([](TinyLlama* m) { m->hidden = 36; }), HasSubstr("head size: 9 must be even"));

  GgufWriter twice = TinyLlamaWriter({});
  twice.Uint32("llama.attention.key_length", 32);
  EXPECT_THAT(ErrorOf(Read(twice)),
              HasSubstr("tensor blk.0.attn_q.weight: shape [64, 64], must be [128, 64]"));

  GgufWriter experts = TinyLlamaWriter({.layers = 1000, .hidden = 8, .ffn = 8, .heads = 2});
  experts.Uint32("llama.expert_count", 1000);
  EXPECT_THAT(ErrorOf(Read(experts)),
              HasSubstr("expert_count: is 1000, times 1000 layers; allowed: 131072 in all"));

  TinyLlama more;
  more.layers = 1;
  GgufWriter extra = TinyLlamaWriter(more);
  extra.Tensor("blk.1.attn_norm.weight", TensorType::kF32, {64}, std::vector<float>(64));
  EXPECT_THAT(ErrorOf(Read(extra)), HasSubstr("tensor blk.1.attn_norm.weight: is not one"));
}

TEST(GgufModelTest, NumbersOfEachLayerAreOneWhereTheyAgree) {
  // The number's own key gets another name.
  const auto with = [](const std::string& key, const std::vector<int32_t>& numbers) {
    GgufWriter writer = TinyLlamaWriter({});
    writer.Int32s(std::string(key.size(), '#'), numbers);
    std::string bytes = writer.Bytes();
    bytes.replace(bytes.find(key), 1, "x");
    bytes.replace(bytes.find(std::string(key.size(), '#')), key.size(), key);
    WriteFile(Path(), bytes);
    const absl::StatusOr<GgufFile> file = OpenGgufModel(Path());
    unlink(Path().c_str());
    EXPECT_TRUE(file.ok()) << file.status();
    return ReadModelConfig(*file);
  };
  const std::pair<const char*, int> keys[] = {{"llama.attention.head_count", 4},
                                              {"llama.attention.head_count_kv", 2},
                                              {"llama.feed_forward_length", 128}};
  const absl::StatusOr<ModelConfig> plain = Read(TinyLlamaWriter({}));
  for (const auto& [key, number] : keys) {
    SCOPED_TRACE(key);
    const absl::StatusOr<ModelConfig> config = with(key, {number, number});
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->layers[1].softmax().heads, plain->layers[1].softmax().heads);
    EXPECT_EQ(config->layers[1].softmax().kv_heads, plain->layers[1].softmax().kv_heads);
    EXPECT_EQ(config->layers[1].ffn_size(), plain->layers[1].ffn_size());
    EXPECT_THAT(ErrorOf(with(key, {number, 2 * number})),
                HasSubstr(StrCat("key ", key, ": layers differ, which is not supported: ", number,
                                 ", ", 2 * number)));
    EXPECT_THAT(ErrorOf(with(key, {number})),
                HasSubstr(StrCat("key ", key, ": is an array of 1 numbers, must have 2")));
    EXPECT_THAT(ErrorOf(with(key, {0, 0})), HasSubstr(": 0 is outside of 1 to"));
  }
  EXPECT_THAT(ErrorOf(with("llama.block_count", {2, 2})), HasSubstr("must be an integer"));
}

// llama.cpp reads a bias of any linear where the file has one.
TEST(GgufModelTest, EachLinearMayHaveABias) {
  GgufWriter writer = TinyLlamaWriter({});
  writer.Tensor("blk.0.attn_k.bias", TensorType::kF32, {32}, std::vector<float>(32))
      .Tensor("blk.1.attn_output.bias", TensorType::kF32, {64}, std::vector<float>(64))
      .Tensor("blk.1.ffn_down.bias", TensorType::kF32, {64}, std::vector<float>(64));
  const absl::StatusOr<ModelConfig> config = Read(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->layers[0].softmax().qkv_bias && !config->layers[1].softmax().qkv_bias);
  EXPECT_TRUE(config->layers[1].softmax().output_bias && !config->layers[0].softmax().output_bias);
  EXPECT_TRUE(std::get<GatedFeedForward>(config->layers[1].feed_forward).biases);
  EXPECT_THAT(ErrorOf(Read(writer.Tensor("blk.1.attn_v.bias", TensorType::kF32, {64},
                                         std::vector<float>(64)))),
              HasSubstr("tensor blk.1.attn_v.bias: shape [64], must be [32]"));
}

TEST(GgufModelTest, MissingOrMistypedTensorsAreNamed) {
  TinyLlama model;
  model.layers = 1;
  const GgufWriter writer = TinyLlamaWriter(model);
  // Renamed in the bytes: the same length, another name.
  const auto error = [&](const std::string& from, const std::string& to) {
    std::string bytes = writer.Bytes();
    bytes.replace(bytes.find(from), from.size(), to);
    WriteFile(Path(), bytes);
    const absl::StatusOr<GgufFile> file = OpenGgufModel(Path());
    unlink(Path().c_str());
    EXPECT_TRUE(file.ok()) << file.status();
    return ErrorOf(ReadModelConfig(*file));
  };
  EXPECT_THAT(error("blk.0.ffn_up.weight", "blk.0.ffn_xx.weight"),
              HasSubstr("tensor blk.0.ffn_up.weight: is missing"));
  EXPECT_THAT(error("token_embd.weight", "token_embx.weight"),
              HasSubstr("tensor token_embd.weight: is missing"));
  EXPECT_THAT(error("llama.block_count", "llama.block_cxxxx"),
              HasSubstr("key llama.block_count is missing"));

  // A Q8_0 norm: same byte pattern, the type number after the one dimension changed.
  std::string bytes = writer.Bytes();
  const size_t type = bytes.find("output_norm.weight") + 18 + 4 + 8;
  bytes[type] = 8;
  WriteFile(Path(), bytes);
  EXPECT_THAT(ErrorOf(ReadModelConfig(*OpenGgufModel(Path()))),
              HasSubstr("tensor output_norm.weight: type Q8_0, must be F32, F16 or BF16"));
  unlink(Path().c_str());
}

}  // namespace
}  // namespace millrace
