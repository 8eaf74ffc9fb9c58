#include "formats/model_config.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/types/span.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/encoder_config.h"
#include "formats/model_tensors.h"

namespace millrace {
namespace {

// Reads the metadata of one file, key by key. An architecture's keys begin with its name.
class GgufConfigReader {
 public:
  explicit GgufConfigReader(const GgufFile& file) : file_(file) {}

  absl::StatusOr<ModelConfig> Read() {
    MILLRACE_RETURN_IF_ERROR(ReadArchitecture());
    MILLRACE_RETURN_IF_ERROR(RefuseUnsupported());
    MILLRACE_RETURN_IF_ERROR(ReadInt(Key("block_count"), kMaxLayers, &config_.layers));
    MILLRACE_RETURN_IF_ERROR(ReadInt(Key("embedding_length"), kMaxWidth, &config_.hidden_size));
    MILLRACE_RETURN_IF_ERROR(ReadInt(Key("feed_forward_length"), kMaxWidth, &config_.ffn_size));
    MILLRACE_RETURN_IF_ERROR(ReadInt(Key("context_length"), kMaxContext, &config_.context_length));
    MILLRACE_RETURN_IF_ERROR(ReadHeads());
    MILLRACE_RETURN_IF_ERROR(ReadNumbers());
    MILLRACE_RETURN_IF_ERROR(ReadVocabulary());
    MILLRACE_RETURN_IF_ERROR(ReadRope());
    MILLRACE_RETURN_IF_ERROR((this->*family_->read)());
    return std::move(config_);
  }

 private:
  // An architecture, by GGUF's name, and what its own keys and habits are.
  struct Family {
    std::string_view name;
    bool interleaved;  // how its converter leaves q and k
    absl::Status (GgufConfigReader::*read)();
  };

  static absl::Span<const Family> Families() {
    static constexpr Family kFamilies[] = {{"llama", true, &GgufConfigReader::ReadLlama},
                                           {"qwen2", false, &GgufConfigReader::ReadQwen2},
                                           {"qwen3", false, &GgufConfigReader::ReadQwen3},
                                           {"gemma2", false, &GgufConfigReader::ReadGemma2},
                                           {"gemma3", false, &GgufConfigReader::ReadGemma3},
                                           {"phi3", false, &GgufConfigReader::ReadPhi3},
                                           {"olmo2", false, &GgufConfigReader::ReadOlmo2},
                                           {"granite", true, &GgufConfigReader::ReadGranite},
                                           {"smollm3", true, &GgufConfigReader::ReadSmolLm3}};
    return kFamilies;
  }

  std::string Key(std::string_view name) const { return StrCat(config_.architecture, ".", name); }

  absl::Status Unsupported(std::string_view key, std::string_view what) const {
    return absl::UnimplementedError(StrCat(file_.base_name(), ": key ", key, ": ", what));
  }
  absl::Status Lies(std::string_view field, std::string_view what) const {
    return absl::InvalidArgumentError(StrCat(file_.base_name(), ": ", field, ": ", what));
  }

  absl::Status ReadInt(const std::string& key, int max, int* value) const {
    MILLRACE_ASSIGN_OR_RETURN(const int64_t number, file_.Int(key, 1, max));
    *value = static_cast<int>(number);
    return absl::OkStatus();
  }
  absl::Status ReadIntOr(const std::string& key, int max, int otherwise, int* value) const {
    *value = otherwise;
    return file_.Find(key) == nullptr ? absl::OkStatus() : ReadInt(key, max, value);
  }

  // Of a number of which 0 stands for "not set".
  absl::StatusOr<double> FloatOr(std::string_view name, double otherwise, double min,
                                 double max) const {
    const std::string key = Key(name);
    if (file_.Find(key) == nullptr) return otherwise;
    MILLRACE_ASSIGN_OR_RETURN(const double value, file_.Float(key));
    if (value == 0) return otherwise;
    if (!(value >= min && value <= max)) {
      return Lies(StrCat("key ", key), StrCat(value, " is outside of ", min, " to ", max));
    }
    return value;
  }
  absl::StatusOr<double> FactorOr(std::string_view name, double otherwise) const {
    return FloatOr(name, otherwise, 1e-6, 1e6);
  }

