// Benchmark harness of the kernels: times launches inside a replayed graph on inputs that are not
// in the L2 cache, measures the memory's read rate in the same run, and prints a table.
//
//   Bench bench("RMS norm");
//   const int inputs = RotatedInputs(bytes of one launch);
//   const double us = bench.Microseconds(inputs, [&](int input, cudaStream_t stream) {
//     return LaunchX({.in = memory.get() + input * size, ...}, stream);
//   });
//   bench.Row("rms_norm", "256 x 4096", us, bytes);
//
// Include it in .cu files only, since it contains kernels.
#ifndef MILLRACE_KERNELS_BENCH_UTIL_H_
#define MILLRACE_KERNELS_BENCH_UTIL_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/fp8.cuh"
#include "kernels/graph_test_util.h"
#include "kernels/step/read_memory.h"
#include "kernels/test_util.h"
#include "kernels/types.h"

namespace millrace::kernels {

// Returns how many sets of inputs exceed 300 MB, five times an H200's L2 cache, when one launch
// reads and writes `bytes` (at most 1024). Rotating through them keeps each launch's inputs out of
// the cache.
inline int RotatedInputs(double bytes) {
  return static_cast<int>(std::clamp(3e8 / std::max(bytes, 1.0) + 1, 2.0, 1024.0));
}

// Fills `out` with values uniform in [-amplitude, amplitude), from a hash of (seed, i). Timing on
// zeros would be wrong.
template <typename T>  // float, Bf16, or uint8_t for FP8 codes
__global__ void FillUniformKernel(T* out, size_t size, uint32_t seed, float amplitude) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < size;
       i += size_t{gridDim.x} * blockDim.x) {
    uint32_t bits = static_cast<uint32_t>(i) * 0x9e3779b9u + seed;  // murmur3's finalizer
    bits = (bits ^ (bits >> 16)) * 0x85ebca6bu;
    bits = (bits ^ (bits >> 13)) * 0xc2b2ae35u;
    bits ^= bits >> 16;
    const float value = amplitude * (static_cast<float>(bits >> 8) * 0x1p-23f - 1.0f);
    if constexpr (std::is_same_v<T, uint8_t>) {
      out[i] = Fp8Code(value, 1.0f);
    } else {
      out[i] = static_cast<T>(value);
    }
  }
}

template <typename T>
void FillUniform(T* out, size_t size, uint32_t seed, float amplitude = 1) {
  FillUniformKernel<<<1024, 256>>>(out, size, seed, amplitude);
  CheckCuda(cudaGetLastError(), "fill");
}

