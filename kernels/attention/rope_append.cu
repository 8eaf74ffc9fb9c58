#include "kernels/arguments.h"
#include "kernels/attention/rope_append.h"
#include "kernels/device_util.cuh"
#include "kernels/fp8.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 128;

// The lanes that share a head, 8 values each; of 16 lanes 12 work on a head of 96.
template <int kHeadSize>
inline constexpr int kHeadLanes = kHeadSize <= 64    ? 8
                                  : kHeadSize <= 128 ? 16
                                                     : 32;

// x / sqrt(mean(x^2) + epsilon) * norm over a head whose lanes all come here.
template <int kHeadSize>
__device__ void NormHead(const float* norm, float epsilon, int column, float (&x)[8]) {
  float squares = 0;
#pragma unroll
  for (const float value : x) squares += value * value;
  squares = WarpReduce<Add, kHeadLanes<kHeadSize>>(squares);
  if (column >= kHeadSize) return;
  const float inverse = 1.0f / sqrtf(squares / kHeadSize + epsilon);
  float weight[8];
  Load8(norm + column, weight);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = x[i] * inverse * weight[i];
}

// Turns the values whose column lies below `dimensions`. `head` is shared memory for the head's
// values, skewed by a word every 8 so that the lanes' accesses meet no bank twice.
template <int kHeadSize>
__device__ void RotateHead(const float2* rotations, int dimensions, bool interleaved, int column,
                           float (&head)[kHeadSize * 9 / 8], float (&x)[8]) {
  if (column < kHeadSize) {
#pragma unroll
    for (int i = 0; i < 8; ++i) head[column / 8 * 9 + i] = x[i];
  }
  __syncwarp();
  const int half = dimensions / 2;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int at = column + i;
    if (at >= dimensions) continue;
    const bool first = interleaved ? at % 2 == 0 : at < half;
    const int distance = interleaved ? 1 : half;
    const int partner = first ? at + distance : at - distance;
    const int pair = interleaved ? at / 2 : min(at, partner);
    const float2 turn = rotations[pair];
    const float across = head[partner / 8 * 9 + partner % 8] * turn.y;
    x[i] = x[i] * turn.x + (first ? -across : across);
  }
}

// Grid (tokens, groups of heads).
template <int kHeadSize>
__global__ void __launch_bounds__(kThreads) RopeAppendKernel(RopeAppendArgs args) {
  constexpr int kLanes = kHeadLanes<kHeadSize>;
  constexpr int kHeads = kThreads / kLanes;
  __shared__ float exchange[kHeads][kHeadSize * 9 / 8];

  const int64_t token = blockIdx.x;
  const int head = blockIdx.y * kHeads + threadIdx.x / kLanes;
  const int column = 8 * (threadIdx.x % kLanes);
  const int kv_heads = args.pages.kv_heads;
  const bool writes = head < args.heads + 2 * kv_heads && column < kHeadSize;
  const bool is_q = head < args.heads;
  const bool is_value = head >= args.heads + kv_heads;

  const int64_t position = args.positions[token];
  int64_t block = 0;
  if (!is_q && writes) {
    block = args.tables
                .blocks[args.slots[token] * args.tables.stride + position / args.pages.block_size];
  }
  float x[8] = {};
  if (writes) Load8(args.qkv, token, static_cast<int64_t>(head) * kHeadSize + column, x);

  // A warp may hold heads of q, k and v: all of its lanes go through the exchange between lanes.
  float turned[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) turned[i] = x[i];
  if (args.q_norm != nullptr) {
    NormHead<kHeadSize>(is_q ? args.q_norm : args.k_norm, args.norm_epsilon, column, turned);
  }
  if (args.rope_dimensions > 0) {
    RotateHead<kHeadSize>(args.rotations + position * (args.rope_dimensions / 2),
                          args.rope_dimensions, args.interleaved, column,
                          exchange[threadIdx.x / kLanes], turned);
  }
  if (!writes) return;
  if (is_q) {
    Store8(args.q + (token * args.heads + head) * kHeadSize + column, turned);
    return;
  }
  if (!is_value) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = turned[i];
  }
  // Of both k and v, `head` counts on from the last q: k's heads are rows 0 … kv_heads - 1 of a
  // block and v's follow.
  const int64_t at = block * args.pages.block_stride +
                     (static_cast<int64_t>(head - args.heads) * args.pages.block_size +
                      position % args.pages.block_size) *
                         kHeadSize +
                     column;
  if (args.pages.type == Type::kBf16) {
    Store8(static_cast<Bf16*>(args.pages.data) + at, x);
  } else {
    const float inverse = Fp8Inverse(is_value ? args.pages.v_scale : args.pages.k_scale);
    *reinterpret_cast<uint2*>(static_cast<uint8_t*>(args.pages.data) + at) = Fp8Codes8(x, inverse);
  }
}

template <int kHeadSize>
cudaError_t Launch(const RopeAppendArgs& args, cudaStream_t stream) {
  const int heads_a_cta = kThreads / kHeadLanes<kHeadSize>;
  const dim3 grid(args.tokens, CeilDiv(args.heads + 2 * args.pages.kv_heads, heads_a_cta));
  RopeAppendKernel<kHeadSize><<<grid, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
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
      args.rope_dimensions < 0 || args.rope_dimensions % 2 != 0 ||
      args.rope_dimensions > args.pages.head_size ||
      (args.rope_dimensions > 0 && args.rotations == nullptr) ||
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