  // UNIMPLEMENTED for a number other than `neutral` and 0, which stands for "not set".
  absl::Status RefuseFloat(std::string_view name, double neutral) const {
    const std::string key = Key(name);
    if (file_.Find(key) == nullptr) return absl::OkStatus();
    MILLRACE_ASSIGN_OR_RETURN(const double value, file_.Float(key));
    if (value == neutral || value == 0) return absl::OkStatus();
    return Unsupported(key, StrCat(value, " is not supported, only ", neutral));
  }

  absl::Status ReadArchitecture() {
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view architecture,
                              file_.String("general.architecture"));
    std::vector<std::string_view> supported;
    for (const Family& family : Families()) {
      if (family.name == architecture) family_ = &family;
      supported.push_back(family.name);
    }
    supported.push_back(kGgufEncoder);
    if (family_ == nullptr) {
      return Unsupported("general.architecture",
                         StrCat("\"", Printable(architecture),
                                "\" is not supported (supported: ", JoinList(supported), ")"));
    }
    config_.architecture = architecture;
    config_.rope_interleaved = family_->interleaved;
    if (file_.Find("general.name") != nullptr) {
      MILLRACE_ASSIGN_OR_RETURN(config_.name, file_.String("general.name"));
    }
    return absl::OkStatus();
  }

  // Keys that change the maths. Each is fine where its value changes nothing.
  absl::Status RefuseUnsupported() const {
    for (const char* name : {"expert_count", "expert_used_count"}) {
      const std::string key = Key(name);
      if (file_.Find(key) == nullptr) continue;
      MILLRACE_ASSIGN_OR_RETURN(const int64_t value, file_.Int(key, 0, 1 << 30));
      if (value != 0) return Unsupported(key, StrCat(value, " is not supported, only 0"));
    }
    MILLRACE_RETURN_IF_ERROR(RefuseFloat("attention.clamp_kqv", 0));
    MILLRACE_RETURN_IF_ERROR(RefuseFloat("attention.max_alibi_bias", 0));
    for (const char* name :
         {"attention.scale", "logit_scale", "embedding_scale", "residual_scale"}) {
      if (config_.architecture == "granite") break;
      MILLRACE_RETURN_IF_ERROR(RefuseFloat(name, 0));
    }
    if (const std::string key = Key("attention.causal"); file_.Find(key) != nullptr) {
      MILLRACE_ASSIGN_OR_RETURN(const bool causal, file_.Bool(key));
      if (!causal) return Unsupported(key, "only causal attention is supported");
    }
    return absl::OkStatus();
  }

