#include "server/default_model.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

constexpr char kDefaultFile[] = "SmolLM2-135M-Instruct.Q4_1.gguf";

// Empty where the environment names no home either.
std::filesystem::path CacheFolder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return std::filesystem::path(cache) / "millrace";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return std::filesystem::path(home) / ".cache" / "millrace";
  return {};
}

}  // namespace

absl::StatusOr<std::string> ModelPath(const Settings& settings) {
  if (settings.device == Device::kFake || !settings.model.empty()) return settings.model;
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

std::string ModelName(const Settings& settings, const std::string& path) {
  if (!settings.served_model_name.empty()) return settings.served_model_name;
  if (path.empty()) return "fake";
  std::filesystem::path file(path);
  if (!file.has_filename()) file = file.parent_path();  // a folder with a slash at its end
  return (file.extension() == ".gguf" ? file.stem() : file.filename()).string();
}

}  // namespace millrace
