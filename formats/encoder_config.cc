#include "formats/encoder_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "formats/folder_file.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr char kModules[] = "modules.json";
constexpr char kSentenceConfig[] = "sentence_bert_config.json";
constexpr char kPromptConfig[] = "config_sentence_transformers.json";
constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr int kMaxTokenTypes = 1024;
constexpr double kLeastEpsilon = 1e-15;
constexpr double kMostEpsilon = 0.1;

// What both kinds of files leave to be worked out. `heads` is how the file calls them.
absl::Status FinishHeads(ModelConfig* config, std::string_view heads) {
  if (config->hidden_size % config->heads != 0 ||
      config->hidden_size / config->heads > kMaxHeadSize) {
    return absl::InvalidArgumentError(StrCat(heads, ": ", config->heads,
                                             " must divide the hidden size ", config->hidden_size,
                                             " into heads of at most ", kMaxHeadSize));
  }
  config->kv_heads = config->heads;
  config->head_size = config->hidden_size / config->heads;
  config->attention_scale = 1 / std::sqrt(config->head_size);
  return absl::OkStatus();
}

absl::StatusOr<int> ReadInt(const JsonFields& config, std::string_view name, int max) {
  MILLRACE_ASSIGN_OR_RETURN(const int64_t value, config.Int(name, 1, max));
  return static_cast<int>(value);
}

// The last part of a module's Python type: "sentence_transformers.models.Pooling" is "Pooling".
std::string_view ClassName(std::string_view type) {
  const size_t dot = type.rfind('.');
  return dot == type.npos ? type : type.substr(dot + 1);
}

// A name in the folder and no path: what lies elsewhere is none of the model's.
bool IsPlainName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos;
}

struct Module {
  std::string type;
  std::string path;
};

absl::StatusOr<std::vector<Module>> ReadModules(const fs::path& folder) {
  MILLRACE_ASSIGN_OR_RETURN(const MappedFile file,
                            OpenFolderFile(folder, kModules, kMaxConfigBytes));
  const absl::StatusOr<Json> json = ParseJson(file.text(), JsonLimits{});
  if (!json.ok()) return Annotate(json.status(), kModules);
  if (!json->is_array()) {
    return absl::InvalidArgumentError(
        StrCat(kModules, ": is ", Describe(*json), ", must be a list of modules"));
  }
  std::vector<Module> modules;
  for (const Json& entry : *json) {
    const std::string where = StrCat(kModules, ": [", modules.size(), "]");
    if (!entry.is_object()) {
      return absl::InvalidArgumentError(
          StrCat(where, " is ", Describe(entry), ", must be an object"));
    }
    const JsonFields fields(entry, where + ".");
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view type, fields.String("type"));
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view path, fields.String("path"));
    modules.push_back({std::string(ClassName(type)), std::string(path)});
  }
  return modules;
}

absl::StatusOr<Pooling> ReadPooling(const fs::path& folder, const std::string& path) {
  const std::string name = path + "/config.json";
  if (!IsPlainName(path)) {
    return absl::InvalidArgumentError(StrCat(kModules, ": the pooling's path is \"",
                                             Printable(path), "\", must be a folder's name"));
  }
  MILLRACE_ASSIGN_OR_RETURN(const Json json, ReadFolderJson(folder, name, kMaxConfigBytes));
  const JsonFields fields(json, name + ": ");
  constexpr std::string_view kMode = "pooling_mode_";
  std::vector<std::string> modes;
  for (const auto& [key, value] : json.items()) {
    if (!key.starts_with(kMode)) continue;
    MILLRACE_ASSIGN_OR_RETURN(const bool on, fields.BoolOr(key, false));
    if (on) modes.push_back(key.substr(kMode.size()));
  }
  if (modes == std::vector<std::string>{"mean_tokens"}) return Pooling::kMean;
  if (modes == std::vector<std::string>{"cls_token"}) return Pooling::kFirst;
  return absl::UnimplementedError(StrCat(name, ": pooling_mode: \"", Printable(JoinList(modes)),
                                         "\" is not supported (supported: mean_tokens or "
                                         "cls_token, alone)"));
}

