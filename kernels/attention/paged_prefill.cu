// Reading prompts: a CTA takes 128 rows of queries, (token, head of a kv head's group), and runs
// through all keys that they see, as FlashAttention-2 does (arXiv:2307.08691): each warp has its
// own rows, the next tile is copied while one is computed. At the end of a chunk its result joins
// the total, which lies in global memory (in practice in the L2 cache), in the order of the
// registers, for registers hold one accumulator only. Warps hold 32 rows where that fits: each key
// and value that is read from shared memory then serves two instructions.
#include <algorithm>

#include "kernels/attention/attention_kernels.h"
#include "kernels/attention/attention_params.cuh"
#include "kernels/device_util.cuh"

namespace millrace::kernels::attention {
namespace {

// What would cost registers.
struct Shared {
  PrefillItem item;
  int head;
  int block_ids[2][kTileRuns];  // of an even and an odd tile
  int positions[kPrefillRows];  // of the rows' tokens
  Softmax totals[kPrefillRows];
};

template <typename Kv, int kHeadSize>
class Reader {
 public:
  using T = Tile<Kv, kHeadSize>;
  static constexpr int kBlocks = kHeadSize <= 128 ? 2 : 1;  // of 16 rows, a warp
  static constexpr int kThreads = kPrefillRows / (16 * kBlocks) * kWarpSize;
  static constexpr int kColumnBlocks = kHeadSize / 8;
  static constexpr int kCtas = kThreads == 128 ? kCtasPerSm : 1;
  static constexpr int kQueryBytes = kPrefillRows * kHeadSize * 2;
  static constexpr int kStageBytes = 2 * T::kBytes;
  static constexpr int kSharedBytes = kQueryBytes + 2 * kStageBytes;

  __device__ Reader(const Params& params, Shared& shared, uint32_t memory)
      : params_(params),
        shared_(shared),
        queries_(memory),
        ring_(memory + kQueryBytes),
        lane_(threadIdx.x % kWarpSize),
        row_(threadIdx.x / kWarpSize * 16 * kBlocks),
        query_lane_(queries_ + row_ * kHeadSize * 2 + T::QueryLane(lane_)),
        key_lane_(T::KeyLane(lane_)),
        value_lane_(T::kBytes + T::ValueLane(lane_)) {}

  // The item is in shared memory.
  __device__ void RunItem() {
    const Span span = params_.Visible(shared_.item.position, shared_.item.tokens);
    const int first_tile = span.first / kTile;
    int tile = first_tile;
    const int end = CeilDiv(span.end, kTile);
    const int first_chunk = tile / kTilesPerChunk;
    Begin(span, tile);
    while (true) {
      const int chunk = tile / kTilesPerChunk;
      const int chunk_end = min(end, (chunk + 1) * kTilesPerChunk);
      ClearChunk();
      for (bool first = true; tile < chunk_end; ++tile, first = false) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        if constexpr (!T::kFp8) {
          ConvertValues<kHeadSize, kThreads>(Stage(tile) + T::kBytes, threadIdx.x);
        }
        __syncthreads();  // this tile is here, and the one before has been read
        if (tile + 1 < end) StartTile(tile + 1);
        if (T::kFp8 && tile == first_tile) ConvertQueries();
        RunTile(tile, first);
      }
      MergeChunk(chunk == first_chunk, tile == end);
      if (tile == end) break;
    }
    Store();
    StorePadding<kThreads>(params_, shared_.item.token, shared_.item.tokens, shared_.head,
                           kHeadSize, threadIdx.x);
  }

 private:
  // The rows of queries whose elements the lane has: `i` counts blocks and halves.
  __device__ int Row(int i) const { return row_ + lane_ / 4 + 8 * i; }

  __device__ void Begin(const Span& span, int tile) {
    const PrefillItem& item = shared_.item;
    for (int row = threadIdx.x; row < kPrefillRows; row += kThreads) {
      shared_.positions[row] = item.position + min(row / params_.group, item.tokens - 1);
      shared_.totals[row] = EmptySoftmax();
    }
    if (threadIdx.x < kTileRuns) {
      const int begin = tile * kTile + threadIdx.x * kRun;
      shared_.block_ids[(tile + 1) % 2][threadIdx.x] = 0;  // where there is none
      shared_.block_ids[tile % 2][threadIdx.x] =
          IsNeeded(begin, span) ? params_.Blocks(item.slot)[begin >> params_.block_shift] : 0;
    }
    __syncthreads();
    LoadQueries();
    StartTile(tile);
  }

