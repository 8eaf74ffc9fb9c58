// Qwen3.5-MoE: Qwen3.5 with mixtures of experts in every layer, beside which every token passes a
// shared expert with a gate of its own.
#include "base/status.h"
#include "formats/families/decoder.h"
#include "formats/families/experts.h"
#include "formats/families/families.h"
#include "formats/families/qwen35.h"

namespace millrace {
namespace {

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model,
                            ReadHfQwen35(config, {.kv_heads = 2, .experts = true}));
  ExpertsFeedForward experts{.shared_gate = true};
  MILLRACE_ASSIGN_OR_RETURN(experts.size, config.IntOr("moe_intermediate_size", kMaxWidth, 512));
  MILLRACE_ASSIGN_OR_RETURN(experts.shared_size,
                            config.IntOr("shared_expert_intermediate_size", kMaxWidth, 512));
  MILLRACE_ASSIGN_OR_RETURN(experts.router,
                            ReadHfRouter(config, "num_experts", {.renormalize = true}));
  SetExperts(experts, &model);
  return model;
}

absl::StatusOr<ModelConfig> ReadHfOfImages(const HfReader& config) {
  return ReadHfNested(config, ReadHf);
}

constexpr HfArchitecture kArchitectures[] = {
    {"Qwen3_5MoeForCausalLM", ReadHf}, {"Qwen3_5MoeForConditionalGeneration", ReadHfOfImages}};

constexpr auto kSpellings = Joined(kDeltaSpellings, kExpertSpellings);

constexpr std::string_view kTwins = R"([
{"name": "qwen3_5_moe",
 "changes": {"model_type": "qwen3_5_moe_text", "intermediate_size": null, "num_hidden_layers": 4,
   "full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
   "linear_key_head_dim": 32, "linear_value_head_dim": 32, "partial_rotary_factor": 0.25,
   "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
   "shared_expert_intermediate_size": 64, "max_position_embeddings": 512},
 "mutations": [{"num_experts_per_tok": 2}, {"partial_rotary_factor": 0.5}]}
])";

}  // namespace

// llama.cpp divides the scores by their sum.
absl::StatusOr<ModelConfig> ReadGgufQwen35Moe(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadGgufQwen35(file, /*experts=*/true));
  ExpertsFeedForward experts{.shared_gate = true};
  MILLRACE_ASSIGN_OR_RETURN(experts.router, ReadGgufRouter(file, {.renormalize = true}));
  MILLRACE_ASSIGN_OR_RETURN(experts.size, ReadGgufExpertSize(file, experts.router, model));
  MILLRACE_ASSIGN_OR_RETURN(experts.shared_size,
                            file.Int("expert_shared_feed_forward_length", kMaxWidth));
  SetExperts(experts, &model);
  return model;
}

constexpr Family kQwen35Moe = Qwen35Family({.name = "qwen35moe",
                                            .hf = kArchitectures,
                                            .read_gguf = ReadGgufQwen35Moe,
                                            .spellings = kSpellings,
                                            .twins = kTwins});

}  // namespace millrace
