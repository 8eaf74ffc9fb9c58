#include "formats/family_twins.h"

#include <utility>

namespace millrace {
namespace {

// 64 wide, 4 heads that share 2 of keys and values, of 32 elements where a family lets them differ
// from 64 / 4.
Json Config(const char* architecture, const char* type, const Json& changes) {
  Json config = {{"architectures", Json::array({architecture})},
                 {"model_type", type},
                 {"hidden_size", 64},
                 {"intermediate_size", 96},
                 {"num_hidden_layers", 3},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"head_dim", 32},
                 {"vocab_size", 128},
                 {"max_position_embeddings", 256},
                 {"rms_norm_eps", 1e-5},
                 {"rope_theta", 10000.0},
                 {"hidden_act", "silu"},
                 {"bos_token_id", 1},
                 {"eos_token_id", 2},
                 {"pad_token_id", nullptr},
                 {"tie_word_embeddings", false},
                 {"torch_dtype", "float32"}};
  config.merge_patch(changes);
  return config;
}

Json Patch(const char* text) { return Json::parse(text); }

// Longer positions of the Llama family.
FamilyTwin Stretched(const char* name, const char* scaling, std::vector<Json> mutations,
                     const char* more = "{}") {
  Json changes = Patch(more);
  changes["rope_scaling"] = Patch(scaling);
  FamilyTwin twin{.name = name,
                  .config = Config("LlamaForCausalLM", "llama", changes),
                  .max_model_len = 0,
                  .mutations = std::move(mutations)};
  for (const char* change : {R"({"rope_scaling": null, "max_position_embeddings": 256})",
                             R"({"rope_theta": 500.0})", R"({"rms_norm_eps": 0.09})"}) {
    twin.mutations.push_back(Patch(change));
  }
  return twin;
}

}  // namespace

