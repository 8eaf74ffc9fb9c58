#include "formats/families/hf_reader.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr size_t kMaxEndTokens = 16;

}  // namespace

absl::StatusOr<std::vector<int32_t>> EndTokens(const JsonFields& fields) {
  constexpr char kName[] = "eos_token_id";
  const Json* field = fields.Find(kName);
  if (field == nullptr) return std::vector<int32_t>();
  // Configs say "none" by null, and by -1.
  const auto is_none = [](const Json& id) { return id.is_null() || id == Json(-1); };
  Json named = field->is_array() ? *field : Json::array({*field});
  named.erase(std::remove_if(named.begin(), named.end(), is_none), named.end());
  const Json object = {{kName, named}};
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> ids,
                            fields.With(object).Ints(kName, 0, kMaxVocab));
  if (ids.size() > kMaxEndTokens) {
    return fields.Bad(kName, StrCat("has ", ids.size(), " tokens, allowed: up to ", kMaxEndTokens));
  }
  return std::vector<int32_t>(ids.begin(), ids.end());
}

absl::StatusOr<ModelConfig> HfReader::Decoder(const HfDefaults& defaults,
                                              std::optional<RopeConfig>* window_rope) const {
  MILLRACE_RETURN_IF_ERROR(RefuseBidirectional());
  ModelConfig model;
  LayerConfig layer;
  MILLRACE_ASSIGN_OR_RETURN(const int layers, Int("num_hidden_layers", kMaxLayers));
  MILLRACE_ASSIGN_OR_RETURN(model.hidden_size, Int("hidden_size", kMaxWidth));
  if (!defaults.experts) {
    MILLRACE_ASSIGN_OR_RETURN(layer.gated().size, Int("intermediate_size", kMaxWidth));
  }
  MILLRACE_ASSIGN_OR_RETURN(model.vocab_size, Int("vocab_size", kMaxVocab));
  MILLRACE_ASSIGN_OR_RETURN(model.context_length,
                            IntOr("max_position_embeddings", kMaxContext, defaults.context));
  model.norm_epsilon = defaults.epsilon;
  if (fields_.Find(defaults.epsilon_name) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(model.norm_epsilon, fields_.Float(defaults.epsilon_name, 1e-12, 0.1));
  }
  MILLRACE_ASSIGN_OR_RETURN(model.tied_embeddings,
                            fields_.BoolOr("tie_word_embeddings", defaults.tied));
  MILLRACE_ASSIGN_OR_RETURN(model.end_tokens, EndTokens(fields_));
  MILLRACE_ASSIGN_OR_RETURN(layer.softmax(), Attention(model.hidden_size, defaults));
  MILLRACE_ASSIGN_OR_RETURN(
      HfRopes ropes,
      ReadHfRopes(fields_, defaults.rope, layer.softmax().head_size, &model.context_length));
  layer.softmax().rope = std::move(ropes.rope);
  if (window_rope != nullptr) *window_rope = std::move(ropes.window_rope);
  model.layers.assign(layers, layer);
  return model;
}

absl::StatusOr<SoftmaxAttention> HfReader::Attention(int hidden_size,
                                                     const HfDefaults& defaults) const {
  SoftmaxAttention attention;
  MILLRACE_ASSIGN_OR_RETURN(attention.heads, Int("num_attention_heads", kMaxHeads));
  // Null is not the default: it stands for as many as heads.
  constexpr char kKvHeads[] = "num_key_value_heads";
  const bool has_default = defaults.kv_heads > 0 && !fields_.object().contains(kKvHeads);
  MILLRACE_ASSIGN_OR_RETURN(
      attention.kv_heads,
      IntOr(kKvHeads, kMaxHeads, has_default ? defaults.kv_heads : attention.heads));
  if (attention.heads % attention.kv_heads != 0) {
    return fields_.Bad("num_key_value_heads", StrCat(attention.kv_heads, " does not divide the ",
                                                     attention.heads, " heads"));
  }
  int head_size = defaults.head_size;
  if (head_size == 0) {
    if (fields_.Find("head_dim") == nullptr && hidden_size % attention.heads != 0) {
      return fields_.Bad("num_attention_heads",
                         StrCat(attention.heads, " does not divide the hidden size ", hidden_size));
    }
    head_size = hidden_size / attention.heads;
  }
  MILLRACE_ASSIGN_OR_RETURN(attention.head_size, IntOr("head_dim", kMaxHeadSize, head_size));
  if (attention.head_size > kMaxHeadSize || attention.head_size < 2 ||
      attention.head_size % 2 != 0) {
    return fields_.Bad("head_dim",
                       StrCat(attention.head_size, " must be even and at most ", kMaxHeadSize));
  }
  attention.scale = 1 / std::sqrt(attention.head_size);
  return attention;
}

