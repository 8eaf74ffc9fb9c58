#include "formats/huggingface/encoder_config.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/families/classifier_config.h"
#include "formats/files/folder_file.h"
#include "formats/json/json_fields.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr char kModules[] = "modules.json";
constexpr char kSentenceConfig[] = "sentence_bert_config.json";
constexpr char kPromptConfig[] = "config_sentence_transformers.json";
constexpr char kTokenizerConfig[] = "tokenizer_config.json";
constexpr size_t kMaxConfigBytes = 1 << 20;

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

// sentence-transformers' names of the kinds of pooling: behind "pooling_mode_", and from its
// version 5.4 on as the value of "pooling_mode".
struct PoolingName {
  std::string_view flag;
  std::string_view value;
  Pooling pooling;
};
constexpr PoolingName kEncoderPooling[] = {{"mean_tokens", "mean", Pooling::kMean},
                                           {"cls_token", "cls", Pooling::kFirst}};
// A decoder's first token sees no other.
constexpr PoolingName kDecoderPooling[] = {{"lasttoken", "lasttoken", Pooling::kLast},
                                           {"mean_tokens", "mean", Pooling::kMean}};

constexpr char kMode[] = "pooling_mode";

// Returns the modes that are on, as the file calls them. Without a word of it, it is the mean.
absl::StatusOr<std::vector<std::string>> ReadModes(const JsonFields& fields) {
  if (fields.Find(kMode) != nullptr) {
    if (fields.Find(kMode)->is_array()) return fields.Strings(kMode);
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view mode, fields.String(kMode));
    return std::vector<std::string>{std::string(mode)};
  }
  const std::string flag = StrCat(kMode, "_");
  std::vector<std::string> modes;
  for (const auto& [key, value] : fields.object().items()) {
    if (!key.starts_with(flag)) continue;
    MILLRACE_ASSIGN_OR_RETURN(const bool on, fields.BoolOr(key, false));
    if (on) modes.push_back(key.substr(flag.size()));
  }
  if (modes.empty()) modes.emplace_back("mean_tokens");
  return modes;
}

// A module's folder, inside of the model's.
absl::StatusOr<Json> ReadModuleConfig(const fs::path& folder, const Module& module) {
  if (!IsPlainName(module.path)) {
    return absl::InvalidArgumentError(StrCat(kModules, ": the path of ", module.type, " is \"",
                                             Printable(module.path),
                                             "\", must be a folder's name"));
  }
  return ReadFolderJson(folder, module.path + "/config.json", kMaxConfigBytes);
}

struct PoolingConfig {
  Pooling pooling;
  bool with_prompt = true;  // the prompt's tokens are pooled, too
};

absl::StatusOr<PoolingConfig> ReadPooling(const fs::path& folder, const Module& module,
                                          absl::Span<const PoolingName> names) {
  MILLRACE_ASSIGN_OR_RETURN(const Json json, ReadModuleConfig(folder, module));
  const std::string name = module.path + "/config.json";
  const JsonFields fields(json, name + ": ");
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<std::string> modes, ReadModes(fields));
  MILLRACE_ASSIGN_OR_RETURN(const bool with_prompt, fields.BoolOr("include_prompt", true));
  for (const PoolingName& known : names) {
    if (modes.size() != 1 || (modes[0] != known.flag && modes[0] != known.value)) continue;
    return PoolingConfig{known.pooling, with_prompt};
  }
  return absl::UnimplementedError(StrCat(name, ": pooling_mode: \"", Printable(JoinList(modes)),
                                         "\" is not supported (supported: ", names[0].flag, " or ",
                                         names[1].flag, ", alone)"));
}

absl::StatusOr<HeadFunction> ReadFunction(const JsonFields& fields, std::string_view name) {
  constexpr std::pair<std::string_view, HeadFunction> kKnown[] = {
      {"Identity", HeadFunction::kIdentity}, {"Tanh", HeadFunction::kTanh},
      {"ReLU", HeadFunction::kRelu},         {"GELU", HeadFunction::kGelu},
      {"SiLU", HeadFunction::kSilu},         {"Sigmoid", HeadFunction::kSigmoid}};
  if (fields.Find(name) == nullptr) return HeadFunction::kTanh;
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view type, fields.String(name));
  for (const auto& [known, function] : kKnown) {
    if (type.starts_with("torch.nn.") && ClassName(type) == known) return function;
  }
  return fields.Unsupported(name,
                            StrCat("\"", Printable(type),
                                   "\" is not supported (supported: torch.nn's Identity, Tanh, "
                                   "ReLU, GELU, SiLU and Sigmoid)"));
}

