// Utilities for the kernels' tests and benchmarks: owned device memory with poison and guard bands,
// and the error measure.
#ifndef MILLRACE_KERNELS_TEST_UTIL_H_
#define MILLRACE_KERNELS_TEST_UTIL_H_

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

namespace millrace::kernels {

inline void CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::abort();
}

// Device memory of `size` elements between two guard bands. It is poisoned: every byte is 0xff,
// which is a NaN in all our types and an invalid index.
template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t size) : size_(size) {
    CheckCuda(cudaMalloc(&memory_, bytes() + 2 * kGuard), "cudaMalloc");
    Poison();
  }
  explicit DeviceBuffer(const std::vector<T>& host) : DeviceBuffer(host.size()) { Upload(host); }
  ~DeviceBuffer() { cudaFree(memory_); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), size_(other.size_) {}
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;

  T* get() const { return reinterpret_cast<T*>(memory_ + kGuard); }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }

  void Poison() { CheckCuda(cudaMemset(memory_, 0xff, bytes() + 2 * kGuard), "poison"); }
  void Upload(const std::vector<T>& host) {
    CheckCuda(cudaMemcpy(get(), host.data(), bytes(), cudaMemcpyHostToDevice), "upload");
  }
  // Waits for the device. An error of an earlier kernel ends the program here.
  std::vector<T> Download() const {
    std::vector<T> host(size_);
    CheckCuda(cudaMemcpy(host.data(), get(), bytes(), cudaMemcpyDeviceToHost), "download");
    return host;
  }
  bool GuardsIntact() const {
    std::vector<uint8_t> bands(2 * kGuard);
    CheckCuda(cudaMemcpy(bands.data(), memory_, kGuard, cudaMemcpyDeviceToHost), "guard");
    CheckCuda(cudaMemcpy(bands.data() + kGuard, memory_ + kGuard + bytes(), kGuard,
                         cudaMemcpyDeviceToHost),
              "guard");
    for (const uint8_t byte : bands) {
      if (byte != 0xff) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 1024;
  uint8_t* memory_ = nullptr;
  size_t size_;
};

// Returns normally distributed numbers.
inline std::vector<float> RandomNormal(size_t size, uint32_t seed, float deviation = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, deviation);
  std::vector<float> values(size);
  for (float& value : values) value = draw(random);
  return values;
}

inline std::vector<__nv_bfloat16> ToBf16(const std::vector<float>& values) {
  std::vector<__nv_bfloat16> out;
  out.reserve(values.size());
  for (const float value : values) out.push_back(__float2bfloat16(value));
  return out;
}

inline float FromFp8(uint8_t code) {
  __nv_fp8_e4m3 value;
  value.__x = code;
  return static_cast<float>(value);
}
inline uint8_t ToFp8(float value) { return __nv_fp8_e4m3(value).__x; }  // saturates at 448

// Returns 1 - 2xy / (x^2 + y^2) of a row against its reference: 0 if equal, and about half the
// squared relative error if small. Any NaN gives NaN, which fails every comparison. Two rows of
// zeros are equal.
template <typename T>
double RowError(const T* row, const double* reference, size_t size) {
  double xy = 0, squares = 0;
  for (size_t i = 0; i < size; ++i) {
    const double x = static_cast<double>(static_cast<float>(row[i]));
    xy += x * reference[i];
    squares += x * x + reference[i] * reference[i];
  }
  return squares == 0 ? 0 : 1 - 2 * xy / squares;
}

// Bounds on RowError.
inline constexpr double kBf16RowError = 2e-6;
inline constexpr double kFp8RowError = 2e-5;

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_TEST_UTIL_H_
