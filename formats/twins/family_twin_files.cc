// The files of the twins.
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
#include "formats/families/families.h"
#include "formats/families/hf_names.h"
#include "formats/families/model_tensors.h"
#include "formats/huggingface/hf_config.h"
#include "formats/twins/family_twin_states.h"
#include "formats/twins/family_twin_tensors.h"
#include "formats/twins/family_twins.h"
#include "formats/twins/gguf_test_util.h"
#include "formats/twins/hf_test_util.h"

namespace millrace {
namespace {

// Writes the files that sentence-transformers has beside config.json.
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
  for (const char* kind : {"cls_token", "mean_tokens", "max_tokens", "lasttoken"}) {
    pooling[StrCat("pooling_mode_", kind)] = kind == twin.pooling;
  }
  std::error_code error;
  if (!std::filesystem::create_directories(folder + "/1_Pooling", error)) std::abort();
  WriteFile(folder + "/1_Pooling/config.json", pooling.dump(2));
}

ModelConfig ReadTwin(const FamilyTwin& twin) {
  absl::StatusOr<HfConfig> config = ReadHfConfig(twin.config.dump(), twin.name);
  if (!config.ok()) {
    std::fprintf(stderr, "%s: %s\n", twin.name.c_str(), config.status().ToString().c_str());
    std::abort();
  }
  return std::move(config->model);
}

// The rotation of the layers without a window, or null.
const RopeConfig* RopeOf(const ModelConfig& model) {
  const RopeConfig* found = nullptr;
  for (const LayerConfig& layer : model.layers) {
    const SoftmaxAttention* const attention = layer.FindSoftmax();
    if (attention == nullptr || !attention->rope.has_value()) continue;
    if (found == nullptr || attention->window == 0) found = &*attention->rope;
  }
  return found;
}

// Gates and ups are so wide that the sums of a few tokens reach their clamps.
float SpreadOf(const FamilyTwin& twin, const ModelConfig& model, std::string_view name) {
  const auto* experts = std::get_if<ExpertsFeedForward>(&model.layers[0].feed_forward);
  const bool clamped = experts != nullptr && experts->function == GateFunction::kClampedSwish &&
                       (name.find(".ffn_gate.") != name.npos || name.find(".ffn_up.") != name.npos);
  const auto spread = static_cast<float>(twin.spread);
  return clamped ? 3 * spread : spread;
}

bool IsMxfp4(const FamilyTwin& twin) {
  return twin.config.value("quantization_config", Json::object()).value("quant_method", "") ==
         "mxfp4";
}

// Returns what is added to a norm's stored weights.
float NormOffset(const ModelConfig& model, std::string_view name) {
  return name.ends_with("ssm_norm.weight") ? 0.0f : static_cast<float>(model.norm_offset);
}

// Names are GGUF's, and experts have tensors of their own.
template <typename Visit>  // void(const TensorInfo& tensor, std::vector<float> values)
void ForEachTensor(const FamilyTwin& twin, const ModelConfig& model, const Visit& visit) {
  std::mt19937_64 random(1);
  StoredTypes types{.all = TensorType::kF32, .experts = std::nullopt};
  if (IsMxfp4(twin)) types.experts = TensorType::kMxfp4;
  const auto shapes = MakeTensorShapes(model, *twin.family, types, twin.name);
  for (const TensorInfo& tensor : shapes->tensors()) {
    const bool norm = tensor.name.ends_with("norm.weight");
    const float centre = norm ? 1.0f - NormOffset(model, tensor.name) : 0.0f;
    const float spread = SpreadOf(twin, model, tensor.name);
    std::vector<float> values(std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1},
                                              std::multiplies<int64_t>()));
    // Only engine draws, no distributions: those differ between standard libraries.
    for (float& value : values) {
      value = centre + spread * (static_cast<float>(random() >> 40) * 0x1p-23f - 1);
    }
    visit(tensor, std::move(values));
  }
}