  __device__ void LoadQueries() {
    using QueryRow = typename T::QueryRow;
    const PrefillItem& item = shared_.item;
    for (int i = threadIdx.x; i < kPrefillRows * QueryRow::kWords; i += kThreads) {
      const int row = i / QueryRow::kWords;
      const int word = i % QueryRow::kWords;
      const int token = row / params_.group;
      const bool valid = token < item.tokens;
      const Bf16* from = params_.q;
      if (valid) {
        from += (item.token + token) * params_.q_stride +
                (shared_.head * params_.group + row % params_.group) * kHeadSize + word * 8;
      }
      CopyAsync(queries_ + QueryRow::Offset(row, word), from, valid);
    }
  }

  // To what the product with FP8 keys takes.
  __device__ void ConvertQueries() {
    uint4* words = static_cast<uint4*>(__cvta_shared_to_generic(queries_));
    for (int i = threadIdx.x; i < kQueryBytes / 16; i += kThreads) {
      const uint4 word = words[i];
      words[i] = make_uint4(Bf16ToHalf(word.x), Bf16ToHalf(word.y), Bf16ToHalf(word.z),
                            Bf16ToHalf(word.w));
    }
    __syncthreads();
  }

  __device__ void ClearChunk() {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      sums_[2 * m] = sums_[2 * m + 1] = EmptySoftmax();
#pragma unroll
      for (int block = 0; block < kColumnBlocks; ++block) {
#pragma unroll
        for (int e = 0; e < 4; ++e) values_[m][block][e] = 0;
      }
    }
  }

  __device__ uint32_t Stage(int tile) const { return ring_ + tile % 2 * kStageBytes; }

  // Also asks for the block ids of the tile behind it.
  __device__ void StartTile(int tile) {
    const Span span = params_.Visible(shared_.item.position, shared_.item.tokens);
    const HeadPages pages = params_.Head(shared_.head);
#pragma unroll
    for (int run = 0; run < kTileRuns; ++run) {
      LoadRun<Kv, kHeadSize, kThreads>(pages, tile * kTile + run * kRun, span,
                                       shared_.block_ids[tile % 2][run],
                                       Stage(tile) + run * kRun * T::kRowBytes, threadIdx.x);
    }
    const int begin = (tile + 1) * kTile + threadIdx.x * kRun;
    if (threadIdx.x < kTileRuns && IsNeeded(begin, span)) {
      CopyAsync4(SharedAddress(&shared_.block_ids[(tile + 1) % 2][threadIdx.x]),
                 params_.Blocks(shared_.item.slot) + (begin >> params_.block_shift));
    }
  }

