// Gemma 2 (arXiv:2408.00118): soft caps of scores and logits, and a window in every other layer.
#include <cmath>

#include "base/status.h"
#include "formats/families/decoder.h"
#include "formats/families/families.h"
#include "formats/families/gemma.h"

namespace millrace {
namespace {

void MakeGemma(ModelConfig* model) {
  model->embedding_factor = std::sqrt(model->hidden_size);
  for (LayerConfig& layer : model->layers) {
    layer.norms = NormPlacement::kSandwich;
    layer.gated().function = GateFunction::kGeluTanh;
  }
}

void SetScale(double scale, ModelConfig* model) {
  for (LayerConfig& layer : model->layers) layer.softmax().scale = scale;
}

}  // namespace

absl::StatusOr<ModelConfig> ReadHfGemma(const HfReader& config, const HfDefaults& defaults,
                                        std::optional<RopeConfig>* window_rope) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, config.Decoder(defaults, window_rope));
  MakeGemma(&model);
  model.norm_offset = 1;
  // hidden_act, which some configs have beside it, is not read.
  const JsonFields& fields = config.fields();
  MILLRACE_RETURN_IF_ERROR(fields.Refuse("hidden_activation", Json::array({"gelu_pytorch_tanh"})));
  MILLRACE_RETURN_IF_ERROR(fields.Refuse("use_bidirectional_attention", Json::array({false})));
  MILLRACE_RETURN_IF_ERROR(config.ReadAttentionBias(&model));
  MILLRACE_ASSIGN_OR_RETURN(const double scalar, config.FactorOr("query_pre_attn_scalar", 256));
  SetScale(1 / std::sqrt(scalar), &model);
  return model;
}

absl::StatusOr<ModelConfig> ReadGgufGemma(const GgufReader& file, int layers_of_27b) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, file.Decoder());
  MakeGemma(&model);
  if (model.num_layers() == layers_of_27b) {
    SetScale(1 / std::sqrt(model.hidden_size / model.layers[0].softmax().heads), &model);
  }
  return model;
}

namespace {

bool HasWindow(int layer) { return layer % 2 == 0; }

void SetSoftCap(double cap, ModelConfig* model) {
  for (LayerConfig& layer : model->layers) layer.softmax().soft_cap = cap;
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(
      ModelConfig model,
      ReadHfGemma(config, {.head_size = 256, .kv_heads = 4, .context = 8192, .tied = true}));
  MILLRACE_ASSIGN_OR_RETURN(const double cap, config.SoftCap("attn_logit_softcapping", 50));
  SetSoftCap(cap, &model);
  MILLRACE_ASSIGN_OR_RETURN(model.logit_soft_cap, config.SoftCap("final_logit_softcapping", 30));
  MILLRACE_ASSIGN_OR_RETURN(const int window, config.Window(4096));
  MILLRACE_RETURN_IF_ERROR(config.SetWindows(window, HasWindow, &model));
  return model;
}

absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadGgufGemma(file, 46));
  MILLRACE_ASSIGN_OR_RETURN(const double cap, file.FactorOr("attn_logit_softcapping", 50));
  SetSoftCap(cap, &model);
  MILLRACE_ASSIGN_OR_RETURN(model.logit_soft_cap, file.FactorOr("final_logit_softcapping", 30));
  MILLRACE_RETURN_IF_ERROR(file.SetWindows(4096, HasWindow, &model));
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"Gemma2ForCausalLM", ReadHf}};

constexpr std::string_view kTwins = R"([
{"name": "gemma2",
 "changes": {"hidden_act": null, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 9,
   "query_pre_attn_scalar": 32, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0,
   "tie_word_embeddings": true},
 "gguf_keys": {"attn_logit_softcapping": "attn_logit_softcapping",
   "final_logit_softcapping": "final_logit_softcapping"},
 "mutations": [
  {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16},
  {"sliding_window": 10},
  {"query_pre_attn_scalar": 24},
  {"attn_logit_softcapping": 4.0},
  {"attn_logit_softcapping": null},
  {"final_logit_softcapping": 5.0},
  {"final_logit_softcapping": null},
  {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}]},
{"name": "gemma2_biases",
 "changes": {"hidden_act": null, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 9,
   "query_pre_attn_scalar": 32, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0,
   "num_hidden_layers": 2, "tie_word_embeddings": true, "attention_bias": true},
 "gguf_keys": {"attn_logit_softcapping": "attn_logit_softcapping",
   "final_logit_softcapping": "final_logit_softcapping"},
 "mutations": []}
])";

}  // namespace

constexpr Family kGemma2 = {.name = "gemma2",
                            .hf = kArchitectures,
                            .read_gguf = ReadGguf,
                            .tensors = DecoderTensors,
                            .spellings = kOutputNormSpellings,
                            .shared_spellings = kDecoderSpellings,
                            .twins = kTwins};

}  // namespace millrace
