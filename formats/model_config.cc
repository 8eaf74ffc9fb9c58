#include "formats/model_config.h"

#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr int kMaxLayers = 1024;
constexpr int kMaxWidth = 1 << 20;  // hidden and ffn size
constexpr int kMaxHeads = 1024;
constexpr int kMaxHeadSize = 1024;
constexpr int kMaxVocab = 1 << 22;
constexpr int kMaxContext = 1 << 24;

absl::Status Unsupported(const GgufFile& file, std::string_view key, std::string_view what) {
  return absl::UnimplementedError(StrCat(file.base_name(), ": key ", key, ": ", what));
}

absl::Status Lies(const GgufFile& file, std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(StrCat(file.base_name(), ": ", field, ": ", what));
}

absl::Status ReadInt(const GgufFile& file, std::string_view key, int max, int* value) {
  MILLRACE_ASSIGN_OR_RETURN(const int64_t number, file.Int(key, 1, max));
  *value = static_cast<int>(number);
  return absl::OkStatus();
}

absl::Status ReadIntOr(const GgufFile& file, std::string_view key, int max, int otherwise,
                       int* value) {
  *value = otherwise;
  return file.Find(key) == nullptr ? absl::OkStatus() : ReadInt(file, key, max, value);
}

// Keys that change the maths. Each is fine where its value changes nothing.
absl::Status RefuseUnsupported(const GgufFile& file) {
  for (const char* key :
       {"llama.expert_count", "llama.expert_used_count", "llama.attention.sliding_window"}) {
    if (file.Find(key) == nullptr) continue;
    MILLRACE_ASSIGN_OR_RETURN(const int64_t value, file.Int(key, 0, 1 << 30));
    if (value != 0) return Unsupported(file, key, StrCat(value, " is not supported, only 0"));
  }
  struct Neutral {
    const char* key;
    double value;
  };
  for (const Neutral& neutral :
       {Neutral{"llama.rope.scaling.factor", 1}, Neutral{"llama.rope.scale_linear", 1},
        Neutral{"llama.rope.scaling.attn_factor", 1}, Neutral{"llama.attention.clamp_kqv", 0},
        Neutral{"llama.attention.max_alibi_bias", 0}, Neutral{"llama.attention.scale", 0},
        Neutral{"llama.logit_scale", 0}, Neutral{"llama.embedding_scale", 0},
        Neutral{"llama.residual_scale", 0}}) {
    if (file.Find(neutral.key) == nullptr) continue;
    MILLRACE_ASSIGN_OR_RETURN(const double value, file.Float(neutral.key));
    // 0 stands for "not set" in every one of them.
    if (value != neutral.value && value != 0) {
      return Unsupported(file, neutral.key,
                         StrCat(value, " is not supported, only ", neutral.value));
    }
  }
  constexpr std::string_view kScaling = "llama.rope.scaling.type";
  if (file.Find(kScaling) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view type, file.String(kScaling));
    // "linear" is linear by the factor, which was just seen to be 1.
    if (type != "none" && type != "linear") {
      return Unsupported(file, kScaling, "only \"none\" is supported");
    }
  }
  constexpr std::string_view kCausal = "llama.attention.causal";
  if (file.Find(kCausal) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const bool causal, file.Bool(kCausal));
    if (!causal) return Unsupported(file, kCausal, "only causal attention is supported");
  }
  return absl::OkStatus();
}

