#include "executors/cpu/machine_rates.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "executors/cpu/kernels/kernels.h"
#include "executors/cpu/memory.h"
#include "executors/executor_driver_test_util.h"

namespace millrace::cpu {
namespace {

constexpr size_t kReadBytes = size_t{256} << 20;  // far larger than any cache
constexpr size_t kReadChunk = size_t{1} << 20;
constexpr int kRepeat = 7;

template <typename Work>
double BestSeconds(const Work& work) {
  double best = 1e9;
  for (int i = 0; i < kRepeat; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

double ReadRate(ThreadPool& pool) {
  absl::StatusOr<Memory> memory = Memory::Reserve(kReadBytes, "the read benchmark");
  CheckOk(memory.status());
  std::memset(memory->data(), 1, kReadBytes);
  const int chunks = static_cast<int>(kReadBytes / kReadChunk);
  const double seconds = BestSeconds([&] {
    pool.ParallelFor(chunks, [&](int chunk, int) {
      const uint8_t* data = memory->data() + chunk * kReadChunk;
      uint64_t sum = 0;
      for (size_t i = 0; i < kReadChunk; i += 64) {
        __builtin_prefetch(data + i + 2048);
        sum += *reinterpret_cast<const uint64_t*>(data + i);
      }
      asm volatile("" : : "r"(sum));
    });
  });
  return kReadBytes / seconds * 1e-9;
}

double Int8Rate(ThreadPool& pool) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx512vnni")) return 0;
  constexpr int kIterations = 200000;
  const int threads = pool.num_threads();
  const double seconds = BestSeconds([&] {
    pool.ParallelFor(threads, [&](int, int) {
      for (int i = 0; i < kIterations; ++i) {
        asm volatile(
            "vpdpbusd %%zmm14, %%zmm15, %%zmm0\n vpdpbusd %%zmm14, %%zmm15, %%zmm1\n"
            "vpdpbusd %%zmm14, %%zmm15, %%zmm2\n vpdpbusd %%zmm14, %%zmm15, %%zmm3\n"
            "vpdpbusd %%zmm14, %%zmm15, %%zmm4\n vpdpbusd %%zmm14, %%zmm15, %%zmm5\n"
            "vpdpbusd %%zmm14, %%zmm15, %%zmm6\n vpdpbusd %%zmm14, %%zmm15, %%zmm7\n"
            :
            :
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7");
      }
    });
  });
  return 128.0 * 8 * kIterations * threads / seconds * 1e-9;
#else
  return 0;
#endif
}

}  // namespace

MachineRates MeasureMachine(ThreadPool& pool) {
  return {.read_gb_s = ReadRate(pool), .int8_gops = Int8Rate(pool)};
}

}  // namespace millrace::cpu