// Swaps neighbours among the heads of keys and of values.
void SwapKvHeads(const ModelConfig& model, const TensorInfo& tensor, std::vector<float>* values) {
  const size_t head = AttentionOf(model).head_size * values->size() / tensor.shape[0];
  size_t first = 0;
  if (AttentionOf(model).fused_qkv && tensor.name.ends_with("attn_qkv.weight")) {
    first = head * AttentionOf(model).heads;
  } else if (!tensor.name.ends_with("attn_k.weight") && !tensor.name.ends_with("attn_v.weight")) {
    return;
  }
  float* const begin = values->data();
  for (; first + 2 * head <= values->size(); first += 2 * head) {
    std::swap_ranges(begin + first, begin + first + head, begin + first + head);
  }
}

void ScaleQueries(const ModelConfig& model, const TensorInfo& tensor, std::vector<float>* values) {
  constexpr float kFactor = 1.25f;
  size_t count = values->size();
  float offset = 0;
  const SoftmaxAttention& attention = AttentionOf(model);
  if (attention.qk_norm != QkNorm::kNone) {
    if (!tensor.name.ends_with("attn_q_norm.weight")) return;
    offset = static_cast<float>(model.norm_offset);
  } else if (tensor.name.ends_with("attn_qkv.weight")) {
    count = count / (attention.heads + 2 * attention.kv_heads) * attention.heads;
  } else if (!tensor.name.ends_with("attn_q.weight") && !tensor.name.ends_with("attn_q.bias")) {
    return;
  }
  for (size_t i = 0; i < count; ++i) (*values)[i] = ((*values)[i] + offset) * kFactor - offset;
}

void Break(TwinFault fault, const ModelConfig& model, const TensorInfo& tensor,
           std::vector<float>* values) {
  if (fault == TwinFault::kOtherKvHeads) SwapKvHeads(model, tensor, values);
  if (fault == TwinFault::kOtherScale) ScaleQueries(model, tensor, values);
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
  if (RopeOf(model) == nullptr) return;
  const RopeConfig& rope = *RopeOf(model);
  writer->Float32(key("freq_base"), static_cast<float>(rope.theta))
      .Uint32(key("dimension_count"), rope.dimensions);
  const Json scaling = twin.config.value("rope_scaling", Json());
  if (scaling.is_null()) return;
  const std::string type = scaling.value("rope_type", scaling.value("type", ""));
  const std::vector<int64_t> shape = {rope.dimensions / 2};
  if (type == "llama3") {
    writer->Tensor("rope_freqs.weight", TensorType::kF32, shape, rope.factors);
    return;
  }
  if (type == "longrope") {
    writer->Tensor("rope_factors_short.weight", TensorType::kF32, shape, rope.factors)
        .Tensor("rope_factors_long.weight", TensorType::kF32, shape, rope.long_factors)
        .Uint32(key("scaling.original_context_length"), rope.trained)
        .Float32(key("scaling.attn_factor"), static_cast<float>(rope.magnitude));
    return;
  }
  writer->String(key("scaling.type"), type)
      .Float32(key("scaling.factor"), scaling["factor"].get<float>());
  if (type != "yarn") return;
  writer->Uint32(key("scaling.original_context_length"),
                 scaling["original_max_position_embeddings"].get<uint32_t>());
  for (const char* name : {"beta_fast", "beta_slow"}) {
    if (!scaling.contains(name)) continue;
    writer->Float32(key(StrCat("scaling.yarn_", name)), scaling[name].get<float>());
  }
}

