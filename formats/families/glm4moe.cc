// GLM-4.5 and 4.6 (arXiv:2508.06471): mixtures of experts behind some dense layers, a router of
// sigmoids with a correction and groups (DeepSeek-V3's), a shared expert, a part of each head
// rotated, in some norms of q and k. A layer behind the last predicts further tokens: not ours.
#include <string>

#include "base/status.h"
#include "base/strings.h"
#include "formats/families/decoder.h"
#include "formats/families/experts.h"
#include "formats/families/families.h"

namespace millrace {
namespace {

// Sets the mixtures of the layers from `dense` on.
void MakeGlm4Moe(const ExpertsFeedForward& experts, int64_t dense, bool qkv_bias, bool qk_norm,
                 ModelConfig* model) {
  for (LayerConfig& layer : model->layers) {
    layer.softmax().qkv_bias = qkv_bias;
    if (qk_norm) layer.softmax().qk_norm = QkNorm::kHead;
  }
  SetExperts(
      experts, [dense](int layer) { return layer >= dense; }, model);
}

absl::StatusOr<int64_t> IntOr(const JsonFields& fields, std::string_view name, int64_t max,
                              int64_t otherwise) {
  if (fields.Find(name) == nullptr) return otherwise;
  return fields.Int(name, 0, max);
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  const JsonFields& fields = config.fields();
  MILLRACE_ASSIGN_OR_RETURN(
      ModelConfig model,
      config.Decoder(
          {.kv_heads = 8, .context = 131072, .epsilon = 1e-5, .rope = {.partial = 0.5}}));
  MILLRACE_RETURN_IF_ERROR(config.RefuseOtherFunctions());
  MILLRACE_ASSIGN_OR_RETURN(const bool qkv_bias, fields.BoolOr("attention_bias", false));
  MILLRACE_ASSIGN_OR_RETURN(const bool qk_norm, fields.BoolOr("use_qk_norm", false));
  ExpertsFeedForward experts;
  MILLRACE_ASSIGN_OR_RETURN(experts.router, ReadHfGroupRouter(config));
  MILLRACE_ASSIGN_OR_RETURN(experts.size, config.Int("moe_intermediate_size", kMaxWidth));
  MILLRACE_ASSIGN_OR_RETURN(const int64_t shared,
                            IntOr(fields, "n_shared_experts", kMaxWidth / experts.size, 1));
  experts.shared_size = static_cast<int>(shared) * experts.size;
  MILLRACE_ASSIGN_OR_RETURN(const int64_t dense,
                            IntOr(fields, "first_k_dense_replace", kMaxLayers, 1));
  MakeGlm4Moe(experts, dense, qkv_bias, qk_norm, &model);
  return model;
}

// No key says whether there are norms of q and k: the first layer's tensors do.
absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, file.Decoder({.experts = true}));
  MILLRACE_RETURN_IF_ERROR(file.RefuseWindows());
  const std::string sections = file.Key("rope.dimension_sections");
  if (file.file().Find(sections) != nullptr) {
    return file.Unsupported(sections, "rotations in sections are not supported");
  }
  MILLRACE_ASSIGN_OR_RETURN(const int further,
                            file.IntOr("nextn_predict_layers", model.num_layers() - 1, 0, 0));
  model.layers.resize(model.layers.size() - further);
  ExpertsFeedForward experts;
  MILLRACE_ASSIGN_OR_RETURN(experts.router, ReadGgufGroupRouter(file));
  MILLRACE_ASSIGN_OR_RETURN(experts.size, ReadGgufExpertSize(file, experts.router, model));
  MILLRACE_ASSIGN_OR_RETURN(const int shared,
                            file.IntOr("expert_shared_count", kMaxWidth / experts.size, 0, 0));
  experts.shared_size = shared * experts.size;
  MILLRACE_ASSIGN_OR_RETURN(const int dense,
                            file.IntOr("leading_dense_block_count", kMaxLayers, 0, 0));
  MakeGlm4Moe(experts, dense, model.layers[0].softmax().qkv_bias,
              file.file().FindTensor("blk.0.attn_q_norm.weight") != nullptr, &model);
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"Glm4MoeForCausalLM", ReadHf}};

constexpr Spelling kSpellings[] = {
    {"blk.#.ffn_norm", "model.layers.#.post_attention_layernorm"},
    {"blk.#.ffn_gate_inp", "model.layers.#.mlp.gate"},
    {"blk.#.exp_probs_b.bias", "model.layers.#.mlp.gate.e_score_correction_bias"},
    {"blk.#.ffn_gate.#", "model.layers.#.mlp.experts.#.gate_proj"},
    {"blk.#.ffn_up.#", "model.layers.#.mlp.experts.#.up_proj"},
    {"blk.#.ffn_down.#", "model.layers.#.mlp.experts.#.down_proj"},
    {"blk.#.ffn_gate_up_exps.weight", "model.layers.#.mlp.experts.gate_up_proj"},
    {"blk.#.ffn_down_exps.weight", "model.layers.#.mlp.experts.down_proj"},
    {"blk.#.ffn_gate_shexp", "model.layers.#.mlp.shared_experts.gate_proj"},
    {"blk.#.ffn_up_shexp", "model.layers.#.mlp.shared_experts.up_proj"},
    {"blk.#.ffn_down_shexp", "model.layers.#.mlp.shared_experts.down_proj"},
};

constexpr Spelling kGgufSpellings[] = {{"blk.#.ffn_norm", "blk.#.post_attention_norm"}};

constexpr std::string_view kTwins = R"([
{"name": "glm4moe",
 "changes": {"model_type": "glm4_moe", "n_routed_experts": 8, "num_experts_per_tok": 3,
   "moe_intermediate_size": 32, "n_shared_experts": 2, "n_group": 4, "topk_group": 2,
   "routed_scaling_factor": 2.5, "norm_topk_prob": true, "first_k_dense_replace": 1,
   "use_qk_norm": true, "attention_bias": true, "partial_rotary_factor": 0.5,
   "num_nextn_predict_layers": 0},
 "mutations": [
  {"num_experts_per_tok": 2},
  {"n_group": 2},
  {"topk_group": 3},
  {"routed_scaling_factor": 2.0},
  {"norm_topk_prob": false},
  {"partial_rotary_factor": 0.25}]},
{"name": "glm4moe_plain",
 "changes": {"model_type": "glm4_moe", "n_routed_experts": 6, "num_experts_per_tok": 2,
   "moe_intermediate_size": 32, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
   "routed_scaling_factor": 1.0, "norm_topk_prob": false, "first_k_dense_replace": 0,
   "num_hidden_layers": 2, "use_qk_norm": false, "attention_bias": false,
   "num_nextn_predict_layers": 0},
 "mutations": [{"num_experts_per_tok": 3}, {"norm_topk_prob": true}]}
])";

}  // namespace

constexpr Family kGlm4Moe = {.name = "glm4moe",
                             .hf = kArchitectures,
                             .read_gguf = ReadGguf,
                             .tensors = DecoderTensors,
                             .spellings = kSpellings,
                             .shared_spellings = kDecoderSpellings,
                             .gguf_spellings = kGgufSpellings,
                             .ignores_further_layers = true,
                             .twins = kTwins};

}  // namespace millrace
