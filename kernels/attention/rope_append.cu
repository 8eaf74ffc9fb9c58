#include "kernels/arguments.h"
#include "kernels/attention/rope.cuh"
#include "kernels/attention/rope_append.h"
#include "kernels/device_util.cuh"
#include "kernels/fp8.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 128;

// Stores two runs of four 16-bit numbers.
__device__ inline void StoreRuns(Bf16* head, Runs runs, const uint4& raw) {
  *reinterpret_cast<uint2*>(head + runs.first) = make_uint2(raw.x, raw.y);
  *reinterpret_cast<uint2*>(head + runs.second) = make_uint2(raw.z, raw.w);
}

// Destination of a token's head.
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
  // `head` counts over q, k and v: k's heads are rows 0 to kv_heads - 1 of a block, v's follow.
  const int64_t at = place.block * pages.block_stride +
                     (static_cast<int64_t>(head - args.heads) * pages.block_size +
                      (place.position & (pages.block_size - 1))) *
                         pages.head_size;
  const bool is_value = head >= args.heads + pages.kv_heads;
  if (pages.type == Type::kBf16) {
    StoreRuns(static_cast<Bf16*>(pages.data) + at, runs, PackForPages(x, is_value));
    return;
  }
  const uint2 codes = Fp8Codes8(x, Fp8Inverse(is_value ? pages.v_scale : pages.k_scale));
  uint8_t* to = static_cast<uint8_t*>(pages.data) + at;
  *reinterpret_cast<uint32_t*>(to + runs.first) = codes.x;
  *reinterpret_cast<uint32_t*>(to + runs.second) = codes.y;
}

// Returns the sum of the squares of `width` columns of a token, biases included. Called by all
// threads of the CTA; `partials` as BlockReduce has it.
__device__ float Squares(const Product& qkv, const float* bias, int64_t token, int64_t first,
                         int width, float (&partials)[kWarpSize]) {
  float squares = 0;
  for (int at = 8 * threadIdx.x; at < width; at += 8 * kThreads) {
    const int64_t column = first + at;
    constexpr Runs kWhole = {0, 4};
    float scales[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (qkv.channel_scales != nullptr) Load8(qkv.channel_scales + column, scales);
    HeadRuns raw;
    raw.Load(qkv, token, column, kWhole);
    float x[8];
    raw.Values(scales, bias != nullptr ? bias + column : nullptr, kWhole, x);
#pragma unroll
    for (const float value : x) squares = __fmaf_rn(value, value, squares);
  }
  return BlockReduce<Add>(squares, partials);
}

// Returns 1 / sqrt(mean(x^2) + epsilon) of a token's q or k, `width` columns of this rank's and
// `all` of all ranks'. `which` is 0 for q, 1 for k.
__device__ float InverseRms(const RopeAppendArgs& args, int64_t token, int64_t first, int width,
                            int all, int which, float (&partials)[kWarpSize]) {
  float squares = 0;
  if (args.rank_squares == nullptr) {
    squares = Squares(args.qkv, args.rope.bias, token, first, width, partials);
    all = width;
  } else {
    for (int rank = 0; rank < args.ranks; ++rank) {
      squares = __fadd_rn(squares, args.rank_squares[(token * args.ranks + rank) * 2 + which]);
    }
  }
  return __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(squares, all), args.rope.norm_epsilon)));
}

// Computes InverseRms over all heads of q, and of k, for the CTA's heads [first_head, end_head).
// Returns that of the thread's own `head`; values have none.
__device__ float InverseRmsAcrossHeads(const RopeAppendArgs& args, int64_t token, int first_head,
                                       int end_head, int head) {
  __shared__ float partials[2][kWarpSize];
  const int head_size = args.pages.head_size;
  const int keys = args.heads, values = keys + args.pages.kv_heads;  // the first heads of each
  float of_q = 0, of_k = 0;
  if (first_head < keys)
    of_q = InverseRms(args, token, 0, keys * head_size, args.all_q, 0, partials[0]);
  if (first_head < values && end_head > keys) {
    of_k = InverseRms(args, token, int64_t{keys} * head_size, args.pages.kv_heads * head_size,
                      args.all_k, 1, partials[1]);
  }
  return head < keys ? of_q : of_k;
}