  // `first` of a chunk.
  __device__ void RunTile(int tile, bool first) {
    const uint32_t keys = Stage(tile) + key_lane_;
    float scores[kBlocks][kTileBlocks][4] = {};
#pragma unroll
    for (int pair = 0; pair < T::Row::kWords / 2; ++pair) {
      uint32_t a[kBlocks][T::kStepsPerPair][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int step = 0; step < T::kStepsPerPair; ++step) {
          T::LoadQuery(query_lane_ + 16 * m * kHeadSize * 2, pair * T::kStepsPerPair + step,
                       a[m][step]);
        }
      }
#pragma unroll
      for (int key = 0; key < kTile; key += 16) {
        uint32_t b[T::kStepsPerPair][2][2];
        T::LoadKeys(keys + key * T::kRowBytes, pair, b);
#pragma unroll
        for (int step = 0; step < T::kStepsPerPair; ++step) {
#pragma unroll
          for (int block = 0; block < 2; ++block) {
#pragma unroll
            for (int m = 0; m < kBlocks; ++m) {
              T::MultiplyKeys(scores[m][key / 8 + block], a[m][step], b[step][block]);
            }
          }
        }
      }
    }
    Mask(tile, scores);
    uint32_t probabilities[kBlocks][kTile / 16][4];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      const float factors[2] = {AddTile(scores[m], 0, params_.rule.log2_unit, sums_[2 * m]),
                                AddTile(scores[m], 1, params_.rule.log2_unit, sums_[2 * m + 1])};
      if (!first) {  // else nothing has been added yet
#pragma unroll
        for (int block = 0; block < kColumnBlocks; ++block) Scale(values_[m][block], factors);
      }
#pragma unroll
      for (int step = 0; step < kTile / 16; ++step) {
        Probabilities(scores[m], step, probabilities[m][step]);
      }
    }
    AddValues(Stage(tile) + value_lane_, probabilities);
  }

  __device__ void Mask(int tile, float (&scores)[kBlocks][kTileBlocks][4]) {
    if (params_.rule.soft_cap > 0) {
#pragma unroll
      for (int i = 0; i < kBlocks * kTileBlocks * 4; ++i) {
        float& score = scores[i / (kTileBlocks * 4)][i / 4 % kTileBlocks][i % 4];
        score = SoftCap(params_.rule, score);
      }
    }
    const PrefillItem& item = shared_.item;
    const int last = item.position + item.tokens - 1;
    if (tile * kTile + kTile - 1 <= item.position &&
        tile * kTile >= FirstVisible(last, params_.window)) {
      return;  // every row sees all of it
    }
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i) {
      const int position = shared_.positions[Row(i)];
      const int first = FirstVisible(position, params_.window);
#pragma unroll
      for (int block = 0; block < kTileBlocks; ++block) {
        const int key = tile * kTile + block * 8 + lane_ % 4 * 2;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (key + e > position || key + e < first) {
            scores[i / 2][block][i % 2 * 2 + e] = -Infinity();
          }
        }
      }
    }
  }

  __device__ void AddValues(uint32_t from,
                            const uint32_t (&probabilities)[kBlocks][kTile / 16][4]) {
#pragma unroll
    for (int rows = 0; rows < kTile / 32; ++rows) {
#pragma unroll
      for (int word = 0; word < T::Row::kWords; ++word) {
        uint32_t b[2][T::kBlocksPerWord][2];
        T::template LoadValues<true>(from + rows * 32 * T::kRowBytes, word, b);
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
          for (int block = 0; block < T::kBlocksPerWord; ++block) {
#pragma unroll
            for (int m = 0; m < kBlocks; ++m) {
              T::MultiplyValues(values_[m][word * T::kBlocksPerWord + block],
                                probabilities[m][2 * rows + step], b[step][block]);
            }
          }
        }
      }
    }
  }

  // The chunk's values become the total's, in registers after the last chunk and else in memory.
  __device__ void MergeChunk(bool first, bool last) {
    float4* memory = params_.scratch.totals +
                     static_cast<int64_t>(blockIdx.x) * kBlocks * kColumnBlocks * kThreads +
                     threadIdx.x;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      const MergeFactors factors[2] = {MergeSums(2 * m), MergeSums(2 * m + 1)};
      constexpr int kAhead = kColumnBlocks % 16 == 0 ? 16 : kColumnBlocks;  // reads at once
#pragma unroll
      for (int begin = 0; begin < kColumnBlocks; begin += kAhead) {
        float4* at = memory + (m * kColumnBlocks + begin) * kThreads;
        float4 totals[kAhead] = {};
        if (!first) {
#pragma unroll
          for (int i = 0; i < kAhead; ++i) totals[i] = __ldcg(at + i * kThreads);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          float(&values)[4] = values_[m][begin + i];
          values[0] = Merged(totals[i].x, values[0], factors[0]);
          values[1] = Merged(totals[i].y, values[1], factors[0]);
          values[2] = Merged(totals[i].z, values[2], factors[1]);
          values[3] = Merged(totals[i].w, values[3], factors[1]);
        }
        if (!last) {
#pragma unroll
          for (int i = 0; i < kAhead; ++i) {
            const float(&values)[4] = values_[m][begin + i];
            __stcg(at + i * kThreads, make_float4(values[0], values[1], values[2], values[3]));
          }
        }
      }
    }
  }

  __device__ MergeFactors MergeSums(int i) {
    SumOverLanes(sums_[i]);
    Softmax total = shared_.totals[Row(i)];
    const MergeFactors factors = Merge(total, sums_[i], params_.rule.log2_unit);
    __syncwarp();  // four lanes read it and write the same
    shared_.totals[Row(i)] = total;
    return factors;
  }

  __device__ void Store() {
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i) {
      const int row = Row(i);
      if (row >= shared_.item.tokens * params_.group) continue;
      const float factor = OutputFactor(shared_.totals[row], params_.value_scale);
      Bf16* to = params_.out + (shared_.item.token + row / params_.group) * params_.out_stride +
                 (shared_.head * params_.group + row % params_.group) * kHeadSize;
#pragma unroll
      for (int word = 0; word < T::Row::kWords; ++word) {
        float columns[T::kLaneColumns];
        T::LaneColumns(&values_[i / 2][word * T::kBlocksPerWord], i % 2, columns);
        StoreOutputs(to + T::LaneColumn(word, lane_), columns, factor);
      }
    }
  }

  const Params& params_;
  Shared& shared_;
  const uint32_t queries_;
  const uint32_t ring_;
  const int lane_;
  const int row_;  // the warp's first
  const uint32_t query_lane_;
  const uint32_t key_lane_;  // in a stage
  const uint32_t value_lane_;

  // Of the chunk.
  Softmax sums_[2 * kBlocks];
  float values_[kBlocks][kColumnBlocks][4];
};

