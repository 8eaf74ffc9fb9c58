// The parts that families with mixtures of experts share.
#ifndef MILLRACE_FORMATS_FAMILIES_EXPERTS_H_
#define MILLRACE_FORMATS_FAMILIES_EXPERTS_H_

#include <functional>
#include <string_view>

#include "formats/families/family.h"

namespace millrace {

// Reads the number of experts, which a config has by the family's own name or by num_local_experts,
// the name that transformers gives all of them, and num_experts_per_tok. The other fields stay as
// `router` has them.
absl::StatusOr<RouterConfig> ReadHfRouter(const HfReader& config, std::string_view experts,
                                          RouterConfig router);

// Reads expert_count, expert_used_count and the factor of the scores. Where other keys say what
// `router` has (the scores' function, their sum, groups), they are refused if they say otherwise.
absl::StatusOr<RouterConfig> ReadGgufRouter(const GgufReader& file, RouterConfig router);

// Reads the router of sigmoids with a correction, which may be of groups (DeepSeek-V3,
// arXiv:2412.19437), by transformers' fields: n_routed_experts, n_group, topk_group, norm_topk_prob
// and routed_scaling_factor. And by llama.cpp's keys, where scores are divided by their sum if
// expert_weights_norm says so.
absl::StatusOr<RouterConfig> ReadHfGroupRouter(const HfReader& config);
absl::StatusOr<RouterConfig> ReadGgufGroupRouter(const GgufReader& file);

// Reads an expert's size: expert_feed_forward_length or, where that is missing, the share of the
// experts that a token passes in feed_forward_length, which `model` has.
absl::StatusOr<int> ReadGgufExpertSize(const GgufReader& file, const RouterConfig& router,
                                       const ModelConfig& model);

// Checks numbers that could each be right: how many experts are chosen, and of which groups.
// Returns what is wrong, or nothing.
std::string CheckRouter(const RouterConfig& router);

// Puts `experts` in the place of the feed-forward networks of these layers, or of all.
void SetExperts(const ExpertsFeedForward& experts, ModelConfig* model);
void SetExperts(const ExpertsFeedForward& experts,
                const std::function<bool(int layer)>& has_experts, ModelConfig* model);

// How folders spell the tensors of mixtures whose experts are the modules mlp.experts.N, and those
// of the form in which transformers holds all of a layer together.
inline constexpr Spelling kExpertSpellings[] = {
    {"blk.#.ffn_norm", "model.layers.#.post_attention_layernorm"},
    {"blk.#.ffn_gate_inp", "model.layers.#.mlp.gate"},
    {"blk.#.ffn_gate.#", "model.layers.#.mlp.experts.#.gate_proj"},
    {"blk.#.ffn_up.#", "model.layers.#.mlp.experts.#.up_proj"},
    {"blk.#.ffn_down.#", "model.layers.#.mlp.experts.#.down_proj"},
    {"blk.#.ffn_gate_up_exps.weight", "model.layers.#.mlp.experts.gate_up_proj"},
    {"blk.#.ffn_down_exps.weight", "model.layers.#.mlp.experts.down_proj"},
    {"blk.#.ffn_gate_shexp", "model.layers.#.mlp.shared_expert.gate_proj"},
    {"blk.#.ffn_up_shexp", "model.layers.#.mlp.shared_expert.up_proj"},
    {"blk.#.ffn_down_shexp", "model.layers.#.mlp.shared_expert.down_proj"},
    {"blk.#.ffn_gate_inp_shexp", "model.layers.#.mlp.shared_expert_gate"},
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_EXPERTS_H_
