// Granite 3's mixtures of experts (github.com/ibm-granite/granite-3.0-language-models), some with
// an expert that every token passes. Folders hold all experts of a layer in two tensors.
#include "base/status.h"
#include "formats/families/decoder.h"
#include "formats/families/experts.h"
#include "formats/families/families.h"
#include "formats/families/granite.h"

namespace millrace {
namespace {

absl::StatusOr<ModelConfig> ReadExperts(const HfReader& config, int shared_size) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadHfGranite(config));
  ExpertsFeedForward experts{.size = model.layers[0].ffn_size(), .shared_size = shared_size};
  MILLRACE_ASSIGN_OR_RETURN(experts.router,
                            ReadHfRouter(config, "num_local_experts", kGraniteRouter));
  SetExperts(experts, &model);
  return model;
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) { return ReadExperts(config, 0); }

absl::StatusOr<ModelConfig> ReadShared(const HfReader& config) {
  constexpr char kShared[] = "shared_intermediate_size";
  int64_t size = 0;
  if (config.fields().Find(kShared) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(size, config.fields().Int(kShared, 0, kMaxWidth));
  }
  return ReadExperts(config, static_cast<int>(size));
}

absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadGgufGranite(file, /*experts=*/true));
  ExpertsFeedForward experts{.size = model.layers[0].ffn_size()};
  MILLRACE_ASSIGN_OR_RETURN(experts.router, ReadGgufRouter(file, kGraniteRouter));
  MILLRACE_ASSIGN_OR_RETURN(experts.shared_size,
                            file.IntOr("expert_shared_feed_forward_length", kMaxWidth, 0, 0));
  SetExperts(experts, &model);
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"GraniteMoeForCausalLM", ReadHf},
                                             {"GraniteMoeSharedForCausalLM", ReadShared}};

constexpr std::string_view kTwins = R"([
{"name": "granitemoe",
 "changes": {"head_dim": null, "intermediate_size": 32, "num_local_experts": 8,
   "num_experts_per_tok": 3, "num_hidden_layers": 2, "embedding_multiplier": 6.0,
   "attention_multiplier": 0.2, "residual_multiplier": 0.4, "logits_scaling": 0.5},
 "gguf_keys": {"embedding_multiplier": "embedding_scale",
   "attention_multiplier": "attention.scale", "residual_multiplier": "residual_scale",
   "logits_scaling": "logit_scale"},
 "mutations": [
  {"num_experts_per_tok": 2},
  {"embedding_multiplier": 7.0},
  {"attention_multiplier": 0.25},
  {"residual_multiplier": 0.5},
  {"logits_scaling": 0.6}]},
{"name": "granitemoeshared",
 "changes": {"architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared",
   "head_dim": null, "intermediate_size": 32, "num_local_experts": 6, "num_experts_per_tok": 2,
   "shared_intermediate_size": 64, "num_hidden_layers": 2, "embedding_multiplier": 6.0,
   "attention_multiplier": 0.2, "residual_multiplier": 0.4, "logits_scaling": 0.5},
 "gguf_keys": {"embedding_multiplier": "embedding_scale",
   "attention_multiplier": "attention.scale", "residual_multiplier": "residual_scale",
   "logits_scaling": "logit_scale"},
 "mutations": [
  {"num_experts_per_tok": 3},
  {"embedding_multiplier": 7.0},
  {"attention_multiplier": 0.25},
  {"residual_multiplier": 0.5},
  {"logits_scaling": 0.6}]},
{"name": "granitemoe_biases",
 "changes": {"head_dim": null, "intermediate_size": 32, "num_local_experts": 8,
   "num_experts_per_tok": 3, "num_hidden_layers": 2, "embedding_multiplier": 6.0,
   "attention_multiplier": 0.2, "residual_multiplier": 0.4, "logits_scaling": 0.5,
   "attention_bias": true},
 "gguf_keys": {"embedding_multiplier": "embedding_scale",
   "attention_multiplier": "attention.scale", "residual_multiplier": "residual_scale",
   "logits_scaling": "logit_scale"},
 "mutations": []}
])";

}  // namespace

constexpr Family kGraniteMoe = {.name = "granitemoe",
                                .hf = kArchitectures,
                                .read_gguf = ReadGguf,
                                .interleaved_in_gguf = true,
                                .tensors = DecoderTensors,
                                .spellings = kGraniteMoeSpellings,
                                .shared_spellings = kDecoderSpellings,
                                .twins = kTwins};

}  // namespace millrace
