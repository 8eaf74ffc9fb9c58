#include "kernels/arguments.h"
#include "kernels/attention/attention_math.cuh"
#include "kernels/attention/rope_append.h"
#include "kernels/device_util.cuh"
#include "kernels/fp8.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 128;

// The lanes that share a head, 8 values each; of 16 lanes 12 work on a head of 96.
template <int kHeadSize>
inline constexpr int kHeadLanes = kHeadSize <= 64    ? 8
                                  : kHeadSize <= 128 ? 16
                                                     : 32;

// A lane's 8 values of a head lie in two runs of 4 columns: neighbours, but where the rotation
// pairs the head's halves, one run of either half. So each lane has both sides of its pairs.
struct Runs {
  int first, second;  // their first columns
};

// The runs of lane `lane`: lanes below dimensions / 8 have all that is turned.
__device__ inline Runs RunsOf(int lane, int dimensions, bool halves) {
  if (halves && lane < dimensions / 8) return {4 * lane, dimensions / 2 + 4 * lane};
  return {8 * lane, 8 * lane + 4};
}

__device__ inline void Load4(const float* from, float* to) {
  const float4 values = *reinterpret_cast<const float4*>(from);
  to[0] = values.x, to[1] = values.y, to[2] = values.z, to[3] = values.w;
}

// Two runs of fp32.
__device__ inline void LoadRuns(const float* from, Runs runs, float (&to)[8]) {
  Load4(from + runs.first, to);
  Load4(from + runs.second, to + 4);
}

// A head's two runs as they lie in memory, and their token's scale.
struct HeadRuns {
  uint2 first, second;
  float token_scale;

  __device__ void Load(const Product& product, int64_t token, int64_t column, Runs runs) {
    const Bf16* row = product.data + token * product.stride + column;
    first = *reinterpret_cast<const uint2*>(row + runs.first);
    second = *reinterpret_cast<const uint2*>(row + runs.second);
    token_scale = product.token_scales != nullptr ? product.token_scales[token] : 1;
  }

  // The scales applied as ProductVector does.
  __device__ void Values(const float (&scales)[8], float (&x)[8]) const {
    Unpack8(make_uint4(first.x, first.y, second.x, second.y), x);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = x[i] * token_scale * scales[i];
  }
};

// Eight numbers of 16 bits.
__device__ inline void StoreRuns(Bf16* head, Runs runs, const uint4& raw) {
  *reinterpret_cast<uint2*>(head + runs.first) = make_uint2(raw.x, raw.y);
  *reinterpret_cast<uint2*>(head + runs.second) = make_uint2(raw.z, raw.w);
}

// In FP16, as values lie in pages of 16 bits: to nearest even, saturated.
__device__ inline uint4 PackHalf8(const float (&x)[8]) {
  using attention::PackHalf;
  return make_uint4(PackHalf(x[0], x[1]), PackHalf(x[2], x[3]), PackHalf(x[4], x[5]),
                    PackHalf(x[6], x[7]));
}

// x / sqrt(mean(x^2) + epsilon) * weight over a head. All lanes of the warp come here.
template <int kHeadSize>
__device__ void NormHead(const float (&weight)[8], float epsilon, float (&x)[8]) {
  float squares = 0;
#pragma unroll
  for (const float value : x) squares += value * value;
  squares = WarpReduce<Add, kHeadLanes<kHeadSize>>(squares);
  const float inverse = 1.0f / sqrtf(squares / kHeadSize + epsilon);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = x[i] * inverse * weight[i];
}

// Turns the lane's four pairs by four (cos, sin).
__device__ inline void Rotate(const float (&turn)[8], bool halves, float (&x)[8]) {
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    const float cosine = turn[2 * pair], sine = turn[2 * pair + 1];
    float& a = halves ? x[pair] : x[2 * pair];
    float& b = halves ? x[pair + 4] : x[2 * pair + 1];
    const float turned = a * cosine - b * sine;
    b = b * cosine + a * sine;
    a = turned;
  }
}

