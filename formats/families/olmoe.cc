// OLMoE (arXiv:2409.02060): Llama with mixtures of experts; q and k are normed over all their heads
// together.
#include "base/status.h"
#include "formats/families/decoder.h"
#include "formats/families/experts.h"
#include "formats/families/families.h"

namespace millrace {
namespace {

void AddNorms(ModelConfig* model) {
  for (LayerConfig& layer : model->layers) layer.softmax().qk_norm = QkNorm::kWhole;
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, config.Decoder({.context = 4096, .epsilon = 1e-5}));
  MILLRACE_RETURN_IF_ERROR(config.RefuseOtherFunctions());
  MILLRACE_RETURN_IF_ERROR(config.ReadAttentionBias(&model));
  MILLRACE_RETURN_IF_ERROR(config.fields().Refuse("clip_qkv", Json::array()));
  AddNorms(&model);
  ExpertsFeedForward experts{.size = model.layers[0].ffn_size()};
  MILLRACE_ASSIGN_OR_RETURN(experts.router.renormalize,
                            config.fields().BoolOr("norm_topk_prob", false));
  MILLRACE_ASSIGN_OR_RETURN(experts.router, ReadHfRouter(config, "num_experts", experts.router));
  SetExperts(experts, &model);
  return model;
}

// llama.cpp does not divide the scores by their sum, whatever norm_topk_prob says, and reads an
// expert's size from feed_forward_length.
absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, file.Decoder({.experts = true}));
  AddNorms(&model);
  MILLRACE_RETURN_IF_ERROR(file.RefuseWindows());
  ExpertsFeedForward experts{.size = model.layers[0].ffn_size()};
  MILLRACE_ASSIGN_OR_RETURN(experts.router, ReadGgufRouter(file, {}));
  SetExperts(experts, &model);
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"OlmoeForCausalLM", ReadHf}};

constexpr std::string_view kTwins = R"([
{"name": "olmoe",
 "changes": {"head_dim": null, "intermediate_size": 32, "num_experts": 8,
   "num_experts_per_tok": 3, "norm_topk_prob": false, "num_hidden_layers": 2},
 "mutations": [{"num_experts_per_tok": 2}, {"norm_topk_prob": true}]},
{"name": "olmoe_biases",
 "changes": {"head_dim": null, "intermediate_size": 32, "num_experts": 8,
   "num_experts_per_tok": 3, "norm_topk_prob": false, "num_hidden_layers": 2,
   "attention_bias": true}, "mutations": []}
])";

}  // namespace

constexpr Family kOlmoe = {.name = "olmoe",
                           .hf = kArchitectures,
                           .read_gguf = ReadGguf,
                           .tensors = DecoderTensors,
                           .spellings = kExpertSpellings,
                           .shared_spellings = kDecoderSpellings,
                           .twins = kTwins};

}  // namespace millrace
