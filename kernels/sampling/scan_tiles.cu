#include <cuda_runtime.h>

#include "kernels/launch.cuh"
#include "kernels/sampling/sample_internal.cuh"

namespace millrace::kernels::sampling {
namespace {

// A block reads 16 tiles. Sixteen lanes share a tile, so that a load instruction reads 256 bytes of
// each of two tiles and each thread has four loads in flight.
constexpr int kThreads = 256;
constexpr int kLanes = 16;
constexpr int kLoads = kTile / (4 * kLanes);
constexpr int kChunk = kThreads / kLanes * kTile;

// A thread's share of a tile: x[i][c] is column first + i * 4 * kLanes + c.
struct Share {
  float x[kLoads][4];

  template <typename F>
  __device__ void ForEach(F f) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) f(x[i][c], i * 4 * kLanes + c);
    }
  }

  // Returns the tile's largest logit.
  __device__ float Largest() {
    float largest = -INFINITY;
    ForEach([&](float x, int) { largest = fmaxf(largest, x); });
    return WarpReduce<Max, kLanes>(largest);
  }

  // Returns the offset in the tile of the first logit equal to `largest`.
  __device__ int First(float largest, int offset_in_tile) {
    int first = kTile;
    ForEach([&](float x, int at) {
      if (x == largest) first = min(first, offset_in_tile + at);
    });
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      first = min(first, __shfl_xor_sync(kFullWarp, first, distance));
    }
    return first;
  }

  // Returns the lane's share of the tile's sum of exp2((x - largest) * factor).
  __device__ float Sum(float largest, float factor) {
    if (largest == -INFINITY) return 0;  // uniform over the tile's lanes
    float sums[4] = {};
    ForEach([&](float x, int offset) { sums[offset % 4] += Exp2((x - largest) * factor); });
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
};

struct Table {
  uint32_t words[kChunk];
  int first;  // the chunk's first token

  __device__ void Clear() {
    for (int i = threadIdx.x; i < kChunk; i += kThreads) words[i] = 0;
    __syncthreads();
  }
  // Returns the token's word, or null for a token outside the chunk.
  __device__ uint32_t* Find(int token) {
    const uint32_t offset = static_cast<uint32_t>(token) - static_cast<uint32_t>(first);
    return offset < kChunk ? &words[offset] : nullptr;
  }
};

__device__ void AddBiases(const SampleArgs& args, const SampleRow& row, const SlotSampling& slot,
                          int offset, Table& table, Share& share) {
  const TokenBias* entries = args.biases + row.slot * args.biases_stride;
  table.Clear();  // all bits 0 encode the bias 0
  for (int i = threadIdx.x; i < slot.num_biases; i += kThreads) {
    const TokenBias entry = entries[slot.num_banned + i];
    if (uint32_t* word = table.Find(entry.token)) *word = __float_as_uint(entry.bias);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < NumBanned(row, slot); i += kThreads) {
    if (uint32_t* word = table.Find(entries[i].token)) *word = __float_as_uint(-INFINITY);
  }
  __syncthreads();
  share.ForEach([&](float& x, int at) { x += __uint_as_float(table.words[offset + at]); });
  __syncthreads();
}

__device__ float Penalized(float x, const SlotSampling& slot, float generated) {
  x = x > 0 ? x / slot.repetition_penalty : x * slot.repetition_penalty;
  x = __fsub_rn(x, __fmul_rn(slot.frequency_penalty, generated));
  return generated > 0 ? x - slot.presence_penalty : x;
}

__device__ void Penalize(const SampleArgs& args, const SampleRow& row, const SlotSampling& slot,
                         int offset, Table& table, Share& share) {
  // the other bits count the token's generated occurrences
  constexpr uint32_t kInPrompt = 0x80000000;
  const int32_t* history = args.history + row.slot * args.history_stride;
  const int length = static_cast<int>(min(int64_t{row.position}, args.history_stride));
  table.Clear();
  constexpr int kAtOnce = 8;
  for (int first_position = threadIdx.x; first_position < length;
       first_position += kAtOnce * kThreads) {
    int32_t tokens[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int position = first_position + i * kThreads;
      tokens[i] = position < length ? history[position] : -1;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (uint32_t* word = table.Find(tokens[i])) {
        if (first_position + i * kThreads < slot.prompt_length) {
          atomicOr(word, kInPrompt);
        } else {
          atomicAdd(word, 1);
        }
      }
    }
  }
  __syncthreads();
  share.ForEach([&](float& x, int at) {
    const uint32_t word = table.words[offset + at];
    if (word != 0) x = Penalized(x, slot, static_cast<float>(word & ~kInPrompt));
  });
}

__device__ uint32_t LoadAcquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

__device__ uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Waits until the mask may be read. Returns false, to all threads of the block, if it does not come
// in time.
__device__ __noinline__ bool AwaitMask(const MaskArrival& arrival, int mask) {
  bool came = arrival.wanted == nullptr;
  if (!came && threadIdx.x == 0) {
    const int set = mask / arrival.rows;
    const uint32_t wanted = arrival.wanted[set];
    const uint64_t begun = Nanoseconds();
    do {
      came = static_cast<int32_t>(LoadAcquire(arrival.ready + set) - wanted) >= 0;
      if (!came) __nanosleep(200);
    } while (!came && Nanoseconds() - begun < arrival.timeout_ns);
  }
  return __syncthreads_or(came) != 0;
}

