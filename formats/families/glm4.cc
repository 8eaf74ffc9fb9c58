// GLM-4-0414 (arXiv:2406.12793; github.com/THUDM/GLM-4): norms before and after both blocks, half
// of each head rotated in pairs of neighbours, a fused gate, biases of q, k and v in some
// checkpoints.
#include <string>

#include "base/status.h"
#include "formats/families/decoder.h"
#include "formats/families/families.h"

namespace millrace {
namespace {

void MakeGlm4(bool qkv_bias, ModelConfig* model) {
  for (LayerConfig& layer : model->layers) {
    layer.norms = NormPlacement::kSandwich;
    layer.softmax().qkv_bias = qkv_bias;
    layer.gated().fused_gate_up = true;
  }
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  const HfDefaults defaults{.head_size = 128,
                            .kv_heads = 2,
                            .context = 131072,
                            .epsilon = 1.5625e-07,
                            .rope = {.partial = 0.5, .interleaved = true}};
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, config.Decoder(defaults));
  MILLRACE_RETURN_IF_ERROR(config.RefuseOtherFunctions());
  MILLRACE_ASSIGN_OR_RETURN(const bool bias, config.fields().BoolOr("attention_bias", true));
  MakeGlm4(bias, &model);
  return model;
}

absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, file.Decoder());
  MakeGlm4(model.layers[0].softmax().qkv_bias, &model);
  // Sections of the vision models' rotation.
  const std::string sections = file.Key("rope.dimension_sections");
  if (file.file().Find(sections) != nullptr) {
    return file.Unsupported(sections, "rotations in sections are not supported");
  }
  MILLRACE_RETURN_IF_ERROR(file.RefuseWindows());
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"Glm4ForCausalLM", ReadHf}};

constexpr Spelling kSpellings[] = {
    {"blk.#.post_attention_norm", "model.layers.#.post_self_attn_layernorm"},
    {"blk.#.ffn_norm", "model.layers.#.post_attention_layernorm"},
    {"blk.#.post_ffw_norm", "model.layers.#.post_mlp_layernorm"},
    {"blk.#.ffn_up", "model.layers.#.mlp.gate_up_proj"},
};

constexpr std::string_view kTwins = R"([
{"name": "glm4", "changes": {"attention_bias": true, "partial_rotary_factor": 0.5},
 "mutations": [
  {"partial_rotary_factor": 0.25},
  {"partial_rotary_factor": 1.0}]},
{"name": "glm4_plain", "changes": {"attention_bias": false, "tie_word_embeddings": true},
 "mutations": [{"partial_rotary_factor": 0.75}]}
])";

}  // namespace

constexpr Family kGlm4 = {.name = "glm4",
                          .hf = kArchitectures,
                          .read_gguf = ReadGguf,
                          .interleaved_in_gguf = true,
                          .tensors = DecoderTensors,
                          .spellings = kSpellings,
                          .shared_spellings = kDecoderSpellings,
                          .twins = kTwins};

}  // namespace millrace
