// Nomic's BERT (arXiv:2402.01613; nomic-embed-text): BERT with rotations in the place of learned
// positions, feed-forward networks gated by SiLU, and no biases but the norms'. Its folders are
// transformers' own or those of the authors' code, which have other names for everything.
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "formats/families/encoder.h"
#include "formats/families/families.h"

namespace millrace {
namespace {

constexpr double kDefaultTheta = 1000;
constexpr double kMaxTheta = 1e12;

absl::Status SetLayers(double theta, bool fused_qkv, ModelConfig* model) {
  for (LayerConfig& layer : model->layers) {
    SoftmaxAttention& attention = layer.softmax();
    attention.qkv_bias = attention.output_bias = false;
    attention.fused_qkv = fused_qkv;
    layer.feed_forward = GatedFeedForward{.size = layer.ffn_size()};
  }
  return SetRotations([theta](int) { return theta; }, model);
}

// What both kinds of folders say, by the names of each.
struct Names {
  const char* layers;
  const char* hidden_size;
  const char* ffn_size;
  const char* heads;
  const char* positions;
  const char* epsilon;
};

absl::StatusOr<ModelConfig> ReadBody(const HfReader& config, const Names& names) {
  const JsonFields& fields = config.fields();
  ModelConfig model;
  EncoderConfig& encoder = model.encoder.emplace();
  const std::string heads_field = StrCat("config.json: ", names.heads);
  EncoderLayers numbers{.heads_field = heads_field};
  MILLRACE_ASSIGN_OR_RETURN(numbers.layers, config.Int(names.layers, kMaxLayers));
  MILLRACE_ASSIGN_OR_RETURN(model.hidden_size, config.Int(names.hidden_size, kMaxWidth));
  MILLRACE_ASSIGN_OR_RETURN(numbers.ffn_size, config.Int(names.ffn_size, kMaxWidth));
  MILLRACE_ASSIGN_OR_RETURN(numbers.heads, config.Int(names.heads, kMaxHeads));
  MILLRACE_ASSIGN_OR_RETURN(model.vocab_size, config.Int("vocab_size", kMaxVocab));
  MILLRACE_ASSIGN_OR_RETURN(model.context_length, config.Int(names.positions, kMaxContext));
  MILLRACE_ASSIGN_OR_RETURN(encoder.token_types,
                            config.IntOr("type_vocab_size", kMaxTokenTypes, 2));
  model.norm_epsilon = 1e-12;
  if (fields.Find(names.epsilon) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(
        model.norm_epsilon,
        fields.Float(names.epsilon, kLeastLayerNormEpsilon, kMostLayerNormEpsilon));
  }
  MILLRACE_ASSIGN_OR_RETURN(model.layers, MakeEncoderLayers(numbers, model.hidden_size));
  MILLRACE_RETURN_IF_ERROR(fields.Refuse("quantization_config", Json::array()));
  return model;
}

absl::StatusOr<ModelConfig> ReadTransformers(const HfReader& config) {
  const JsonFields& fields = config.fields();
  MILLRACE_ASSIGN_OR_RETURN(
      ModelConfig model,
      ReadBody(config, {"num_hidden_layers", "hidden_size", "intermediate_size",
                        "num_attention_heads", "max_position_embeddings", "layer_norm_eps"}));
  MILLRACE_RETURN_IF_ERROR(fields.Refuse("hidden_act", Json::array({"silu"})));
  const int head_size = model.layers[0].softmax().head_size;
  MILLRACE_RETURN_IF_ERROR(fields.Refuse("head_dim", Json::array({head_size})));
  MILLRACE_ASSIGN_OR_RETURN(const HfRopes ropes, ReadHfRopes(fields, {.theta = kDefaultTheta},
                                                             head_size, &model.context_length));
  MILLRACE_RETURN_IF_ERROR(SetLayers(ropes.rope.theta, /*fused_qkv=*/false, &model));
  for (LayerConfig& layer : model.layers) layer.softmax().rope = ropes.rope;
  return model;
}

// Reads a folder of the authors' code, whose class has the same name.
absl::StatusOr<ModelConfig> ReadAuthors(const HfReader& config) {
  const JsonFields& fields = config.fields();
  MILLRACE_ASSIGN_OR_RETURN(
      ModelConfig model, ReadBody(config, {"n_layer", "n_embd", "n_inner", "n_head", "n_positions",
                                           "layer_norm_epsilon"}));
  const std::pair<const char*, Json> neutral[] = {{"activation_function", Json::array({"swiglu"})},
                                                  {"prenorm", Json::array({false})},
                                                  {"parallel_block", Json::array({false})},
                                                  {"use_rms_norm", Json::array({false})},
                                                  {"causal", Json::array({false})},
                                                  {"qkv_proj_bias", Json::array({false})},
                                                  {"mlp_fc1_bias", Json::array({false})},
                                                  {"mlp_fc2_bias", Json::array({false})},
                                                  {"rotary_emb_fraction", Json::array({1, 1.0})},
                                                  {"rotary_emb_interleaved", Json::array({false})},
                                                  {"rotary_emb_scale_base", Json::array()},
                                                  {"rotary_scaling_factor", Json::array()},
                                                  {"moe_every_n_layers", Json::array({0})}};
  for (const auto& [name, values] : neutral) {
    MILLRACE_RETURN_IF_ERROR(fields.Refuse(name, values));
  }
  double theta = kDefaultTheta;
  if (fields.Find("rotary_emb_base") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(theta, fields.Float("rotary_emb_base", 1, kMaxTheta));
  }
  MILLRACE_RETURN_IF_ERROR(SetLayers(theta, /*fused_qkv=*/true, &model));
  return model;
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  return config.fields().Find("n_embd") != nullptr ? ReadAuthors(config) : ReadTransformers(config);
}

absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& reader) {
  MILLRACE_RETURN_IF_ERROR(RefuseRopeScaling(reader));
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadEncoderGguf(reader));
  MILLRACE_ASSIGN_OR_RETURN(const double theta,
                            reader.FloatOr("rope.freq_base", 10000, 1, kMaxTheta));
  MILLRACE_RETURN_IF_ERROR(SetLayers(theta, model.layers[0].softmax().fused_qkv, &model));
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"NomicBertModel", ReadHf},
                                             {"NomicBertForMaskedLM", ReadHf},
                                             {"NomicBertForPreTraining", ReadHf}};

