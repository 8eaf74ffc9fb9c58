#include "formats/hf_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/types/span.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/encoder_config.h"
#include "formats/hf_quantization.h"
#include "formats/hf_rope.h"
#include "formats/json_fields.h"

namespace millrace {
namespace {

constexpr size_t kMaxEndTokens = 16;

absl::StatusOr<std::vector<int32_t>> EndTokens(const JsonFields& fields) {
  constexpr char kName[] = "eos_token_id";
  if (fields.Find(kName) == nullptr) return std::vector<int32_t>();
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, fields.Ints(kName, 0, kMaxVocab));
  if (ids.size() > kMaxEndTokens) {
    return fields.Bad(kName, StrCat("has ", ids.size(), " tokens, allowed: up to ", kMaxEndTokens));
  }
  return std::vector<int32_t>(ids.begin(), ids.end());
}

absl::StatusOr<Json> ParseObject(std::string_view json, const std::string& file) {
  absl::StatusOr<Json> parsed = ParseJson(json, JsonLimits{});
  if (!parsed.ok()) return Annotate(parsed.status(), file);
  if (!parsed->is_object()) {
    return absl::InvalidArgumentError(
        StrCat(file, ": is ", Describe(*parsed), ", must be an object"));
  }
  return parsed;
}

// Reads one config.json, field by field.
class HfConfigReader {
 public:
  HfConfigReader(const Json& json, const std::string& file) : fields_(json, file + ": ") {}

  absl::StatusOr<HfConfig> Read() {
    MILLRACE_ASSIGN_OR_RETURN(const Architecture* architecture, ReadArchitecture());
    model().architecture = architecture->family;
    model().rope_interleaved = false;
    MILLRACE_RETURN_IF_ERROR(RefuseBidirectional());
    MILLRACE_RETURN_IF_ERROR(ReadInt("num_hidden_layers", kMaxLayers, &model().layers));
    MILLRACE_RETURN_IF_ERROR(ReadInt("hidden_size", kMaxWidth, &model().hidden_size));
    MILLRACE_RETURN_IF_ERROR(ReadInt("intermediate_size", kMaxWidth, &model().ffn_size));
    MILLRACE_RETURN_IF_ERROR(ReadInt("vocab_size", kMaxVocab, &model().vocab_size));
    MILLRACE_RETURN_IF_ERROR(
        ReadInt("max_position_embeddings", kMaxContext, &model().context_length));
    MILLRACE_ASSIGN_OR_RETURN(model().rms_epsilon, fields_.Float("rms_norm_eps", 1e-12, 0.1));
    MILLRACE_ASSIGN_OR_RETURN(model().tied_embeddings,
                              fields_.BoolOr("tie_word_embeddings", architecture->tied));
    MILLRACE_ASSIGN_OR_RETURN(model().end_tokens, EndTokens(fields_));
    MILLRACE_RETURN_IF_ERROR(ReadHeads(architecture->head_size));
    MILLRACE_RETURN_IF_ERROR(
        ReadHfRope(fields_, architecture->theta, architecture->window_theta, &model()));
    MILLRACE_RETURN_IF_ERROR((this->*architecture->read)());
    MILLRACE_RETURN_IF_ERROR(ReadTypes());
    return std::move(config_);
  }

 private:
  // What transformers takes where a config leaves it out, and what it reads of this one alone.
  struct Architecture {
    std::string_view name;
    const char* family;
    absl::Status (HfConfigReader::*read)();
    int head_size = 0;  // 0: hidden_size / heads
    bool tied = false;
    double theta = 10000;
    double window_theta = 0;  // of layers with a window, where it is another
  };

