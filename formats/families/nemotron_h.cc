// Nemotron-H (arXiv:2504.03624) and Nemotron 3: each layer is one part, with one norm: a Mamba-2
// mixer, attention without positions, a network of squared ReLU, or a mixture of such networks,
// which has GLM-4.5's router and a shared expert. GGUF files of models with mixtures have a name of
// their own.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "formats/families/decoder.h"
#include "formats/families/experts.h"
#include "formats/families/families.h"
#include "formats/families/mamba2.h"

namespace millrace {
namespace {

constexpr char kPattern[] = "hybrid_override_pattern";
constexpr char kTypes[] = "layers_block_type";
constexpr GateFunction kFunction = GateFunction::kSquaredRelu;

// Makes a layer of its mixer, or of its network, alone.
void LeaveMixer(LayerConfig* layer) { layer->feed_forward = Absent(); }
void LeaveNetwork(LayerConfig* layer) { layer->attention = Absent(); }

// Returns a letter of the pattern for each layer. Where there is a list of types it counts, as in
// transformers.
absl::StatusOr<std::string> ReadPattern(const JsonFields& fields) {
  if (fields.Find(kTypes) == nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view pattern, fields.String(kPattern));
    if (pattern.find_first_not_of("M*-E") == pattern.npos) return std::string(pattern);
    return fields.Unsupported(kPattern, StrCat("\"", Printable(pattern),
                                               "\" is not supported (supported: M, *, -, E, one a "
                                               "layer)"));
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<std::string> types, fields.Strings(kTypes));
  std::string pattern;
  for (const std::string& type : types) {
    if (type == "mamba" || type == "linear_attention") {
      pattern += 'M';
    } else if (type == "attention" || type == "full_attention") {
      pattern += '*';
    } else if (type == "mlp") {
      pattern += '-';
    } else if (type == "moe") {
      pattern += 'E';
    } else {
      return fields.Unsupported(kTypes, StrCat("\"", Printable(type),
                                               "\" is not supported (supported: mamba, "
                                               "linear_attention, attention, full_attention, mlp, "
                                               "moe)"));
    }
  }
  return pattern;
}

absl::StatusOr<Mamba2> ReadMixer(const HfReader& config) {
  constexpr char kHeads[] = "mamba_num_heads";
  constexpr char kWidth[] = "conv_kernel";
  const JsonFields& fields = config.fields();
  MILLRACE_RETURN_IF_ERROR(fields.Refuse("mamba_hidden_act", Json::array({"silu", "swish"})));
  Mamba2 mixer;
  MILLRACE_ASSIGN_OR_RETURN(mixer.heads, config.IntOr(kHeads, kMaxHeads, 128));
  MILLRACE_ASSIGN_OR_RETURN(mixer.head_size, config.IntOr("mamba_head_dim", kMaxHeadSize, 64));
  MILLRACE_ASSIGN_OR_RETURN(mixer.groups, config.IntOr("n_groups", kMaxHeads, 8));
  MILLRACE_ASSIGN_OR_RETURN(mixer.state_size, config.IntOr("ssm_state_size", kMaxHeadSize, 128));
  MILLRACE_ASSIGN_OR_RETURN(mixer.width, config.IntOr(kWidth, kMaxConvolutionWidth, 4));
  if (mixer.heads % mixer.groups != 0) {
    return fields.Bad(
        kHeads, StrCat(mixer.heads, " must be a multiple of the ", mixer.groups, " of n_groups"));
  }
  if (mixer.width < 2) {
    return fields.Unsupported(
        kWidth, StrCat("is ", mixer.width, "; supported: 2 to ", kMaxConvolutionWidth));
  }
  MILLRACE_ASSIGN_OR_RETURN(mixer.convolution_bias, fields.BoolOr("use_conv_bias", true));
  MILLRACE_ASSIGN_OR_RETURN(mixer.projection_bias, fields.BoolOr("use_bias", false));
  // As the models were trained, and as vLLM and llama.cpp run them. transformers bounds steps by
  // time_step_min in its place.
  MILLRACE_RETURN_IF_ERROR(ReadStepLimits(fields, &mixer));
  return mixer;
}

absl::StatusOr<ExpertsFeedForward> ReadExperts(const HfReader& config) {
  const JsonFields& fields = config.fields();
  MILLRACE_RETURN_IF_ERROR(fields.Refuse("moe_latent_size", Json::array()));
  MILLRACE_RETURN_IF_ERROR(fields.Refuse("n_shared_experts", Json::array({1})));
  MILLRACE_RETURN_IF_ERROR(fields.Refuse("mlp_bias", Json::array({false})));
  ExpertsFeedForward experts{.function = kFunction};
  MILLRACE_ASSIGN_OR_RETURN(experts.router, ReadHfGroupRouter(config));
  MILLRACE_ASSIGN_OR_RETURN(experts.size, config.IntOr("moe_intermediate_size", kMaxWidth, 7688));
  MILLRACE_ASSIGN_OR_RETURN(experts.shared_size,
                            config.IntOr("moe_shared_expert_intermediate_size", kMaxWidth, 7688));
  return experts;
}

// Sets the part that each letter of the pattern stands for.
absl::Status SetParts(const HfReader& config, std::string_view pattern, ModelConfig* model) {
  const JsonFields& fields = config.fields();
  MILLRACE_RETURN_IF_ERROR(fields.Refuse("mlp_hidden_act", Json::array({"relu2"})));
  MILLRACE_RETURN_IF_ERROR(fields.Refuse("attention_bias", Json::array({false})));
  GatedFeedForward dense{.function = kFunction};
  MILLRACE_ASSIGN_OR_RETURN(dense.size, config.IntOr("intermediate_size", kMaxWidth, 21504));
  MILLRACE_ASSIGN_OR_RETURN(dense.biases, fields.BoolOr("mlp_bias", false));
  MILLRACE_ASSIGN_OR_RETURN(const Mamba2 mixer, ReadMixer(config));
  ExpertsFeedForward experts;
  if (pattern.find('E') != pattern.npos) {
    MILLRACE_ASSIGN_OR_RETURN(experts, ReadExperts(config));
  }
  for (int i = 0; i < model->num_layers(); ++i) {
    LayerConfig& layer = model->layers[i];
    layer.softmax().rope.reset();
    if (pattern[i] == 'M') layer.attention = mixer;
    if (pattern[i] == '-') layer.feed_forward = dense;
    if (pattern[i] == 'E') layer.feed_forward = experts;
    if (pattern[i] == 'M' || pattern[i] == '*') {
      LeaveMixer(&layer);
    } else {
      LeaveNetwork(&layer);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  constexpr char kLayers[] = "num_hidden_layers";
  constexpr char kHeadSize[] = "head_dim";
  MILLRACE_ASSIGN_OR_RETURN(const std::string pattern, ReadPattern(config.fields()));
  const char* const name = config.fields().Find(kTypes) == nullptr ? kPattern : kTypes;
  MILLRACE_RETURN_IF_ERROR(config.fields().Refuse("sliding_window", Json::array()));
  if (pattern.find('*') == pattern.npos) {
    return config.fields().Unsupported(name,
                                       "has no attention, of which at least one is supported");
  }
  // transformers counts the layers, and once wrote head_dim by another name.
  Json object = config.fields().object();
  if (config.fields().Find(kLayers) == nullptr) object[kLayers] = pattern.size();
  if (config.fields().Find(kHeadSize) == nullptr) {
    object[kHeadSize] = object.value("attention_head_dim", Json());
  }
  const JsonFields fields = config.fields().With(object);
  const HfReader reader(fields);
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model,
                            reader.Decoder({.head_size = 128,
                                            .kv_heads = 8,
                                            .context = 4096,
                                            .epsilon = 1e-5,
                                            .epsilon_name = "layer_norm_epsilon",
                                            .experts = true}));  // sizes are read
  if (static_cast<size_t>(model.num_layers()) != pattern.size()) {
    return fields.Bad(name, StrCat("has ", pattern.size(), " layers, must have ",
                                   model.num_layers(), ", as num_hidden_layers"));
  }
  MILLRACE_RETURN_IF_ERROR(SetParts(reader, pattern, &model));
  return model;
}

absl::StatusOr<ExpertsFeedForward> ReadGgufExperts(const GgufReader& file) {
  constexpr char kLatent[] = "moe_latent_size";
  MILLRACE_ASSIGN_OR_RETURN(const int latent, file.IntOr(kLatent, kMaxWidth, 0, 0));
  if (latent != 0) {
    return file.Unsupported(file.Key(kLatent), StrCat(latent, " is not supported, only 0"));
  }
  ExpertsFeedForward experts{.function = kFunction};
  MILLRACE_ASSIGN_OR_RETURN(experts.router, ReadGgufGroupRouter(file));
  MILLRACE_ASSIGN_OR_RETURN(experts.size, file.Int("expert_feed_forward_length", kMaxWidth));
  MILLRACE_ASSIGN_OR_RETURN(experts.shared_size,
                            file.Int("expert_shared_feed_forward_length", kMaxWidth));
  return experts;
}

// A layer with a size has a network, one with heads of keys and values attention, and another a
// Mamba-2 mixer, as in llama.cpp. Layers that predict further tokens stand behind the others.
absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(const KvHeads kv, file.ReadKvHeads());
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes,
                            file.IntsOfLayers("feed_forward_length", kMaxWidth));
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model,
                            file.Decoder({.experts = true, .kv_heads = kv.heads, .sizes = true}));
  MILLRACE_RETURN_IF_ERROR(file.RefuseWindows());
  MILLRACE_ASSIGN_OR_RETURN(const int further,
                            file.IntOr("nextn_predict_layers", model.num_layers() - 1, 0, 0));
  model.layers.resize(model.layers.size() - further);
  MILLRACE_ASSIGN_OR_RETURN(const int count, file.IntOr("expert_count", kMaxExperts, 0, 0));
  ExpertsFeedForward experts;
  if (count > 0) {
    MILLRACE_ASSIGN_OR_RETURN(experts, ReadGgufExperts(file));
  }
  Mamba2 mixer;
  for (int i = 0; i < model.num_layers(); ++i) {
    LayerConfig& layer = model.layers[i];
    layer.softmax().rope.reset();
    if (sizes[i] > 0) {
      layer.gated().size = static_cast<int>(sizes[i]);
      layer.gated().function = kFunction;
      if (count > 0) layer.feed_forward = experts;
      LeaveNetwork(&layer);
      continue;
    }
    if (!kv.attends[i]) {
      if (mixer.heads == 0) {
        MILLRACE_ASSIGN_OR_RETURN(mixer, ReadGgufMamba2(file, i));
      }
      layer.attention = mixer;
    }
    LeaveMixer(&layer);
  }
  const auto attends = [](const LayerConfig& layer) { return layer.FindSoftmax() != nullptr; };
  if (std::any_of(model.layers.begin(), model.layers.end(), attends)) return model;
  return file.Unsupported(file.Key("attention.head_count_kv"),
                          "no layer has attention alone, of which at least one is supported");
}

