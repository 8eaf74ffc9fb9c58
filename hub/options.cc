#include "hub/options.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "base/log.h"
#include "base/regular_file.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr Logger kLog(LogComponent::kHub);
constexpr size_t kMaxToken = 4096;
constexpr size_t kMaxTokenFile = 64 << 10;  // with white space around it
constexpr char kVariableCharacters[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Expands "~/cache" to a folder of HOME, and $NAME and ${NAME} to the variable if it is set, as
// huggingface_hub does.
std::string Expanded(std::string path) {
  const std::string home = Variable("HOME");
  if (!home.empty() && (path == "~" || path.starts_with("~/"))) path.replace(0, 1, home);
  std::string expanded;
  for (size_t at = 0; at < path.size();) {
    const bool braced = path.compare(at, 2, "${") == 0;
    const size_t begin = at + (braced ? 2 : 1);
    const size_t end = std::min(path.find_first_not_of(kVariableCharacters, begin), path.size());
    const bool named = path[at] == '$' && end > begin && (!braced || path.substr(end, 1) == "}");
    const char* const value =
        named ? std::getenv(path.substr(begin, end - begin).c_str()) : nullptr;
    if (value == nullptr) {
      expanded += path[at++];
    } else {
      expanded += value;
      at = end + (braced ? 1 : 0);
    }
  }
  return expanded;
}

bool IsTrue(std::string text) {
  absl::AsciiStrToLower(&text);
  return text == "1" || text == "on" || text == "yes" || text == "true";
}

std::string Home() {
  if (const std::string home = Variable("HF_HOME"); !home.empty()) return Expanded(home);
  fs::path cache = Expanded(Variable("XDG_CACHE_HOME"));
  if (cache.empty()) {
    if (Variable("HOME").empty()) return "";
    cache = fs::path(Variable("HOME")) / ".cache";
  }
  return cache / "huggingface";
}

// Checks a token, which is sent in a header. `source` says where it comes from.
absl::StatusOr<std::string> Checked(std::string_view token, const std::string& source) {
  token = Trim(token);
  if (token.size() <= kMaxToken &&
      std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 0x7F; })) {
    return std::string(token);
  }
  return absl::InvalidArgumentError(StrCat("hub: ", source,
                                           " holds an invalid token; allowed: at most ", kMaxToken,
                                           " visible ASCII characters"));
}

}  // namespace

absl::StatusOr<std::string> HubToken() {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (const std::string token = Variable(name); !Trim(token).empty()) return Checked(token, name);
  }
  const std::string home = Home();
  std::string path = Expanded(Variable("HF_TOKEN_PATH"));
  if (path.empty() && !home.empty()) path = fs::path(home) / "token";
  const absl::StatusOr<std::string> text = ReadRegularFile(path, kMaxTokenFile);
  if (text.ok()) return Checked(*text, path);
  if (!path.empty() && !absl::IsNotFound(text.status())) {
    kLog.Warning("hub: no token is sent: cannot read ", Printable(path), ": ",
                 std::string(text.status().message()));
  }
  return std::string();
}

absl::StatusOr<HubOptions> HubOptionsOfEnvironment() {
  HubOptions options;
  const std::string home = Home();
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (options.cache.empty()) options.cache = Expanded(Variable(name));
  }
  if (options.cache.empty() && !home.empty()) options.cache = fs::path(home) / "hub";
  if (options.cache.empty()) {
    return absl::FailedPreconditionError(
        "hub: none of HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME says where the cache is");
  }
  if (std::string endpoint = Variable("HF_ENDPOINT"); !endpoint.empty()) {
    while (endpoint.ends_with('/')) endpoint.pop_back();
    options.endpoint = std::move(endpoint);
  }
  options.offline = IsTrue(Variable("HF_HUB_OFFLINE")) || IsTrue(Variable("TRANSFORMERS_OFFLINE"));
  return options;
}

}  // namespace millrace
