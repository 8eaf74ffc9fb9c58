// Granite 4 (github.com/ibm-granite/granite-4.0-language-models): most layers are Mamba-2 mixers,
// and the others have attention, mostly without positions; some models have attention alone. Each
// layer has a dense network, beside which a mixture of experts may stand. Factors are Granite's.
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
#include "formats/families/granite.h"
#include "formats/families/mamba2.h"

namespace millrace {
namespace {

// Returns which layers have attention: `layer_types` says so, or by its other name
// layers_block_type. Without either none has in transformers, which has two names for each type.
absl::StatusOr<std::vector<bool>> ReadLayerKinds(const HfReader& config, int layers) {
  constexpr char kTypes[] = "layer_types";
  constexpr char kOtherTypes[] = "layers_block_type";
  const JsonFields& fields = config.fields();
  const bool other = fields.Find(kTypes) == nullptr && fields.Find(kOtherTypes) != nullptr;
  const char* const name = other ? kOtherTypes : kTypes;
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<std::string> types, fields.Strings(name));
  if (static_cast<int>(types.size()) != layers) {
    return fields.Bad(name,
                      StrCat("has ", types.size(), " items, must have ", layers, ", one a layer"));
  }
  std::vector<bool> attends;
  for (const std::string& type : types) {
    const bool is_attention = type == "attention" || type == "full_attention";
    if (!is_attention && type != "mamba" && type != "linear_attention") {
      return fields.Unsupported(name, StrCat("\"", Printable(type),
                                             "\" is not supported (supported: attention, "
                                             "full_attention, mamba, linear_attention)"));
    }
    attends.push_back(is_attention);
  }
  if (std::find(attends.begin(), attends.end(), true) != attends.end()) return attends;
  return fields.Unsupported(name, "has no attention, of which at least one is supported");
}

absl::StatusOr<Mamba2> ReadMixer(const HfReader& config, int hidden_size) {
  constexpr char kHeads[] = "mamba_n_heads";
  constexpr char kHeadSize[] = "mamba_d_head";
  constexpr char kWidth[] = "mamba_d_conv";
  const JsonFields& fields = config.fields();
  Mamba2 mixer;
  MILLRACE_ASSIGN_OR_RETURN(mixer.heads, config.IntOr(kHeads, kMaxHeads, 128));
  MILLRACE_ASSIGN_OR_RETURN(mixer.groups, config.IntOr("mamba_n_groups", kMaxHeads, 1));
  MILLRACE_ASSIGN_OR_RETURN(mixer.state_size, config.IntOr("mamba_d_state", kMaxHeadSize, 256));
  MILLRACE_ASSIGN_OR_RETURN(const int expand, config.IntOr("mamba_expand", kMaxHeads, 2));
  if (mixer.heads % mixer.groups != 0) {
    return fields.Bad(kHeads, StrCat(mixer.heads, " must be a multiple of the ", mixer.groups,
                                     " of mamba_n_groups"));
  }
  const int64_t inner = int64_t{expand} * hidden_size;
  const Json* const size = fields.Find(kHeadSize);
  if (size == nullptr || *size == Json("auto")) {
    mixer.head_size = static_cast<int>(std::min<int64_t>(inner / mixer.heads, kMaxWidth));
  } else {
    MILLRACE_ASSIGN_OR_RETURN(mixer.head_size, config.Int(kHeadSize, kMaxHeadSize));
  }
  if (int64_t{mixer.heads} * mixer.head_size != inner || mixer.head_size > kMaxHeadSize) {
    return fields.Bad(kHeadSize, StrCat(mixer.heads, " heads (mamba_n_heads) of ", mixer.head_size,
                                        " must be mamba_expand times the hidden size, ", inner,
                                        ", and heads have at most ", kMaxHeadSize));
  }
  MILLRACE_ASSIGN_OR_RETURN(mixer.width, config.IntOr(kWidth, kMaxConvolutionWidth, 4));
  if (mixer.width < 2) {
    return fields.Unsupported(
        kWidth, StrCat("is ", mixer.width, "; supported: 2 to ", kMaxConvolutionWidth));
  }
  MILLRACE_ASSIGN_OR_RETURN(mixer.convolution_bias, fields.BoolOr("mamba_conv_bias", true));
  MILLRACE_ASSIGN_OR_RETURN(mixer.projection_bias, fields.BoolOr("mamba_proj_bias", false));
  MILLRACE_RETURN_IF_ERROR(ReadStepLimits(fields, &mixer));
  return mixer;
}

// Removes the rotations unless position_embedding_type says that there are some.
absl::Status ReadPositions(const JsonFields& fields, ModelConfig* model) {
  constexpr char kName[] = "position_embedding_type";
  MILLRACE_RETURN_IF_ERROR(fields.Refuse(kName, Json::array({"rope", "nope"})));
  const Json* const type = fields.Find(kName);
  if (type != nullptr && *type == Json("rope")) return absl::OkStatus();
  for (LayerConfig& layer : model->layers) layer.softmax().rope.reset();
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  constexpr char kExperts[] = "num_local_experts";
  const JsonFields& fields = config.fields();
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadHfGranite(config));
  MILLRACE_RETURN_IF_ERROR(ReadPositions(fields, &model));
  MILLRACE_ASSIGN_OR_RETURN(const int dense,
                            config.IntOr("shared_intermediate_size", kMaxWidth, 1024));
  MILLRACE_ASSIGN_OR_RETURN(const int64_t count, fields.Int(kExperts, 0, kMaxExperts));
  if (count == 0) {
    for (LayerConfig& layer : model.layers) layer.gated().size = dense;
  } else {
    ExpertsFeedForward experts{.size = model.layers[0].ffn_size(), .shared_size = dense};
    MILLRACE_ASSIGN_OR_RETURN(experts.router, ReadHfRouter(config, kExperts, kGraniteRouter));
    SetExperts(experts, &model);
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<bool> attends,
                            ReadLayerKinds(config, model.num_layers()));
  if (std::find(attends.begin(), attends.end(), false) == attends.end()) return model;
  MILLRACE_ASSIGN_OR_RETURN(const Mamba2 mixer, ReadMixer(config, model.hidden_size));
  for (int i = 0; i < model.num_layers(); ++i) {
    if (!attends[i]) model.layers[i].attention = mixer;
  }
  return model;
}

absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(const KvHeads kv, file.ReadKvHeads());
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadGgufGranite(file, /*experts=*/true, kv.heads));
  MILLRACE_ASSIGN_OR_RETURN(const int shared, file.IntOr("expert_shared_feed_forward_length",
                                                         kMaxWidth, model.layers[0].ffn_size(), 0));
  MILLRACE_ASSIGN_OR_RETURN(const int count, file.IntOr("expert_count", kMaxExperts, 0, 0));
  if (count > 0) {
    ExpertsFeedForward experts{.size = model.layers[0].ffn_size(), .shared_size = shared};
    MILLRACE_ASSIGN_OR_RETURN(experts.router, ReadGgufRouter(file, kGraniteRouter));
    SetExperts(experts, &model);
  } else {
    for (LayerConfig& layer : model.layers) layer.gated().size = shared;
  }
  const auto example = std::find(kv.attends.begin(), kv.attends.end(), false);
  if (example == kv.attends.end()) return model;
  MILLRACE_ASSIGN_OR_RETURN(const Mamba2 mixer,
                            ReadGgufMamba2(file, static_cast<int>(example - kv.attends.begin())));
  for (int i = 0; i < model.num_layers(); ++i) {
    if (!kv.attends[i]) model.layers[i].attention = mixer;
  }
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"GraniteMoeHybridForCausalLM", ReadHf}};

// A dense network is what stands beside experts elsewhere.
constexpr Spelling kHybridSpellings[] = {
    {"blk.#.ffn_gate", "blk.#.ffn_gate_shexp"},
    {"blk.#.ffn_up", "blk.#.ffn_up_shexp"},
    {"blk.#.ffn_down", "model.layers.#.shared_mlp.output_linear"},
    {"blk.#.ssm_in", "model.layers.#.mamba.in_proj"},
    {"blk.#.ssm_conv1d", "model.layers.#.mamba.conv1d"},
    {"blk.#.ssm_a", "model.layers.#.mamba.A_log"},
    {"blk.#.ssm_d", "model.layers.#.mamba.D"},
    {"blk.#.ssm_dt.bias", "model.layers.#.mamba.dt_bias"},
    {"blk.#.ssm_norm", "model.layers.#.mamba.norm"},
    {"blk.#.ssm_out", "model.layers.#.mamba.out_proj"},
};