std::vector<FamilyTwin> FamilyTwins() {
  const Json theta = Patch(R"({"rope_theta": 500.0})");
  const Json epsilon = Patch(R"({"rms_norm_eps": 0.09})");
  const Json heads =
      Patch(R"({"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16})");
  std::vector<FamilyTwin> twins;
  twins.push_back({.name = "llama",
                   .config = Config("LlamaForCausalLM", "llama", Json::object()),
                   .mutations = {theta, epsilon, heads}});
  twins.push_back(Stretched("llama_linear", R"({"rope_type": "linear", "factor": 4.0})",
                            {Patch(R"({"rope_scaling": {"factor": 2.0}})")}));
  twins.push_back(
      Stretched("llama_llama3",
                R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                "high_freq_factor": 4.0, "original_max_position_embeddings": 32})",
                {Patch(R"({"rope_scaling": {"factor": 2.0}})"),
                 Patch(R"({"rope_scaling": {"low_freq_factor": 2.0}})"),
                 Patch(R"({"rope_scaling": {"high_freq_factor": 2.0}})"),
                 Patch(R"({"rope_scaling": {"original_max_position_embeddings": 8}})")}));
  twins.push_back(Stretched("llama_yarn",
                            R"({"rope_type": "yarn", "factor": 8.0,
                                "original_max_position_embeddings": 32})",
                            {Patch(R"({"rope_scaling": {"factor": 4.0}})"),
                             Patch(R"({"rope_scaling": {"original_max_position_embeddings": 64}})"),
                             Patch(R"({"rope_scaling": {"attention_factor": 1.0}})"),
                             Patch(R"({"rope_scaling": {"beta_fast": 2.0}})"),
                             Patch(R"({"rope_scaling": {"beta_slow": 3.0}})")}));
  twins.push_back(Stretched("llama_yarn_mscale",
                            R"({"rope_type": "yarn", "factor": 8.0, "beta_fast": 8.0,
                                "beta_slow": 0.5, "mscale": 2.0, "mscale_all_dim": 0.5,
                                "truncate": false, "original_max_position_embeddings": 32})",
                            {Patch(R"({"rope_scaling": {"truncate": true}})"),
                             Patch(R"({"rope_scaling": {"beta_fast": 4.0}})"),
                             Patch(R"({"rope_scaling": {"beta_slow": 1.0}})"),
                             Patch(R"({"rope_scaling": {"mscale": 1.0}})"),
                             Patch(R"({"rope_scaling": {"mscale_all_dim": 1.0}})")}));
  twins.back().in_gguf = false;
  twins.push_back(Stretched(
      "llama_dynamic", R"({"rope_type": "dynamic", "factor": 4.0})",
      {Patch(R"({"rope_scaling": {"factor": 8.0}})"), Patch(R"({"max_position_embeddings": 24})")},
      R"({"max_position_embeddings": 16})"));
  twins.back().max_model_len = 49;  // the prompt's, by which transformers goes
  twins.back().in_gguf = false;
  twins.push_back(
      {.name = "mistral",
       .config = Config("MistralForCausalLM", "mistral", Patch(R"({"sliding_window": 9})")),
       .mutations = {theta, epsilon, heads, Patch(R"({"sliding_window": 10})")}});
  const Json mistral_layers = Patch(R"({"sliding_window": 9, "layer_types": [
      "full_attention", "sliding_attention", "full_attention"]})");
  const std::vector<Json> layer_mutations = {
      theta, epsilon, Patch(R"({"sliding_window": 10})"), Patch(R"({"layer_types": null})"),
      Patch(R"({"layer_types": ["sliding_attention", "full_attention", "full_attention"]})")};
  twins.push_back({.name = "mistral_layers",
                   .config = Config("MistralForCausalLM", "mistral", mistral_layers),
                   .in_gguf = false,
                   .mutations = layer_mutations});
  twins.push_back({.name = "ministral",
                   .config = Config("MinistralForCausalLM", "ministral", mistral_layers),
                   .in_gguf = false,
                   .mutations = layer_mutations});
  const Json tied = Patch(R"({"tie_word_embeddings": true})");
  const Json qwen_window = Patch(R"({"sliding_window": 9, "use_sliding_window": true,
                              "max_window_layers": 2, "tie_word_embeddings": true})");
  const std::vector<Json> window_mutations = {theta, epsilon, Patch(R"({"sliding_window": 10})"),
                                              Patch(R"({"max_window_layers": 1})"),
                                              Patch(R"({"use_sliding_window": false})")};
  twins.push_back({.name = "qwen2",
                   .config = Config("Qwen2ForCausalLM", "qwen2", tied),
                   .mutations = {theta, epsilon}});
  twins.push_back({.name = "qwen2_window",
                   .config = Config("Qwen2ForCausalLM", "qwen2", qwen_window),
                   .in_gguf = false,
                   .mutations = window_mutations});
  twins.push_back({.name = "qwen3",
                   .config = Config("Qwen3ForCausalLM", "qwen3", tied),
                   .mutations = {theta, epsilon}});
  twins.push_back({.name = "qwen3_window",
                   .config = Config("Qwen3ForCausalLM", "qwen3", qwen_window),
                   .in_gguf = false,
                   .mutations = window_mutations});
  twins.push_back({.name = "gemma2",
                   .config = Config("Gemma2ForCausalLM", "gemma2", Patch(R"({
           "hidden_act": null, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 9,
           "query_pre_attn_scalar": 32, "attn_logit_softcapping": 3.0,
           "final_logit_softcapping": 4.0, "tie_word_embeddings": true})")),
                   .mutations = {theta, epsilon, heads, Patch(R"({"sliding_window": 10})"),
                                 Patch(R"({"query_pre_attn_scalar": 24})"),
                                 Patch(R"({"attn_logit_softcapping": 4.0})"),
                                 Patch(R"({"attn_logit_softcapping": null})"),
                                 Patch(R"({"final_logit_softcapping": 5.0})"),
                                 Patch(R"({"final_logit_softcapping": null})"),
                                 Patch(R"({"layer_types": ["full_attention", "sliding_attention",
                                               "full_attention"]})")}});
  twins.push_back(
      {.name = "gemma3",
       .config = Config("Gemma3ForCausalLM", "gemma3_text", Patch(R"({
           "hidden_act": null, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 9,
           "num_hidden_layers": 7, "query_pre_attn_scalar": 32, "rope_theta": 1000000.0,
           "rope_local_base_freq": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
           "tie_word_embeddings": true})")),
       .mutations = {theta, epsilon, Patch(R"({"sliding_window": 10})"),
                     Patch(R"({"rope_local_base_freq": 500.0})"),
                     Patch(R"({"rope_scaling": {"factor": 4.0}})"),
                     Patch(R"({"rope_scaling": null})"), Patch(R"({"query_pre_attn_scalar": 24})"),
                     Patch(R"({"sliding_window_pattern": 5})")}});
  // Fused, and heads of 64 / 4.
  const Json phi = Patch(R"({"head_dim": null})");
  Json phi3 = phi;
  phi3["sliding_window"] = 9;
  twins.push_back({.name = "phi3",
                   .config = Config("Phi3ForCausalLM", "phi3", phi3),
                   .mutations = {theta, epsilon, Patch(R"({"sliding_window": 10})")}});
  Json phi4 = phi;
  phi4.merge_patch(Patch(R"({"partial_rotary_factor": 0.75, "tie_word_embeddings": true,
      "original_max_position_embeddings": 64, "rope_scaling": {"type": "longrope",
        "short_factor": [1.0, 1.1, 1.2, 1.5, 1.7, 2.0],
        "long_factor": [1.0, 2.0, 3.5, 5.0, 8.0, 12.0]}})"));
  // A factor for each pair that is turned: fewer pairs, fewer factors.
  const Json turned = Patch(R"({"partial_rotary_factor": 0.5, "rope_scaling": {
      "short_factor": [1.0, 1.1, 1.2, 1.5], "long_factor": [1.0, 2.0, 3.5, 5.0]}})");
  twins.push_back(
      {.name = "phi4_short",
       .config = Config("Phi3ForCausalLM", "phi3", phi4),
       .max_model_len = 64,
       .mutations = {theta, epsilon, turned,
                     Patch(R"({"rope_scaling": {"attention_factor": 1.0}})"),
                     Patch(R"({"rope_scaling": {"short_factor": [1.0, 1.4, 1.2, 1.5, 1.7, 2.0]}})"),
                     Patch(R"({"original_max_position_embeddings": 63})")}});
  phi4["original_max_position_embeddings"] = 32;
  twins.push_back(
      {.name = "phi4_long",
       .config = Config("Phi3ForCausalLM", "phi3", phi4),
       .mutations = {theta, epsilon, turned,
                     Patch(R"({"rope_scaling": {"attention_factor": 1.0}})"),
                     Patch(R"({"rope_scaling": {"long_factor": [1.0, 2.5, 3.5, 5.0, 8.0, 12.0]}})"),
                     Patch(R"({"original_max_position_embeddings": 256})")}});
  twins.push_back({.name = "olmo2",
                   .config = Config("Olmo2ForCausalLM", "olmo2", phi),
                   .mutations = {theta, epsilon}});
  twins.push_back({.name = "granite",
                   .config = Config("GraniteForCausalLM", "granite", Patch(R"({
           "head_dim": null, "embedding_multiplier": 6.0, "attention_multiplier": 0.2,
           "residual_multiplier": 0.4, "logits_scaling": 0.5})")),
                   .mutations = {theta, epsilon, Patch(R"({"embedding_multiplier": 7.0})"),
                                 Patch(R"({"attention_multiplier": 0.25})"),
                                 Patch(R"({"residual_multiplier": 0.5})"),
                                 Patch(R"({"logits_scaling": 0.6})")}});
  twins.push_back({.name = "smollm3",
                   .config = Config("SmolLM3ForCausalLM", "smollm3", Patch(R"({
           "head_dim": null, "num_hidden_layers": 5, "tie_word_embeddings": true})")),
                   .mutations = {theta, epsilon, Patch(R"({"no_rope_layers": [1, 1, 1, 1, 1]})"),
                                 Patch(R"({"no_rope_layer_interval": 3})")}});
  return twins;
}

std::vector<FamilyTwin> EncoderTwins() {
  const Json config = Patch(R"({
      "architectures": ["BertModel"], "model_type": "bert", "hidden_size": 64,
      "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
      "vocab_size": 128, "max_position_embeddings": 64, "type_vocab_size": 2,
      "layer_norm_eps": 1e-5, "hidden_act": "gelu", "torch_dtype": "float32"})");
  const std::vector<Json> mutations = {Patch(R"({"layer_norm_eps": 0.09})"),
                                       Patch(R"({"num_attention_heads": 2})")};
  return {{.name = "bert_mean",
           .config = config,
           .pooling = "mean_tokens",
           .normalize = true,
           .mutations = mutations},
          {.name = "bert_first",
           .config = config,
           .in_gguf = false,  // where embeddings are always normalized
           .pooling = "cls_token",
           .mutations = mutations}};
}

}  // namespace millrace