// Texts may be put in lower case before they are tokenized, which changes nothing where the
// tokenizer does so as well.
absl::Status CheckLowerCase(const fs::path& folder, const JsonFields& config) {
  constexpr char kField[] = "do_lower_case";
  constexpr char kTokenizerConfig[] = "tokenizer_config.json";
  MILLRACE_ASSIGN_OR_RETURN(const bool wanted, config.BoolOr(kField, false));
  if (!wanted || !HasFolderFile(folder, kTokenizerConfig)) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const Json json,
                            ReadFolderJson(folder, kTokenizerConfig, kMaxConfigBytes));
  MILLRACE_ASSIGN_OR_RETURN(const bool done,
                            JsonFields(json, StrCat(kTokenizerConfig, ": ")).BoolOr(kField, true));
  if (done) return absl::OkStatus();
  return config.Unsupported(kField, "true is not supported with a tokenizer that keeps the case");
}

// sentence-transformers puts the default prompt before a text for which none is asked for.
absl::Status CheckPrompts(const fs::path& folder) {
  if (!HasFolderFile(folder, kPromptConfig)) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const Json json,
                            ReadFolderJson(folder, kPromptConfig, kMaxConfigBytes));
  constexpr char kField[] = "default_prompt_name";
  const JsonFields fields(json, StrCat(kPromptConfig, ": "));
  if (fields.Find(kField) == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view name, fields.String(kField));
  if (fields.Find("prompts") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const JsonFields prompts, fields.Object("prompts"));
    const Json* const prompt = prompts.Find(name);
    if (prompt != nullptr && *prompt == "") return absl::OkStatus();
  }
  return fields.Unsupported(
      kField, StrCat("\"", Printable(name),
                     "\" is not supported: its prompt would stand before every text (supported: "
                     "null, or an empty prompt's)"));
}

}  // namespace

bool IsGgufEncoder(const GgufFile& file) {
  const auto architecture = file.String("general.architecture");
  return architecture.ok() && *architecture == kGgufEncoder;
}

bool IsHfEncoder(const JsonFields& config) {
  const auto names = config.Strings("architectures");
  return names.ok() && names->size() == 1 &&
         std::find(std::begin(kHfEncoders), std::end(kHfEncoders), (*names)[0]) !=
             std::end(kHfEncoders);
}

absl::StatusOr<ModelConfig> ReadGgufEncoder(const GgufFile& file) {
  ModelConfig config;
  EncoderConfig& encoder = config.encoder.emplace();
  config.architecture = kGgufEncoder;
  if (file.Find("general.name") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(config.name, file.String("general.name"));
  }
  const struct {
    const char* key;
    int max;
    int* value;
  } ints[] = {{"bert.block_count", kMaxLayers, &config.layers},
              {"bert.embedding_length", kMaxWidth, &config.hidden_size},
              {"bert.feed_forward_length", kMaxWidth, &config.ffn_size},
              {"bert.attention.head_count", kMaxHeads, &config.heads},
              {"bert.context_length", kMaxContext, &config.context_length}};
  for (const auto& field : ints) {
    MILLRACE_ASSIGN_OR_RETURN(const int64_t value, file.Int(field.key, 1, field.max));
    *field.value = static_cast<int>(value);
  }
  MILLRACE_RETURN_IF_ERROR(
      Annotate(FinishHeads(&config, "key bert.attention.head_count"), file.base_name()));
  constexpr char kEpsilon[] = "bert.attention.layer_norm_epsilon";
  MILLRACE_ASSIGN_OR_RETURN(config.rms_epsilon, file.Float(kEpsilon));
  if (!(config.rms_epsilon >= kLeastEpsilon && config.rms_epsilon <= kMostEpsilon)) {
    return absl::InvalidArgumentError(StrCat(file.base_name(), ": key ", kEpsilon, ": ",
                                             config.rms_epsilon, " is outside of ", kLeastEpsilon,
                                             " to ", kMostEpsilon));
  }
  constexpr char kCausal[] = "bert.attention.causal";
  if (file.Find(kCausal) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const bool causal, file.Bool(kCausal));
    if (causal) {
      return absl::UnimplementedError(
          StrCat(file.base_name(), ": key ", kCausal, ": true is not supported, only false"));
    }
  }
  // 1: mean, 2: cls; llama.cpp's other kinds are none, last and rank.
  constexpr char kPooling[] = "bert.pooling_type";
  if (file.Find(kPooling) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const int64_t type, file.Int(kPooling, 0, 1 << 16));
    if (type != 1 && type != 2) {
      return absl::UnimplementedError(
          StrCat(file.base_name(), ": key ", kPooling, ": ", type,
                 " is not supported (supported: 1, the mean, and 2, the first token's)"));
    }
    encoder.pooling = type == 1 ? Pooling::kMean : Pooling::kFirst;
  }
  encoder.normalize = true;
  const struct {
    const char* name;
    int max;
    int* rows;
  } tables[] = {{"token_embd.weight", kMaxVocab, &config.vocab_size},
                {"position_embd.weight", kMaxContext, &encoder.positions},
                {"token_types.weight", kMaxTokenTypes, &encoder.token_types}};
  for (const auto& table : tables) {
    const TensorInfo* tensor = file.FindTensor(table.name);
    if (tensor == nullptr || tensor->shape.empty() || tensor->shape[0] > table.max) {
      return absl::InvalidArgumentError(
          StrCat(file.base_name(), ": tensor ", table.name,
                 tensor == nullptr ? ": is missing" : ": has too many rows"));
    }
    *table.rows = static_cast<int>(tensor->shape[0]);
  }
  config.context_length = std::min(config.context_length, encoder.positions);
  return config;
}