constexpr HfArchitecture kArchitectures[] = {{"NemotronHForCausalLM", ReadHf}};

constexpr Spelling kSpellings[] = {
    {"token_embd", "backbone.embeddings"},
    {"output_norm", "backbone.norm_f"},
    {"output", "lm_head"},
    {"blk.#.attn_norm", "backbone.layers.#.norm"},
    {"blk.#.attn_q", "backbone.layers.#.mixer.q_proj"},
    {"blk.#.attn_k", "backbone.layers.#.mixer.k_proj"},
    {"blk.#.attn_v", "backbone.layers.#.mixer.v_proj"},
    {"blk.#.attn_output", "backbone.layers.#.mixer.o_proj"},
    {"blk.#.attn.k_scale", "backbone.layers.#.mixer.k_proj.k_scale"},
    {"blk.#.attn.v_scale", "backbone.layers.#.mixer.v_proj.v_scale"},
    {"blk.#.ssm_in", "backbone.layers.#.mixer.in_proj"},
    {"blk.#.ssm_conv1d", "backbone.layers.#.mixer.conv1d"},
    {"blk.#.ssm_a", "backbone.layers.#.mixer.A_log"},
    {"blk.#.ssm_d", "backbone.layers.#.mixer.D"},
    {"blk.#.ssm_dt.bias", "backbone.layers.#.mixer.dt_bias"},
    {"blk.#.ssm_norm", "backbone.layers.#.mixer.norm"},
    {"blk.#.ssm_out", "backbone.layers.#.mixer.out_proj"},
    {"blk.#.ffn_up", "backbone.layers.#.mixer.up_proj"},
    {"blk.#.ffn_down", "backbone.layers.#.mixer.down_proj"},
    {"blk.#.ffn_gate_inp", "backbone.layers.#.mixer.gate"},
    {"blk.#.exp_probs_b.bias", "backbone.layers.#.mixer.gate.e_score_correction_bias"},
    {"blk.#.ffn_up.#", "backbone.layers.#.mixer.experts.#.up_proj"},
    {"blk.#.ffn_down.#", "backbone.layers.#.mixer.experts.#.down_proj"},
    {"blk.#.ffn_up_shexp", "backbone.layers.#.mixer.shared_experts.up_proj"},
    {"blk.#.ffn_down_shexp", "backbone.layers.#.mixer.shared_experts.down_proj"},
};