absl::StatusOr<int> HfReader::Int(std::string_view name, int max) const {
  MILLRACE_ASSIGN_OR_RETURN(const int64_t number, fields_.Int(name, 1, max));
  return static_cast<int>(number);
}

absl::StatusOr<int> HfReader::IntOr(std::string_view name, int max, int otherwise) const {
  if (fields_.Find(name) == nullptr) return otherwise;
  return Int(name, max);
}

absl::StatusOr<double> HfReader::FactorOr(std::string_view name, double otherwise) const {
  if (fields_.Find(name) == nullptr) return otherwise;
  return fields_.Float(name, 1e-6, 1e6);
}

absl::StatusOr<double> HfReader::SoftCap(std::string_view name, double otherwise) const {
  return FactorOr(name, fields_.object().contains(name) ? 0 : otherwise);
}

// transformers lets any decoder see what follows where this is anything but true, null too.
absl::Status HfReader::RefuseBidirectional() const {
  constexpr char kName[] = "is_causal";
  const Json& config = fields_.object();
  if (!config.contains(kName) || config[kName] == Json(true)) return absl::OkStatus();
  return fields_.Unsupported(
      kName, StrCat(Describe(config[kName]), " is not supported (supported: true)"));
}

absl::Status HfReader::RefuseOtherFunctions() const {
  return fields_.Refuse("hidden_act", Json::array({"silu", "swish"}));  // one function
}

absl::Status HfReader::ReadAttentionBias(ModelConfig* model) const {
  MILLRACE_ASSIGN_OR_RETURN(const bool biases, fields_.BoolOr("attention_bias", false));
  for (LayerConfig& layer : model->layers) {
    layer.softmax().qkv_bias = layer.softmax().output_bias = biases;
  }
  return absl::OkStatus();
}

absl::Status HfReader::ReadFeedForwardBias(ModelConfig* model) const {
  MILLRACE_ASSIGN_OR_RETURN(const bool biases, fields_.BoolOr("mlp_bias", false));
  for (LayerConfig& layer : model->layers) layer.gated().biases = biases;
  return absl::OkStatus();
}

absl::StatusOr<int> HfReader::Window(int otherwise) const {
  constexpr char kName[] = "sliding_window";
  if (fields_.Find(kName) == nullptr) return fields_.object().contains(kName) ? 0 : otherwise;
  return Int(kName, kMaxContext);
}

absl::Status HfReader::SetWindows(int window, const std::function<bool(int layer)>& otherwise,
                                  ModelConfig* model) const {
  constexpr char kName[] = "layer_types";
  if (fields_.Find(kName) == nullptr) {
    for (int i = 0; i < model->num_layers(); ++i) {
      model->layers[i].softmax().window = otherwise(i) ? window : 0;
    }
    return absl::OkStatus();
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<std::string> types, fields_.Strings(kName));
  if (types.size() != model->layers.size()) {
    return fields_.Bad(kName, StrCat("has ", types.size(), " items, must have ",
                                     model->num_layers(), ", one a layer"));
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] == "full_attention") continue;
    if (types[i] != "sliding_attention" || window == 0) {
      return fields_.Unsupported(
          kName,
          StrCat("\"", Printable(types[i]), "\" is not supported (supported: ", "full_attention",
                 window == 0 ? ", as there is no sliding_window" : ", sliding_attention", ")"));
    }
    model->layers[i].softmax().window = window;
  }
  return absl::OkStatus();
}

}  // namespace millrace