// The grid is (groups of kTokens tokens, groups of heads). The other order takes an eighth longer.
// Norms across heads (kAcross) take one token at a time, and each CTA sums the squares of all heads
// itself.
template <int kHeadSize, bool kHalves, int kTokens, bool kAcross>
__global__ void __launch_bounds__(kThreads) RopeAppendKernel(RopeAppendArgs args) {
  static_assert(!kAcross || kTokens == 1);
  constexpr int kLanes = kHeadLanes<kHeadSize>;
  const int64_t first_token = int64_t{blockIdx.x} * kTokens;
  const int head = blockIdx.y * (kThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  const bool works = head < args.heads + 2 * args.pages.kv_heads && 8 * lane < kHeadSize;
  const bool is_q = head < args.heads;
  const bool is_value = head >= args.heads + args.pages.kv_heads;
  const Rope& rope = args.rope;
  const bool rotates = !is_value && lane < rope.dimensions / 8;
  const HeadRule rule = {!kAcross && rope.q_norm != nullptr, rotates, kHalves, rope.norm_epsilon};
  const Runs runs = RunsOf(lane, rotates ? rope.dimensions : 0, kHalves);
  const int64_t column = HeadColumn(rope.gates, head, args.heads, kHeadSize);
  float scales[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  float weight[8] = {};
  if (works && args.qkv.channel_scales != nullptr) {
    LoadRuns(args.qkv.channel_scales + column, runs, scales);
  }
  if (works && rule.norms) LoadRuns(is_q ? rope.q_norm : rope.k_norm, runs, weight);
  if (kAcross && works && !is_value) {
    const int64_t first = is_q ? 0 : int64_t{args.heads} * kHeadSize;
    LoadRuns((is_q ? rope.q_norm : rope.k_norm) + (column - first), runs, weight);
  }
  const float* const bias = works && rope.bias != nullptr ? rope.bias + column : nullptr;
  AwaitPredecessor();

  // Each phase runs for all tokens, so that independent loads are issued together. Threads without
  // a head, and those past the last token, read the same addresses as their neighbours.
  Place places[kTokens];
  int64_t slots[kTokens];
  HeadRuns raw[kTokens];
  float rotation[kTokens][8];
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
    if (rotates) {
      const int64_t row = places[t].position * (rope.dimensions / 2);
      Load8(reinterpret_cast<const float*>(rope.rotations + row + 4 * lane), rotation[t]);
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    float x[8];
    raw[t].Values(scales, bias, runs, x);
    if constexpr (kAcross) {
      constexpr int kHeads = kThreads / kLanes;
      const int first_head = blockIdx.y * kHeads;
      const float inverse =
          InverseRmsAcrossHeads(args, first_token, first_head, first_head + kHeads, head);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        x[i] = is_value ? x[i] : __fmul_rn(__fmul_rn(x[i], inverse), weight[i]);
      }
    }
    NormAndRotate<kHeadSize>(rule, is_value, 8 * lane < kHeadSize, weight, rotation[t], x);
    if (!works || first_token + t >= args.tokens) continue;
    StoreHead(args, first_token + t, head, places[t], runs, x);
  }
}

template <int kHeadSize, int kTokens, bool kAcross = false>
cudaError_t LaunchTokens(const RopeAppendArgs& args, cudaStream_t stream) {
  constexpr int kHeads = kThreads / kHeadLanes<kHeadSize>;
  const dim3 grid(CeilDiv(args.tokens, kTokens),
                  CeilDiv(args.heads + 2 * args.pages.kv_heads, kHeads));
  const auto kernel = args.rope.interleaved ? RopeAppendKernel<kHeadSize, false, kTokens, kAcross>
                                            : RopeAppendKernel<kHeadSize, true, kTokens, kAcross>;
  return LaunchDependent(kernel, grid, kThreads, 0, stream, args);
}

// Above this many tokens a thread takes two, which puts more loads in flight per SM.
constexpr int kFewTokens = 128;

template <int kHeadSize>
cudaError_t Launch(const RopeAppendArgs& args, cudaStream_t stream) {
  if (args.norms_across_heads) return LaunchTokens<kHeadSize, 1, true>(args, stream);
  return args.tokens <= kFewTokens ? LaunchTokens<kHeadSize, 1>(args, stream)
                                   : LaunchTokens<kHeadSize, 2>(args, stream);
}

__global__ void __launch_bounds__(kThreads) HeadSquaresKernel(HeadSquaresArgs args) {
  __shared__ float partials[2][kWarpSize];
  AwaitPredecessor();
  const int64_t token = blockIdx.x;
  const float q = Squares(args.qkv, args.bias, token, 0, args.q_width, partials[0]);
  const float k = args.counts_k
                      ? Squares(args.qkv, args.bias, token, args.q_width, args.k_width, partials[1])
                      : 0;
  if (threadIdx.x == 0) reinterpret_cast<float2*>(args.squares)[token] = make_float2(q, k);
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
  args.rotations[at] = make_float2(static_cast<float>(args.magnitude * cosine),
                                   static_cast<float>(args.magnitude * sine));
}

}  // namespace

cudaError_t LaunchHeadSquares(const HeadSquaresArgs& args, cudaStream_t stream) {
  if (args.tokens < 0 || args.q_width < 8 || args.q_width % 8 != 0 || args.k_width < 8 ||
      args.k_width % 8 != 0 || !IsValid(args.qkv, int64_t{args.q_width} + args.k_width) ||
      args.squares == nullptr) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;
  return LaunchDependent(HeadSquaresKernel, args.tokens, kThreads, 0, stream, args);
}

cudaError_t LaunchRopeAppend(const RopeAppendArgs& args, cudaStream_t stream) {
  const int64_t width =
      QkvWidth(args.rope.gates, args.heads, args.pages.kv_heads, args.pages.head_size);
  if (args.tokens < 0 || args.heads < 1 || !IsValid(args.pages) || !IsValid(args.qkv, width) ||
      args.positions == nullptr || args.slots == nullptr || args.tables.blocks == nullptr ||
      !IsValid(args.rope, args.pages.head_size) || args.q == nullptr || !IsAligned16(args.q) ||
      (args.norms_across_heads && (args.rope.q_norm == nullptr || args.rope.gates)) ||
      (args.rank_squares != nullptr && (args.ranks < 1 || args.all_q < 1 || args.all_k < 1))) {
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
      !(args.magnitude > 0) || args.rotations == nullptr) {
    return cudaErrorInvalidValue;
  }
  if (args.positions == 0) return cudaSuccess;
  const int64_t size = static_cast<int64_t>(args.positions) * (args.dimensions / 2);
  const int64_t ctas = CeilDiv<int64_t>(size, kFillThreads);
  FillRotationsKernel<<<static_cast<unsigned>(ctas), kFillThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace millrace::kernels
