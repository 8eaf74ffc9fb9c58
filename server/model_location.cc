#include "server/model_location.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "config/settings_table.h"
#include "executors/factory.h"
#include "executors/nodes.h"
#include "formats/gguf/gguf_split.h"
#include "hub/hub.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kServer);

constexpr char kDefaultFile[] = "SmolLM2-135M-Instruct.Q4_1.gguf";

// Empty where the environment names no home either.
std::filesystem::path CacheFolder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return std::filesystem::path(cache) / "millrace";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return std::filesystem::path(home) / ".cache" / "millrace";
  return {};
}

// Returns whether to look for it at the hub: files on disk go first, and a name of a GGUF file or a
// package is meant to be one.
bool IsOfHub(const std::string& name) {
  std::error_code error;
  const bool is_file = name.ends_with(".gguf") || IsPackage(name);
  return !std::filesystem::exists(name, error) && IsHubModel(name) &&
         (!is_file || name.find(':') != name.npos);
}

// `revision`: of the hub, empty where none is given.
absl::StatusOr<std::string> Resolve(std::string_view setting, std::string_view revision_setting,
                                    const std::string& revision, HubRequest request) {
  const std::string& name = request.name;
  if (!IsOfHub(name)) {
    if (revision.empty()) return name;
    return absl::InvalidArgumentError(StrCat(revision_setting, ": got ", Printable(revision),
                                             ", but --", setting, " ", Printable(name),
                                             " is a path, and no name of a model at the hub"));
  }
  if (!revision.empty()) request.revision = revision;
  absl::StatusOr<std::string> path = FetchHubModel(request);
  if (absl::IsNotFound(path.status())) {
    return Annotate(path.status(), StrCat(setting, ": ", Printable(name),
                                          " is no file or folder here, and at the hub"));
  }
  return path;
}

}  // namespace

absl::StatusOr<std::string> ModelPath(const Settings& settings, const std::atomic<bool>* stop,
                                      LoadProgress* progress) {
  if (settings.device == Device::kFake) return settings.model;
  if (!settings.model.empty()) {
    const bool dummy = settings.load_format == LoadFormat::kDummy;
    return Resolve("model", "revision", settings.revision,
                   {.name = settings.model,
                    .offline = settings.offline,
                    .content = dummy ? HubContent::kConfig : HubContent::kModel,
                    .stop = stop,
                    .progress = progress});
  }
  const std::filesystem::path folder = CacheFolder();
  if (folder.empty()) {
    return absl::NotFoundError(
        "model: none is named, and neither XDG_CACHE_HOME nor HOME says where the default model "
        "is; "
        "name one with --model FILE");
  }
  const std::filesystem::path path = folder / kDefaultFile;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return absl::NotFoundError(
        absl::StrCat("model: none is named, and the default model is not at ", path.string(),
                     "; fetch it with `scripts/fetch_model.sh` (`make serve` does so), or name one "
                     "with --model FILE"));
  }
  return path.string();
}

absl::StatusOr<std::string> TokenizerPath(const Settings& settings, const std::string& model_path,
                                          const std::atomic<bool>* stop, LoadProgress* progress) {
  if (settings.tokenizer.empty()) return model_path;
  return Resolve("tokenizer", "tokenizer-revision", settings.tokenizer_revision,
                 {.name = settings.tokenizer,
                  .offline = settings.offline,
                  .content = HubContent::kText,
                  .stop = stop,
                  .progress = progress});
}

namespace {

// Returns the defaults of a model that is one file, of which GGUF may have some.
absl::StatusOr<SamplingDefaults> DefaultsOfFile(const std::string& path) {
  if (!path.ends_with(".gguf")) return SamplingDefaults();
  constexpr std::string_view kSource =
      "general.sampling (--generation-config vllm does without it)";
  const absl::StatusOr<GenerationConfig> config = ReadGgufSampling(path);
  // A file that is no model is told of where it is loaded.
  if (!config.ok()) return SamplingDefaults();
  if (!config->not_followed.empty()) {
    kLog.Warning("the file has what is not followed: ", JoinList(config->not_followed));
  }
  return MakeSamplingDefaults(*config, kSource);
}

// Returns the defaults of the files that settings.generation_config chooses.
absl::StatusOr<SamplingDefaults> DefaultsOfFiles(const Settings& settings,
                                                 const std::string& model_path) {
  const bool own = settings.generation_config == "auto";
  const std::string& folder = own ? model_path : settings.generation_config;
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(folder, error);
  if (own && settings.model.empty() && settings.device != Device::kFake) {
    // As its authors sample it; a model of this size talks nonsense at a temperature of 1.
    return MakeSamplingDefaults({.temperature = 0.2f, .top_p = 0.9f});
  }
  if (settings.generation_config == "vllm") return SamplingDefaults();
  if (own && !is_folder) return DefaultsOfFile(model_path);
  if (!is_folder) {
    return absl::NotFoundError(absl::StrCat("generation-config: ", Printable(folder),
                                            " is no folder; allowed: auto, vllm, or a folder with "
                                            "generation_config.json"));
  }
  constexpr char kFile[] = "generation_config.json";
  if (!own && !std::filesystem::exists(std::filesystem::path(folder) / kFile, error)) {
    return absl::NotFoundError(
        absl::StrCat("generation-config: ", Printable(folder), " has no ", kFile));
  }
  absl::StatusOr<GenerationConfig> config = ReadGenerationConfig(folder);
  if (!config.ok()) {
    return Annotate(config.status(), "generation-config (vllm does without)");
  }
  if (!config->not_followed.empty()) {
    kLog.Warning("generation_config.json has what is not followed: ",
                 JoinList(config->not_followed));
  }
  absl::StatusOr<SamplingDefaults> defaults = MakeSamplingDefaults(*config);
  if (!defaults.ok()) {
    return Annotate(defaults.status(), "generation-config (vllm does without)");
  }
  return defaults;
}

}  // namespace

