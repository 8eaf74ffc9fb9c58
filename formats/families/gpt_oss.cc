// gpt-oss (arXiv:2508.10925): mixtures of experts in MXFP4, clamped gates, biases everywhere, a
// sink for each head, windows in every other layer, YaRN. Folders store an expert's gate and up in
// turns, and matrices that are not MXFP4 transposed.
#include <string>

#include "base/status.h"
#include "formats/families/decoder.h"
#include "formats/families/experts.h"
#include "formats/families/families.h"

namespace millrace {
namespace {

// A softmax over the logits of the chosen experts.
constexpr RouterConfig kRouter = {.renormalize = true, .bias = true};

bool HasWindow(int layer) { return layer % 2 == 0; }

void MakeGptOss(const RouterConfig& router, int size, ModelConfig* model) {
  for (LayerConfig& layer : model->layers) {
    layer.softmax().qkv_bias = true;
    layer.softmax().output_bias = true;
    layer.softmax().sinks = true;
  }
  SetExperts(
      {.size = size, .router = router, .function = GateFunction::kClampedSwish, .biases = true},
      model);
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  const JsonFields& fields = config.fields();
  const auto says = [&](const char* name) {
    return fields.Find(name) != nullptr && *fields.Find(name) != Json::object();
  };
  if (!says("rope_scaling") && !says("rope_parameters")) {
    return fields.Bad("rope_scaling", "is missing");
  }
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, config.Decoder({.head_size = 64,
                                                               .kv_heads = 8,
                                                               .context = 131072,
                                                               .epsilon = 1e-5,
                                                               .rope = {.theta = 150000}}));
  MILLRACE_RETURN_IF_ERROR(config.RefuseOtherFunctions());
  MILLRACE_RETURN_IF_ERROR(fields.Refuse("attention_bias", Json::array({true})));
  MILLRACE_RETURN_IF_ERROR(fields.Refuse("swiglu_alpha", Json::array({1.702})));
  MILLRACE_RETURN_IF_ERROR(fields.Refuse("swiglu_limit", Json::array({7.0})));
  MILLRACE_ASSIGN_OR_RETURN(const int window, config.Window(128));
  MILLRACE_RETURN_IF_ERROR(config.SetWindows(window, HasWindow, &model));
  MILLRACE_ASSIGN_OR_RETURN(const RouterConfig router,
                            ReadHfRouter(config, "num_local_experts", kRouter));
  MakeGptOss(router, model.layers[0].ffn_size(), &model);
  return model;
}

// YaRN's pairs are not rounded, as the model was trained and unlike llama.cpp, whose files do not
// say.
absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model,
                            file.Decoder({.experts = true, .rounds_yarn = false}));
  for (const char* name : {"attention.sliding_window_pattern", "rope.freq_base_swa"}) {
    const std::string key = file.Key(name);
    if (file.file().Find(key) != nullptr) return file.Unsupported(key, "is not supported");
  }
  MILLRACE_RETURN_IF_ERROR(file.SetWindows(128, HasWindow, &model));
  MILLRACE_ASSIGN_OR_RETURN(const RouterConfig router, ReadGgufRouter(file, kRouter));
  MILLRACE_ASSIGN_OR_RETURN(const int size, ReadGgufExpertSize(file, router, model));
  MakeGptOss(router, size, &model);
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"GptOssForCausalLM", ReadHf}};

constexpr Spelling kSpellings[] = {
    {"blk.#.ffn_norm", "model.layers.#.post_attention_layernorm"},
    {"blk.#.attn_sinks.weight", "model.layers.#.self_attn.sinks"},
    {"blk.#.ffn_gate_inp", "model.layers.#.mlp.router"},
    {"blk.#.ffn_gate_up_exps.weight", "model.layers.#.mlp.experts.gate_up_proj"},
    {"blk.#.ffn_gate_up_exps.bias", "model.layers.#.mlp.experts.gate_up_proj_bias"},
    {"blk.#.ffn_gate_up_exps.blocks", "model.layers.#.mlp.experts.gate_up_proj_blocks"},
    {"blk.#.ffn_gate_up_exps.scales", "model.layers.#.mlp.experts.gate_up_proj_scales"},
    {"blk.#.ffn_down_exps.weight", "model.layers.#.mlp.experts.down_proj"},
    {"blk.#.ffn_down_exps.bias", "model.layers.#.mlp.experts.down_proj_bias"},
    {"blk.#.ffn_down_exps.blocks", "model.layers.#.mlp.experts.down_proj_blocks"},
    {"blk.#.ffn_down_exps.scales", "model.layers.#.mlp.experts.down_proj_scales"},
};

constexpr Spelling kGgufSpellings[] = {{"blk.#.ffn_norm", "blk.#.post_attention_norm"}};

constexpr std::string_view kTwins = R"([
{"name": "gpt_oss",
 "changes": {"model_type": "gpt_oss", "intermediate_size": 32, "num_local_experts": 6,
   "num_experts_per_tok": 2, "num_hidden_layers": 2, "sliding_window": 9, "attention_bias": true,
   "swiglu_limit": 7.0, "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "beta_fast": 8.0,
     "beta_slow": 0.5, "truncate": false, "original_max_position_embeddings": 32}},
 "mutations": [
  {"num_experts_per_tok": 3},
  {"sliding_window": 10},
  {"layer_types": ["full_attention", "sliding_attention"]},
  {"rope_scaling": {"factor": 4.0}},
  {"rope_scaling": {"beta_fast": 4.0}},
  {"rope_scaling": {"beta_slow": 1.0}},
  {"rope_scaling": {"truncate": true}},
  {"rope_scaling": {"original_max_position_embeddings": 64}}]},
{"name": "gpt_oss_mxfp4",
 "changes": {"model_type": "gpt_oss", "intermediate_size": 64, "num_local_experts": 6,
   "num_experts_per_tok": 2, "num_hidden_layers": 2, "sliding_window": 9, "attention_bias": true,
   "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "beta_fast": 8.0, "beta_slow": 0.5,
     "truncate": false, "original_max_position_embeddings": 32},
   "quantization_config": {"quant_method": "mxfp4",
     "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
       "model.embed_tokens", "lm_head"]}},
 "mutations": [{"num_experts_per_tok": 3}]}
])";

}  // namespace

constexpr Family kGptOss = {.name = "gpt-oss",
                            .hf = kArchitectures,
                            .read_gguf = ReadGguf,
                            .tensors = DecoderTensors,
                            .spellings = kSpellings,
                            .shared_spellings = kDecoderSpellings,
                            .gguf_spellings = kGgufSpellings,
                            .gate_order = GateOrder::kTurns,
                            .twins = kTwins};

}  // namespace millrace