// Where a token's head goes.
struct Place {
  int64_t position;
  int64_t block;  // of keys and values
};

__device__ inline void StoreHead(const RopeAppendArgs& args, int64_t token, int head, Place place,
                                 Runs runs, const float (&x)[8]) {
  const KvPages& pages = args.pages;
  if (head < args.heads) {
    StoreRuns(args.q + (token * args.heads + head) * pages.head_size, runs, Pack8(x));
    return;
  }
  // `head` counts on from the last q: k's heads are rows 0 … kv_heads - 1 of a block, v's follow.
  const int64_t at = place.block * pages.block_stride +
                     (static_cast<int64_t>(head - args.heads) * pages.block_size +
                      (place.position & (pages.block_size - 1))) *
                         pages.head_size;
  const bool is_value = head >= args.heads + pages.kv_heads;
  if (pages.type == Type::kBf16) {
    StoreRuns(static_cast<Bf16*>(pages.data) + at, runs, is_value ? PackHalf8(x) : Pack8(x));
    return;
  }
  const uint2 codes = Fp8Codes8(x, Fp8Inverse(is_value ? pages.v_scale : pages.k_scale));
  uint8_t* to = static_cast<uint8_t*>(pages.data) + at;
  *reinterpret_cast<uint32_t*>(to + runs.first) = codes.x;
  *reinterpret_cast<uint32_t*>(to + runs.second) = codes.y;
}

