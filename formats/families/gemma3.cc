// Gemma 3's text (arXiv:2503.19786): Gemma 2 without soft caps, with norms of q and k, and with
// another rotation in the layers with a window, which are five of six.
#include <optional>

#include "base/status.h"
#include "formats/families/decoder.h"
#include "formats/families/families.h"
#include "formats/families/gemma.h"

namespace millrace {
namespace {

constexpr int kPattern = 6;

auto HasWindow(int pattern) {
  return [pattern](int layer) { return (layer + 1) % pattern != 0; };
}

// Once windows are set.
void Finish(const RopeConfig& window_rope, ModelConfig* model) {
  for (LayerConfig& layer : model->layers) {
    layer.softmax().qk_norm = QkNorm::kHead;
    if (layer.softmax().window > 0) layer.softmax().rope = window_rope;
  }
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  std::optional<RopeConfig> window_rope;
  const HfDefaults defaults{.head_size = 256,
                            .kv_heads = 4,
                            .context = 131072,
                            .tied = true,
                            .rope = {.theta = 1e6, .window_theta = 1e4}};
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadHfGemma(config, defaults, &window_rope));
  // transformers' code has it and does not use it.
  MILLRACE_RETURN_IF_ERROR(config.fields().Refuse("attn_logit_softcapping", Json::array()));
  MILLRACE_ASSIGN_OR_RETURN(model.logit_soft_cap, config.SoftCap("final_logit_softcapping", 0));
  MILLRACE_ASSIGN_OR_RETURN(const int window, config.Window(4096));
  MILLRACE_ASSIGN_OR_RETURN(const int pattern,
                            config.IntOr("sliding_window_pattern", kMaxLayers, kPattern));
  MILLRACE_RETURN_IF_ERROR(config.SetWindows(window, HasWindow(pattern), &model));
  Finish(*window_rope, &model);
  return model;
}

absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadGgufGemma(file, 62));
  MILLRACE_RETURN_IF_ERROR(file.RefuseFloat("attn_logit_softcapping", 0));
  MILLRACE_ASSIGN_OR_RETURN(model.logit_soft_cap, file.FactorOr("final_logit_softcapping", 0));
  RopeConfig window_rope;
  window_rope.dimensions = model.layers[0].softmax().rope->dimensions;
  window_rope.interleaved = false;
  MILLRACE_ASSIGN_OR_RETURN(window_rope.theta, file.FloatOr("rope.freq_base_swa", 10000, 1, 1e12));
  MILLRACE_ASSIGN_OR_RETURN(const int pattern,
                            file.IntOr("attention.sliding_window_pattern", kMaxLayers, kPattern));
  MILLRACE_RETURN_IF_ERROR(file.SetWindows(0, HasWindow(pattern), &model));
  Finish(window_rope, &model);
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"Gemma3ForCausalLM", ReadHf}};

constexpr std::string_view kTwins = R"([
{"name": "gemma3",
 "changes": {"model_type": "gemma3_text", "hidden_act": null,
   "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 9, "num_hidden_layers": 7,
   "query_pre_attn_scalar": 32, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
   "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "tie_word_embeddings": true},
 "mutations": [
  {"sliding_window": 10},
  {"rope_local_base_freq": 500.0},
  {"rope_scaling": {"factor": 4.0}},
  {"rope_scaling": null},
  {"query_pre_attn_scalar": 24},
  {"sliding_window_pattern": 5}]},
{"name": "gemma3_biases",
 "changes": {"model_type": "gemma3_text", "hidden_act": null,
   "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 9, "num_hidden_layers": 6,
   "query_pre_attn_scalar": 32, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
   "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "tie_word_embeddings": true,
   "attention_bias": true},
 "mutations": []}
])";

}  // namespace

constexpr Family kGemma3 = {.name = "gemma3",
                            .hf = kArchitectures,
                            .read_gguf = ReadGguf,
                            .tensors = DecoderTensors,
                            .spellings = kOutputNormSpellings,
                            .shared_spellings = kDecoderSpellings,
                            .twins = kTwins};

}  // namespace millrace
