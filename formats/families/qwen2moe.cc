// Qwen2-MoE and Qwen1.5-MoE (arXiv:2407.10671): Qwen2 with mixtures of experts, beside which every
// token passes a shared expert with a gate of its own.
#include <algorithm>
#include <vector>

#include "base/status.h"
#include "formats/families/decoder.h"
#include "formats/families/experts.h"
#include "formats/families/families.h"
#include "formats/families/qwen.h"

namespace millrace {

absl::Status RefuseQwenWindows(const HfReader& config, ModelConfig* model) {
  MILLRACE_RETURN_IF_ERROR(config.fields().Refuse("use_sliding_window", Json::array({false})));
  return config.SetWindows(
      0, [](int) { return false; }, model);
}

absl::Status SetQwenExperts(const HfReader& config, ExpertsFeedForward experts,
                            ModelConfig* model) {
  MILLRACE_ASSIGN_OR_RETURN(experts.size, config.Int("moe_intermediate_size", kMaxWidth));
  MILLRACE_ASSIGN_OR_RETURN(experts.router.renormalize,
                            config.fields().BoolOr("norm_topk_prob", experts.router.renormalize));
  MILLRACE_ASSIGN_OR_RETURN(experts.router, ReadHfRouter(config, "num_experts", experts.router));
  MILLRACE_ASSIGN_OR_RETURN(const int step, config.IntOr("decoder_sparse_step", kMaxLayers, 1));
  std::vector<int64_t> dense;
  if (config.fields().Find("mlp_only_layers") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(dense, config.fields().Ints("mlp_only_layers", 0, kMaxLayers));
  }
  const auto has_experts = [&](int layer) {
    return (layer + 1) % step == 0 && std::find(dense.begin(), dense.end(), layer) == dense.end();
  };
  SetExperts(experts, has_experts, model);
  return absl::OkStatus();
}

namespace {

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, config.Decoder({.kv_heads = 16, .context = 32768}));
  MILLRACE_RETURN_IF_ERROR(config.RefuseOtherFunctions());
  MILLRACE_ASSIGN_OR_RETURN(const bool biases, config.fields().BoolOr("qkv_bias", true));
  for (LayerConfig& layer : model.layers) layer.softmax().qkv_bias = biases;
  MILLRACE_RETURN_IF_ERROR(RefuseQwenWindows(config, &model));
  ExpertsFeedForward experts{.shared_gate = true};
  MILLRACE_ASSIGN_OR_RETURN(experts.shared_size,
                            config.Int("shared_expert_intermediate_size", kMaxWidth));
  MILLRACE_RETURN_IF_ERROR(SetQwenExperts(config, experts, &model));
  return model;
}

absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, file.Decoder({.experts = true}));
  MILLRACE_RETURN_IF_ERROR(file.RefuseWindows());
  ExpertsFeedForward experts{.shared_gate = true};
  MILLRACE_ASSIGN_OR_RETURN(experts.router, ReadGgufRouter(file, {}));
  MILLRACE_ASSIGN_OR_RETURN(experts.size, ReadGgufExpertSize(file, experts.router, model));
  MILLRACE_ASSIGN_OR_RETURN(experts.shared_size, file.IntOr("expert_shared_feed_forward_length",
                                                            kMaxWidth, model.layers[0].ffn_size()));
  SetExperts(experts, &model);
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"Qwen2MoeForCausalLM", ReadHf}};

constexpr std::string_view kTwins = R"([
{"name": "qwen2moe",
 "changes": {"model_type": "qwen2_moe", "head_dim": null, "num_experts": 8,
   "num_experts_per_tok": 3, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
   "norm_topk_prob": false, "num_hidden_layers": 2},
 "mutations": [{"num_experts_per_tok": 2}, {"norm_topk_prob": true}]},
{"name": "qwen2moe_dense", "in_gguf": false,
 "changes": {"model_type": "qwen2_moe", "head_dim": null, "num_experts": 6,
   "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
   "norm_topk_prob": true, "qkv_bias": false, "num_hidden_layers": 4, "decoder_sparse_step": 2,
   "mlp_only_layers": [1]},
 "mutations": [{"num_experts_per_tok": 3}, {"norm_topk_prob": false}]}
])";

}  // namespace

constexpr Family kQwen2Moe = {.name = "qwen2moe",
                              .hf = kArchitectures,
                              .read_gguf = ReadGguf,
                              .tensors = DecoderTensors,
                              .spellings = kExpertSpellings,
                              .shared_spellings = kDecoderSpellings,
                              .twins = kTwins};

}  // namespace millrace
