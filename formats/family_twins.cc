#include "formats/family_twins.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <numeric>
#include <random>
#include <system_error>
#include <utility>

#include "base/strings.h"
#include "formats/gguf_test_util.h"
#include "formats/hf_config.h"
#include "formats/hf_names.h"
#include "formats/hf_test_util.h"
#include "formats/model_tensors.h"

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

// Longer positions of the Llama family, whose other mutations are those of "llama".
FamilyTwin Stretched(const char* name, const char* scaling, std::vector<Json> mutations,
                     const char* more = "{}") {
  Json changes = Patch(more);
  changes["rope_scaling"] = Patch(scaling);
  FamilyTwin twin{.name = name,
                  .config = Config("LlamaForCausalLM", "llama", changes),
                  .max_model_len = 0,
                  .mutations = std::move(mutations)};
  twin.mutations.push_back(Patch(R"({"rope_scaling": null, "max_position_embeddings": 256})"));
  return twin;
}

}  // namespace

std::vector<FamilyTwin> FamilyTwins() {
  const Json theta = Patch(R"({"rope_theta": 500.0})");
  const Json epsilon = Patch(R"({"rms_norm_eps": 0.05})");
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
                 Patch(R"({"rope_scaling": {"original_max_position_embeddings": 8}})")}));
  twins.push_back(Stretched("llama_yarn",
                            R"({"rope_type": "yarn", "factor": 8.0,
                                "original_max_position_embeddings": 32})",
                            {Patch(R"({"rope_scaling": {"attention_factor": 1.0}})"),
                             Patch(R"({"rope_scaling": {"beta_slow": 3.0}})")}));
  twins.push_back(Stretched("llama_yarn_mscale",
                            R"({"rope_type": "yarn", "factor": 8.0, "beta_fast": 8.0,
                                "beta_slow": 0.5, "mscale": 2.0, "mscale_all_dim": 0.5,
                                "truncate": false, "original_max_position_embeddings": 32})",
                            {Patch(R"({"rope_scaling": {"truncate": true}})"),
                             Patch(R"({"rope_scaling": {"mscale": 1.0}})")}));
  twins.back().in_gguf = false;
  twins.push_back(Stretched("llama_dynamic", R"({"rope_type": "dynamic", "factor": 4.0})",
                            {Patch(R"({"rope_scaling": {"factor": 8.0}})")},
                            R"({"max_position_embeddings": 16})"));
  twins.back().max_model_len = 48;  // the prompt's, by which transformers goes
  twins.back().in_gguf = false;
  twins.push_back(
      {.name = "mistral",
       .config = Config("MistralForCausalLM", "mistral", Patch(R"({"sliding_window": 9})")),
       .mutations = {theta, epsilon, heads, Patch(R"({"sliding_window": 10})")}});
  const Json mistral_layers = Patch(R"({"sliding_window": 9, "layer_types": [
      "full_attention", "sliding_attention", "full_attention"]})");
  twins.push_back(
      {.name = "mistral_layers",
       .config = Config("MistralForCausalLM", "mistral", mistral_layers),
       .in_gguf = false,
       .mutations = {Patch(R"({"sliding_window": 10})"), Patch(R"({"layer_types": null})"),
                     Patch(R"({"layer_types": ["sliding_attention", "full_attention",
                                               "full_attention"]})")}});
  twins.push_back({.name = "ministral",
                   .config = Config("MinistralForCausalLM", "ministral", mistral_layers),
                   .in_gguf = false,
                   .mutations = {theta}});
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
  twins.push_back(
      {.name = "phi4_short",
       .config = Config("Phi3ForCausalLM", "phi3", phi4),
       .max_model_len = 64,
       .mutations = {theta, epsilon, Patch(R"({"rope_scaling": {"attention_factor": 1.0}})"),
                     Patch(R"({"original_max_position_embeddings": 63})")}});
  phi4["original_max_position_embeddings"] = 32;
  twins.push_back({.name = "phi4_long",
                   .config = Config("Phi3ForCausalLM", "phi3", phi4),
                   .mutations = {theta, Patch(R"({"original_max_position_embeddings": 256})")}});
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
  const std::vector<Json> mutations = {Patch(R"({"layer_norm_eps": 0.05})"),
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

namespace {

// What sentence-transformers writes beside config.json.
void WriteModules(const FamilyTwin& twin, const std::string& folder) {
  Json modules = Json::array();
  const auto add = [&](const char* type, const char* path) {
    modules.push_back({{"idx", modules.size()},
                       {"name", std::to_string(modules.size())},
                       {"path", path},
                       {"type", StrCat("sentence_transformers.models.", type)}});
  };
  add("Transformer", "");
  add("Pooling", "1_Pooling");
  if (twin.normalize) add("Normalize", "2_Normalize");
  WriteFile(folder + "/modules.json", modules.dump(2));
  Json pooling = Json::object();
  for (const char* kind : {"cls_token", "mean_tokens", "max_tokens"}) {
    pooling[StrCat("pooling_mode_", kind)] = kind == twin.pooling;
  }
  std::error_code error;
  if (!std::filesystem::create_directories(folder + "/1_Pooling", error)) std::abort();
  WriteFile(folder + "/1_Pooling/config.json", pooling.dump(2));
}

ModelConfig ReadTwin(const FamilyTwin& twin) {
  const absl::StatusOr<HfConfig> config = ReadHfConfig(twin.config.dump(), twin.name);
  if (!config.ok()) {
    std::fprintf(stderr, "%s: %s\n", twin.name.c_str(), config.status().ToString().c_str());
    std::abort();
  }
  return config->model;
}

// Of twice an initializer_range of 0.2 wide, and somewhat more.
constexpr float kSpread = 0.35f;

// Names are GGUF's.
template <typename Visit>  // void(const TensorInfo& tensor, std::vector<float> values)
void ForEachTensor(const FamilyTwin& twin, const ModelConfig& model, const Visit& visit) {
  std::mt19937_64 random(1);
  const auto shapes = MakeTensorShapes(model, TensorType::kF32, twin.name);
  for (const TensorInfo& tensor : shapes->tensors()) {
    const bool norm = tensor.name.ends_with("norm.weight");
    const float centre = norm ? 1.0f - static_cast<float>(model.norm_offset) : 0.0f;
    std::vector<float> values(std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1},
                                              std::multiplies<int64_t>()));
    // Only engine draws, no distributions: those differ between standard libraries.
    for (float& value : values) {
      value = centre + kSpread * (static_cast<float>(random() >> 40) * 0x1p-23f - 1);
    }
    visit(tensor, std::move(values));
  }
}

// Swaps neighbours among the heads of keys and of values.
void SwapKvHeads(const ModelConfig& model, const TensorInfo& tensor, std::vector<float>* values) {
  const size_t head = static_cast<size_t>(model.head_size) * values->size() / tensor.shape[0];
  size_t first = 0;
  if (tensor.name.ends_with("attn_qkv.weight")) {
    first = head * model.heads;
  } else if (!tensor.name.ends_with("attn_k.weight") && !tensor.name.ends_with("attn_v.weight")) {
    return;
  }
  float* const begin = values->data();
  for (; first + 2 * head <= values->size(); first += 2 * head) {
    std::swap_ranges(begin + first, begin + first + head, begin + first + head);
  }
}

// A head's rows i and i + half, which turn together, to 2i and 2i + 1.
std::vector<float> PairsFromHalves(const std::vector<float>& rows, size_t row, size_t head_size) {
  std::vector<float> pairs(rows.size());
  for (size_t i = 0; i < rows.size() / row; ++i) {
    const size_t in_head = i % head_size;
    const size_t half = head_size / 2;
    const size_t to = i - in_head + in_head % half * 2 + in_head / half;
    std::copy_n(&rows[i * row], row, &pairs[to * row]);
  }
  return pairs;
}

void AddRope(const FamilyTwin& twin, const ModelConfig& model, GgufWriter* writer) {
  const auto key = [&](std::string_view name) {
    return StrCat(model.architecture, ".rope.", name);
  };
  writer->Float32(key("freq_base"), static_cast<float>(model.rope.theta))
      .Uint32(key("dimension_count"), model.rope_dimensions);
  const Json scaling = twin.config.value("rope_scaling", Json());
  if (scaling.is_null()) return;
  const std::string type = scaling.value("rope_type", scaling.value("type", ""));
  const std::vector<int64_t> shape = {model.rope_dimensions / 2};
  if (type == "llama3") {
    writer->Tensor("rope_freqs.weight", TensorType::kF32, shape, model.rope.factors);
    return;
  }
  if (type == "longrope") {
    writer->Tensor("rope_factors_short.weight", TensorType::kF32, shape, model.rope.factors)
        .Tensor("rope_factors_long.weight", TensorType::kF32, shape, model.rope.long_factors)
        .Uint32(key("scaling.original_context_length"), model.rope.trained)
        .Float32(key("scaling.attn_factor"), static_cast<float>(model.rope.magnitude));
    return;
  }
  writer->String(key("scaling.type"), type)
      .Float32(key("scaling.factor"), scaling["factor"].get<float>());
  if (type == "yarn") {
    writer->Uint32(key("scaling.original_context_length"),
                   scaling["original_max_position_embeddings"].get<uint32_t>());
  }
}

GgufWriter EncoderMetadata(const FamilyTwin& twin, const ModelConfig& model) {
  GgufWriter writer;
  writer.String("general.architecture", "bert")
      .Uint32("bert.block_count", model.layers)
      .Uint32("bert.context_length", model.context_length)
      .Uint32("bert.embedding_length", model.hidden_size)
      .Uint32("bert.feed_forward_length", model.ffn_size)
      .Uint32("bert.attention.head_count", model.heads)
      .Float32("bert.attention.layer_norm_epsilon", static_cast<float>(model.rms_epsilon))
      .Bool("bert.attention.causal", false)
      .Uint32("bert.pooling_type", twin.pooling == "mean_tokens" ? 1 : 2);
  return writer;
}

GgufWriter Metadata(const FamilyTwin& twin, const ModelConfig& model) {
  if (model.encoder.has_value()) return EncoderMetadata(twin, model);
  const auto key = [&](std::string_view name) { return StrCat(model.architecture, ".", name); };
  GgufWriter writer;
  writer.String("general.architecture", model.architecture)
      .Uint32(key("block_count"), model.layers)
      .Uint32(key("context_length"), model.context_length)
      .Uint32(key("embedding_length"), model.hidden_size)
      .Uint32(key("feed_forward_length"), model.ffn_size)
      .Uint32(key("attention.head_count"), model.heads)
      .Uint32(key("attention.head_count_kv"), model.kv_heads)
      .Uint32(key("attention.key_length"), model.head_size)
      .Uint32(key("attention.value_length"), model.head_size)
      .Float32(key("attention.layer_norm_rms_epsilon"), static_cast<float>(model.rms_epsilon))
      .Uint32(key("vocab_size"), model.vocab_size);
  if (!model.windows.empty()) {
    writer.Uint32(key("attention.sliding_window"),
                  *std::max_element(model.windows.begin(), model.windows.end()));
  }
  if (model.attention_soft_cap != 0) {
    writer.Float32(key("attn_logit_softcapping"), static_cast<float>(model.attention_soft_cap))
        .Float32(key("final_logit_softcapping"), static_cast<float>(model.logit_soft_cap));
  }
  if (model.architecture == "granite") {
    writer.Float32(key("attention.scale"), static_cast<float>(model.attention_scale))
        .Float32(key("embedding_scale"), static_cast<float>(model.embedding_factor))
        .Float32(key("residual_scale"), static_cast<float>(model.residual_factor))
        .Float32(key("logit_scale"), static_cast<float>(1 / model.logit_factor));
  }
  AddRope(twin, model, &writer);
  return writer;
}

}  // namespace

