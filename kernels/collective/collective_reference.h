// Collectives in plain C++, and numbers to try them on.
#ifndef MILLRACE_KERNELS_COLLECTIVE_COLLECTIVE_REFERENCE_H_
#define MILLRACE_KERNELS_COLLECTIVE_COLLECTIVE_REFERENCE_H_

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/types.h"

namespace millrace::kernels {

// Returns the bits of a BF16 that depend on (seed, i) alone: of 16 numbers about one each is -0,
// +0, subnormal, and tiny; the others are between 2^-9 and 2^4 in magnitude. None is NaN.
__host__ __device__ inline uint16_t PartialBits(uint32_t seed, uint32_t i) {
  uint32_t bits = i * 0x9e3779b9u + seed * 0x85ebca6bu + 1;
  bits = (bits ^ (bits >> 16)) * 0x85ebca6bu;
  bits = (bits ^ (bits >> 13)) * 0xc2b2ae35u;
  bits ^= bits >> 16;
  const uint32_t sign = bits >> 31 << 15, mantissa = bits >> 4 & 0x7f, draw = bits >> 11 & 0xfff;
  uint32_t exponent = 118 + draw % 13;
  switch (bits & 15) {
    case 0:
      return 0x8000;
    case 1:
      return 0;
    case 2:
      exponent = 0;
      break;
    case 3:
      exponent = 1 + draw % 8;
      break;
  }
  return static_cast<uint16_t>(sign | exponent << 7 | mantissa);
}

// Returns the seed of one rank's partial sums in one step.
__host__ __device__ inline uint32_t PartialSeed(int rank, uint32_t step) {
  return step * 16 + rank;
}

inline Bf16 Bf16OfBits(uint16_t bits) {
  __nv_bfloat16_raw raw;
  raw.x = bits;
  return raw;
}
inline uint16_t BitsOf(Bf16 value) { return static_cast<__nv_bfloat16_raw>(value).x; }

inline std::vector<Bf16> TestPartials(int rank, size_t size, uint32_t step = 0) {
  std::vector<Bf16> values(size);
  for (size_t i = 0; i < size; ++i) {
    values[i] = Bf16OfBits(PartialBits(PartialSeed(rank, step), static_cast<uint32_t>(i)));
  }
  return values;
}

// The sum of one element over the ranks: in rank order in float32, rounded once; and in double.
struct RankSum {
  explicit RankSum(float first) : in_order(first), exact(first), magnitudes(std::abs(first)) {}
  void Add(float next) {
    in_order += next;
    exact += next;
    magnitudes += std::abs(next);
  }
  Bf16 Rounded() const { return __float2bfloat16(in_order); }
  // Returns the largest difference from `exact` that one rounding to BF16 and the additions in
  // float32 allow.
  double Tolerance() const {
    return std::abs(exact) * 0x1.01p-8 + magnitudes * 8 * 0x1p-24 + 0x1p-133;
  }

  float in_order;
  double exact, magnitudes;
};

// all[rank] is rank's partial sums. Returns what every rank gets.
inline std::vector<Bf16> ReferenceAllReduce(const std::vector<std::vector<Bf16>>& all) {
  std::vector<Bf16> sums;
  for (size_t i = 0; i < all[0].size(); ++i) {
    RankSum sum(static_cast<float>(all[0][i]));
    for (size_t rank = 1; rank < all.size(); ++rank) sum.Add(static_cast<float>(all[rank][i]));
    sums.push_back(sum.Rounded());
  }
  return sums;
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_COLLECTIVE_COLLECTIVE_REFERENCE_H_
