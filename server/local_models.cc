#include "server/local_models.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/strings.h"
#include "hub/cached_models.h"
#include "hub/hub.h"
#include "server/model_location.h"

namespace millrace {
namespace {

// "1.5 GB": powers of 1000, as the hub shows sizes.
std::string ShortSize(uint64_t bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < std::size(units); ++unit) value /= 1000;
  char text[32];
  std::snprintf(text, sizeof(text), value < 10 && unit > 0 ? "%.1f %s" : "%.0f %s", value,
                units[unit]);
  return text;
}

// "3 days ago".
std::string Ago(int64_t seconds) {
  constexpr struct {
    int64_t seconds;
    const char* name;
  } kUnits[] = {{86400, "day"}, {3600, "hour"}, {60, "minute"}};
  for (const auto& unit : kUnits) {
    const int64_t count = seconds / unit.seconds;
    if (count > 0) return StrCat(count, " ", unit.name, count == 1 ? "" : "s", " ago");
  }
  return "now";
}

// Returns the model that is served where none is named; nothing if it is not there.
std::optional<CachedModel> DefaultModel() {
  const absl::StatusOr<std::string> path = ModelPath(Settings());
  struct stat found;
  if (!path.ok() || stat(path->c_str(), &found) != 0) return std::nullopt;
  return CachedModel{.name = *path,
                     .revision = "default",
                     .bytes = static_cast<uint64_t>(found.st_size),
                     .used = std::max<int64_t>(found.st_atime, found.st_mtime),
                     .missing = ""};
}

}  // namespace

absl::Status GetModel(const Settings& settings, const std::atomic<bool>& stop) {
  HubRequest request{.name = settings.model, .offline = settings.offline, .stop = &stop};
  if (!settings.revision.empty()) request.revision = settings.revision;
  MILLRACE_ASSIGN_OR_RETURN(const std::string path, FetchHubModel(request));
  std::printf("%s\n", path.c_str());
  return absl::OkStatus();
}

absl::Status ListModels() {
  MILLRACE_ASSIGN_OR_RETURN(std::vector<CachedModel> models, ListCachedModels());
  if (std::optional<CachedModel> standard = DefaultModel()) {
    models.insert(models.begin(), *std::move(standard));
  }
  if (models.empty()) {
    std::printf("no models; `millraced get org/name` fetches one\n");
    return absl::OkStatus();
  }
  size_t names = 5;
  size_t revisions = 8;
  const auto shown = [](const CachedModel& model) {
    return model.revision.empty() ? "-" : model.revision.substr(0, 12);
  };
  for (const CachedModel& model : models) {
    names = std::max(names, model.name.size());
    revisions = std::max(revisions, shown(model).size());
  }
  const auto row = [&](const std::string& name, const std::string& revision,
                       const std::string& size, const std::string& used, const std::string& state) {
    std::printf("%-*s  %-*s  %8s  %-10s  %s\n", static_cast<int>(names), name.c_str(),
                static_cast<int>(revisions), revision.c_str(), size.c_str(), used.c_str(),
                state.c_str());
  };
  row("MODEL", "REVISION", "SIZE", "USED", "STATE");
  const int64_t now = absl::ToUnixSeconds(absl::Now());
  for (const CachedModel& model : models) {
    row(Printable(model.name, 256), Printable(shown(model)), ShortSize(model.bytes),
        Ago(now - model.used), model.missing.empty() ? "complete" : model.missing);
  }
  return absl::OkStatus();
}

absl::Status RemoveModel(const Settings& settings) {
  MILLRACE_ASSIGN_OR_RETURN(const uint64_t bytes, RemoveCachedModel(settings.model));
  std::printf("removed %s, %s\n", settings.model.c_str(), ShortSize(bytes).c_str());
  return absl::OkStatus();
}

}  // namespace millrace