void WriteTwinFolder(const FamilyTwin& twin, const std::string& folder, const TwinFault& fault) {
  const ModelConfig model = ReadTwin(twin);
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (!std::filesystem::create_directories(folder, error)) std::abort();
  WriteFile(folder + "/config.json", twin.config.dump(2));
  if (model.encoder.has_value()) WriteModules(twin, folder);
  SafetensorsWriter writer;
  ForEachTensor(twin, model, [&](const TensorInfo& tensor, std::vector<float> values) {
    if (fault.other_kv_heads) SwapKvHeads(model, tensor, &values);
    writer.Tensor(HfNames(tensor.name, DialectOf(model))[0], TensorType::kF32, tensor.shape,
                  values);
  });
  writer.Write(folder + "/model.safetensors");
}

void WriteTwinGguf(const FamilyTwin& twin, const std::string& path) {
  const ModelConfig model = ReadTwin(twin);
  const bool pairs = model.architecture == "llama" || model.architecture == "granite" ||
                     model.architecture == "smollm3";
  GgufWriter writer = Metadata(twin, model);
  ForEachTensor(twin, model, [&](const TensorInfo& tensor, std::vector<float> values) {
    if (pairs &&
        (tensor.name.ends_with("attn_q.weight") || tensor.name.ends_with("attn_k.weight"))) {
      values = PairsFromHalves(values, model.hidden_size, model.head_size);
    }
    if (tensor.name.ends_with("norm.weight")) {
      for (float& value : values) value += static_cast<float>(model.norm_offset);
    }
    writer.Tensor(tensor.name, TensorType::kF32, tensor.shape, values);
  });
  writer.Write(path);
}

}  // namespace millrace
