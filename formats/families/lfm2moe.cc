// LFM2-MoE: LFM2 with mixtures of experts behind some dense layers, whose routers have sigmoids and
// mostly a correction.
#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "formats/families/decoder.h"
#include "formats/families/experts.h"
#include "formats/families/families.h"
#include "formats/families/lfm2.h"

namespace millrace {
namespace {

constexpr RouterConfig kRouter = {
    .scores = RouterConfig::Scores::kSigmoid, .renormalize = true, .correction = true};

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  const JsonFields& fields = config.fields();
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadHfLfm2(config, /*adjusts_size=*/false));
  RouterConfig router = kRouter;
  MILLRACE_ASSIGN_OR_RETURN(router.renormalize, fields.BoolOr("norm_topk_prob", true));
  MILLRACE_ASSIGN_OR_RETURN(router.correction, fields.BoolOr("use_expert_bias", true));
  MILLRACE_ASSIGN_OR_RETURN(router.factor, config.FactorOr("routed_scaling_factor", 1));
  ExpertsFeedForward experts;
  MILLRACE_ASSIGN_OR_RETURN(experts.router, ReadHfRouter(config, "num_experts", router));
  MILLRACE_ASSIGN_OR_RETURN(experts.size, config.IntOr("moe_intermediate_size", kMaxWidth, 1792));
  int64_t dense = 2;
  if (fields.Find("num_dense_layers") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(dense, fields.Int("num_dense_layers", 0, kMaxLayers));
  }
  SetExperts(
      experts, [dense](int layer) { return layer >= dense; }, &model);
  return model;
}

// llama.cpp divides the scores by their sum.
absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadGgufLfm2(file, /*experts=*/true));
  ExpertsFeedForward experts;
  MILLRACE_ASSIGN_OR_RETURN(experts.router, ReadGgufRouter(file, kRouter));
  MILLRACE_ASSIGN_OR_RETURN(experts.size, file.Int("expert_feed_forward_length", kMaxWidth));
  MILLRACE_ASSIGN_OR_RETURN(const int dense,
                            file.IntOr("leading_dense_block_count", kMaxLayers, 0, 0));
  SetExperts(
      experts, [dense](int layer) { return layer >= dense; }, &model);
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"Lfm2MoeForCausalLM", ReadHf}};

constexpr Spelling kRouterSpellings[] = {
    {"blk.#.ffn_gate_inp", "model.layers.#.feed_forward.gate"},
    {"blk.#.exp_probs_b.bias", "model.layers.#.feed_forward.expert_bias"},
    {"blk.#.ffn_gate.#", "model.layers.#.feed_forward.experts.#.w1"},
    {"blk.#.ffn_up.#", "model.layers.#.feed_forward.experts.#.w3"},
    {"blk.#.ffn_down.#", "model.layers.#.feed_forward.experts.#.w2"},
    {"blk.#.ffn_gate_up_exps.weight", "model.layers.#.feed_forward.experts.gate_up_proj"},
    {"blk.#.ffn_down_exps.weight", "model.layers.#.feed_forward.experts.down_proj"},
};

constexpr auto kSpellings = Joined(kRouterSpellings, kLfm2Spellings);

constexpr std::string_view kTwins = R"([
{"name": "lfm2moe",
 "changes": {"model_type": "lfm2_moe", "head_dim": null, "rms_norm_eps": null, "norm_eps": 1e-5,
   "hidden_act": null, "num_hidden_layers": 4,
   "layer_types": ["conv", "full_attention", "conv", "full_attention"], "conv_L_cache": 3,
   "num_dense_layers": 1, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
   "use_expert_bias": true, "norm_topk_prob": true, "routed_scaling_factor": 1.0,
   "max_position_embeddings": 512},
 "mutations": [
  {"num_experts_per_tok": 2},
  {"norm_topk_prob": false},
  {"routed_scaling_factor": 1.5}]},
{"name": "lfm2moe_uncorrected", "in_gguf": false,
 "changes": {"model_type": "lfm2_moe", "head_dim": null, "rms_norm_eps": null, "norm_eps": 1e-5,
   "hidden_act": null, "layer_types": ["conv", "conv", "full_attention"], "conv_L_cache": 3,
   "num_dense_layers": 0, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
   "use_expert_bias": false, "norm_topk_prob": false, "routed_scaling_factor": 2.0,
   "max_position_embeddings": 512},
 "mutations": [{"num_experts_per_tok": 3}]}
])";

}  // namespace

constexpr Family kLfm2Moe = {.name = "lfm2moe",
                             .hf = kArchitectures,
                             .read_gguf = ReadGguf,
                             .tensors = DecoderTensors,
                             .spellings = kSpellings,
                             .shared_spellings = kDecoderSpellings,
                             .gguf_spellings = kLfm2GgufSpellings,
                             .twins = kTwins};

}  // namespace millrace
