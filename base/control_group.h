// The CPU quota and memory limits of the control groups around this process, versions 1 and 2.
#ifndef MILLRACE_BASE_CONTROL_GROUP_H_
#define MILLRACE_BASE_CONTROL_GROUP_H_

#include <filesystem>
#include <string_view>
#include <vector>

namespace millrace {

struct ControlGroup {
  std::filesystem::path folder;  // of its files; it need not be there
  bool version2;
};

// Returns the process's control groups of a controller ("memory", "cpu"), each followed by those
// around it. `root` stands for /, for tests; so it does below.
std::vector<ControlGroup> ControlGroupsOf(std::string_view controller,
                                          const std::filesystem::path& root = "/");

// Returns how many cores this process may use, at least one: those of its affinity, or what its
// control groups give it of their time, rounded down. A thread beyond that would hold up all others
// whenever the quota is used up.
int UsableCores(const std::filesystem::path& root = "/");

}  // namespace millrace

#endif  // MILLRACE_BASE_CONTROL_GROUP_H_
