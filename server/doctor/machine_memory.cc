#include "server/doctor/machine_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "base/control_group.h"
#include "base/strings.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::optional<uint64_t> ReadBytes(const fs::path& path) {
  const std::string text = ReadAll(path);
  return ParseNumber<uint64_t>(Trim(text));
}

// "MemTotal:  16384 kB".
uint64_t FieldOf(std::string_view meminfo, std::string_view name) {
  for (const std::string_view line : SplitList(meminfo, '\n')) {
    if (!line.starts_with(name)) continue;
    const std::vector<std::string_view> words = SplitList(line.substr(name.size()), ' ');
    if (!words.empty()) return ParseNumber<uint64_t>(words[0]).value_or(0) << 10;
  }
  return 0;
}

// Returns what this process's control group leaves, and those around it: version 2, or 1.
std::optional<uint64_t> GroupLeft(const fs::path& root) {
  std::optional<uint64_t> left;
  const auto consider = [&left](const fs::path& folder, const char* limit, const char* used) {
    const std::optional<uint64_t> most = ReadBytes(folder / limit);
    // Version 1 writes a number near 2^63 for no limit, version 2 "max".
    if (!most.has_value() || *most > uint64_t{1} << 60) return;
    const uint64_t taken = ReadBytes(folder / used).value_or(0);
    const uint64_t rest = *most - std::min(*most, taken);
    left = std::min(left.value_or(rest), rest);
  };
  for (const ControlGroup& group : ControlGroupsOf("memory", root)) {
    consider(group.folder, group.version2 ? "memory.max" : "memory.limit_in_bytes",
             group.version2 ? "memory.current" : "memory.usage_in_bytes");
  }
  return left;
}

}  // namespace

uint64_t MachineMemory::usable() const {
  return std::min({available, group_left.value_or(available), address_space.value_or(available)});
}

std::string_view MachineMemory::limited_by() const {
  if (usable() == available) return "of the machine";
  return group_left == usable() ? "of the control group's limit" : "of the limit of address space";
}

MachineMemory ReadMachineMemory(const fs::path& root) {
  MachineMemory memory;
  const std::string meminfo = ReadAll(root / "proc/meminfo");
  memory.total = FieldOf(meminfo, "MemTotal:");
  memory.available = FieldOf(meminfo, "MemAvailable:");
  memory.group_left = GroupLeft(root);
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    memory.address_space = limit.rlim_cur;
  }
  return memory;
}

}  // namespace millrace
