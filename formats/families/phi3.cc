// Phi-3 and Phi-4 (arXiv:2404.14219): fused tensors, a part of each head rotated, LongRoPE,
// windows.
#include "base/status.h"
#include "formats/families/decoder.h"
#include "formats/families/families.h"

namespace millrace {
namespace {

void Fuse(ModelConfig* model) {
  for (LayerConfig& layer : model->layers) {
    layer.softmax().fused_qkv = true;
    layer.gated().fused_gate_up = true;
  }
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(
      ModelConfig model,
      config.Decoder(
          {.context = 4096, .epsilon = 1e-5, .rope = {.partial = 1.0, .longrope_aliases = true}}));
  Fuse(&model);
  MILLRACE_RETURN_IF_ERROR(config.RefuseOtherFunctions());
  MILLRACE_ASSIGN_OR_RETURN(const int window, config.Window(0));
  MILLRACE_RETURN_IF_ERROR(config.SetWindows(
      window, [](int) { return true; }, &model));
  return model;
}

absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, file.Decoder());
  Fuse(&model);
  MILLRACE_RETURN_IF_ERROR(file.SetWindows(
      0, [](int) { return true; }, &model));
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"Phi3ForCausalLM", ReadHf}};

constexpr Spelling kSpellings[] = {
    {"blk.#.ffn_norm", "model.layers.#.post_attention_layernorm"},
    {"blk.#.ffn_up", "model.layers.#.mlp.gate_up_proj"},
};

// Heads of 64 / 4. There is a factor for each pair that is rotated: fewer pairs, fewer factors.
constexpr std::string_view kTwins = R"([
{"name": "phi3", "changes": {"head_dim": null, "sliding_window": 9},
 "mutations": [{"sliding_window": 10}]},
{"name": "phi4_short", "max_model_len": 64,
 "changes": {"head_dim": null, "partial_rotary_factor": 0.75, "tie_word_embeddings": true,
   "original_max_position_embeddings": 64, "rope_scaling": {"type": "longrope",
     "short_factor": [1.0, 1.1, 1.2, 1.5, 1.7, 2.0],
     "long_factor": [1.0, 2.0, 3.5, 5.0, 8.0, 12.0]}},
 "mutations": [
  {"partial_rotary_factor": 0.5, "rope_scaling": {"short_factor": [1.0, 1.1, 1.2, 1.5],
     "long_factor": [1.0, 2.0, 3.5, 5.0]}},
  {"rope_scaling": {"attention_factor": 1.0}},
  {"rope_scaling": {"short_factor": [1.0, 1.4, 1.2, 1.5, 1.7, 2.0]}},
  {"original_max_position_embeddings": 63}]},
{"name": "phi4_long",
 "changes": {"head_dim": null, "partial_rotary_factor": 0.75, "tie_word_embeddings": true,
   "original_max_position_embeddings": 32, "rope_scaling": {"type": "longrope",
     "short_factor": [1.0, 1.1, 1.2, 1.5, 1.7, 2.0],
     "long_factor": [1.0, 2.0, 3.5, 5.0, 8.0, 12.0]}},
 "mutations": [
  {"partial_rotary_factor": 0.5, "rope_scaling": {"short_factor": [1.0, 1.1, 1.2, 1.5],
     "long_factor": [1.0, 2.0, 3.5, 5.0]}},
  {"rope_scaling": {"attention_factor": 1.0}},
  {"rope_scaling": {"long_factor": [1.0, 2.5, 3.5, 5.0, 8.0, 12.0]}},
  {"original_max_position_embeddings": 256}]}
])";

}  // namespace

constexpr Family kPhi3 = {.name = "phi3",
                          .hf = kArchitectures,
                          .read_gguf = ReadGguf,
                          .tensors = DecoderTensors,
                          .spellings = kSpellings,
                          .shared_spellings = kDecoderSpellings,
                          .twins = kTwins};

}  // namespace millrace