// Heads that predict further tokens.
constexpr std::string_view kIgnored[] = {"mtp."};

constexpr std::string_view kTwins = R"([
{"name": "nemotron_h",
 "changes": {"model_type": "nemotron_h", "rms_norm_eps": null, "layer_norm_epsilon": 1e-5,
   "rope_theta": null, "hidden_act": null, "num_hidden_layers": 5, "intermediate_size": 80,
   "hybrid_override_pattern": "M-M*-", "mlp_hidden_act": "relu2", "max_position_embeddings": 512,
   "mamba_num_heads": 4, "mamba_head_dim": 32, "n_groups": 2, "ssm_state_size": 16,
   "conv_kernel": 4, "use_conv_bias": true, "time_step_min": 0.0},
 "gguf_keys": {"layer_norm_epsilon": "attention.layer_norm_epsilon"}},
{"name": "nemotron_h_moe", "gguf_name": "nemotron_h_moe",
 "changes": {"model_type": "nemotron_h", "rms_norm_eps": null, "layer_norm_epsilon": 1e-5,
   "rope_theta": null, "hidden_act": null, "intermediate_size": null, "num_hidden_layers": 5,
   "hybrid_override_pattern": "ME*ME", "mlp_hidden_act": "relu2", "max_position_embeddings": 512,
   "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 4, "ssm_state_size": 32,
   "conv_kernel": 4, "use_conv_bias": true, "time_step_min": 0.0, "n_routed_experts": 8,
   "num_experts_per_tok": 3, "n_shared_experts": 1, "moe_intermediate_size": 48,
   "moe_shared_expert_intermediate_size": 72, "routed_scaling_factor": 2.5,
   "norm_topk_prob": true, "n_group": 1, "topk_group": 1},
 "gguf_keys": {"layer_norm_epsilon": "attention.layer_norm_epsilon"},
 "mutations": [
  {"num_experts_per_tok": 2},
  {"routed_scaling_factor": 2.0},
  {"norm_topk_prob": false}]},
{"name": "nemotron_h_biased", "in_gguf": false,
 "changes": {"model_type": "nemotron_h", "rms_norm_eps": null, "layer_norm_epsilon": 1e-5,
   "rope_theta": null, "hidden_act": null, "num_hidden_layers": 4, "intermediate_size": 72,
   "layers_block_type": ["mlp", "mamba", "attention", "mlp"], "mlp_hidden_act": "relu2",
   "max_position_embeddings": 512, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1,
   "ssm_state_size": 16, "conv_kernel": 4, "use_conv_bias": false, "use_bias": true,
   "mlp_bias": true, "time_step_min": 0.0},
 "mutations": [{"time_step_limit": [0.25, 1.5]}]},
{"name": "nemotron_h_groups", "in_gguf": false,
 "changes": {"model_type": "nemotron_h", "rms_norm_eps": null, "layer_norm_epsilon": 1e-5,
   "rope_theta": null, "hidden_act": null, "num_hidden_layers": 4,
   "hybrid_override_pattern": "EM*-", "mlp_hidden_act": "relu2", "max_position_embeddings": 512,
   "mamba_num_heads": 4, "mamba_head_dim": 32, "n_groups": 2, "ssm_state_size": 16,
   "conv_kernel": 4, "time_step_min": 0.0, "n_routed_experts": 8, "num_experts_per_tok": 3,
   "n_shared_experts": 1, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 40,
   "routed_scaling_factor": 1.0, "norm_topk_prob": false, "n_group": 4, "topk_group": 2},
 "mutations": [
  {"n_group": 2},
  {"topk_group": 3},
  {"norm_topk_prob": true}]}
])";

}  // namespace

constexpr Family kNemotronH = {.name = "nemotron_h",
                               .hf = kArchitectures,
                               .read_gguf = ReadGguf,
                               .tensors = DecoderTensors,
                               .spellings = kSpellings,
                               .ignored = kIgnored,
                               .ignores_further_layers = true,
                               .twins = kTwins};

// The name of GGUF files with mixtures.
constexpr Family kNemotronHMoe = {.name = "nemotron_h_moe",
                                  .hf = {},
                                  .read_gguf = ReadGguf,
                                  .tensors = DecoderTensors,
                                  .spellings = kSpellings,
                                  .ignored = kIgnored,
                                  .ignores_further_layers = true,
                                  .twins = "[]"};

}  // namespace millrace