// Writes what llama.cpp's converter does of the fields that a config has.
void AddExperts(const FamilyTwin& twin, const ModelConfig& model, GgufWriter* writer) {
  const auto key = [&](std::string_view name) {
    return StrCat(model.architecture, ".expert_", name);
  };
  const ExpertsFeedForward* experts = nullptr;
  for (const LayerConfig& layer : model.layers) {
    const auto* found = std::get_if<ExpertsFeedForward>(&layer.feed_forward);
    if (found != nullptr) experts = found;
  }
  if (experts == nullptr) return;
  writer->Uint32(key("count"), experts->router.experts)
      .Uint32(key("used_count"), experts->router.chosen);
  const Json& config = twin.config;
  if (config.contains("moe_intermediate_size") || model.architecture == "gpt-oss") {
    writer->Uint32(key("feed_forward_length"), experts->size);
  }
  for (const char* field : {"shared_expert_intermediate_size", "shared_intermediate_size",
                            "moe_shared_expert_intermediate_size"}) {
    if (!config.contains(field)) continue;
    writer->Uint32(key("shared_feed_forward_length"), config[field].get<uint32_t>());
  }
  if (config.contains("num_dense_layers")) {
    writer
        ->Uint32(StrCat(model.architecture, ".leading_dense_block_count"),
                 config["num_dense_layers"].get<uint32_t>())
        .Uint32(key("gating_func"), 2);
  }
  if (!config.contains("n_routed_experts")) return;
  writer->Uint32(key("group_count"), config["n_group"].get<uint32_t>())
      .Uint32(key("shared_count"), config["n_shared_experts"].get<uint32_t>())
      .Float32(key("weights_scale"), config["routed_scaling_factor"].get<float>())
      .Bool(key("weights_norm"), config["norm_topk_prob"].get<bool>());
  if (!config.contains("first_k_dense_replace")) return;
  writer->Uint32(key("group_used_count"), config["topk_group"].get<uint32_t>())
      .Uint32(StrCat(model.architecture, ".leading_dense_block_count"),
              config["first_k_dense_replace"].get<uint32_t>())
      .Uint32(key("gating_func"), 2);
}

GgufWriter EncoderMetadata(const FamilyTwin& twin, const ModelConfig& model) {
  const auto key = [&](std::string_view name) { return StrCat(model.architecture, ".", name); };
  GgufWriter writer;
  writer.String("general.architecture", model.architecture)
      .Uint32(key("block_count"), model.num_layers())
      .Uint32(key("context_length"), model.context_length)
      .Uint32(key("embedding_length"), model.hidden_size)
      .Uint32(key("feed_forward_length"), model.layers[0].ffn_size())
      .Uint32(key("attention.head_count"), AttentionOf(model).heads)
      .Float32(key("attention.layer_norm_epsilon"), static_cast<float>(model.norm_epsilon))
      .Bool(key("attention.causal"), false)
      .Uint32(key("vocab_size"), model.vocab_size);
  const uint32_t pooling = twin.pooling == "mean_tokens" ? 1 : 2;
  writer.Uint32(key("pooling_type"), model.encoder->classifier.has_value() ? 4 : pooling);
  for (const auto& [name, value] : twin.gguf_more.items()) {
    if (value.is_string()) {
      writer.String(key(name), value.get<std::string>());
    } else {
      writer.Uint32(key(name), value.get<uint32_t>());
    }
  }
  writer.Uint32("tokenizer.ggml.token_type_count", std::max(model.encoder->token_types, 1));
  const auto rope = [](const LayerConfig& layer) { return layer.softmax().rope->theta; };
  if (AttentionOf(model).rope.has_value()) {
    writer.Float32(key("rope.freq_base"), static_cast<float>(rope(model.layers[0])));
  }
  const auto has_window = [](const LayerConfig& layer) { return layer.softmax().window > 0; };
  const auto local = std::find_if(model.layers.begin(), model.layers.end(), has_window);
  if (local == model.layers.end()) return writer;
  const auto global = std::find_if_not(local, model.layers.end(), has_window);
  writer.Float32(key("rope.freq_base_swa"), static_cast<float>(rope(*local)))
      .Uint32(key("attention.sliding_window"), 2 * (local->softmax().window - 1))
      .Uint32(key("attention.sliding_window_pattern"),
              static_cast<uint32_t>(global - model.layers.begin()))
      .String(key("hidden_activation"), twin.config["hidden_activation"].get<std::string>());
  return writer;
}