constexpr auto kSpellings = Joined(kHybridSpellings, kGraniteMoeSpellings);

constexpr std::string_view kTwins = R"([
{"name": "granitehybrid",
 "changes": {"model_type": "granitemoehybrid", "head_dim": null, "rope_theta": null,
   "num_hidden_layers": 4, "layer_types": ["mamba", "attention", "mamba", "mamba"],
   "position_embedding_type": "nope", "max_position_embeddings": 512, "intermediate_size": 32,
   "num_local_experts": 6, "num_experts_per_tok": 2, "shared_intermediate_size": 64,
   "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_d_state": 16,
   "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": true, "mamba_proj_bias": false,
   "embedding_multiplier": 6.0, "attention_multiplier": 0.2, "residual_multiplier": 0.4,
   "logits_scaling": 0.5},
 "gguf_keys": {"embedding_multiplier": "embedding_scale",
   "attention_multiplier": "attention.scale", "residual_multiplier": "residual_scale",
   "logits_scaling": "logit_scale"},
 "mutations": [
  {"num_experts_per_tok": 3},
  {"position_embedding_type": "rope"},
  {"embedding_multiplier": 7.0},
  {"attention_multiplier": 0.25},
  {"residual_multiplier": 0.5},
  {"logits_scaling": 0.6}]},
{"name": "granitehybrid_dense",
 "changes": {"model_type": "granitemoehybrid", "head_dim": null, "rope_theta": null,
   "layer_types": ["mamba", "mamba", "attention"], "position_embedding_type": "nope",
   "max_position_embeddings": 512, "num_local_experts": 0, "shared_intermediate_size": 96,
   "mamba_n_heads": 4, "mamba_d_head": "auto", "mamba_n_groups": 2, "mamba_d_state": 32,
   "mamba_d_conv": 4, "embedding_multiplier": 6.0, "attention_multiplier": 0.2,
   "residual_multiplier": 0.4, "logits_scaling": 0.5, "tie_word_embeddings": true},
 "gguf_keys": {"embedding_multiplier": "embedding_scale",
   "attention_multiplier": "attention.scale", "residual_multiplier": "residual_scale",
   "logits_scaling": "logit_scale"},
 "mutations": []},
{"name": "granitehybrid_biased", "in_gguf": false,
 "changes": {"model_type": "granitemoehybrid", "head_dim": null,
   "layer_types": ["mamba", "attention", "mamba"], "position_embedding_type": "rope",
   "max_position_embeddings": 512, "num_local_experts": 0, "shared_intermediate_size": 80,
   "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 48,
   "mamba_d_conv": 3, "mamba_conv_bias": false, "mamba_proj_bias": true,
   "time_step_limit": [0.25, 0.75], "attention_bias": true, "attention_multiplier": 0.2},
 "mutations": [{"time_step_limit": [0.25, 1.5]}, {"time_step_limit": [0.0, 0.75]}]},
{"name": "granite4", "in_gguf": false,
 "changes": {"model_type": "granitemoehybrid", "head_dim": null,
   "layer_types": ["attention", "attention", "attention"], "position_embedding_type": "rope",
   "num_local_experts": 0, "shared_intermediate_size": 96, "embedding_multiplier": 6.0,
   "attention_multiplier": 0.2, "residual_multiplier": 0.4, "logits_scaling": 2.0},
 "mutations": []}
])";

}  // namespace

constexpr Family kGraniteHybrid = {.name = "granitehybrid",
                                   .hf = kArchitectures,
                                   .read_gguf = ReadGguf,
                                   .interleaved_in_gguf = true,
                                   .tensors = DecoderTensors,
                                   .spellings = kSpellings,
                                   .shared_spellings = kDecoderSpellings,
                                   .twins = kTwins};

}  // namespace millrace