// Grid (groups of kTokens tokens, groups of heads): the other way round it takes an eighth longer.
template <int kHeadSize, bool kHalves, int kTokens>
__global__ void __launch_bounds__(kThreads) RopeAppendKernel(RopeAppendArgs args) {
  constexpr int kLanes = kHeadLanes<kHeadSize>;
  const int64_t first_token = int64_t{blockIdx.x} * kTokens;
  const int head = blockIdx.y * (kThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  const bool works = head < args.heads + 2 * args.pages.kv_heads && 8 * lane < kHeadSize;
  const bool is_q = head < args.heads;
  const bool is_value = head >= args.heads + args.pages.kv_heads;
  const bool turns = !is_value && lane < args.rope_dimensions / 8;
  const Runs runs = RunsOf(lane, turns ? args.rope_dimensions : 0, kHalves);
  const int64_t column = static_cast<int64_t>(head) * kHeadSize;
  float scales[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  float weight[8] = {};
  if (works && args.qkv.channel_scales != nullptr) {
    LoadRuns(args.qkv.channel_scales + column, runs, scales);
  }
  if (works && args.q_norm != nullptr) LoadRuns(is_q ? args.q_norm : args.k_norm, runs, weight);
  AwaitPredecessor();

  // Step by step for all tokens, so that what does not depend on one another is loaded together.
  // Threads without a head, and those past the last token, read what their neighbours read.
  Place places[kTokens];
  int64_t slots[kTokens];
  HeadRuns raw[kTokens];
  float turn[kTokens][8];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const int64_t token = min(first_token + t, int64_t{args.tokens} - 1);
    places[t].position = args.positions[token];
    slots[t] = args.slots[token];
    raw[t].Load(args.qkv, token, works ? column : 0, works ? runs : Runs{0, 4});
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const int block_shift = 31 - __clz(args.pages.block_size);
    places[t].block =
        is_q ? 0
             : args.tables
                   .blocks[slots[t] * args.tables.stride + (places[t].position >> block_shift)];
    if (turns) {
      const int64_t row = places[t].position * (args.rope_dimensions / 2);
      Load8(reinterpret_cast<const float*>(args.rotations + row + 4 * lane), turn[t]);
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    float x[8];
    raw[t].Values(scales, x);
    if (args.q_norm != nullptr) {  // a warp may hold heads of q, k and v: all of it sums
      float normed[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) normed[i] = 8 * lane < kHeadSize ? x[i] : 0;
      NormHead<kHeadSize>(weight, args.norm_epsilon, normed);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = is_value ? x[i] : normed[i];
    }
    if (!works || first_token + t >= args.tokens) continue;
    if (turns) Rotate(turn[t], kHalves, x);
    StoreHead(args, first_token + t, head, places[t], runs, x);
  }
}

template <int kHeadSize, int kTokens>
cudaError_t LaunchTokens(const RopeAppendArgs& args, cudaStream_t stream) {
  constexpr int kHeads = kThreads / kHeadLanes<kHeadSize>;
  const dim3 grid(CeilDiv(args.tokens, kTokens),
                  CeilDiv(args.heads + 2 * args.pages.kv_heads, kHeads));
  const auto kernel = args.interleaved ? RopeAppendKernel<kHeadSize, false, kTokens>
                                       : RopeAppendKernel<kHeadSize, true, kTokens>;
  return LaunchDependent(kernel, grid, kThreads, 0, stream, args);
}

// With many tokens a thread takes two, so that more of them are under way on an SM.
constexpr int kFewTokens = 128;

template <int kHeadSize>
cudaError_t Launch(const RopeAppendArgs& args, cudaStream_t stream) {
  return args.tokens <= kFewTokens ? LaunchTokens<kHeadSize, 1>(args, stream)
                                   : LaunchTokens<kHeadSize, 2>(args, stream);
}

constexpr int kFillThreads = 256;

__global__ void FillRotationsKernel(FillRotationsArgs args) {
  const int half = args.dimensions / 2;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kFillThreads + threadIdx.x;
  if (at >= static_cast<int64_t>(args.positions) * half) return;
  const int pair = static_cast<int>(at % half);
  double frequency = pow(args.base, -2.0 * pair / args.dimensions);
  if (args.factors != nullptr) frequency /= args.factors[pair];
  double sine, cosine;
  sincos(static_cast<double>(at / half) * frequency, &sine, &cosine);
  args.rotations[at] = make_float2(static_cast<float>(cosine), static_cast<float>(sine));
}

}  // namespace

cudaError_t LaunchRopeAppend(const RopeAppendArgs& args, cudaStream_t stream) {
  const int64_t width = (int64_t{2} * args.pages.kv_heads + args.heads) * args.pages.head_size;
  if (args.tokens < 0 || args.heads < 1 || !IsValid(args.pages) || !IsValid(args.qkv, width) ||
      args.positions == nullptr || args.slots == nullptr || args.tables.blocks == nullptr ||
      args.rope_dimensions < 0 || args.rope_dimensions % 8 != 0 ||
      args.rope_dimensions > args.pages.head_size ||
      (args.rope_dimensions > 0 && args.rotations == nullptr) || !IsAligned16(args.rotations) ||
      (args.q_norm == nullptr) != (args.k_norm == nullptr) || !IsAligned16(args.q_norm) ||
      !IsAligned16(args.k_norm) || (args.q_norm != nullptr && !(args.norm_epsilon >= 0)) ||
      args.q == nullptr || !IsAligned16(args.q)) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;
  switch (args.pages.head_size) {
    case 64:
      return Launch<64>(args, stream);
    case 96:
      return Launch<96>(args, stream);
    case 128:
      return Launch<128>(args, stream);
    default:
      return Launch<256>(args, stream);
  }
}

cudaError_t LaunchFillRotations(const FillRotationsArgs& args, cudaStream_t stream) {
  if (args.positions < 0 || args.dimensions < 2 || args.dimensions % 2 != 0 || !(args.base > 0) ||
      args.rotations == nullptr) {
    return cudaErrorInvalidValue;
  }
  if (args.positions == 0) return cudaSuccess;
  const int64_t size = static_cast<int64_t>(args.positions) * (args.dimensions / 2);
  const int64_t ctas = CeilDiv<int64_t>(size, kFillThreads);
  FillRotationsKernel<<<static_cast<unsigned>(ctas), kFillThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace millrace::kernels
