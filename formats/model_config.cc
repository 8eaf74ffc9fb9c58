#include "formats/model_config.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
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
    MILLRACE_RETURN_IF_ERROR(ReadRopeFactors());
    return std::move(config_);
  }

 private:
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

  absl::Status ReadArchitecture() {
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view architecture,
                              file_.String("general.architecture"));
    if (architecture != "llama" && architecture != "qwen3") {
      return Unsupported(
          "general.architecture",
          StrCat("\"", Printable(architecture), "\" is not supported (supported: llama, qwen3)"));
    }
    config_.architecture = architecture;
    config_.qk_norm = architecture == "qwen3";
    config_.rope_interleaved = architecture == "llama";
    if (file_.Find("general.name") != nullptr) {
      MILLRACE_ASSIGN_OR_RETURN(config_.name, file_.String("general.name"));
    }
    return absl::OkStatus();
  }

  // Keys that change the maths. Each is fine where its value changes nothing.
  absl::Status RefuseUnsupported() const {
    for (const char* name : {"expert_count", "expert_used_count", "attention.sliding_window"}) {
      const std::string key = Key(name);
      if (file_.Find(key) == nullptr) continue;
      MILLRACE_ASSIGN_OR_RETURN(const int64_t value, file_.Int(key, 0, 1 << 30));
      if (value != 0) return Unsupported(key, StrCat(value, " is not supported, only 0"));
    }
    struct Neutral {
      const char* name;
      double value;
    };
    for (const Neutral& neutral :
         {Neutral{"rope.scaling.factor", 1}, Neutral{"rope.scale_linear", 1},
          Neutral{"rope.scaling.attn_factor", 1}, Neutral{"attention.clamp_kqv", 0},
          Neutral{"attention.max_alibi_bias", 0}, Neutral{"attention.scale", 0},
          Neutral{"logit_scale", 0}, Neutral{"embedding_scale", 0}, Neutral{"residual_scale", 0}}) {
      const std::string key = Key(neutral.name);
      if (file_.Find(key) == nullptr) continue;
      MILLRACE_ASSIGN_OR_RETURN(const double value, file_.Float(key));
      // 0 stands for "not set" in every one of them.
      if (value != neutral.value && value != 0) {
        return Unsupported(key, StrCat(value, " is not supported, only ", neutral.value));
      }
    }
    if (const std::string key = Key("rope.scaling.type"); file_.Find(key) != nullptr) {
      MILLRACE_ASSIGN_OR_RETURN(const std::string_view type, file_.String(key));
      // "linear" is linear by the factor, which was just seen to be 1.
      if (type != "none" && type != "linear") {
        return Unsupported(key, "only \"none\" is supported");
      }
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
    config_.rope_theta = 10000;  // the family's value where a file leaves it out
    if (file_.Find(theta) != nullptr) {
      MILLRACE_ASSIGN_OR_RETURN(config_.rope_theta, file_.Float(theta));
    }
    if (!(config_.rope_theta >= 1 && config_.rope_theta <= 1e12)) {
      return Lies(StrCat("key ", theta), StrCat(config_.rope_theta, " is outside of 1 to 1e12"));
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

  // rope_freqs.weight, F32 [rope_dimensions / 2], where the file has it (Llama 3.1).
  absl::Status ReadRopeFactors() {
    const TensorInfo* tensor = file_.FindTensor(kRopeFactors);
    if (tensor == nullptr) return absl::OkStatus();
    const std::vector<int64_t> shape = {config_.rope_dimensions / 2};
    if (tensor->type != TensorType::kF32 || tensor->shape != shape) {
      return Lies(StrCat("tensor ", kRopeFactors),
                  StrCat("is ", Traits(tensor->type).name, " ", ShapeString(tensor->shape),
                         ", must be F32 ", ShapeString(shape)));
    }
    config_.rope_factors.resize(shape[0]);
    std::memcpy(config_.rope_factors.data(), file_.Data(*tensor).data(), tensor->bytes);
    for (const float factor : config_.rope_factors) {
      if (!(factor > 0 && factor <= 1e6f)) {
        return Lies(StrCat("tensor ", kRopeFactors),
                    StrCat("holds ", factor, ", must be above 0 and at most 1e6"));
      }
    }
    return absl::OkStatus();
  }

  const GgufFile& file_;
  ModelConfig config_;
};

}  // namespace

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig config, GgufConfigReader(file).Read());
  MILLRACE_RETURN_IF_ERROR(ValidateTensors(config, file));
  return config;
}

}  // namespace millrace
