#include "server/local_models.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "base/strings.h"
#include "hub/cached_models.h"
#include "hub/hub.h"

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

}  // namespace

absl::Status GetModel(const Settings& settings, const std::atomic<bool>& stop) {
  HubRequest request{.name = settings.model, .offline = settings.offline, .stop = &stop};
  if (!settings.revision.empty()) request.revision = settings.revision;
  MILLRACE_ASSIGN_OR_RETURN(const std::string path, FetchHubModel(request));
  std::printf("%s\n", path.c_str());
  return absl::OkStatus();
}

absl::Status ListModels() {
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<CachedModel> models, ListCachedModels());
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
                       const std::string& size, const std::string& state) {
    std::printf("%-*s  %-*s  %8s  %s\n", static_cast<int>(names), name.c_str(),
                static_cast<int>(revisions), revision.c_str(), size.c_str(), state.c_str());
  };
  row("MODEL", "REVISION", "SIZE", "STATE");
  for (const CachedModel& model : models) {
    row(Printable(model.name, 256), Printable(shown(model)), ShortSize(model.bytes),
        model.missing.empty() ? "complete" : model.missing);
  }
  return absl::OkStatus();
}

absl::Status RemoveModel(const Settings& settings) {
  MILLRACE_ASSIGN_OR_RETURN(const uint64_t bytes, RemoveCachedModel(settings.model));
  std::printf("removed %s, %s\n", settings.model.c_str(), ShortSize(bytes).c_str());
  return absl::OkStatus();
}

}  // namespace millrace
