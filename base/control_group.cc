#include "base/control_group.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "base/strings.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Returns the cores that a group's quota is worth; nothing where it has none.
std::optional<double> QuotaOf(const ControlGroup& group) {
  std::string text = ReadAll(group.folder / "cpu.max");  // "150000 100000", or "max 100000"
  if (!group.version2) {
    text = StrCat(Trim(ReadAll(group.folder / "cpu.cfs_quota_us")), " ",
                  Trim(ReadAll(group.folder / "cpu.cfs_period_us")));
  }
  const std::vector<std::string_view> words = SplitList(Trim(text), ' ');
  if (words.size() != 2) return std::nullopt;
  const auto quota = ParseNumber<int64_t>(words[0]);  // "max" and -1 are none
  const auto period = ParseNumber<int64_t>(words[1]);
  if (!quota.has_value() || *quota <= 0 || period.value_or(0) <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

}  // namespace

std::vector<ControlGroup> ControlGroupsOf(std::string_view controller, const fs::path& root) {
  std::vector<ControlGroup> groups;
  const std::string lines = ReadAll(root / "proc/self/cgroup");
  for (const std::string_view line : SplitList(lines, '\n')) {
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string_view list = line.substr(first + 1, second - first - 1);
    const bool version2 = list.empty();
    const std::vector<std::string_view> controllers = SplitList(list);
    if (!version2 &&
        std::find(controllers.begin(), controllers.end(), controller) == controllers.end()) {
      continue;
    }
    // Version 1 has a folder named after the list, and links to it named after each of the list.
    const fs::path mount = root / "sys/fs/cgroup" / (version2 ? "" : controller);
    // In a container the path may be the host's, and the mount shows the group itself.
    for (fs::path group = fs::path(line.substr(second + 1)).relative_path();;
         group = group.parent_path()) {
      groups.push_back({mount / group, version2});
      if (group.empty()) break;
    }
  }
  return groups;
}

int UsableCores(const fs::path& root) {
  cpu_set_t set;
  int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  for (const ControlGroup& group : ControlGroupsOf("cpu", root)) {
    if (const auto quota = QuotaOf(group))
      cores = static_cast<int>(std::min<double>(cores, *quota));
  }
  return std::max(cores, 1);
}

}  // namespace millrace
