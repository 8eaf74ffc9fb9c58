// Shared by the sampling kernels: the tiles' statistics in the workspace, predicates on rows and
// slots, and the integer representations by which tokens are ordered and weighed.
#ifndef MILLRACE_KERNELS_SAMPLING_SAMPLE_INTERNAL_CUH_
#define MILLRACE_KERNELS_SAMPLING_SAMPLE_INTERNAL_CUH_

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/sampling/sample.h"

namespace millrace::kernels::sampling {

inline constexpr int kTile = 256;
inline constexpr int kMaxTiles = kMaxSampledVocab / kTile;
inline constexpr float kLog2E = 1.4426950408889634f;

// Statistics of 256 consecutive tokens. `workspace` is [max_rows, tiles] of these.
struct alignas(16) TileStats {
  float largest;  // after bans, biases, penalties and the mask; NaN if a logit is not finite
  union {
    float sum;      // of exp2((x - largest) * Factor(slot)), for rows that draw
    int32_t first;  // the lowest token with the largest logit, for rows that take it
  };
  float raw_largest;  // of the raw logits, like raw_sum; for rows that want log-probabilities
  float raw_sum;      // of exp(x - raw_largest)
};

__host__ __device__ inline int NumTiles(int vocab_size) { return CeilDiv(vocab_size, kTile); }

// Launches the kernel that reads the logits once. It writes the tiles' statistics and, for the rows
// that need it, `adjusted`.
cudaError_t LaunchScanTiles(const SampleArgs& args, cudaStream_t stream);
// Launches the kernel that chooses tokens from the output of LaunchScanTiles.
cudaError_t LaunchChooseTokens(const SampleArgs& args, cudaStream_t stream);

__device__ inline bool Draws(const SampleRow& row, const SlotSampling& slot) {
  return row.target < 0 && slot.temperature > 0 && slot.top_k != 1;
}

__device__ inline bool Penalizes(const SlotSampling& slot) {
  return slot.repetition_penalty != 1 || slot.frequency_penalty != 0 || slot.presence_penalty != 0;
}

__device__ inline int NumBanned(const SampleRow& row, const SlotSampling& slot) {
  return row.position < slot.banned_before ? slot.num_banned : 0;
}

__device__ inline bool Adjusts(const SampleRow& row, const SlotSampling& slot) {
  return row.target < 0 &&
         (row.mask >= 0 || NumBanned(row, slot) > 0 || slot.num_biases > 0 || Penalizes(slot));
}

// exp((x - largest) / temperature) = exp2((x - largest) * Factor). The factor is bounded so that 0
// * Factor stays 0 for the likeliest token.
__device__ inline float Factor(const SlotSampling& slot) {
  return fminf(1.0f / slot.temperature, 1e30f) * kLog2E;
}

__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Loads four logits, or -inf if `column` lies past the vocabulary. `column` is a multiple of 4.
__device__ inline float4 LoadLogits(const float* row, int column, int vocab_size) {
  if (column >= vocab_size) return make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
  return *reinterpret_cast<const float4*>(row + column);
}

// Loads four logits. The compiler moves the load neither towards its use nor behind another such
// load.
__device__ inline float4 LoadLogitsHere(const float* from) {
  float4 x;
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(from));
  return x;
}

// As above, but returns -inf if `column` lies past the vocabulary.
__device__ inline float4 LoadLogitsHere(const float* row, int column, int vocab_size) {
  if (column >= vocab_size) return make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
  return LoadLogitsHere(row + column);
}

// Replaces those of four logits that lie past the vocabulary by -inf.
__device__ inline void MaskLogits(float4& x, int column, int vocab_size) {
  if (column + 1 >= vocab_size) x.y = -INFINITY;
  if (column + 2 >= vocab_size) x.z = -INFINITY;
  if (column + 3 >= vocab_size) x.w = -INFINITY;
}

// Maps floats to unsigned integers in the same order. -0 equals 0.
__device__ inline uint32_t OrderedBits(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000;
}