GgufWriter Metadata(const FamilyTwin& twin, const ModelConfig& model) {
  if (model.encoder.has_value()) return EncoderMetadata(twin, model);
  const auto key = [&](std::string_view name) { return StrCat(model.architecture, ".", name); };
  const SoftmaxAttention& attention = AttentionOf(model);
  GgufWriter writer;
  writer.String("general.architecture", model.architecture)
      .Uint32(key("block_count"), model.num_layers())
      .Uint32(key("context_length"), model.context_length)
      .Uint32(key("embedding_length"), model.hidden_size)
      .Uint32(key("attention.head_count"), attention.heads)
      .Uint32(key("attention.key_length"), attention.head_size)
      .Uint32(key("attention.value_length"), attention.head_size)
      .Float32(key("attention.layer_norm_rms_epsilon"), static_cast<float>(model.norm_epsilon))
      .Uint32(key("vocab_size"), model.vocab_size);
  const auto has_network = [](const LayerConfig& layer) { return layer.has_feed_forward(); };
  if (!std::all_of(model.layers.begin(), model.layers.end(), has_network)) {
    std::vector<int32_t> sizes;
    for (const LayerConfig& layer : model.layers) sizes.push_back(layer.ffn_size());
    writer.Int32s(key("feed_forward_length"), sizes);
  } else if (twin.config.contains("intermediate_size")) {
    // LFM2's config has the size before it is adjusted.
    const bool adjusted = twin.config.contains("block_auto_adjust_ff_dim");
    writer.Uint32(
        key("feed_forward_length"),
        adjusted ? model.layers[0].ffn_size() : twin.config["intermediate_size"].get<uint32_t>());
  }
  AddStates(twin, model, &writer);
  int window = 0;
  for (const LayerConfig& layer : model.layers) {
    const SoftmaxAttention* const softmax = layer.FindSoftmax();
    if (softmax != nullptr) window = std::max(window, softmax->window);
  }
  if (window > 0) writer.Uint32(key("attention.sliding_window"), window);
  for (const auto& [field, name] : twin.gguf_keys.items()) {
    if (!twin.config.contains(field)) continue;
    writer.Float32(key(name.get<std::string>()), twin.config[field].get<float>());
  }
  if (!twin.pooling.empty()) {
    const int type = twin.pooling == "mean_tokens" ? 1 : twin.pooling == "cls_token" ? 2 : 3;
    writer.Uint32(key("pooling_type"), type);
  }
  AddRope(twin, model, &writer);
  AddExperts(twin, model, &writer);
  return writer;
}

bool SpellsSingleExperts(const Family& family) {
  const std::string name = "blk.0.ffn_up.0.weight";
  return HfNames(name, family)[0] != name;
}

// The reverse of GgufName.
std::string GgufNameInFile(const std::string& name, const Family& family) {
  for (const Spelling& spelling : family.gguf_spellings) {
    const size_t number = spelling.gguf.find('#');
    const std::string_view module = spelling.gguf.substr(number + 1);  // ".ffn_norm"
    const size_t at = name.find(module);
    if (at == name.npos) continue;
    return StrCat(name.substr(0, at), spelling.hf.substr(number + 1),
                  name.substr(at + module.size()));
  }
  return name;
}

// The tensor's spelling in the twin's folder.
std::string SpellingOf(const FamilyTwin& twin, const std::string& name) {
  const std::vector<std::string> names = HfNames(name, *twin.family);
  for (const std::string& spelling : names) {
    for (const std::string& part : twin.spelled) {
      if (spelling.find(part) != spelling.npos) return spelling;
    }
  }
  return names[0];
}

// Names as transformers writes them: a cross-encoder's body has a prefix, its head has none.
std::string NameInFolder(const FamilyTwin& twin, const std::string& name) {
  std::string first = SpellingOf(twin, name);
  if (twin.bare_names) return first.substr(first.find('.') + 1);  // without "model."
  if (twin.classifier.empty()) return first;
  const std::string part = name.substr(name.rfind('.'));  // ".weight"
  const bool roberta = twin.classifier == "roberta." || twin.classifier == "mpnet.";
  if (name.starts_with("cls.output."))
    return (roberta ? "classifier.out_proj" : "classifier") + part;
  if (name.starts_with("cls.") && roberta) return "classifier.dense" + part;
  if (name.starts_with("cls.") && twin.classifier != "bert.") return first;
  return twin.classifier + first;
}

}  // namespace

