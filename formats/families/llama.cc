// Llama (arXiv:2302.13971), Mistral (arXiv:2310.06825), whose layers may have windows, and Mixtral
// (arXiv:2401.04088), with mixtures of experts. In GGUF files all are Llamas.
#include "base/status.h"
#include "formats/families/decoder.h"
#include "formats/families/experts.h"
#include "formats/families/families.h"

namespace millrace {
namespace {

absl::StatusOr<ModelConfig> ReadLlama(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, config.Decoder({}));
  MILLRACE_RETURN_IF_ERROR(config.RefuseOtherFunctions());
  MILLRACE_RETURN_IF_ERROR(config.ReadAttentionBias(&model));
  MILLRACE_RETURN_IF_ERROR(config.ReadFeedForwardBias(&model));
  return model;
}

// With `layer_types` it is a Ministral, whatever its architecture's name: so transformers' Auto
// classes have it, and vLLM, while transformers' MistralForCausalLM leaves them unread.
absl::StatusOr<ModelConfig> ReadMistral(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, config.Decoder({.kv_heads = 8, .context = 131072}));
  MILLRACE_RETURN_IF_ERROR(config.RefuseOtherFunctions());
  MILLRACE_ASSIGN_OR_RETURN(const int window, config.Window(4096));
  MILLRACE_RETURN_IF_ERROR(config.SetWindows(
      window, [](int) { return true; }, &model));
  return model;
}

// A softmax over the logits of the chosen experts.
constexpr RouterConfig kRouter = {.renormalize = true};

absl::StatusOr<ModelConfig> ReadMixtral(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(
      ModelConfig model,
      config.Decoder({.kv_heads = 8, .context = 131072, .epsilon = 1e-5, .rope = {.theta = 1e6}}));
  MILLRACE_RETURN_IF_ERROR(config.RefuseOtherFunctions());
  MILLRACE_ASSIGN_OR_RETURN(const int window, config.Window(0));
  MILLRACE_RETURN_IF_ERROR(config.SetWindows(
      window, [](int) { return true; }, &model));
  ExpertsFeedForward experts{.size = model.layers[0].ffn_size()};
  MILLRACE_ASSIGN_OR_RETURN(experts.router, ReadHfRouter(config, "num_local_experts", kRouter));
  SetExperts(experts, &model);
  return model;
}

absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, file.Decoder({.experts = true}));
  MILLRACE_RETURN_IF_ERROR(file.SetWindows(
      0, [](int) { return true; }, &model));
  MILLRACE_ASSIGN_OR_RETURN(const int experts, file.IntOr("expert_count", kMaxExperts, 0, 0));
  if (experts == 0) return model;
  MILLRACE_ASSIGN_OR_RETURN(const RouterConfig router, ReadGgufRouter(file, kRouter));
  SetExperts({.size = model.layers[0].ffn_size(), .router = router}, &model);
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"LlamaForCausalLM", ReadLlama},
                                             {"MistralForCausalLM", ReadMistral},
                                             {"MinistralForCausalLM", ReadMistral},
                                             {"MixtralForCausalLM", ReadMixtral}};

constexpr Spelling kSpellings[] = {
    {"blk.#.ffn_norm", "model.layers.#.post_attention_layernorm"},
    {"blk.#.ffn_gate_inp", "model.layers.#.block_sparse_moe.gate"},
    {"blk.#.ffn_gate_inp", "model.layers.#.mlp.gate"},
    {"blk.#.ffn_gate.#", "model.layers.#.block_sparse_moe.experts.#.w1"},
    {"blk.#.ffn_up.#", "model.layers.#.block_sparse_moe.experts.#.w3"},
    {"blk.#.ffn_down.#", "model.layers.#.block_sparse_moe.experts.#.w2"},
    {"blk.#.ffn_gate_up_exps.weight", "model.layers.#.mlp.experts.gate_up_proj"},
    {"blk.#.ffn_down_exps.weight", "model.layers.#.mlp.experts.down_proj"},
};

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
  {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}]},
{"name": "mixtral",
 "changes": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
   "intermediate_size": 32, "num_local_experts": 6, "num_experts_per_tok": 2,
   "num_hidden_layers": 2, "sliding_window": 9},
 "mutations": [{"sliding_window": 10}, {"num_experts_per_tok": 3}]},
{"name": "llama_biases",
 "changes": {"num_hidden_layers": 2, "attention_bias": true, "mlp_bias": true}, "mutations": []}
])";

}  // namespace

constexpr Family kLlama = {.name = "llama",
                           .hf = kArchitectures,
                           .read_gguf = ReadGguf,
                           .interleaved_in_gguf = true,
                           .tensors = DecoderTensors,
                           .spellings = kSpellings,
                           .shared_spellings = kDecoderSpellings,
                           .twins = kTwins};

}  // namespace millrace
