#include "server/bench/machine.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "base/strings.h"
#include "config/value.h"

namespace millrace {
namespace {

// As the shell and nvidia-smi may be shown it: an index, or a UUID.
std::string FirstVisibleGpu() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::vector<std::string_view> names = SplitList(visible != nullptr ? visible : "");
  if (names.empty()) return "0";
  const bool plain = std::all_of(names[0].begin(), names[0].end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
  });
  return plain ? std::string(names[0]) : "0";
}

}  // namespace

Machine ReadMachine() {
  Machine machine{.cpu = "unknown", .cores = static_cast<int>(std::thread::hardware_concurrency())};
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != line.npos) {
      machine.cpu = line.substr(colon + 2);
      break;
    }
  }
  return machine;
}

std::optional<GpuReading> ParseGpuReading(std::string_view line) {
  const std::vector<std::string_view> cells = SplitList(Trim(line));
  if (cells.size() != 6) return std::nullopt;
  double numbers[4];
  for (size_t i = 0; i < 4; ++i) {
    const std::optional<double> number = ParseReal(cells[i + 2]);
    if (!number.has_value()) return std::nullopt;
    numbers[i] = *number;
  }
  return GpuReading{
      std::string(cells[0]), std::string(cells[1]), numbers[0], numbers[1], numbers[2], numbers[3]};
}

std::optional<GpuReading> ReadGpu() {
  const std::string command =
      "nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu "
      "--format=csv,noheader,nounits --id=" +
      FirstVisibleGpu() + " 2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  if (pipe == nullptr) return std::nullopt;
  char line[512];
  if (std::fgets(line, sizeof(line), pipe.get()) == nullptr) return std::nullopt;
  return ParseGpuReading(line);
}

}  // namespace millrace