  absl::Status ReadHeads() {
    const std::string heads = Key("attention.head_count");
    const std::string kv_heads = Key("attention.head_count_kv");
    MILLRACE_RETURN_IF_ERROR(ReadInt(heads, kMaxHeads, &config_.heads));
    MILLRACE_RETURN_IF_ERROR(ReadIntOr(kv_heads, kMaxHeads, config_.heads, &config_.kv_heads));
    if (config_.heads % config_.kv_heads != 0) {
      return Lies(StrCat("key ", kv_heads),
                  StrCat(config_.kv_heads, " does not divide the ", config_.heads, " heads"));
    }
    const std::string key_length = Key("attention.key_length");
    const std::string value_length = Key("attention.value_length");
    if (file_.Find(key_length) == nullptr && config_.hidden_size % config_.heads != 0) {
      return Lies(StrCat("key ", heads),
                  StrCat(config_.heads, " does not divide the hidden size ", config_.hidden_size));
    }
    MILLRACE_RETURN_IF_ERROR(ReadIntOr(key_length, kMaxHeadSize,
                                       config_.hidden_size / config_.heads, &config_.head_size));
    int value_size;
    MILLRACE_RETURN_IF_ERROR(ReadIntOr(value_length, kMaxHeadSize, config_.head_size, &value_size));
    if (value_size != config_.head_size) {
      return Unsupported(value_length,
                         StrCat(value_size, " differs from the key length ", config_.head_size));
    }
    if (config_.head_size > kMaxHeadSize || config_.head_size % 2 != 0) {
      return Lies("head size",
                  StrCat(config_.head_size, " must be even and at most ", kMaxHeadSize));
    }
    config_.attention_scale = 1 / std::sqrt(config_.head_size);
    const std::string rope = Key("rope.dimension_count");
    MILLRACE_RETURN_IF_ERROR(
        ReadIntOr(rope, config_.head_size, config_.head_size, &config_.rope_dimensions));
    if (config_.rope_dimensions % 2 != 0) {
      return Lies(StrCat("key ", rope), StrCat(config_.rope_dimensions, " is not even"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadNumbers() {
    const std::string theta = Key("rope.freq_base");
    const std::string epsilon = Key("attention.layer_norm_rms_epsilon");
    config_.rope.theta = 10000;  // the family's value where a file leaves it out
    if (file_.Find(theta) != nullptr) {
      MILLRACE_ASSIGN_OR_RETURN(config_.rope.theta, file_.Float(theta));
    }
    if (!(config_.rope.theta >= 1 && config_.rope.theta <= 1e12)) {
      return Lies(StrCat("key ", theta), StrCat(config_.rope.theta, " is outside of 1 to 1e12"));
    }
    MILLRACE_ASSIGN_OR_RETURN(config_.rms_epsilon, file_.Float(epsilon));
    if (!(config_.rms_epsilon > 0 && config_.rms_epsilon <= 0.1)) {
      return Lies(StrCat("key ", epsilon),
                  StrCat(config_.rms_epsilon, " is outside of 0 to 0.1 (0 excluded)"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadVocabulary() {
    const TensorInfo* embedding = file_.FindTensor("token_embd.weight");
    if (embedding == nullptr) return Lies("tensor token_embd.weight", "is missing");
    if (embedding->shape[0] > kMaxVocab) {
      return Lies("tensor token_embd.weight",
                  StrCat(embedding->shape[0], " rows, must be at most ", kMaxVocab));
    }
    MILLRACE_RETURN_IF_ERROR(ReadIntOr(Key("vocab_size"), kMaxVocab,
                                       static_cast<int>(embedding->shape[0]), &config_.vocab_size));
    config_.tied_embeddings = file_.FindTensor("output.weight") == nullptr;
    return absl::OkStatus();
  }

  // The factors of a tensor of F32 [rope_dimensions / 2]; empty where the file has none.
  absl::StatusOr<std::vector<float>> RopeFactors(const char* name) const {
    const TensorInfo* tensor = file_.FindTensor(name);
    if (tensor == nullptr) return std::vector<float>();
    const std::vector<int64_t> shape = {config_.rope_dimensions / 2};
    if (tensor->type != TensorType::kF32 || tensor->shape != shape) {
      return Lies(StrCat("tensor ", name),
                  StrCat("is ", Traits(tensor->type).name, " ", ShapeString(tensor->shape),
                         ", must be F32 ", ShapeString(shape)));
    }
    std::vector<float> factors(shape[0]);
    std::memcpy(factors.data(), file_.Data(*tensor).data(), tensor->bytes);
    for (const float factor : factors) {
      if (!(factor > 0 && factor <= 1e6f)) {
        return Lies(StrCat("tensor ", name),
                    StrCat("holds ", factor, ", must be above 0 and at most 1e6"));
      }
    }
    return factors;
  }

  // Factors are tensors where they are Llama 3.1's or LongRoPE's, and of rope.scaling.type else.
  absl::Status ReadRope() {
    RopeConfig& rope = config_.rope;
    MILLRACE_ASSIGN_OR_RETURN(rope.factors, RopeFactors(kRopeFactors));
    MILLRACE_ASSIGN_OR_RETURN(std::vector<float> shorts, RopeFactors(kShortRopeFactors));
    MILLRACE_ASSIGN_OR_RETURN(rope.long_factors, RopeFactors(kLongRopeFactors));
    MILLRACE_ASSIGN_OR_RETURN(rope.magnitude, FloatOr("rope.scaling.attn_factor", 1, 1e-3, 1e3));
    int trained;
    MILLRACE_RETURN_IF_ERROR(ReadIntOr(Key("rope.scaling.original_context_length"), kMaxContext,
                                       config_.context_length, &trained));
    if (shorts.empty() != rope.long_factors.empty()) {
      return Lies("rope factors", "there are short ones or long ones, must be both");
    }
    if (!shorts.empty()) {
      rope.factors = std::move(shorts);
      rope.trained = trained;
      return absl::OkStatus();
    }
    // The older name first.
    MILLRACE_ASSIGN_OR_RETURN(double factor, FloatOr("rope.scale_linear", 1, 1, 1e6));
    MILLRACE_ASSIGN_OR_RETURN(factor, FloatOr("rope.scaling.factor", factor, 1, 1e6));
    const std::string key = Key("rope.scaling.type");
    std::string_view type = "linear";  // where only a factor stands
    if (file_.Find(key) != nullptr) {
      MILLRACE_ASSIGN_OR_RETURN(type, file_.String(key));
    }
    if (type == "yarn") return ReadYarn(factor, trained);
    if (rope.magnitude != 1 || (type != "none" && type != "linear")) {
      return Unsupported(key,
                         StrCat("\"", Printable(type), "\" is not supported (supported: none, ",
                                "linear, yarn, and LongRoPE's factors as tensors)"));
    }
    if (type == "linear" && factor != 1) {
      if (!rope.factors.empty()) return Lies(StrCat("key ", key), "there are rope factors as well");
      rope.factors = LinearFactors(factor, config_.rope_dimensions);
    }
    return absl::OkStatus();
  }

  absl::Status ReadYarn(double factor, int trained) {
    RopeConfig& rope = config_.rope;
    MILLRACE_RETURN_IF_ERROR(RefuseFloat("rope.scaling.yarn_ext_factor", 1));
    MILLRACE_RETURN_IF_ERROR(RefuseFloat("rope.scaling.yarn_attn_factor", 1));
    MILLRACE_RETURN_IF_ERROR(RefuseFloat("rope.scaling.yarn_log_multiplier", 0));
    YarnStretch stretch{.factor = factor, .trained = trained};
    MILLRACE_ASSIGN_OR_RETURN(stretch.fast, FloatOr("rope.scaling.yarn_beta_fast", 32, 1e-3, 1e6));
    MILLRACE_ASSIGN_OR_RETURN(stretch.slow, FloatOr("rope.scaling.yarn_beta_slow", 1, 1e-3, 1e6));
    if (!rope.factors.empty() || !(rope.theta > 1)) {
      return Lies(StrCat("key ", Key("rope.scaling.type")),
                  "yarn with factors of its own, or with a base of 1");
    }
    rope.factors = YarnFactors(stretch, rope.theta, config_.rope_dimensions);
    rope.magnitude *= YarnMagnitude(factor);
    const double stretched = std::min<double>(factor * trained, kMaxContext);
    config_.context_length = std::max(config_.context_length, static_cast<int>(stretched));
    return absl::OkStatus();
  }

  // ---- What each architecture does ----

  template <typename HasWindow>  // bool(int layer)
  absl::Status ReadWindows(int otherwise, const HasWindow& has_window) {
    const std::string key = Key("attention.sliding_window");
    int64_t window = otherwise;
    if (file_.Find(key) != nullptr) {
      MILLRACE_ASSIGN_OR_RETURN(window, file_.Int(key, 0, kMaxContext));
    }
    if (window == 0) return absl::OkStatus();
    for (int i = 0; i < config_.layers; ++i) {
      config_.windows.push_back(has_window(i) ? static_cast<int>(window) : 0);
    }
    return absl::OkStatus();
  }
  absl::Status RefuseWindows() const {
    const std::string key = Key("attention.sliding_window");
    if (file_.Find(key) == nullptr) return absl::OkStatus();
    MILLRACE_ASSIGN_OR_RETURN(const int64_t window, file_.Int(key, 0, kMaxContext));
    if (window == 0) return absl::OkStatus();
    return Unsupported(key, StrCat(window, " is not supported, only 0"));
  }

  // Mistral is one of them.
  absl::Status ReadLlama() {
    return ReadWindows(0, [](int) { return true; });
  }

  absl::Status ReadQwen2() {
    config_.qkv_bias = true;
    return RefuseWindows();
  }

  absl::Status ReadQwen3() {
    config_.qk_norm = QkNorm::kHead;
    return RefuseWindows();
  }

  // The files hold norms' weights with their 1, and nothing of query_pre_attn_scalar, which differs
  // from the head size in one model.
  void ReadGemma(int layers_of_27b) {
    config_.post_norms = true;
    config_.gelu_gate = true;
    config_.embedding_factor = std::sqrt(config_.hidden_size);
    if (config_.layers == layers_of_27b) {
      config_.attention_scale = 1 / std::sqrt(config_.hidden_size / config_.heads);
    }
  }

  absl::Status ReadGemma2() {
    ReadGemma(46);
    MILLRACE_ASSIGN_OR_RETURN(config_.attention_soft_cap, FactorOr("attn_logit_softcapping", 50));
    MILLRACE_ASSIGN_OR_RETURN(config_.logit_soft_cap, FactorOr("final_logit_softcapping", 30));
    return ReadWindows(4096, [](int layer) { return layer % 2 == 0; });
  }

  absl::Status ReadGemma3() {
    ReadGemma(62);
    config_.qk_norm = QkNorm::kHead;
    MILLRACE_RETURN_IF_ERROR(RefuseFloat("attn_logit_softcapping", 0));
    MILLRACE_ASSIGN_OR_RETURN(config_.logit_soft_cap, FactorOr("final_logit_softcapping", 0));
    config_.window_rope.emplace();
    MILLRACE_ASSIGN_OR_RETURN(config_.window_rope->theta,
                              FloatOr("rope.freq_base_swa", 10000, 1, 1e12));
    int pattern;
    MILLRACE_RETURN_IF_ERROR(
        ReadIntOr(Key("attention.sliding_window_pattern"), kMaxLayers, 6, &pattern));
    return ReadWindows(0, [pattern](int layer) { return (layer + 1) % pattern != 0; });
  }

  absl::Status ReadPhi3() {
    config_.fused_qkv = true;
    config_.fused_gate_up = true;
    return ReadWindows(0, [](int) { return true; });
  }

  absl::Status ReadOlmo2() {
    config_.qk_norm = QkNorm::kWhole;
    config_.pre_norms = false;
    config_.post_norms = true;
    return RefuseWindows();  // OLMo 3's
  }

  absl::Status ReadGranite() {
    MILLRACE_ASSIGN_OR_RETURN(config_.embedding_factor, FactorOr("embedding_scale", 1));
    MILLRACE_ASSIGN_OR_RETURN(config_.residual_factor, FactorOr("residual_scale", 1));
    MILLRACE_ASSIGN_OR_RETURN(config_.attention_scale,
                              FactorOr("attention.scale", config_.attention_scale));
    MILLRACE_ASSIGN_OR_RETURN(const double scale, FactorOr("logit_scale", 1));
    config_.logit_factor = 1 / scale;
    // Granite 4's models without positions say so like this.
    if (const std::string key = Key("rope.scaling.finetuned"); file_.Find(key) != nullptr) {
      MILLRACE_ASSIGN_OR_RETURN(const bool turned, file_.Bool(key));
      if (!turned) return Unsupported(key, "false is not supported");
    }
    return RefuseWindows();
  }

  // Every fourth layer has no positions.
  absl::Status ReadSmolLm3() {
    for (int i = 0; i < config_.layers; ++i) config_.unturned.push_back((i + 1) % 4 == 0);
    return RefuseWindows();
  }

  const GgufFile& file_;
  const Family* family_ = nullptr;
  ModelConfig config_;
};

}  // namespace

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig config, IsGgufEncoder(file)
                                                    ? ReadGgufEncoder(file)
                                                    : GgufConfigReader(file).Read());
  MILLRACE_RETURN_IF_ERROR(ValidateTensors(config, file));
  return config;
}

}  // namespace millrace
