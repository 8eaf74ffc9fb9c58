// The machine beside the figures: what ran, and in which state.
#ifndef MILLRACE_SERVER_BENCH_MACHINE_H_
#define MILLRACE_SERVER_BENCH_MACHINE_H_

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

struct Machine {
  std::string cpu;  // as /proc/cpuinfo names it
  int cores;        // that this process may use
};
Machine ReadMachine();

// One answer of nvidia-smi.
struct GpuReading {
  std::string name;
  std::string driver;
  double sm_mhz;
  double memory_mhz;
  double watts;
  double celsius;
};

// Reads the first GPU that this process sees; takes some tens of milliseconds. Nothing: there is no
// nvidia-smi, or it does not answer in full.
std::optional<GpuReading> ReadGpu();

// Parses a line of nvidia-smi, as ReadGpu asks for it: "NVIDIA H200, 580.159.04, 1980, 3201, 312.5,
// 45".
std::optional<GpuReading> ParseGpuReading(std::string_view line);

}  // namespace millrace

#endif  // MILLRACE_SERVER_BENCH_MACHINE_H_
