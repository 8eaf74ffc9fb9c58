// Qwen3-MoE (arXiv:2505.09388): Qwen3 with mixtures of experts.
#include "base/status.h"
#include "formats/families/decoder.h"
#include "formats/families/experts.h"
#include "formats/families/families.h"
#include "formats/families/qwen.h"

namespace millrace {
namespace {

void AddHeadNorms(ModelConfig* model) {
  for (LayerConfig& layer : model->layers) layer.softmax().qk_norm = QkNorm::kHead;
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, config.Decoder({.kv_heads = 4, .context = 32768}));
  MILLRACE_RETURN_IF_ERROR(config.RefuseOtherFunctions());
  MILLRACE_RETURN_IF_ERROR(config.ReadAttentionBias(&model));
  AddHeadNorms(&model);
  MILLRACE_RETURN_IF_ERROR(RefuseQwenWindows(config, &model));
  MILLRACE_RETURN_IF_ERROR(SetQwenExperts(config, {}, &model));
  return model;
}

// llama.cpp divides the scores by their sum, whatever norm_topk_prob says.
absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, file.Decoder({.experts = true}));
  AddHeadNorms(&model);
  MILLRACE_RETURN_IF_ERROR(file.RefuseWindows());
  ExpertsFeedForward experts;
  MILLRACE_ASSIGN_OR_RETURN(experts.router, ReadGgufRouter(file, {.renormalize = true}));
  MILLRACE_ASSIGN_OR_RETURN(experts.size, ReadGgufExpertSize(file, experts.router, model));
  SetExperts(experts, &model);
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"Qwen3MoeForCausalLM", ReadHf}};

constexpr std::string_view kTwins = R"([
{"name": "qwen3moe",
 "changes": {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 3,
   "moe_intermediate_size": 32, "norm_topk_prob": true, "num_hidden_layers": 2},
 "mutations": [{"num_experts_per_tok": 2}, {"norm_topk_prob": false}]},
{"name": "qwen3moe_dense", "in_gguf": false,
 "changes": {"model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 2,
   "moe_intermediate_size": 32, "norm_topk_prob": false, "tie_word_embeddings": true,
   "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
 "mutations": [{"num_experts_per_tok": 3}, {"norm_topk_prob": true}]},
{"name": "qwen3moe_biases",
 "changes": {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 3,
   "moe_intermediate_size": 32, "norm_topk_prob": true, "num_hidden_layers": 2,
   "attention_bias": true}, "mutations": []}
])";

}  // namespace

constexpr Family kQwen3Moe = {.name = "qwen3moe",
                              .hf = kArchitectures,
                              .read_gguf = ReadGguf,
                              .tensors = DecoderTensors,
                              .spellings = kExpertSpellings,
                              .shared_spellings = kDecoderSpellings,
                              .twins = kTwins};

}  // namespace millrace