  static absl::Span<const Architecture> Architectures() {
    static constexpr Architecture kArchitectures[] = {
        {"LlamaForCausalLM", "llama", &HfConfigReader::ReadLlama},
        {"MistralForCausalLM", "llama", &HfConfigReader::ReadMistral},
        {"MinistralForCausalLM", "llama", &HfConfigReader::ReadMistral},
        {"Qwen2ForCausalLM", "qwen2", &HfConfigReader::ReadQwen2},
        {"Qwen3ForCausalLM", "qwen3", &HfConfigReader::ReadQwen3, 128},
        {"Gemma2ForCausalLM", "gemma2", &HfConfigReader::ReadGemma2, 256, true},
        {"Gemma3ForCausalLM", "gemma3", &HfConfigReader::ReadGemma3, 256, true, 1e6, 1e4},
        {"Phi3ForCausalLM", "phi3", &HfConfigReader::ReadPhi3},
        {"Olmo2ForCausalLM", "olmo2", &HfConfigReader::ReadOlmo2},
        {"GraniteForCausalLM", "granite", &HfConfigReader::ReadGranite},
        {"SmolLM3ForCausalLM", "smollm3", &HfConfigReader::ReadSmolLm3, 0, true, 2e6}};
    return kArchitectures;
  }

  ModelConfig& model() { return config_.model; }

  absl::Status ReadInt(std::string_view name, int max, int* value) const {
    MILLRACE_ASSIGN_OR_RETURN(const int64_t number, fields_.Int(name, 1, max));
    *value = static_cast<int>(number);
    return absl::OkStatus();
  }
  absl::Status ReadIntOr(std::string_view name, int max, int otherwise, int* value) const {
    *value = otherwise;
    return fields_.Find(name) == nullptr ? absl::OkStatus() : ReadInt(name, max, value);
  }
  absl::StatusOr<double> FactorOr(std::string_view name, double otherwise) const {
    if (fields_.Find(name) == nullptr) return otherwise;
    return fields_.Float(name, 1e-6, 1e6);
  }
  // One that null switches off: 0.
  absl::StatusOr<double> SoftCap(std::string_view name, double otherwise) const {
    return FactorOr(name, fields_.object().contains(name) ? 0 : otherwise);
  }

  absl::StatusOr<const Architecture*> ReadArchitecture() {
    MILLRACE_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                              fields_.Strings("architectures"));
    std::vector<std::string_view> supported;
    for (const Architecture& architecture : Architectures()) {
      if (names.size() == 1 && names[0] == architecture.name) return &architecture;
      supported.push_back(architecture.name);
    }
    supported.insert(supported.end(), std::begin(kHfEncoders), std::end(kHfEncoders));
    return fields_.Unsupported(
        "architectures", StrCat("\"", Printable(JoinList(names)),
                                "\" is not supported (supported: ", JoinList(supported), ")"));
  }

  absl::Status ReadHeads(int head_size) {
    ModelConfig& config = model();
    MILLRACE_RETURN_IF_ERROR(ReadInt("num_attention_heads", kMaxHeads, &config.heads));
    MILLRACE_RETURN_IF_ERROR(
        ReadIntOr("num_key_value_heads", kMaxHeads, config.heads, &config.kv_heads));
    if (config.heads % config.kv_heads != 0) {
      return fields_.Bad("num_key_value_heads",
                         StrCat(config.kv_heads, " does not divide the ", config.heads, " heads"));
    }
    if (head_size == 0) {
      if (fields_.Find("head_dim") == nullptr && config.hidden_size % config.heads != 0) {
        return fields_.Bad(
            "num_attention_heads",
            StrCat(config.heads, " does not divide the hidden size ", config.hidden_size));
      }
      head_size = config.hidden_size / config.heads;
    }
    MILLRACE_RETURN_IF_ERROR(ReadIntOr("head_dim", kMaxHeadSize, head_size, &config.head_size));
    if (config.head_size > kMaxHeadSize || config.head_size % 2 != 0) {
      return fields_.Bad("head_dim",
                         StrCat(config.head_size, " must be even and at most ", kMaxHeadSize));
    }
    config.attention_scale = 1 / std::sqrt(config.head_size);
    return absl::OkStatus();
  }

