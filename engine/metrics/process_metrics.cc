#include "engine/metrics/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "base/strings.h"

namespace millrace {
namespace {

std::string ReadFile(const char* path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Returns the text after the program's name in /proc/self/stat, from proc(5)'s field 3 on. The name
// stands in parentheses and may hold anything.
std::vector<std::string_view> StatFields(std::string_view stat) {
  const size_t name_end = stat.rfind(')');
  if (name_end == stat.npos) return {};
  return SplitList(stat.substr(name_end + 1), ' ');
}

// When the machine was started, in seconds since 1970.
std::optional<double> BootTime() {
  static const std::optional<int64_t> time = []() -> std::optional<int64_t> {
    const std::string stat = ReadFile("/proc/stat");
    for (const std::string_view line : SplitList(stat, '\n')) {
      if (line.starts_with("btime ")) return ParseNumber<int64_t>(line.substr(6));
    }
    return std::nullopt;
  }();
  return time;
}

std::optional<double> CountOpenFiles() {
  std::error_code error;
  double count = -1;  // without the directory that is being read
  for (std::filesystem::directory_iterator file("/proc/self/fd", error), end; !error && file != end;
       file.increment(error)) {
    ++count;
  }
  if (error) return std::nullopt;
  return count;
}

void Add(const char* name, const char* help, prometheus::MetricType type, double value,
         std::vector<prometheus::MetricFamily>& families) {
  prometheus::ClientMetric metric;
  if (type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  families.push_back({name, help, type, {std::move(metric)}});
}

// By proc(5)'s number, of which 3 is the first here.
std::optional<double> StatField(const std::vector<std::string_view>& fields, size_t number) {
  if (number - 3 >= fields.size()) return std::nullopt;
  return ParseNumber<uint64_t>(fields[number - 3]);
}

double TicksPerSecond() { return static_cast<double>(sysconf(_SC_CLK_TCK)); }

}  // namespace

std::optional<double> SecondsSinceProcessStart() {
  const std::string stat = ReadFile("/proc/self/stat");
  const std::optional<double> start = StatField(StatFields(stat), 22);  // ticks since the boot
  timespec now;
  if (!start.has_value() || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return std::nullopt;
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 -
         *start / TicksPerSecond();
}

std::vector<prometheus::MetricFamily> CollectProcessMetrics() {
  using prometheus::MetricType;
  std::vector<prometheus::MetricFamily> families;
  const auto add = [&](const char* name, const char* help, MetricType type, double value) {
    Add(name, help, type, value, families);
  };

  const std::string stat = ReadFile("/proc/self/stat");
  const std::vector<std::string_view> fields = StatFields(stat);
  const auto field = [&](size_t number) { return StatField(fields, number); };
  const double ticks = TicksPerSecond();
  if (const auto user = field(14), system = field(15); user && system) {
    add("process_cpu_seconds_total", "CPU time that the process has used.", MetricType::Counter,
        (*user + *system) / ticks);
  }
  if (const auto start = field(22), boot = BootTime(); start && boot) {
    add("process_start_time_seconds", "When the process was started, in seconds since 1970.",
        MetricType::Gauge, *boot + *start / ticks);
  }
  if (const auto bytes = field(23)) {
    add("process_virtual_memory_bytes", "Address space in use.", MetricType::Gauge, *bytes);
  }
  if (const auto pages = field(24)) {
    add("process_resident_memory_bytes", "Memory in use.", MetricType::Gauge,
        *pages * static_cast<double>(sysconf(_SC_PAGESIZE)));
  }
  if (const auto count = CountOpenFiles()) {
    add("process_open_fds", "Open files and sockets.", MetricType::Gauge, *count);
  }
  if (rlimit limit; getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    add("process_max_fds", "Most files and sockets that may be open.", MetricType::Gauge,
        static_cast<double>(limit.rlim_cur));
  }
  return families;
}

}  // namespace millrace