// Reads a layer behind the pooling, whose input has `in` numbers.
absl::StatusOr<DenseLayer> ReadDense(const fs::path& folder, const Module& module, int in) {
  MILLRACE_ASSIGN_OR_RETURN(const Json json, ReadModuleConfig(folder, module));
  const JsonFields fields(json, module.path + "/config.json: ");
  DenseLayer layer{.folder = module.path};
  MILLRACE_ASSIGN_OR_RETURN(layer.in, ReadInt(fields, "in_features", kMaxWidth));
  MILLRACE_ASSIGN_OR_RETURN(layer.out, ReadInt(fields, "out_features", kMaxWidth));
  if (layer.in != in) {
    return fields.Bad("in_features", StrCat(layer.in, ", must be ", in, ", the size of its input"));
  }
  MILLRACE_ASSIGN_OR_RETURN(layer.bias, fields.BoolOr("bias", true));
  MILLRACE_ASSIGN_OR_RETURN(layer.function, ReadFunction(fields, "activation_function"));
  for (const char* name : {"module_input_name", "module_output_name"}) {
    MILLRACE_RETURN_IF_ERROR(fields.Refuse(name, Json::array({"sentence_embedding"})));
  }
  MILLRACE_RETURN_IF_ERROR(fields.Refuse("use_residual", Json::array({false})));
  return layer;
}

// Texts may be put in lower case before they are tokenized, which changes nothing where the
// tokenizer does so as well.
absl::Status CheckLowerCase(const fs::path& folder, const JsonFields& config) {
  constexpr char kField[] = "do_lower_case";
  MILLRACE_ASSIGN_OR_RETURN(const bool wanted, config.BoolOr(kField, false));
  if (!wanted || !HasFolderFile(folder, kTokenizerConfig)) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const Json json,
                            ReadFolderJson(folder, kTokenizerConfig, kMaxConfigBytes));
  MILLRACE_ASSIGN_OR_RETURN(const bool done,
                            JsonFields(json, StrCat(kTokenizerConfig, ": ")).BoolOr(kField, true));
  if (done) return absl::OkStatus();
  return config.Unsupported(kField, "true is not supported with a tokenizer that keeps the case");
}

// sentence-transformers puts the default prompt before a text for which none is asked for. Returns
// it, or "" where there is none.
absl::StatusOr<std::string> ReadDefaultPrompt(const JsonFields& fields) {
  constexpr char kField[] = "default_prompt_name";
  constexpr char kPrompts[] = "prompts";
  if (fields.Find(kField) == nullptr) return std::string();
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view name, fields.String(kField));
  if (fields.Find(kPrompts) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const JsonFields prompts, fields.Object(kPrompts));
    if (prompts.Find(name) != nullptr) {
      MILLRACE_ASSIGN_OR_RETURN(const std::string_view prompt, prompts.String(name));
      return std::string(prompt);
    }
  }
  return fields.Bad(kField,
                    StrCat("\"", Printable(name), "\" is not the name of one of ", kPrompts));
}

// Reads what stands for the whole model: its default prompt, and from version 5.4 on the function
// of a cross-encoder's scores.
absl::Status ReadModelWide(const fs::path& folder, ModelConfig* config) {
  if (!HasFolderFile(folder, kPromptConfig)) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const Json json,
                            ReadFolderJson(folder, kPromptConfig, kMaxConfigBytes));
  const JsonFields fields(json, StrCat(kPromptConfig, ": "));
  MILLRACE_ASSIGN_OR_RETURN(config->embedding_prompt, ReadDefaultPrompt(fields));
  if (!config->encoder.has_value() || !config->encoder->classifier.has_value()) {
    return absl::OkStatus();
  }
  if (!config->embedding_prompt.empty()) {
    return fields.Unsupported("default_prompt_name",
                              "is not supported of a model that scores pairs (supported: null)");
  }
  return ReadScoreFunction(fields, "activation_fn", &*config->encoder->classifier);
}

