#include "config/sources.h"

#include <sys/stat.h>
#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <utility>

#include "base/regular_file.h"
#include "base/status.h"
#include "base/strings.h"
#include "config/flags.h"

namespace millrace {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

std::string Where(const std::string& path, const YAML::Mark& mark) {
  return StrCat(path, ":", mark.line + 1);
}

absl::Status AddValue(const Setting* setting, const YAML::Node& node, const std::string& origin,
                      std::vector<Assignment>& assignments) {
  if (!node.IsScalar()) {
    return absl::InvalidArgumentError(StrCat(origin, ": got ",
                                             node.IsNull() ? "nothing" : "more than one value",
                                             ", expected ", setting->allowed));
  }
  assignments.push_back({setting, node.Scalar(), origin});
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Assignment>> ReadMap(const YAML::Node& root, const std::string& path) {
  std::vector<Assignment> assignments;
  std::set<const Setting*> seen;
  for (const auto& entry : root) {
    const std::string where = Where(path, entry.first.Mark());
    const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
    const Setting* setting = FindSetting(name);
    if (setting == nullptr || setting->name == "config") {
      return absl::InvalidArgumentError(StrCat(where, ": ", Printable(name),
                                               ": there is no such setting in a file; ",
                                               AdviceOnUnknown(name, /*dashes=*/"")));
    }
    const std::string origin = StrCat(where, ": ", name);
    if (!seen.insert(setting).second) {
      return absl::InvalidArgumentError(StrCat(origin, ": is set a second time"));
    }
    if (setting->kind == SettingKind::kList && entry.second.IsSequence()) {
      for (const YAML::Node& item : entry.second) {
        MILLRACE_RETURN_IF_ERROR(AddValue(setting, item, origin, assignments));
      }
    } else {
      MILLRACE_RETURN_IF_ERROR(AddValue(setting, entry.second, origin, assignments));
    }
  }
  return assignments;
}

}  // namespace

std::vector<Assignment> ReadEnvironment(const std::vector<std::string>& environment,
                                        std::vector<std::string>& warnings) {
  std::vector<Assignment> assignments;
  for (const std::string_view variable : environment) {
    constexpr std::string_view kPrefix = "MILLRACE_";
    const size_t equals = variable.find('=');
    if (!variable.starts_with(kPrefix) || equals == variable.npos) continue;
    const std::string_view name = variable.substr(0, equals);
    const std::string_view value = variable.substr(equals + 1);
    if (value.empty()) continue;

    std::string setting_name;
    for (const char c : name.substr(kPrefix.size())) setting_name += absl::ascii_tolower(c);
    const Setting* setting = FindSetting(setting_name);
    if (setting != nullptr && EnvironmentName(*setting) == name) {
      assignments.push_back({setting, std::string(value), StrCat("environment ", name)});
    } else if (const Setting* near = NearestSetting(setting_name)) {
      warnings.push_back(StrCat("environment ", Printable(name),
                                ": there is no such setting; did you mean ", EnvironmentName(*near),
                                "?"));
    }
  }
  return assignments;
}

absl::StatusOr<std::vector<Assignment>> ParseFile(std::string_view text, const std::string& path) {
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    if (documents.empty() || (documents.size() == 1 && documents[0].IsNull())) {
      return std::vector<Assignment>();
    }
    if (documents.size() > 1 || !documents[0].IsMap()) {
      return absl::InvalidArgumentError(
          StrCat(path, ": expected one map of settings to their values"));
    }
    return ReadMap(documents[0], path);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        StrCat(Where(path, error.mark), ": is neither YAML nor JSON: ", error.msg));
  }
}

absl::StatusOr<std::vector<Assignment>> ReadFile(const std::string& path, Pipes pipes) {
  struct stat info = {};
  const bool read_pipe =
      pipes == Pipes::kRead && stat(path.c_str(), &info) == 0 && S_ISFIFO(info.st_mode);
  if (!read_pipe) {
    const absl::StatusOr<std::string> text = ReadRegularFile(path, kMaxFileBytes);
    if (text.ok()) return ParseFile(*text, path);
    if (absl::IsOutOfRange(text.status())) {
      return absl::InvalidArgumentError(StrCat(path, ": is larger than 1 MiB"));
    }
    return absl::InvalidArgumentError(
        StrCat(path, ": cannot be read: ", std::string(text.status().message())));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(file.gcount());
  if (!file.eof() && errno != 0) {
    return absl::InvalidArgumentError(StrCat(path, ": cannot be read: ", std::strerror(errno)));
  }
  if (text.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(StrCat(path, ": is larger than 1 MiB"));
  }
  return ParseFile(text, path);
}

}  // namespace millrace
