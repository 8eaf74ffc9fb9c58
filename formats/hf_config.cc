#include "formats/hf_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "formats/hf_quantization.h"
#include "formats/json_fields.h"

namespace millrace {
namespace {

struct Architecture {
  std::string_view name;
  const char* family;
  int default_head_size;  // where the config has none; 0: hidden_size / heads
  bool qk_norm;
};
constexpr Architecture kArchitectures[] = {{"LlamaForCausalLM", "llama", 0, false},
                                           {"MistralForCausalLM", "llama", 0, false},
                                           {"Qwen3ForCausalLM", "qwen3", 128, true}};

// Stretches positions beyond those of the first training: long waves are slowed down by `factor`,
// short ones are not, those in between partly (Llama 3.1, arXiv:2407.21783).
absl::StatusOr<std::vector<float>> Llama3Factors(const JsonFields& scaling, double theta,
                                                 int dimensions) {
  MILLRACE_ASSIGN_OR_RETURN(const double factor, scaling.Float("factor", 1, 1e6));
  MILLRACE_ASSIGN_OR_RETURN(const double low, scaling.Float("low_freq_factor", 1e-3, 1e6));
  MILLRACE_ASSIGN_OR_RETURN(const double high, scaling.Float("high_freq_factor", 1e-3, 1e6));
  MILLRACE_ASSIGN_OR_RETURN(const int64_t trained,
                            scaling.Int("original_max_position_embeddings", 1, kMaxContext));
  if (!(low < high)) {
    return scaling.Bad("high_freq_factor", StrCat(high, ", must be above low_freq_factor ", low));
  }
  std::vector<float> factors;
  for (int i = 0; i < dimensions / 2; ++i) {
    const double wave = 2 * std::numbers::pi * std::pow(theta, 2.0 * i / dimensions);
    const double turns = static_cast<double>(trained) / wave;
    const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / ((1 - kept) / factor + kept)));
  }
  return factors;
}

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
    MILLRACE_RETURN_IF_ERROR(ReadArchitecture());
    MILLRACE_RETURN_IF_ERROR(RefuseUnsupported());
    MILLRACE_RETURN_IF_ERROR(ReadInt("num_hidden_layers", kMaxLayers, &model().layers));
    MILLRACE_RETURN_IF_ERROR(ReadInt("hidden_size", kMaxWidth, &model().hidden_size));
    MILLRACE_RETURN_IF_ERROR(ReadInt("intermediate_size", kMaxWidth, &model().ffn_size));
    MILLRACE_RETURN_IF_ERROR(ReadInt("vocab_size", kMaxVocab, &model().vocab_size));
    MILLRACE_RETURN_IF_ERROR(
        ReadInt("max_position_embeddings", kMaxContext, &model().context_length));
    MILLRACE_ASSIGN_OR_RETURN(model().rms_epsilon, fields_.Float("rms_norm_eps", 1e-12, 0.1));
    MILLRACE_ASSIGN_OR_RETURN(model().tied_embeddings,
                              fields_.BoolOr("tie_word_embeddings", false));
    MILLRACE_ASSIGN_OR_RETURN(model().end_tokens, EndTokens(fields_));
    MILLRACE_RETURN_IF_ERROR(ReadHeads());
    MILLRACE_RETURN_IF_ERROR(ReadRope());
    MILLRACE_RETURN_IF_ERROR(ReadTypes());
    return std::move(config_);
  }

 private:
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

  absl::Status ReadArchitecture() {
    MILLRACE_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                              fields_.Strings("architectures"));
    for (const Architecture& architecture : kArchitectures) {
      if (names.size() == 1 && names[0] == architecture.name) architecture_ = &architecture;
    }
    if (architecture_ == nullptr) {
      return fields_.Unsupported(
          "architectures",
          StrCat("\"", Printable(JoinList(names)), "\" is not supported (supported: ",
                 "LlamaForCausalLM, MistralForCausalLM, Qwen3ForCausalLM)"));
    }
    model().architecture = architecture_->family;
    model().qk_norm = architecture_->qk_norm;
    model().rope_interleaved = false;
    return absl::OkStatus();
  }

  // What the architectures' own code reads and changes the maths.
  absl::Status RefuseUnsupported() const {
    for (const char* name : {"attention_bias", "mlp_bias", "use_sliding_window"}) {
      MILLRACE_RETURN_IF_ERROR(fields_.Refuse(name, Json::array({false})));
    }
    MILLRACE_RETURN_IF_ERROR(fields_.String("hidden_act").status());
    MILLRACE_RETURN_IF_ERROR(fields_.Refuse("hidden_act", Json::array({"silu"})));
    MILLRACE_RETURN_IF_ERROR(fields_.Refuse("partial_rotary_factor", Json::array({1.0})));
    // Qwen3's windows are off by use_sliding_window, which was just seen.
    if (!architecture_->qk_norm) {
      MILLRACE_RETURN_IF_ERROR(fields_.Refuse("sliding_window", Json::array()));
    }
    if (fields_.Find("layer_types") == nullptr) return absl::OkStatus();
    MILLRACE_ASSIGN_OR_RETURN(const std::vector<std::string> types, fields_.Strings("layer_types"));
    for (const std::string& type : types) {
      if (type == "full_attention") continue;
      return fields_.Unsupported(
          "layer_types",
          StrCat("\"", Printable(type), "\" is not supported (supported: full_attention)"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadHeads() {
    ModelConfig& config = model();
    MILLRACE_RETURN_IF_ERROR(ReadInt("num_attention_heads", kMaxHeads, &config.heads));
    MILLRACE_RETURN_IF_ERROR(
        ReadIntOr("num_key_value_heads", kMaxHeads, config.heads, &config.kv_heads));
    if (config.heads % config.kv_heads != 0) {
      return fields_.Bad("num_key_value_heads",
                         StrCat(config.kv_heads, " does not divide the ", config.heads, " heads"));
    }
    int head_size = architecture_->default_head_size;
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
    config.rope_dimensions = config.head_size;
    return absl::OkStatus();
  }

  // Newer configs hold all of it in rope_parameters, older ones rope_theta beside rope_scaling.
  absl::Status ReadRope() {
    ModelConfig& config = model();
    config.rope_theta = 10000;  // the family's value where a config leaves it out
    const auto read_theta = [&](const JsonFields& fields) -> absl::Status {
      if (fields.Find("rope_theta") == nullptr) return absl::OkStatus();
      MILLRACE_ASSIGN_OR_RETURN(config.rope_theta, fields.Float("rope_theta", 1, 1e12));
      return absl::OkStatus();
    };
    MILLRACE_RETURN_IF_ERROR(read_theta(fields_));
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
      if (fields_.Find(name) == nullptr) continue;
      MILLRACE_ASSIGN_OR_RETURN(const JsonFields rope, fields_.Object(name));
      MILLRACE_RETURN_IF_ERROR(read_theta(rope));
      MILLRACE_RETURN_IF_ERROR(rope.Refuse("partial_rotary_factor", Json::array({1.0})));
      const char* const key = rope.Find("rope_type") != nullptr ? "rope_type" : "type";
      MILLRACE_ASSIGN_OR_RETURN(const std::string_view type, rope.String(key));
      if (type == "llama3") {
        MILLRACE_ASSIGN_OR_RETURN(config.rope_factors,
                                  Llama3Factors(rope, config.rope_theta, config.rope_dimensions));
      } else if (type != "default") {
        return rope.Unsupported(
            key, StrCat("\"", Printable(type), "\" is not supported (supported: default, llama3)"));
      }
    }
    return absl::OkStatus();
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
  const Architecture* architecture_ = nullptr;
  HfConfig config_;
};

}  // namespace

absl::StatusOr<HfConfig> ReadHfConfig(std::string_view json, const std::string& file) {
  MILLRACE_ASSIGN_OR_RETURN(const Json parsed, ParseObject(json, file));
  return HfConfigReader(parsed, file).Read();
}

absl::StatusOr<std::vector<int32_t>> ReadEndTokens(std::string_view json, const std::string& file) {
  MILLRACE_ASSIGN_OR_RETURN(const Json parsed, ParseObject(json, file));
  return EndTokens(JsonFields(parsed, file + ": "));
}

}  // namespace millrace
