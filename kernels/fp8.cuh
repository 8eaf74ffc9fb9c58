// The one rounding rule of FP8 activations, weights and cache entries:
//   scale = max(amax, 1e-12) / 448
//   code  = E4M3 of value * (1 / scale), to nearest even, saturated at +-448; NaN stays NaN
// all in fp32, both divisions correctly rounded. The floor makes a row of zeros a row of zero codes
// with a scale that divides nothing by zero.
#ifndef MILLRACE_KERNELS_FP8_CUH_
#define MILLRACE_KERNELS_FP8_CUH_

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace millrace::kernels {

inline constexpr float kFp8Max = 448.0f;
inline constexpr float kFp8AmaxFloor = 1e-12f;

__host__ __device__ inline float Fp8Scale(float amax) {
  return fmaxf(amax, kFp8AmaxFloor) / kFp8Max;
}

// Returns the factor that values are multiplied by before they are rounded.
__host__ __device__ inline float Fp8Inverse(float scale) { return 1.0f / scale; }

__host__ __device__ inline uint8_t Fp8Code(float value, float inverse) {
  return __nv_cvt_float_to_fp8(value * inverse, __NV_SATFINITE, __NV_E4M3);
}

// Return two and eight codes in memory order.
__device__ inline uint16_t Fp8Codes2(float2 values, float inverse) {
  return __nv_cvt_float2_to_fp8x2(make_float2(values.x * inverse, values.y * inverse),
                                  __NV_SATFINITE, __NV_E4M3);
}
__device__ inline uint2 Fp8Codes8(const float (&values)[8], float inverse) {
  uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    words[i] =
        Fp8Codes2(make_float2(values[4 * i], values[4 * i + 1]), inverse) |
        static_cast<uint32_t>(Fp8Codes2(make_float2(values[4 * i + 2], values[4 * i + 3]), inverse))
            << 16;
  }
  return make_uint2(words[0], words[1]);
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_FP8_CUH_
