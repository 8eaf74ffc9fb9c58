#include "formats/encoder_config.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/folder_file.h"
#include "formats/json_fields.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr char kModules[] = "modules.json";
constexpr char kSentenceConfig[] = "sentence_bert_config.json";
constexpr char kPromptConfig[] = "config_sentence_transformers.json";
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

// sentence-transformers' names of the kinds of pooling, behind "pooling_mode_".
struct PoolingName {
  std::string_view name;
  Pooling pooling;
};
constexpr PoolingName kEncoderPooling[] = {{"mean_tokens", Pooling::kMean},
                                           {"cls_token", Pooling::kFirst}};
// A decoder's first token sees no other.
constexpr PoolingName kDecoderPooling[] = {{"lasttoken", Pooling::kLast},
                                           {"mean_tokens", Pooling::kMean}};

absl::StatusOr<Pooling> ReadPooling(const fs::path& folder, const std::string& path,
                                    absl::Span<const PoolingName> names) {
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
  for (const PoolingName& known : names) {
    if (modes.size() == 1 && modes[0] == known.name) return known.pooling;
  }
  return absl::UnimplementedError(StrCat(name, ": pooling_mode: \"", Printable(JoinList(modes)),
                                         "\" is not supported (supported: ", names[0].name, " or ",
                                         names[1].name, ", alone)"));
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

absl::StatusOr<bool> HasPoolingModule(const fs::path& folder) {
  if (!HasFolderFile(folder, kModules)) return false;
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<Module> modules, ReadModules(folder));
  return std::any_of(modules.begin(), modules.end(),
                     [](const Module& module) { return module.type == "Pooling"; });
}

absl::Status ReadSentenceTransformer(const fs::path& folder, ModelConfig* config) {
  MILLRACE_RETURN_IF_ERROR(CheckPrompts(folder));
  if (!HasFolderFile(folder, kModules)) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<Module> modules, ReadModules(folder));
  std::vector<std::string> types;
  for (const Module& module : modules) types.push_back(module.type);
  const std::vector<std::string> plain = {"Transformer", "Pooling"};
  const std::vector<std::string> normalized = {"Transformer", "Pooling", "Normalize"};
  const bool scores = config->encoder.has_value() && config->encoder->classifier.has_value();
  if (scores && types == std::vector<std::string>{"Transformer"}) {
    return absl::OkStatus();  // sentence-transformers' CrossEncoder has its head in the model
  }
  if (scores || (types != plain && types != normalized) || !modules[0].path.empty()) {
    return absl::UnimplementedError(
        StrCat(kModules, ": \"", Printable(JoinList(types)),
               "\" is not supported (supported: Transformer, in the folder itself, and Pooling, "
               "and perhaps Normalize)"));
  }
  if (config->encoder.has_value()) {
    config->encoder->normalize = types == normalized;
    MILLRACE_ASSIGN_OR_RETURN(config->encoder->pooling,
                              ReadPooling(folder, modules[1].path, kEncoderPooling));
  } else {
    config->pooler->normalize = types == normalized;
    MILLRACE_ASSIGN_OR_RETURN(config->pooler->pooling,
                              ReadPooling(folder, modules[1].path, kDecoderPooling));
  }
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