// Replaces the logits of the tokens that a mask forbids by -inf. `words` is the mask.
__device__ void Forbid(const uint32_t* words, int first_column, int vocab_size, Share& share) {
  static_assert(4 * kLanes % 32 == 0);
  words += first_column / 32;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    if (first_column + i * 4 * kLanes >= vocab_size) break;
    // Past the L1 cache, which does not see a copy's writes.
    const uint32_t allowed = __ldcg(words + i * 4 * kLanes / 32) >> (first_column % 32);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if ((allowed >> c & 1) == 0) share.x[i][c] = -INFINITY;
    }
  }
}

// Applies bans, biases, penalties and the mask. Only bans and the mask yield -inf.
__device__ void Adjust(const SampleArgs& args, const SampleRow& row, const SlotSampling& slot,
                       int first, int offset, Share& share) {
  __shared__ Table table;
  if (threadIdx.x == 0) table.first = first;
  if (slot.num_biases > 0 || NumBanned(row, slot) > 0) {
    AddBiases(args, row, slot, offset, table, share);
  }
  if (Penalizes(slot)) Penalize(args, row, slot, offset, table, share);
  if (row.mask >= 0) {
    Forbid(args.masks + row.mask * args.masks_stride, first + offset, args.vocab_size, share);
  }
  share.ForEach([](float& x, int) {
    if (x != -INFINITY) x = fminf(fmaxf(x, -FLT_MAX), FLT_MAX);
  });
}

// Returns the logit of a product of the head. A product that is not finite becomes NaN, since a cap
// would hide it.
__device__ float LogitOfProduct(const SampleArgs& args, float y) {
  float logit = args.logit_factor * y;
  if (args.logit_soft_cap != 0) {
    logit = args.logit_soft_cap * tanhf(logit / args.logit_soft_cap);
  }
  return fmaf(0.0f, y, logit);
}

// Replaces the products in `share`, and those in the row, by the logits.
__device__ void MakeLogits(const SampleArgs& args, float* row, int first_column, Share& share) {
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int column = first_column + i * 4 * kLanes;
    if (column >= args.vocab_size) break;
    float(&x)[4] = share.x[i];
    float4 logits = make_float4(LogitOfProduct(args, x[0]), LogitOfProduct(args, x[1]),
                                LogitOfProduct(args, x[2]), LogitOfProduct(args, x[3]));
    *reinterpret_cast<float4*>(row + column) = logits;
    MaskLogits(logits, column, args.vocab_size);
    x[0] = logits.x, x[1] = logits.y, x[2] = logits.z, x[3] = logits.w;
  }
}

template <bool kMakesLogits>
__global__ void __launch_bounds__(kThreads, 5) ScanTilesKernel(const SampleArgs args) {
  AwaitPredecessor();
  const int row = blockIdx.y;
  if (row >= *args.num_rows) return;
  const int first = blockIdx.x * kChunk;
  const int lane = threadIdx.x % kLanes;
  const int offset = threadIdx.x / kLanes * kTile + lane * 4;
  float* const logits = args.logits + row * args.logits_stride;

  Share share;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int column = first + offset + i * 4 * kLanes;
    float4 x = LoadLogits(logits, column, args.vocab_size);
    MaskLogits(x, column, args.vocab_size);
    share.x[i][0] = x.x, share.x[i][1] = x.y, share.x[i][2] = x.z, share.x[i][3] = x.w;
  }
  if constexpr (kMakesLogits) MakeLogits(args, logits, first + offset, share);
  const SampleRow wanted = args.rows[row];
  const SlotSampling& slot = args.slots[wanted.slot];

  // Becomes NaN if a logit of the tile is not finite, since 0 * x is NaN then. Columns past the
  // vocabulary are excluded.
  float poison = 0;
  const int valid = args.vocab_size - first - offset;
  share.ForEach([&](float x, int at) { poison = fmaf(at < valid ? x : 0.0f, 0.0f, poison); });
  poison = WarpReduce<Add, kLanes>(poison);

  TileStats stats = {};
  if (slot.top_logprobs >= 0) {
    stats.raw_largest = share.Largest();
    stats.raw_sum = WarpReduce<Add, kLanes>(share.Sum(stats.raw_largest, kLog2E));
  }
  if (Adjusts(wanted, slot)) {  // uniform over the block
    if (wanted.mask >= 0 && !AwaitMask(args.mask_arrival, wanted.mask)) poison = NAN;
    Adjust(args, wanted, slot, first, offset, share);
    float* adjusted = args.adjusted + row * args.logits_stride;
    const int end = Draws(wanted, slot) ? args.vocab_size : 0;  // others need only the statistics
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int column = first + offset + i * 4 * kLanes;
      if (column >= end) break;
      *reinterpret_cast<float4*>(adjusted + column) =
          make_float4(share.x[i][0], share.x[i][1], share.x[i][2], share.x[i][3]);
    }
  }
  stats.largest = share.Largest() + poison;
  if (Draws(wanted, slot)) {
    stats.sum = WarpReduce<Add, kLanes>(share.Sum(stats.largest, Factor(slot)));
  } else {
    stats.first = first + offset - lane * 4 + share.First(stats.largest, lane * 4);
  }
  const int tiles = NumTiles(args.vocab_size);
  const int tile = (first + offset) / kTile;
  if (lane == 0 && tile < tiles) {
    static_cast<TileStats*>(args.workspace)[int64_t{row} * tiles + tile] = stats;
  }
}

}  // namespace

cudaError_t LaunchScanTiles(const SampleArgs& args, cudaStream_t stream) {
  const dim3 grid(CeilDiv(args.vocab_size, kChunk), args.max_rows);
  const bool makes_logits = args.logit_factor != 1 || args.logit_soft_cap != 0;
  return LaunchDependent(makes_logits ? ScanTilesKernel<true> : ScanTilesKernel<false>, grid,
                         kThreads, 0, stream, args);
}

}  // namespace millrace::kernels::sampling