void WriteTwinFolder(const FamilyTwin& twin, const std::string& folder, TwinFault fault) {
  const ModelConfig model = ReadTwin(twin);
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (!std::filesystem::create_directories(folder, error)) std::abort();
  WriteFile(folder + "/config.json", twin.config.dump(2));
  if (!twin.pooling.empty()) WriteModules(twin, folder);
  std::vector<TwinTensor> tensors;
  ForEachTensor(twin, model, [&](const TensorInfo& tensor, std::vector<float> values) {
    Break(fault, model, tensor, &values);
    std::string name(tensor.name);
    // A part of a tensor has GGUF's name of that part.
    const std::string spelled = HfNames(name, *twin.family)[0];
    if (spelled.starts_with("blk.")) name = spelled;
    tensors.push_back({name, tensor.type, tensor.shape, std::move(values)});
  });
  if (!SpellsSingleExperts(*twin.family)) {
    tensors = JoinGateAndUp(StackExperts(tensors), twin.family->gate_order);
  }
  SafetensorsWriter writer;
  for (const TwinTensor& tensor : tensors) {
    writer.Tensor(NameInFolder(twin, tensor.name), tensor.type, tensor.shape, tensor.values);
  }
  writer.Write(folder + "/model.safetensors");
}

void WriteTwinGguf(const FamilyTwin& twin, const std::string& path, TwinFault fault) {
  ModelConfig model = ReadTwin(twin);
  if (!twin.gguf_name.empty()) model.architecture = twin.gguf_name;
  const bool pairs = twin.family->interleaved_in_gguf && !model.encoder.has_value() &&
                     RopeOf(model) != nullptr && !RopeOf(model)->interleaved;
  std::vector<TwinTensor> tensors;
  ForEachTensor(twin, model, [&](const TensorInfo& tensor, std::vector<float> values) {
    Break(fault, model, tensor, &values);
    const bool turns = tensor.name.find(".attn_q.") != tensor.name.npos ||
                       tensor.name.find(".attn_k.") != tensor.name.npos;
    if (pairs && turns) {
      const size_t row = tensor.shape.size() > 1 ? model.hidden_size : 1;  // a bias has numbers
      values = PairsFromHalves(values, row, AttentionOf(model).head_size);
    }
    if (tensor.name.ends_with("norm.weight")) {
      for (float& value : values) value += NormOffset(model, tensor.name);
    }
    std::vector<int64_t> shape = tensor.shape;
    ConvertState(model, tensor, &shape, &values);
    if (tensor.name.ends_with("ffn_gate_inp_shexp.weight")) shape = {model.hidden_size};
    if (tensor.name == "position_embd.weight") {  // the rows before the first are cut off
      shape[0] -= model.encoder->first_position;
      values.erase(values.begin(),
                   values.begin() + model.encoder->first_position * model.hidden_size);
    }
    TwinTensor made{std::string(tensor.name), tensor.type, std::move(shape), std::move(values)};
    const GatedDelta* const delta = DeltaOf(model);
    if (delta != nullptr && made.name.ends_with(".ssm_in.weight") && !twin.fused_in_gguf) {
      for (TwinTensor& cut : CutDeltaInput(*delta, made)) tensors.push_back(cut);
    } else {
      tensors.push_back(std::move(made));
    }
  });
  GgufWriter writer = Metadata(twin, model);
  writer.String("tokenizer.ggml.model", "none");  // for llama.cpp, which wants one
  for (const TwinTensor& tensor : StackExperts(tensors)) {
    writer.Tensor(GgufNameInFile(tensor.name, *twin.family), tensor.type, tensor.shape,
                  tensor.values);
  }
  writer.Write(path);
}

}  // namespace millrace
