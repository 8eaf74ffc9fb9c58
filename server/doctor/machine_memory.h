// How much memory this process may still take.
#ifndef MILLRACE_SERVER_DOCTOR_MACHINE_MEMORY_H_
#define MILLRACE_SERVER_DOCTOR_MACHINE_MEMORY_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

struct MachineMemory {
  uint64_t total = 0;                     // the machine's
  uint64_t available = 0;                 // without swapping, as the kernel estimates it
  std::optional<uint64_t> group_left;     // of the container's or slice's limit (cgroup)
  std::optional<uint64_t> address_space;  // ulimit -v

  // The least of them, and what sets it.
  uint64_t usable() const;
  std::string_view limited_by() const;
};

// Reads /proc and the control group. `root` stands for /, for tests.
MachineMemory ReadMachineMemory(const std::filesystem::path& root = "/");

}  // namespace millrace

#endif  // MILLRACE_SERVER_DOCTOR_MACHINE_MEMORY_H_