absl::StatusOr<SamplingDefaults> LoadSamplingDefaults(const Settings& settings,
                                                      const std::string& model_path) {
  MILLRACE_ASSIGN_OR_RETURN(SamplingDefaults defaults, DefaultsOfFiles(settings, model_path));
  const auto take = [](const auto& set, auto& value) {
    if (set.has_value()) value = static_cast<std::decay_t<decltype(value)>>(*set);
  };
  take(settings.temperature, defaults.params.temperature);
  take(settings.top_p, defaults.params.top_p);
  take(settings.top_k, defaults.params.top_k);
  take(settings.min_p, defaults.params.min_p);
  take(settings.typical_p, defaults.params.typical_p);
  take(settings.repetition_penalty, defaults.params.repetition_penalty);
  take(settings.frequency_penalty, defaults.params.frequency_penalty);
  take(settings.presence_penalty, defaults.params.presence_penalty);
  if (settings.max_tokens.has_value()) defaults.max_tokens = settings.max_tokens;
  return defaults;
}

absl::Status ExplainModelError(const Settings& settings, const std::string& path,
                               const absl::Status& status) {
  namespace fs = std::filesystem;
  const std::string_view message(status.message().data(), status.message().size());
  const std::string_view subject = message.substr(0, message.find_first_of(": "));
  const bool by_user = path == settings.model;  // not the hub's cache
  if (status.ok() || path.empty() || absl::IsCancelled(status) || IsDisagreement(status) ||
      (FindSetting(subject) != nullptr && fs::path(path).filename() != subject)) {
    return status;
  }
  std::error_code error;
  if (by_user && !fs::exists(path, error)) {
    return absl::NotFoundError(StrCat("model: ", Printable(path, 1024),
                                      ": there is no such file or folder; allowed: a GGUF file, a "
                                      "folder with config.json, or a name of the hub (org/name)"));
  }
  if (!fs::is_directory(path, error)) {
    return message.find(path) == message.npos && path.find('/') != path.npos
               ? Annotate(status, StrCat("model: ", Printable(path, 1024)))
               : status;
  }
  std::string hint;
  if (!fs::exists(fs::path(path) / "config.json", error)) {
    std::vector<std::string> files;
    for (fs::directory_iterator entry(path, error), end; !error && entry != end;
         entry.increment(error)) {
      if (entry->path().extension() == ".gguf") files.push_back(entry->path().filename().string());
    }
    std::sort(files.begin(), files.end());
    if (!files.empty()) hint = StrCat("; it has ", Printable(files.front()), ": name that file");
  }
  const absl::Status annotated = Annotate(status, StrCat("model: folder ", Printable(path, 1024)));
  return absl::Status(annotated.code(), StrCat(std::string(annotated.message()), hint));
}

std::string ModelName(const Settings& settings, const std::string& path) {
  if (!settings.served_model_names.empty()) return settings.served_model_names.front();
  if (path.empty()) return "fake";
  if (path != settings.model && IsHubModel(settings.model)) return settings.model;
  std::filesystem::path file(path);
  if (!file.has_filename()) file = file.parent_path();  // a folder with a slash at its end
  if (const auto part = ParseGgufPart(file.filename().string())) return part->prefix;
  const bool is_file = file.extension() == ".gguf" || IsPackage(path);
  return (is_file ? file.stem() : file.filename()).string();
}

ModelSpec MakeModelSpec(const Settings& settings, const std::string& path) {
  switch (settings.runner) {
    case Runner::kAuto:
      return {.path = path, .runner = ModelRunner::kAuto};
    case Runner::kGenerate:
      return {.path = path, .runner = ModelRunner::kGenerate};
    case Runner::kPooling:
      return {.path = path, .runner = ModelRunner::kPooling};
  }
  return {path};
}

}  // namespace millrace
