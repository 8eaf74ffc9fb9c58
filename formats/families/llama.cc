// Llama (arXiv:2302.13971), and Mistral (arXiv:2310.06825), whose layers may have windows.
#include "base/status.h"
#include "formats/families/decoder.h"
#include "formats/families/families.h"

namespace millrace {
namespace {

absl::StatusOr<ModelConfig> ReadLlama(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, config.Decoder({}));
  MILLRACE_RETURN_IF_ERROR(config.RefuseFunctionsAndBiases());
  MILLRACE_RETURN_IF_ERROR(config.RefuseWindows(&model));
  return model;
}

// With `layer_types` it is a Ministral, whatever its architecture's name: so transformers' Auto
// classes have it, and vLLM, while transformers' MistralForCausalLM leaves them unread.
absl::StatusOr<ModelConfig> ReadMistral(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, config.Decoder({}));
  MILLRACE_RETURN_IF_ERROR(config.RefuseFunctionsAndBiases());
  MILLRACE_ASSIGN_OR_RETURN(const int window, config.Window(4096));
  MILLRACE_RETURN_IF_ERROR(config.SetWindows(
      window, [](int) { return true; }, &model));
  return model;
}

absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, file.Decoder());
  MILLRACE_RETURN_IF_ERROR(file.SetWindows(
      0, [](int) { return true; }, &model));
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"LlamaForCausalLM", ReadLlama},
                                             {"MistralForCausalLM", ReadMistral},
                                             {"MinistralForCausalLM", ReadMistral}};

constexpr std::string_view kTwins = R"([
{"name": "llama", "mutations": [
  {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}]},
{"name": "llama_linear", "changes": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
 "mutations": [
  {"rope_scaling": {"factor": 2.0}},
  {"rope_scaling": null, "max_position_embeddings": 256}]},
{"name": "llama_llama3", "changes": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0,
   "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}},
 "mutations": [
  {"rope_scaling": {"factor": 2.0}},
  {"rope_scaling": {"low_freq_factor": 2.0}},
  {"rope_scaling": {"high_freq_factor": 2.0}},
  {"rope_scaling": {"original_max_position_embeddings": 8}},
  {"rope_scaling": null, "max_position_embeddings": 256}]},
{"name": "llama_yarn", "changes": {"rope_scaling": {"rope_type": "yarn", "factor": 8.0,
   "original_max_position_embeddings": 32}},
 "mutations": [
  {"rope_scaling": {"factor": 4.0}},
  {"rope_scaling": {"original_max_position_embeddings": 64}},
  {"rope_scaling": {"attention_factor": 1.0}},
  {"rope_scaling": {"beta_fast": 2.0}},
  {"rope_scaling": {"beta_slow": 3.0}},
  {"rope_scaling": null, "max_position_embeddings": 256}]},
{"name": "llama_yarn_mscale", "in_gguf": false, "changes": {"rope_scaling": {"rope_type": "yarn",
   "factor": 8.0, "beta_fast": 8.0, "beta_slow": 0.5, "mscale": 2.0, "mscale_all_dim": 0.5,
   "truncate": false, "original_max_position_embeddings": 32}},
 "mutations": [
  {"rope_scaling": {"truncate": true}},
  {"rope_scaling": {"beta_fast": 4.0}},
  {"rope_scaling": {"beta_slow": 1.0}},
  {"rope_scaling": {"mscale": 1.0}},
  {"rope_scaling": {"mscale_all_dim": 1.0}},
  {"rope_scaling": null, "max_position_embeddings": 256}]},
{"name": "llama_dynamic", "in_gguf": false, "max_model_len": 49,
 "changes": {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0},
   "max_position_embeddings": 16},
 "mutations": [
  {"rope_scaling": {"factor": 8.0}},
  {"max_position_embeddings": 24},
  {"rope_scaling": null, "max_position_embeddings": 256}]},
{"name": "mistral",
 "changes": {"architectures": ["MistralForCausalLM"], "model_type": "mistral",
   "sliding_window": 9},
 "mutations": [
  {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16},
  {"sliding_window": 10}]},
{"name": "mistral_layers", "in_gguf": false,
 "changes": {"architectures": ["MistralForCausalLM"], "model_type": "mistral",
   "sliding_window": 9,
   "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
 "mutations": [
  {"sliding_window": 10},
  {"layer_types": null},
  {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}]},
{"name": "ministral", "in_gguf": false,
 "changes": {"architectures": ["MinistralForCausalLM"], "model_type": "ministral",
   "sliding_window": 9,
   "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
 "mutations": [
  {"sliding_window": 10},
  {"layer_types": null},
  {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}]}
])";

}  // namespace

constexpr Family kLlama = {.name = "llama",
                           .hf = kArchitectures,
                           .read_gguf = ReadGguf,
                           .interleaved_in_gguf = true,
                           .tensors = DecoderTensors,
                           .spellings = kPreNormSpellings,
                           .shared_spellings = kDecoderSpellings,
                           .twins = kTwins};

}  // namespace millrace