absl::Status ReadHeads(const GgufFile& file, ModelConfig* config) {
  MILLRACE_RETURN_IF_ERROR(ReadInt(file, "llama.attention.head_count", kMaxHeads, &config->heads));
  MILLRACE_RETURN_IF_ERROR(ReadIntOr(file, "llama.attention.head_count_kv", kMaxHeads,
                                     config->heads, &config->kv_heads));
  if (config->heads % config->kv_heads != 0) {
    return Lies(file, "key llama.attention.head_count_kv",
                StrCat(config->kv_heads, " does not divide the ", config->heads, " heads"));
  }
  constexpr std::string_view kKeyLength = "llama.attention.key_length";
  constexpr std::string_view kValueLength = "llama.attention.value_length";
  if (file.Find(kKeyLength) == nullptr && config->hidden_size % config->heads != 0) {
    return Lies(file, "key llama.attention.head_count",
                StrCat(config->heads, " does not divide the hidden size ", config->hidden_size));
  }
  MILLRACE_RETURN_IF_ERROR(ReadIntOr(file, kKeyLength, kMaxHeadSize,
                                     config->hidden_size / config->heads, &config->head_size));
  int value_size;
  MILLRACE_RETURN_IF_ERROR(
      ReadIntOr(file, kValueLength, kMaxHeadSize, config->head_size, &value_size));
  if (value_size != config->head_size) {
    return Unsupported(file, kValueLength,
                       StrCat(value_size, " differs from the key length ", config->head_size));
  }
  if (config->head_size > kMaxHeadSize || config->head_size % 2 != 0) {
    return Lies(file, "head size",
                StrCat(config->head_size, " must be even and at most ", kMaxHeadSize));
  }
  constexpr std::string_view kRope = "llama.rope.dimension_count";
  MILLRACE_RETURN_IF_ERROR(
      ReadIntOr(file, kRope, config->head_size, config->head_size, &config->rope_dimensions));
  if (config->rope_dimensions % 2 != 0) {
    return Lies(file, StrCat("key ", kRope), StrCat(config->rope_dimensions, " is not even"));
  }
  return absl::OkStatus();
}

absl::Status ReadNumbers(const GgufFile& file, ModelConfig* config) {
  constexpr std::string_view kTheta = "llama.rope.freq_base";
  constexpr std::string_view kEpsilon = "llama.attention.layer_norm_rms_epsilon";
  config->rope_theta = 10000;  // the family's value where a file leaves it out
  if (file.Find(kTheta) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(config->rope_theta, file.Float(kTheta));
  }
  if (!(config->rope_theta >= 1 && config->rope_theta <= 1e12)) {
    return Lies(file, StrCat("key ", kTheta),
                StrCat(config->rope_theta, " is outside of 1 to 1e12"));
  }
  MILLRACE_ASSIGN_OR_RETURN(config->rms_epsilon, file.Float(kEpsilon));
  if (!(config->rms_epsilon > 0 && config->rms_epsilon <= 0.1)) {
    return Lies(file, StrCat("key ", kEpsilon),
                StrCat(config->rms_epsilon, " is outside of 0 to 0.1 (0 excluded)"));
  }
  return absl::OkStatus();
}

absl::Status ReadVocabulary(const GgufFile& file, ModelConfig* config) {
  const TensorInfo* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr) return Lies(file, "tensor token_embd.weight", "is missing");
  if (embedding->shape[0] > kMaxVocab) {
    return Lies(file, "tensor token_embd.weight",
                StrCat(embedding->shape[0], " rows, must be at most ", kMaxVocab));
  }
  MILLRACE_RETURN_IF_ERROR(ReadIntOr(file, "llama.vocab_size", kMaxVocab,
                                     static_cast<int>(embedding->shape[0]), &config->vocab_size));
  config->tied_embeddings = file.FindTensor("output.weight") == nullptr;
  config->rope_factors = file.FindTensor("rope_freqs.weight") != nullptr;
  return absl::OkStatus();
}

// Checks tensors one after the other; keeps the first error.
class TensorChecker {
 public:
  explicit TensorChecker(const GgufFile& file) : file_(file) {}

