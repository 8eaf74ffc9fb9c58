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

absl::StatusOr<ModelConfig> ReadBody(const HfReader& config, const HfEncoderNames& names) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadHfEncoder(config, names));
  MILLRACE_ASSIGN_OR_RETURN(model.encoder->token_types,
                            config.IntOr("type_vocab_size", kMaxTokenTypes, 2));
  return model;
}

absl::StatusOr<ModelConfig> ReadTransformers(const HfReader& config) {
  const JsonFields& fields = config.fields();
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadBody(config, {}));
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
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadBody(config, {.layers = "n_layer",
                                                                 .hidden_size = "n_embd",
                                                                 .ffn_size = "n_inner",
                                                                 .heads = "n_head",
                                                                 .positions = "n_positions",
                                                                 .epsilon = "layer_norm_epsilon"}));
  // nomic-embed-text-v2-moe's mixtures come first, since they say what kind of model it is.
  const std::pair<const char*, Json> neutral[] = {{"moe_every_n_layers", Json::array({0})},
                                                  {"activation_function", Json::array({"swiglu"})},
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
                                                  {"rotary_scaling_factor", Json::array()}};
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
               {"rope_parameters": {"rope_theta": 50.0}}]},
{"name": "nomic_bert_authors", "spread": 0.2, "pooling": "mean_tokens", "normalize": true,
 "in_gguf": false, "spelled": ["emb_ln", "encoder.layers."],
 "config": {"architectures": ["NomicBertModel"], "model_type": "nomic_bert",
   "activation_function": "swiglu", "n_embd": 64, "n_inner": 96, "n_layer": 3, "n_head": 4,
   "n_positions": 128, "vocab_size": 128, "type_vocab_size": 2, "layer_norm_epsilon": 1e-5,
   "prenorm": false, "causal": false, "parallel_block": false, "use_rms_norm": false,
   "qkv_proj_bias": false, "mlp_fc1_bias": false, "mlp_fc2_bias": false,
   "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": false,
   "rotary_emb_scale_base": null, "rotary_scaling_factor": null, "torch_dtype": "float32"},
 "mutations": [{"layer_norm_epsilon": 0.09}, {"n_head": 2}, {"rotary_emb_base": 50}]}
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