  // transformers lets any decoder see what follows where this is anything but true, null too.
  absl::Status RefuseBidirectional() const {
    constexpr char kName[] = "is_causal";
    const Json& config = fields_.object();
    if (!config.contains(kName) || config[kName] == Json(true)) return absl::OkStatus();
    return fields_.Unsupported(
        kName, StrCat(Describe(config[kName]), " is not supported (supported: true)"));
  }

  // ---- What each architecture's own code reads ----

  // A function other than SiLU, and biases where only some checkpoints have them.
  absl::Status RefuseUnsupported() const {
    MILLRACE_RETURN_IF_ERROR(fields_.String("hidden_act").status());
    MILLRACE_RETURN_IF_ERROR(fields_.Refuse("hidden_act", Json::array({"silu"})));
    return RefuseBiases();
  }
  absl::Status RefuseBiases() const {
    for (const char* name : {"attention_bias", "mlp_bias"}) {
      MILLRACE_RETURN_IF_ERROR(fields_.Refuse(name, Json::array({false})));
    }
    return absl::OkStatus();
  }
  absl::Status RefuseWindows() {
    MILLRACE_RETURN_IF_ERROR(fields_.Refuse("sliding_window", Json::array()));
    return ReadWindows(0, [](int) { return false; });
  }

  // sliding_window, which null switches off: 0.
  absl::StatusOr<int> ReadWindow(int otherwise) const {
    constexpr char kName[] = "sliding_window";
    if (fields_.Find(kName) == nullptr) return fields_.object().contains(kName) ? 0 : otherwise;
    MILLRACE_ASSIGN_OR_RETURN(const int64_t window, fields_.Int(kName, 1, kMaxContext));
    return static_cast<int>(window);
  }

  // Of all layers: `layer_types` says which have a window, or where it is missing `otherwise`.
  template <typename HasWindow>  // bool(int layer)
  absl::Status ReadWindows(int window, const HasWindow& otherwise) {
    constexpr char kName[] = "layer_types";
    std::vector<int> windows(model().layers);
    if (fields_.Find(kName) == nullptr) {
      for (int i = 0; i < model().layers; ++i) windows[i] = otherwise(i) ? window : 0;
    } else {
      MILLRACE_ASSIGN_OR_RETURN(const std::vector<std::string> types, fields_.Strings(kName));
      if (types.size() != windows.size()) {
        return fields_.Bad(kName, StrCat("has ", types.size(), " items, must have ", model().layers,
                                         ", one a layer"));
      }
      for (size_t i = 0; i < types.size(); ++i) {
        if (types[i] == "full_attention") continue;
        if (types[i] != "sliding_attention" || window == 0) {
          return fields_.Unsupported(
              kName,
              StrCat("\"", Printable(types[i]),
                     "\" is not supported (supported: ", "full_attention",
                     window == 0 ? ", as there is no sliding_window" : ", sliding_attention", ")"));
        }
        windows[i] = window;
      }
    }
    if (std::any_of(windows.begin(), windows.end(), [](int window) { return window > 0; })) {
      model().windows = std::move(windows);
    }
    return absl::OkStatus();
  }

  absl::Status ReadLlama() {
    MILLRACE_RETURN_IF_ERROR(RefuseUnsupported());
    return RefuseWindows();
  }

  // With `layer_types` it is a Ministral, whatever its architecture's name: so transformers' Auto
  // classes have it, and vLLM, while transformers' MistralForCausalLM leaves them unread.
  absl::Status ReadMistral() {
    MILLRACE_RETURN_IF_ERROR(RefuseUnsupported());
    MILLRACE_ASSIGN_OR_RETURN(const int window, ReadWindow(4096));
    return ReadWindows(window, [](int) { return true; });
  }