__device__ inline float FromOrderedBits(uint32_t bits) {
  return __uint_as_float(bits >> 31 ? bits & 0x7fffffff : ~bits);
}

// Orders tokens by likelihood: a larger key is likelier. Keys are distinct.
using Key = uint64_t;
inline constexpr int kIdBits = 18;
static_assert(1 << kIdBits == kMaxSampledVocab);

__device__ inline Key KeyOf(float logit, int token) {
  return Key{OrderedBits(logit)} << kIdBits | static_cast<uint32_t>(kMaxSampledVocab - 1 - token);
}
__device__ inline Key LowestKey(uint32_t ordered_bits) { return Key{ordered_bits} << kIdBits; }
__device__ inline uint32_t OrderedBitsOf(Key key) { return static_cast<uint32_t>(key >> kIdBits); }
__device__ inline float LogitOf(Key key) { return FromOrderedBits(OrderedBitsOf(key)); }
__device__ inline int TokenOf(Key key) {
  return kMaxSampledVocab - 1 - static_cast<int>(key % kMaxSampledVocab);
}

// A probability relative to the likeliest token's, in units of 2^-44. A sum of 2^18 of them fits,
// and does not depend on the order of summation.
using Mass = unsigned long long;  // the type of CUDA's atomics and shuffles
inline constexpr float kMassUnits = 0x1p44f;
__device__ inline Mass ToMass(float p) { return __float2ull_rn(p * kMassUnits); }

struct Softmax {
  float largest;
  float factor;  // see Factor
  __device__ float P(float logit) const { return Exp2((logit - largest) * factor); }
  __device__ Mass MassOf(float logit) const { return ToMass(P(logit)); }
  // Bits below the likeliest token: P = 2^-depth.
  __device__ float Depth(float logit) const { return (largest - logit) * factor; }
  // Returns the logit with P = 2^-level, or slightly less. Below level 64 every mass is 0.
  __device__ float LogitAt(float level) const { return largest - level * 1.00001f / factor; }
};

// UntypicalKey orders tokens by the distance of their depth from a mean: a smaller key is nearer.
// Keys are distinct: at equal distance the likelier comes first, then the lower id.
inline constexpr int kUntypicalBits = 32 + 1 + kIdBits;
__device__ inline int UntypicalToken(Key key) { return static_cast<int>(key % kMaxSampledVocab); }

// The set of tokens that typical_p keeps.
struct Typical {
  Key low;  // keys below it were dropped by the other filters
  float mean_depth = 0;
  float off_units = 0;     // 1 / the unit of distance in UntypicalKey
  Key last_untypical = 0;  // the largest UntypicalKey that is kept

  __device__ Key UntypicalKey(const Softmax& softmax, float logit, int token) const {
    const float off = softmax.Depth(logit) - mean_depth;
    const Key below = off > 0 ? 1 : 0;
    return (Key{__float2uint_rz(fabsf(off) * off_units)} << 1 | below) << kIdBits |
           static_cast<uint32_t>(token);
  }
  __device__ bool Has(const Softmax& softmax, float logit, int token) const {
    return KeyOf(logit, token) >= low && UntypicalKey(softmax, logit, token) <= last_untypical;
  }
};

// Returns Philox4x32-10 of (seed; position, sample_index) as a number below 2^64 whose 53 upper
// bits are random, the same as on the CPU.
__device__ inline uint64_t RandomBits(uint64_t seed, uint32_t sample_index, int32_t position) {
  uint32_t counter[4] = {static_cast<uint32_t>(position), sample_index, 0, 0};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter[0] = static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0];
    counter[1] = static_cast<uint32_t>(b);
    counter[2] = static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1];
    counter[3] = static_cast<uint32_t>(a);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return (uint64_t{counter[0]} << 32 | counter[1]) & ~uint64_t{0x7ff};
}

}  // namespace millrace::kernels::sampling

#endif  // MILLRACE_KERNELS_SAMPLING_SAMPLE_INTERNAL_CUH_
