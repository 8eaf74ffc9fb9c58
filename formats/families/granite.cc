// Granite 3 (github.com/ibm-granite/granite-3.0-language-models): Llama with factors of embeddings,
// scores, what a block adds, and logits.
#include "formats/families/granite.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/families/decoder.h"
#include "formats/families/families.h"

namespace millrace {
namespace {

void SetScale(double scale, ModelConfig* model) {
  for (LayerConfig& layer : model->layers) layer.softmax().scale = scale;
}

void RemoveRotations(ModelConfig* model) {
  for (LayerConfig& layer : model->layers) layer.softmax().rope.reset();
}

}  // namespace

absl::StatusOr<ModelConfig> ReadHfGranite(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, config.Decoder({}));
  MILLRACE_RETURN_IF_ERROR(config.RefuseOtherFunctions());
  MILLRACE_RETURN_IF_ERROR(config.ReadAttentionBias(&model));
  MILLRACE_RETURN_IF_ERROR(config.ReadFeedForwardBias(&model));
  MILLRACE_ASSIGN_OR_RETURN(model.embedding_factor, config.FactorOr("embedding_multiplier", 1));
  MILLRACE_ASSIGN_OR_RETURN(const double scale, config.FactorOr("attention_multiplier", 1));
  SetScale(scale, &model);
  MILLRACE_ASSIGN_OR_RETURN(model.residual_factor, config.FactorOr("residual_multiplier", 1));
  MILLRACE_ASSIGN_OR_RETURN(const double scaling, config.FactorOr("logits_scaling", 1));
  model.logit_factor = 1 / scaling;
  return model;
}

absl::StatusOr<ModelConfig> ReadGgufGranite(const GgufReader& file, bool experts, int kv_heads) {
  MILLRACE_ASSIGN_OR_RETURN(
      ModelConfig model, file.Decoder({.scales = true, .experts = experts, .kv_heads = kv_heads}));
  MILLRACE_ASSIGN_OR_RETURN(model.embedding_factor, file.FactorOr("embedding_scale", 1));
  MILLRACE_ASSIGN_OR_RETURN(model.residual_factor, file.FactorOr("residual_scale", 1));
  MILLRACE_ASSIGN_OR_RETURN(const double scale,
                            file.FactorOr("attention.scale", model.layers[0].softmax().scale));
  SetScale(scale, &model);
  MILLRACE_ASSIGN_OR_RETURN(const double scaling, file.FactorOr("logit_scale", 1));
  model.logit_factor = 1 / scaling;
  // Granite 4's models without positions say so like this.
  const std::string key = file.Key("rope.scaling.finetuned");
  if (file.file().Find(key) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const bool rotated, file.file().Bool(key));
    if (!rotated) RemoveRotations(&model);
  }
  MILLRACE_RETURN_IF_ERROR(file.RefuseWindows());
  return model;
}

namespace {

absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  return ReadGgufGranite(file, /*experts=*/false);
}

constexpr HfArchitecture kArchitectures[] = {{"GraniteForCausalLM", ReadHfGranite}};

constexpr std::string_view kTwins = R"([
{"name": "granite",
 "changes": {"head_dim": null, "embedding_multiplier": 6.0, "attention_multiplier": 0.2,
   "residual_multiplier": 0.4, "logits_scaling": 0.5},
 "gguf_keys": {"embedding_multiplier": "embedding_scale",
   "attention_multiplier": "attention.scale", "residual_multiplier": "residual_scale",
   "logits_scaling": "logit_scale"},
 "mutations": [
  {"embedding_multiplier": 7.0},
  {"attention_multiplier": 0.25},
  {"residual_multiplier": 0.5},
  {"logits_scaling": 0.6}]},
{"name": "granite_biases",
 "changes": {"head_dim": null, "num_hidden_layers": 2, "embedding_multiplier": 6.0,
   "attention_multiplier": 0.2, "residual_multiplier": 0.4, "logits_scaling": 0.5,
   "attention_bias": true, "mlp_bias": true},
 "gguf_keys": {"embedding_multiplier": "embedding_scale",
   "attention_multiplier": "attention.scale", "residual_multiplier": "residual_scale",
   "logits_scaling": "logit_scale"},
 "mutations": []}
])";

}  // namespace

constexpr Family kGranite = {.name = "granite",
                             .hf = kArchitectures,
                             .read_gguf = ReadGguf,
                             .interleaved_in_gguf = true,
                             .tensors = DecoderTensors,
                             .spellings = kPreNormSpellings,
                             .shared_spellings = kDecoderSpellings,
                             .twins = kTwins};

}  // namespace millrace