  // From max_window_layers on, where use_sliding_window says so.
  absl::Status ReadQwenWindows() {
    MILLRACE_ASSIGN_OR_RETURN(const bool use, fields_.BoolOr("use_sliding_window", false));
    if (!use) return ReadWindows(0, [](int) { return false; });
    MILLRACE_ASSIGN_OR_RETURN(const int window, ReadWindow(4096));
    int64_t first = 28;
    if (fields_.Find("max_window_layers") != nullptr) {
      MILLRACE_ASSIGN_OR_RETURN(first, fields_.Int("max_window_layers", 0, kMaxLayers));
    }
    return ReadWindows(window, [first](int layer) { return layer >= first; });
  }

  absl::Status ReadQwen2() {
    model().qkv_bias = true;
    MILLRACE_RETURN_IF_ERROR(RefuseUnsupported());
    return ReadQwenWindows();
  }

  absl::Status ReadQwen3() {
    model().qk_norm = QkNorm::kHead;
    MILLRACE_RETURN_IF_ERROR(RefuseUnsupported());
    return ReadQwenWindows();
  }

  absl::Status ReadGemma() {
    ModelConfig& config = model();
    config.post_norms = true;
    config.norm_offset = 1;
    config.gelu_gate = true;
    config.embedding_factor = std::sqrt(config.hidden_size);
    // hidden_act, which some configs have beside it, is not read.
    MILLRACE_RETURN_IF_ERROR(
        fields_.Refuse("hidden_activation", Json::array({"gelu_pytorch_tanh"})));
    MILLRACE_RETURN_IF_ERROR(fields_.Refuse("use_bidirectional_attention", Json::array({false})));
    MILLRACE_RETURN_IF_ERROR(RefuseBiases());
    MILLRACE_ASSIGN_OR_RETURN(const double scalar, FactorOr("query_pre_attn_scalar", 256));
    config.attention_scale = 1 / std::sqrt(scalar);
    return absl::OkStatus();
  }

  absl::Status ReadGemma2() {
    MILLRACE_RETURN_IF_ERROR(ReadGemma());
    MILLRACE_ASSIGN_OR_RETURN(model().attention_soft_cap, SoftCap("attn_logit_softcapping", 50));
    MILLRACE_ASSIGN_OR_RETURN(model().logit_soft_cap, SoftCap("final_logit_softcapping", 30));
    MILLRACE_ASSIGN_OR_RETURN(const int window, ReadWindow(4096));
    return ReadWindows(window, [](int layer) { return layer % 2 == 0; });
  }

  absl::Status ReadGemma3() {
    model().qk_norm = QkNorm::kHead;
    MILLRACE_RETURN_IF_ERROR(ReadGemma());
    // transformers' code has it and does not use it.
    MILLRACE_RETURN_IF_ERROR(fields_.Refuse("attn_logit_softcapping", Json::array()));
    MILLRACE_ASSIGN_OR_RETURN(model().logit_soft_cap, SoftCap("final_logit_softcapping", 0));
    MILLRACE_ASSIGN_OR_RETURN(const int window, ReadWindow(4096));
    int pattern;
    MILLRACE_RETURN_IF_ERROR(ReadIntOr("sliding_window_pattern", kMaxLayers, 6, &pattern));
    return ReadWindows(window, [pattern](int layer) { return (layer + 1) % pattern != 0; });
  }

  absl::Status ReadPhi3() {
    model().fused_qkv = true;
    model().fused_gate_up = true;
    MILLRACE_RETURN_IF_ERROR(RefuseUnsupported());
    MILLRACE_ASSIGN_OR_RETURN(const int window, ReadWindow(0));
    return ReadWindows(window, [](int) { return true; });
  }

  absl::Status ReadOlmo2() {
    model().qk_norm = QkNorm::kWhole;
    model().pre_norms = false;
    model().post_norms = true;
    MILLRACE_RETURN_IF_ERROR(RefuseUnsupported());
    return RefuseWindows();
  }

