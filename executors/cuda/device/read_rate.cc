#include "executors/cuda/device/read_rate.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kernels/step/read_memory.h"

namespace millrace::cuda {
namespace {

constexpr size_t kLeastBytes = size_t{256} << 20;  // five times an H200's L2 cache
constexpr size_t kMostBytes = size_t{1} << 31;
constexpr int kRuns = 7;
constexpr int kLaunches = 4;  // in a run, so that its begin and end weigh little

absl::StatusOr<Event> MakeTimingEvent() {
  cudaEvent_t event = nullptr;
  MILLRACE_RETURN_IF_ERROR(ToStatus(cudaEventCreate(&event), "making an event"));
  return Event(event);
}

class ReadTimer {
 public:
  static absl::StatusOr<ReadTimer> Make(const DeviceMemory& memory) {
    ReadTimer timer;
    MILLRACE_ASSIGN_OR_RETURN(timer.stream_, MakeStream());
    MILLRACE_ASSIGN_OR_RETURN(timer.begin_, MakeTimingEvent());
    MILLRACE_ASSIGN_OR_RETURN(timer.end_, MakeTimingEvent());
    MILLRACE_ASSIGN_OR_RETURN(timer.sink_, DeviceMemory::Allocate(sizeof(uint32_t), "a sink"));
    timer.args_ = {.from = memory.data(),
                   .bytes = std::min(memory.bytes(), kMostBytes) / kernels::kReadMemoryBytes *
                            kernels::kReadMemoryBytes,
                   .sink = timer.sink_.As<uint32_t>(),
                   .ctas = 1};
    return timer;
  }

  size_t bytes() const { return args_.bytes; }

  // Returns the median seconds of a launch.
  absl::StatusOr<double> Seconds(int ctas) {
    args_.ctas = ctas;
    MILLRACE_RETURN_IF_ERROR(Run().status());  // warms up
    std::vector<double> seconds;
    for (int i = 0; i < kRuns; ++i) {
      MILLRACE_ASSIGN_OR_RETURN(const double run, Run());
      seconds.push_back(run);
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[kRuns / 2];
  }

 private:
  absl::StatusOr<double> Run() {
    constexpr char kWhat[] = "measuring the read rate";
    MILLRACE_RETURN_IF_ERROR(ToStatus(cudaEventRecord(begin_.get(), stream_.get()), kWhat));
    for (int i = 0; i < kLaunches; ++i) {
      MILLRACE_RETURN_IF_ERROR(ToStatus(kernels::LaunchReadMemory(args_, stream_.get()), kWhat));
    }
    MILLRACE_RETURN_IF_ERROR(ToStatus(cudaEventRecord(end_.get(), stream_.get()), kWhat));
    MILLRACE_RETURN_IF_ERROR(ToStatus(cudaEventSynchronize(end_.get()), kWhat));
    float ms = 0;
    MILLRACE_RETURN_IF_ERROR(ToStatus(cudaEventElapsedTime(&ms, begin_.get(), end_.get()), kWhat));
    return ms / 1e3 / kLaunches;
  }

  Stream stream_;
  Event begin_, end_;
  DeviceMemory sink_;
  kernels::ReadMemoryArgs args_{};
};

absl::StatusOr<double> Measure(const DeviceMemory& memory) {
  int multiprocessors = 0;
  MILLRACE_RETURN_IF_ERROR(
      ToStatus(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0),
               "counting multiprocessors"));
  MILLRACE_ASSIGN_OR_RETURN(ReadTimer timer, ReadTimer::Make(memory));
  double best = 0;
  for (const int ctas : {2, 4, 8}) {  // for each multiprocessor
    MILLRACE_ASSIGN_OR_RETURN(const double seconds, timer.Seconds(ctas * multiprocessors));
    best = std::max(best, static_cast<double>(timer.bytes()) / seconds);
  }
  return best;
}

}  // namespace

std::optional<double> MeasureReadRate(const DeviceMemory& memory) {
  if (memory.bytes() < kLeastBytes) return std::nullopt;
  const absl::StatusOr<double> rate = Measure(memory);
  if (!rate.ok()) return std::nullopt;
  return *rate;
}

}  // namespace millrace::cuda
