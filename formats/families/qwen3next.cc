// Qwen3-Next: Qwen3.5 before it had that name. Gated delta rules have the rows of their linears key
// head by key head in two tensors, mixtures of experts stand in the layers that Qwen3-MoE's fields
// leave them, and beside them every token passes a shared expert with a gate of its own. Tensors of
// mtp.* predict further tokens: not ours.
#include <variant>

#include "base/status.h"
#include "base/strings.h"
#include "formats/families/decoder.h"
#include "formats/families/experts.h"
#include "formats/families/families.h"
#include "formats/families/qwen.h"
#include "formats/families/qwen35.h"

namespace millrace {
namespace {

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadHfQwen35(config, {.kv_heads = 2}));
  for (LayerConfig& layer : model.layers) {
    auto* const delta = std::get_if<GatedDelta>(&layer.attention);
    if (delta != nullptr) delta->fused_qkvz = delta->fused_beta_alpha = true;
  }
  ExpertsFeedForward experts{.router = {.renormalize = true}, .shared_gate = true};
  MILLRACE_ASSIGN_OR_RETURN(experts.shared_size,
                            config.IntOr("shared_expert_intermediate_size", kMaxWidth, 512));
  MILLRACE_RETURN_IF_ERROR(SetQwenExperts(config, experts, &model));
  return model;
}

// llama.cpp's converter leaves value heads in their order, and beta and alpha together. Until it
// cut q, k, v and the gate apart, these were one tensor, too.
absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadGgufQwen35Moe(file));
  for (int i = 0; i < model.num_layers(); ++i) {
    auto* const delta = std::get_if<GatedDelta>(&model.layers[i].attention);
    if (delta == nullptr) continue;
    delta->in_turns = false;
    delta->fused_beta_alpha = true;
    delta->fused_qkvz = file.file().FindTensor(StrCat("blk.", i, ".ssm_in.weight")) != nullptr;
  }
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"Qwen3NextForCausalLM", ReadHf}};

constexpr auto kSpellings = Joined(kDeltaSpellings, kExpertSpellings);

constexpr std::string_view kIgnored[] = {"mtp."};

constexpr std::string_view kTwins = R"([
{"name": "qwen3_next",
 "changes": {"model_type": "qwen3_next", "num_hidden_layers": 4, "full_attention_interval": 2,
   "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
   "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4, "partial_rotary_factor": 0.25,
   "num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": true,
   "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
   "max_position_embeddings": 512},
 "mutations": [{"num_experts_per_tok": 2}, {"norm_topk_prob": false},
   {"partial_rotary_factor": 0.5}]},
{"name": "qwen3_next_fused", "fused_in_gguf": true,
 "changes": {"model_type": "qwen3_next", "num_hidden_layers": 2, "full_attention_interval": 2,
   "linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 48,
   "linear_value_head_dim": 32, "partial_rotary_factor": 0.25, "num_experts": 6,
   "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
   "max_position_embeddings": 512},
 "mutations": [{"num_experts_per_tok": 3}]},
{"name": "qwen3_next_dense", "in_gguf": false,
 "changes": {"model_type": "qwen3_next", "num_hidden_layers": 5, "full_attention_interval": 3,
   "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16,
   "linear_value_head_dim": 64, "partial_rotary_factor": 0.5, "num_experts": 6,
   "num_experts_per_tok": 2, "norm_topk_prob": false, "moe_intermediate_size": 32,
   "shared_expert_intermediate_size": 32, "decoder_sparse_step": 2, "mlp_only_layers": [3],
   "attention_bias": true, "tie_word_embeddings": true, "max_position_embeddings": 512},
 "mutations": [{"norm_topk_prob": true}, {"partial_rotary_factor": 0.25}]}
])";

}  // namespace

constexpr Family kQwen3Next = {.name = "qwen3next",
                               .hf = kArchitectures,
                               .read_gguf = ReadGguf,
                               .tensors = DecoderTensors,
                               .spellings = kSpellings,
                               .shared_spellings = kDecoderSpellings,
                               .gguf_spellings = kQwen35GgufSpellings,
                               .ignored = kIgnored,
                               .twins = kTwins};

}  // namespace millrace