  absl::Status ReadGranite() {
    MILLRACE_RETURN_IF_ERROR(RefuseUnsupported());
    ModelConfig& config = model();
    MILLRACE_ASSIGN_OR_RETURN(config.embedding_factor, FactorOr("embedding_multiplier", 1));
    MILLRACE_ASSIGN_OR_RETURN(config.attention_scale, FactorOr("attention_multiplier", 1));
    MILLRACE_ASSIGN_OR_RETURN(config.residual_factor, FactorOr("residual_multiplier", 1));
    MILLRACE_ASSIGN_OR_RETURN(const double scaling, FactorOr("logits_scaling", 1));
    config.logit_factor = 1 / scaling;
    return RefuseWindows();
  }

  absl::Status ReadSmolLm3() {
    MILLRACE_RETURN_IF_ERROR(RefuseUnsupported());
    std::vector<bool>& unturned = model().unturned;
    constexpr char kName[] = "no_rope_layers";
    if (fields_.Find(kName) != nullptr) {
      // 0 where a layer has no positions.
      MILLRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> turned, fields_.Ints(kName, 0, 1));
      if (turned.size() < static_cast<size_t>(model().layers)) {
        return fields_.Bad(kName, StrCat("has ", turned.size(), " items, must have ",
                                         model().layers, ", one a layer"));
      }
      for (int i = 0; i < model().layers; ++i) unturned.push_back(turned[i] == 0);
    } else {
      int interval;
      MILLRACE_RETURN_IF_ERROR(ReadIntOr("no_rope_layer_interval", kMaxLayers, 4, &interval));
      for (int i = 0; i < model().layers; ++i) unturned.push_back((i + 1) % interval == 0);
    }
    MILLRACE_ASSIGN_OR_RETURN(const bool use, fields_.BoolOr("use_sliding_window", false));
    int window = 0;
    if (use) {
      MILLRACE_ASSIGN_OR_RETURN(window, ReadWindow(0));
    }
    return ReadWindows(window, [&unturned](int layer) { return unturned[layer]; });
  }

  absl::Status ReadTypes() {
    for (const char* name : {"dtype", "torch_dtype"}) {
      if (fields_.Find(name) == nullptr) continue;
      MILLRACE_ASSIGN_OR_RETURN(const std::string_view type, fields_.String(name));
      if (type == "bfloat16") {
        config_.type = TensorType::kBf16;
      } else if (type == "float16") {
        config_.type = TensorType::kF16;
      } else if (type == "float32") {
        config_.type = TensorType::kF32;
      } else {
        return fields_.Unsupported(
            name, StrCat("\"", Printable(type),
                         "\" is not supported (supported: ", "bfloat16, float16, float32)"));
      }
    }
    for (const char* name : {"quantization_config", "compression_config"}) {
      if (fields_.Find(name) == nullptr) continue;
      MILLRACE_ASSIGN_OR_RETURN(const JsonFields quantization, fields_.Object(name));
      MILLRACE_ASSIGN_OR_RETURN(HfQuantization read, ReadHfQuantization(quantization));
      model().fp8 = read.scheme;
      config_.unquantized = std::move(read.unquantized);
    }
    return absl::OkStatus();
  }

  const JsonFields fields_;
  HfConfig config_;
};

}  // namespace

absl::StatusOr<HfConfig> ReadHfConfig(std::string_view json, const std::string& file) {
  MILLRACE_ASSIGN_OR_RETURN(const Json parsed, ParseObject(json, file));
  if (const JsonFields fields(parsed, file + ": "); IsHfEncoder(fields)) {
    HfConfig config;
    MILLRACE_ASSIGN_OR_RETURN(config.model, ReadHfEncoder(fields));
    return config;
  }
  return HfConfigReader(parsed, file).Read();
}

absl::StatusOr<std::vector<int32_t>> ReadEndTokens(std::string_view json, const std::string& file) {
  MILLRACE_ASSIGN_OR_RETURN(const Json parsed, ParseObject(json, file));
  return EndTokens(JsonFields(parsed, file + ": "));
}

}  // namespace millrace