// CTAs take items as they become free; the last of them to find none left resets the count.
template <typename Kv, int kHeadSize>
__global__ void __launch_bounds__(Reader<Kv, kHeadSize>::kThreads, Reader<Kv, kHeadSize>::kCtas)
    PrefillKernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ Shared shared;
  __shared__ bool done;
  PlanHeader& header = *params.plan.header;
  const int work = header.prefill_items * params.kv_heads;
  Reader<Kv, kHeadSize> reader(params, shared, SharedAddress(memory));
  while (true) {
    __syncthreads();
    if (threadIdx.x == 0) {
      const int i = atomicAdd(&header.next_prefill_item, 1);
      done = i >= work;
      if (!done) {
        shared.item = params.plan.prefill[i / params.kv_heads];
        shared.head = i % params.kv_heads;
      }
    }
    __syncthreads();
    if (done) break;
    reader.RunItem();
  }
  if (threadIdx.x == 0 && atomicInc(&header.idle_prefill_ctas, gridDim.x - 1) == gridDim.x - 1) {
    header.next_prefill_item = 0;
  }
}

template <typename Kv, int kHeadSize>
cudaError_t LaunchKernel(const Launch& launch) {
  using R = Reader<Kv, kHeadSize>;
  if (R::kSharedBytes + static_cast<int>(sizeof(Shared)) + 128 > launch.shared_per_cta)
    return cudaErrorInvalidConfiguration;
  const auto kernel = PrefillKernel<Kv, kHeadSize>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, R::kSharedBytes);
  if (error != cudaSuccess) return error;
  const int work = MaxPrefillItems(launch.args.step) * launch.args.pages.kv_heads;
  const int ctas = std::min({R::kCtas * launch.sms, kMaxCtas, work});
  kernel<<<ctas, R::kThreads, R::kSharedBytes, launch.stream>>>(MakeParams(launch));
  return cudaGetLastError();
}

template <typename Kv>
cudaError_t LaunchForSize(const Launch& launch) {
  switch (launch.args.pages.head_size) {
    case 64:
      return LaunchKernel<Kv, 64>(launch);
    case 96:
      return LaunchKernel<Kv, 96>(launch);
    case 128:
      return LaunchKernel<Kv, 128>(launch);
    case 256:
      return LaunchKernel<Kv, 256>(launch);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t LaunchPrefill(const Launch& launch) {
  return launch.args.pages.type == Type::kFp8 ? LaunchForSize<Fp8>(launch)
                                              : LaunchForSize<Bf16>(launch);
}

}  // namespace millrace::kernels::attention