absl::StatusOr<ModelConfig> ReadHfEncoder(const JsonFields& config) {
  ModelConfig model;
  EncoderConfig& encoder = model.encoder.emplace();
  model.architecture = kGgufEncoder;
  MILLRACE_ASSIGN_OR_RETURN(model.layers, ReadInt(config, "num_hidden_layers", kMaxLayers));
  MILLRACE_ASSIGN_OR_RETURN(model.hidden_size, ReadInt(config, "hidden_size", kMaxWidth));
  MILLRACE_ASSIGN_OR_RETURN(model.ffn_size, ReadInt(config, "intermediate_size", kMaxWidth));
  MILLRACE_ASSIGN_OR_RETURN(model.heads, ReadInt(config, "num_attention_heads", kMaxHeads));
  MILLRACE_ASSIGN_OR_RETURN(model.vocab_size, ReadInt(config, "vocab_size", kMaxVocab));
  MILLRACE_ASSIGN_OR_RETURN(encoder.positions,
                            ReadInt(config, "max_position_embeddings", kMaxContext));
  model.context_length = encoder.positions;
  encoder.token_types = 2;  // where transformers' config leaves it out
  if (config.Find("type_vocab_size") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(encoder.token_types,
                              ReadInt(config, "type_vocab_size", kMaxTokenTypes));
  }
  model.rms_epsilon = 1e-12;  // likewise
  if (config.Find("layer_norm_eps") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(model.rms_epsilon,
                              config.Float("layer_norm_eps", kLeastEpsilon, kMostEpsilon));
  }
  MILLRACE_RETURN_IF_ERROR(FinishHeads(&model, "config.json: num_attention_heads"));
  const std::pair<const char*, Json> neutral[] = {
      {"hidden_act", Json::array({"gelu"})},
      {"position_embedding_type", Json::array({"absolute"})},
      {"is_decoder", Json::array({false})},
      {"add_cross_attention", Json::array({false})},
      {"quantization_config", Json::array()}};
  for (const auto& [name, values] : neutral) {
    MILLRACE_RETURN_IF_ERROR(config.Refuse(name, values));
  }
  return model;
}

absl::Status ReadSentenceTransformer(const fs::path& folder, ModelConfig* config) {
  MILLRACE_RETURN_IF_ERROR(CheckPrompts(folder));
  if (!HasFolderFile(folder, kModules)) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<Module> modules, ReadModules(folder));
  std::vector<std::string> types;
  for (const Module& module : modules) types.push_back(module.type);
  const std::vector<std::string> plain = {"Transformer", "Pooling"};
  const std::vector<std::string> normalized = {"Transformer", "Pooling", "Normalize"};
  if ((types != plain && types != normalized) || !modules[0].path.empty()) {
    return absl::UnimplementedError(
        StrCat(kModules, ": \"", Printable(JoinList(types)),
               "\" is not supported (supported: Transformer, in the folder itself, and Pooling, "
               "and perhaps Normalize)"));
  }
  config->encoder->normalize = types == normalized;
  MILLRACE_ASSIGN_OR_RETURN(config->encoder->pooling, ReadPooling(folder, modules[1].path));
  if (!HasFolderFile(folder, kSentenceConfig)) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const Json json,
                            ReadFolderJson(folder, kSentenceConfig, kMaxConfigBytes));
  const JsonFields fields(json, StrCat(kSentenceConfig, ": "));
  MILLRACE_RETURN_IF_ERROR(CheckLowerCase(folder, fields));
  if (fields.Find("max_seq_length") == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const int longest, ReadInt(fields, "max_seq_length", kMaxContext));
  config->context_length = std::min(config->context_length, longest);
  return absl::OkStatus();
}

}  // namespace millrace