// transformers' and then the authors'.
constexpr Spelling kSpellings[] = {
    {"token_embd", "embeddings.word_embeddings"},
    {"token_types", "embeddings.token_type_embeddings"},
    {"token_embd_norm", "embeddings.LayerNorm"},
    {"token_embd_norm", "emb_ln"},
    {"blk.#.attn_q", "layers.#.self_attn.q_proj"},
    {"blk.#.attn_k", "layers.#.self_attn.k_proj"},
    {"blk.#.attn_v", "layers.#.self_attn.v_proj"},
    {"blk.#.attn_qkv", "encoder.layers.#.attn.Wqkv"},
    {"blk.#.attn_output", "layers.#.self_attn.o_proj"},
    {"blk.#.attn_output", "encoder.layers.#.attn.out_proj"},
    {"blk.#.attn_output_norm", "layers.#.post_attention_layernorm"},
    {"blk.#.attn_output_norm", "encoder.layers.#.norm1"},
    {"blk.#.ffn_gate", "layers.#.mlp.gate_proj"},
    {"blk.#.ffn_gate", "encoder.layers.#.mlp.fc12"},
    {"blk.#.ffn_up", "layers.#.mlp.up_proj"},
    {"blk.#.ffn_up", "encoder.layers.#.mlp.fc11"},
    {"blk.#.ffn_down", "layers.#.mlp.down_proj"},
    {"blk.#.ffn_down", "encoder.layers.#.mlp.fc2"},
    {"blk.#.layer_output_norm", "layers.#.post_mlp_layernorm"},
    {"blk.#.layer_output_norm", "encoder.layers.#.norm2"},
};
constexpr std::string_view kPrefixes[] = {"", "nomic_bert.", "bert."};
constexpr std::string_view kIgnored[] = {"pooler.", "cls.", "bert.pooler.", "nomic_bert.pooler."};

constexpr std::string_view kTwins = R"([
{"name": "nomic_bert", "spread": 0.2, "pooling": "mean_tokens", "normalize": true,
 "config": {"architectures": ["NomicBertModel"], "model_type": "nomic_bert", "hidden_size": 64,
   "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 128,
   "max_position_embeddings": 128, "type_vocab_size": 2, "layer_norm_eps": 1e-5,
   "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}, "hidden_act": "silu",
   "torch_dtype": "float32"},
 "mutations": [{"layer_norm_eps": 0.09}, {"num_attention_heads": 2},
               {"rope_parameters": {"rope_theta": 50.0}}]}
])";

}  // namespace

constexpr Family kNomicBert = {.name = "nomic-bert",
                               .hf = kArchitectures,
                               .read_gguf = ReadGguf,
                               .tensors = EncoderTensors,
                               .spellings = kSpellings,
                               .hf_prefixes = kPrefixes,
                               .ignored = kIgnored,
                               .twins = kTwins};

}  // namespace millrace