// Bounds a text by what transformers cuts it to: max_seq_length, which version 5.4 and later leave
// to the tokenizer's model_max_length.
absl::Status ReadLongest(const fs::path& folder, ModelConfig* config) {
  constexpr char kLongest[] = "max_seq_length";
  constexpr char kTokenizerLongest[] = "model_max_length";
  if (HasFolderFile(folder, kSentenceConfig)) {
    MILLRACE_ASSIGN_OR_RETURN(const Json json,
                              ReadFolderJson(folder, kSentenceConfig, kMaxConfigBytes));
    const JsonFields fields(json, StrCat(kSentenceConfig, ": "));
    MILLRACE_RETURN_IF_ERROR(CheckLowerCase(folder, fields));
    if (fields.Find(kLongest) != nullptr) {
      MILLRACE_ASSIGN_OR_RETURN(const int longest, ReadInt(fields, kLongest, kMaxContext));
      config->context_length = std::min(config->context_length, longest);
      return absl::OkStatus();
    }
  }
  if (!HasFolderFile(folder, kTokenizerConfig)) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const Json json,
                            ReadFolderJson(folder, kTokenizerConfig, kMaxConfigBytes));
  const JsonFields fields(json, StrCat(kTokenizerConfig, ": "));
  const Json* const longest = fields.Find(kTokenizerLongest);
  // A number beyond all integers says that there is no bound.
  if (longest == nullptr || (longest->is_number() && longest->get<double>() > kMaxContext)) {
    return absl::OkStatus();
  }
  MILLRACE_ASSIGN_OR_RETURN(const int most, ReadInt(fields, kTokenizerLongest, kMaxContext));
  config->context_length = std::min(config->context_length, most);
  return absl::OkStatus();
}

// Reads the modules behind Transformer and Pooling: Dense layers, then perhaps Normalize.
absl::Status ReadTail(const fs::path& folder, absl::Span<const Module> modules,
                      EncoderConfig* encoder, int size) {
  encoder->normalize = false;
  for (const Module& module : modules) {
    if (module.type == "Normalize") {
      encoder->normalize = true;
      continue;
    }
    MILLRACE_ASSIGN_OR_RETURN(encoder->dense.emplace_back(), ReadDense(folder, module, size));
    size = encoder->dense.back().out;
  }
  return absl::OkStatus();
}

// Returns whether they are Transformer, Pooling, any number of Dense layers if `dense`, and perhaps
// Normalize.
bool AreSupported(absl::Span<const Module> modules, bool dense) {
  size_t i = 0;
  for (const char* type : {"Transformer", "Pooling"}) {
    if (i == modules.size() || modules[i++].type != type) return false;
  }
  while (dense && i < modules.size() && modules[i].type == "Dense") ++i;
  if (i < modules.size() && modules[i].type == "Normalize") ++i;
  return i == modules.size() && modules[0].path.empty();
}

}  // namespace

absl::StatusOr<bool> HasPoolingModule(const fs::path& folder) {
  if (!HasFolderFile(folder, kModules)) return false;
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<Module> modules, ReadModules(folder));
  return std::any_of(modules.begin(), modules.end(),
                     [](const Module& module) { return module.type == "Pooling"; });
}

absl::Status ReadSentenceTransformer(const fs::path& folder, ModelConfig* config) {
  MILLRACE_RETURN_IF_ERROR(ReadModelWide(folder, config));
  if (!HasFolderFile(folder, kModules)) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<Module> modules, ReadModules(folder));
  const bool encodes = config->encoder.has_value();
  const bool scores = encodes && config->encoder->classifier.has_value();
  if (scores && modules.size() == 1 && modules[0].type == "Transformer") {
    return ReadLongest(folder, config);  // a CrossEncoder, which has its head in the model
  }
  if (scores || !AreSupported(modules, /*dense=*/encodes)) {
    std::vector<std::string> types;
    for (const Module& module : modules) types.push_back(module.type);
    return absl::UnimplementedError(
        StrCat(kModules, ": \"", Printable(JoinList(types)),
               "\" is not supported (supported: Transformer, in the folder itself, and Pooling, ",
               encodes ? "perhaps Dense layers, " : "", "and perhaps Normalize)"));
  }
  MILLRACE_ASSIGN_OR_RETURN(const PoolingConfig pooling,
                            ReadPooling(folder, modules[1],
                                        encodes ? absl::MakeConstSpan(kEncoderPooling)
                                                : absl::MakeConstSpan(kDecoderPooling)));
  if (!pooling.with_prompt && !config->embedding_prompt.empty()) {
    return absl::UnimplementedError(
        StrCat(modules[1].path,
               "/config.json: include_prompt: false is not supported with a "
               "default prompt (supported: true)"));
  }
  const auto tail = absl::MakeConstSpan(modules).subspan(2);
  if (encodes) {
    config->encoder->pooling = pooling.pooling;
    MILLRACE_RETURN_IF_ERROR(ReadTail(folder, tail, &*config->encoder, config->hidden_size));
  } else {
    config->pooler->pooling = pooling.pooling;
    config->pooler->normalize = !tail.empty();
  }
  return ReadLongest(folder, config);
}

}  // namespace millrace