class Bench {
 public:
  explicit Bench(const std::string& title) {
    CheckCuda(cudaStreamCreate(&stream_), "stream");
    CheckCuda(cudaEventCreate(&begin_), "event");
    CheckCuda(cudaEventCreate(&end_), "event");
    std::printf("## %s\n", title.c_str());
    PrintMachine("before");
    read_rate_ = MeasureReadRate();
    std::printf("read rate: %.0f GB/s\n\n", read_rate_ / 1e9);
    std::printf("| %-28s | %-28s | %9s | %7s | %5s | %9s | %5s |\n", "kernel", "shape", "us",
                "GB/s", "share", "peer us", "ratio");
    std::printf("|---|---|---|---|---|---|---|\n");
  }
  ~Bench() {
    std::printf("\n");
    PrintMachine("after");
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  // Returns the bytes per second of a kernel that only reads.
  double read_rate() const { return read_rate_; }

  // Returns the median over 15 replays of a graph of dependent launches, in µs per launch. `launch`
  // is called with input = 0, 1, ..., inputs - 1, repeatedly, and must launch the same work each
  // time on the given stream.
  double Microseconds(int inputs, const std::function<cudaError_t(int, cudaStream_t)>& launch) {
    const double once = Replay(inputs, 1, 3, launch);
    // A replay takes about a millisecond: long against the start of a graph, short as a whole.
    const int repeats = std::clamp(static_cast<int>(1000 / std::max(once, 1.0) / inputs), 1, 200);
    return Replay(inputs, repeats, 15, launch);
  }

  // As above, with a fixed number of rounds over the inputs and of replays.
  double Replay(int inputs, int repeats, int replays,
                const std::function<cudaError_t(int, cudaStream_t)>& launch) {
    CheckCuda(launch(0, stream_), "launch");  // loads the kernel, which a capture cannot
    CheckCuda(cudaStreamSynchronize(stream_), "warm-up");
    CapturedGraph graph(stream_, [&](cudaStream_t stream) {
      for (int repeat = 0; repeat < repeats; ++repeat) {
        for (int input = 0; input < inputs; ++input) CheckCuda(launch(input, stream), "launch");
      }
    });
    return ReplayMicroseconds(graph, replays) / (repeats * inputs);
  }

  // Captures what `launch` submits to a stream.
  CapturedGraph Capture(const std::function<void(cudaStream_t)>& launch) const {
    return CapturedGraph(stream_, launch);
  }

  // Returns the median over `replays` in µs for the whole graph.
  double ReplayMicroseconds(CapturedGraph& graph, int replays) {
    graph.Replay(stream_);  // warm-up
    std::vector<float> times(replays);
    for (float& milliseconds : times) {
      CheckCuda(cudaEventRecord(begin_, stream_), "event");
      graph.Replay(stream_);
      CheckCuda(cudaEventRecord(end_, stream_), "event");
      CheckCuda(cudaEventSynchronize(end_), "replay");
      CheckCuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "event");
    }
    std::nth_element(times.begin(), times.begin() + replays / 2, times.end());
    return times[replays / 2] * 1e3;
  }

  // Prints one line of the table. `bytes` is the least that the launch must read and write;
  // `peer_us` is a library's time for the same work, if known.
  void Row(const std::string& kernel, const std::string& shape, double us, double bytes,
           double peer_us = 0) {
    const double rate = bytes / us * 1e6;
    std::printf("| %-28s | %-28s | %9.2f | %7.0f | %4.0f%% |", kernel.c_str(), shape.c_str(), us,
                rate / 1e9, 100 * rate / read_rate_);
    if (peer_us > 0) {
      std::printf(" %9.2f | %5.2f |\n", peer_us, us / peer_us);
    } else {
      std::printf(" %9s | %5s |\n", "", "");
    }
    std::fflush(stdout);
  }

 private:
  double MeasureReadRate() {
    constexpr size_t kBytes = size_t{1} << 31;
    DeviceBuffer<uint32_t> memory(kBytes / sizeof(uint32_t));
    DeviceBuffer<uint32_t> sink(1);
    FillUniform(reinterpret_cast<float*>(memory.get()), memory.size(), 1);
    double us = 0;
    for (const int ctas_per_sm : {2, 4, 8}) {  // takes the best of three
      int sms = 0;
      CheckCuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "attribute");
      const double time = Replay(1, 1, 7, [&](int, cudaStream_t stream) {
        return LaunchReadMemory(
            {.from = memory.get(), .bytes = kBytes, .sink = sink.get(), .ctas = ctas_per_sm * sms},
            stream);
      });
      us = us == 0 ? time : std::min(us, time);
    }
    return kBytes / us * 1e6;
  }

  static void PrintMachine(const char* when) {
    FILE* query = popen(
        "nvidia-smi "
        "--query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw "
        "--format=csv,noheader 2>/dev/null",
        "r");
    char line[256];
    while (query != nullptr && std::fgets(line, sizeof(line), query) != nullptr) {
      std::printf("%s: %s", when, line);
    }
    if (query != nullptr) pclose(query);
  }

  cudaStream_t stream_;
  cudaEvent_t begin_, end_;
  double read_rate_;
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_BENCH_UTIL_H_