  void Expect(const std::string& name, const std::vector<int64_t>& shape, bool must_be_f32) {
    if (!status_.ok()) return;
    const TensorInfo* tensor = file_.FindTensor(name);
    const std::string field = StrCat("tensor ", name);
    if (tensor == nullptr) {
      status_ = Lies(file_, field, "is missing");
    } else if (tensor->shape != shape) {
      status_ =
          Lies(file_, field,
               StrCat("shape ", ShapeString(tensor->shape), ", must be ", ShapeString(shape)));
    } else if (must_be_f32 && tensor->type != TensorType::kF32) {
      status_ = Lies(file_, field, StrCat("type ", Traits(tensor->type).name, ", must be F32"));
    } else {
      seen_.insert(tensor);
    }
  }

  // A tensor that nothing reads (a bias, a second norm) would change the maths if it were read.
  absl::Status Finish() const {
    if (!status_.ok()) return status_;
    for (const TensorInfo& tensor : file_.tensors()) {
      if (seen_.contains(&tensor)) continue;
      return absl::UnimplementedError(StrCat(file_.base_name(), ": tensor ", Printable(tensor.name),
                                             ": is not one that a llama model is read from"));
    }
    return absl::OkStatus();
  }

 private:
  const GgufFile& file_;
  absl::Status status_;
  absl::flat_hash_set<const TensorInfo*> seen_;
};

}  // namespace

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  ModelConfig config;
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view architecture,
                            file.String("general.architecture"));
  if (architecture != "llama") {
    return Unsupported(
        file, "general.architecture",
        StrCat("\"", Printable(architecture), "\" is not supported (supported: llama)"));
  }
  config.architecture = architecture;
  if (file.Find("general.name") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(config.name, file.String("general.name"));
  }
  MILLRACE_RETURN_IF_ERROR(RefuseUnsupported(file));
  MILLRACE_RETURN_IF_ERROR(ReadInt(file, "llama.block_count", kMaxLayers, &config.layers));
  MILLRACE_RETURN_IF_ERROR(ReadInt(file, "llama.embedding_length", kMaxWidth, &config.hidden_size));
  MILLRACE_RETURN_IF_ERROR(ReadInt(file, "llama.feed_forward_length", kMaxWidth, &config.ffn_size));
  MILLRACE_RETURN_IF_ERROR(
      ReadInt(file, "llama.context_length", kMaxContext, &config.context_length));
  MILLRACE_RETURN_IF_ERROR(ReadHeads(file, &config));
  MILLRACE_RETURN_IF_ERROR(ReadNumbers(file, &config));
  MILLRACE_RETURN_IF_ERROR(ReadVocabulary(file, &config));
  MILLRACE_RETURN_IF_ERROR(ValidateTensors(config, file));
  return config;
}

absl::Status ValidateTensors(const ModelConfig& config, const GgufFile& file) {
  const int64_t hidden = config.hidden_size;
  const int64_t ffn = config.ffn_size;
  const int64_t q = int64_t{config.heads} * config.head_size;
  const int64_t kv = int64_t{config.kv_heads} * config.head_size;
  TensorChecker checker(file);
  const auto weight = [&](const std::string& name, const std::vector<int64_t>& shape) {
    checker.Expect(name, shape, false);
  };
  const auto vector = [&](const std::string& name, int64_t size) {
    checker.Expect(name, {size}, true);
  };

  weight("token_embd.weight", {config.vocab_size, hidden});
  if (!config.tied_embeddings) weight("output.weight", {config.vocab_size, hidden});
  vector("output_norm.weight", hidden);
  if (config.rope_factors) vector("rope_freqs.weight", config.rope_dimensions / 2);
  for (int layer = 0; layer < config.layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    vector(block + "attn_norm.weight", hidden);
    weight(block + "attn_q.weight", {q, hidden});
    weight(block + "attn_k.weight", {kv, hidden});
    weight(block + "attn_v.weight", {kv, hidden});
    weight(block + "attn_output.weight", {hidden, q});
    vector(block + "ffn_norm.weight", hidden);
    weight(block + "ffn_gate.weight", {ffn, hidden});
    weight(block + "ffn_up.weight", {ffn, hidden});
    weight(block + "ffn_down.weight", {hidden, ffn});
  }
  return checker.Finish();
}

}  // namespace millrace
