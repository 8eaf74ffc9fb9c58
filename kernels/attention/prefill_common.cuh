// The loop of the portable prefill kernel. A CTA takes 128 query rows (token, query head of a kv
// head's group) and iterates over all keys that they see; each warp owns some of the rows. At the
// end of a chunk its result is merged into the total, which lies in global memory (in practice in
// the L2 cache) in register order, since registers hold only one accumulator.
#ifndef MILLRACE_KERNELS_ATTENTION_PREFILL_COMMON_CUH_
#define MILLRACE_KERNELS_ATTENTION_PREFILL_COMMON_CUH_

#include <algorithm>

#include "kernels/attention/attention_kernels.h"
#include "kernels/attention/attention_params.cuh"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels::attention {

// Per-item state, kept in shared memory to save registers.
struct PrefillShared {
  PrefillItem item;
  int head;
  int block_ids[2][kTileRuns];  // of even and odd tiles
  int positions[kPrefillRows];  // of the rows' tokens
  Softmax totals[kPrefillRows];
};

// Each warp takes kBlocks * 16 rows. TileRow is the layout of keys and values in shared memory.
template <typename Kv, int kHeadSize, int kBlocks, int kStages, typename TileRow>
class PrefillBase {
 public:
  using T = Tile<Kv, kHeadSize>;
  static constexpr int kThreads = kPrefillRows / (16 * kBlocks) * kWarpSize;
  static constexpr int kColumnBlocks = kHeadSize / 8;
  static constexpr int kQueryBytes = kPrefillRows * kHeadSize * 2;
  static constexpr int kStageBytes = 2 * T::kBytes;
  static constexpr int kSharedBytes = kQueryBytes + kStages * kStageBytes;

 protected:
  __device__ PrefillBase(const Params& params, PrefillShared& shared, uint32_t memory)
      : params_(params),
        shared_(shared),
        queries_(memory),
        stages_(memory + kQueryBytes),
        lane_(threadIdx.x % kWarpSize),
        row_(threadIdx.x / kWarpSize * 16 * kBlocks),
        query_lane_(queries_ + row_ * kHeadSize * 2 + T::QueryLane(lane_)) {}

  // Returns the query row of the lane's i-th (block, half).
  __device__ int Row(int i) const { return row_ + lane_ / 4 + 8 * i; }

  __device__ uint32_t Stage(int tile) const { return stages_ + tile % kStages * kStageBytes; }

  // Starts the copies of the item's queries and its first tile.
  __device__ void Begin(const Span& span, int tile) {
    const PrefillItem& item = shared_.item;
    for (int row = threadIdx.x; row < kPrefillRows; row += kThreads) {
      shared_.positions[row] = item.position + min(params_.Token(row), item.tokens - 1);
      shared_.totals[row] = params_.FirstTotal(shared_.head, row);
    }
    if (threadIdx.x < kTileRuns) {
      const int begin = tile * kTile + threadIdx.x * kRun;
      shared_.block_ids[(tile + 1) % 2][threadIdx.x] = 0;  // stays for runs without a block
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
      const bool valid = params_.Token(row) < item.tokens;
      const Bf16* from = params_.q;
      if (valid) {
        from += params_.RowOffset(params_.q_stride, item.token, shared_.head, row, kHeadSize) +
                word * 8;
      }
      CopyAsync(queries_ + QueryRow::Offset(row, word), from, valid);
    }
  }

  // Starts the copies of a tile, and of the block ids of the tile after it.
  __device__ void StartTile(int tile) {
    const Span span = params_.Visible(shared_.item.position, shared_.item.tokens);
    const HeadPages pages = params_.Head(shared_.head);
#pragma unroll
    for (int run = 0; run < kTileRuns; ++run) {
      LoadRun<TileRow, kThreads>(pages, tile * kTile, run * kRun, span,
                                 shared_.block_ids[tile % 2][run], Stage(tile), threadIdx.x);
    }
    const int begin = (tile + 1) * kTile + threadIdx.x * kRun;
    if (threadIdx.x < kTileRuns && IsNeeded(begin, span)) {
      CopyAsync4(SharedAddress(&shared_.block_ids[(tile + 1) % 2][threadIdx.x]),
                 params_.Blocks(shared_.item.slot) + (begin >> params_.block_shift));
    }
  }

  // Waits until this thread's copies have arrived. Those of other threads are complete after a
  // barrier.
  __device__ void FinishTile() { asm volatile("cp.async.wait_all;" ::: "memory"); }

  __device__ void ClearChunk() {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      sums_[m][0] = sums_[m][1] = EmptySoftmax();
#pragma unroll
      for (int block = 0; block < kColumnBlocks; ++block) {
#pragma unroll
        for (int e = 0; e < 4; ++e) values_[m][block][e] = 0;
      }
    }
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

  // Turns scores into probabilities and rescales the accumulators where necessary.
  __device__ void AddScores(float (&scores)[kBlocks][kTileBlocks][4],
                            uint32_t (&probabilities)[kBlocks][kTile / 16][4]) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      const TileOffsets tile = TakeMaxima(scores[m], params_.rule.log2_unit, sums_[m]);
      TakeProbabilities(scores[m], params_.rule.log2_unit, tile, sums_[m]);
      if (Scales(tile)) Scale(values_[m], tile);
#pragma unroll
      for (int step = 0; step < kTile / 16; ++step) {
        Probabilities(scores[m], step, probabilities[m][step]);
      }
    }
  }

  // Merges the chunk into the total, which stays in registers after the last chunk and otherwise
  // goes to memory.
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
    Softmax& sums = sums_[i / 2][i % 2];
    SumOverLanes(sums);
    Softmax total = shared_.totals[Row(i)];
    const MergeFactors factors = Merge(total, sums, params_.rule.log2_unit);
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
      const int64_t to =
          params_.RowOffset(params_.out_stride, shared_.item.token, shared_.head, row, kHeadSize);
#pragma unroll
      for (int word = 0; word < T::Row::kWords; ++word) {
        float columns[T::kLaneColumns];
        T::LaneColumns(&values_[i / 2][word * T::kBlocksPerWord], i % 2, columns);
        StoreOutputs(params_, to + T::LaneColumn(word, lane_), columns, factor);
      }
    }
  }

  const Params& params_;
  PrefillShared& shared_;
  const uint32_t queries_;
  const uint32_t stages_;
  const int lane_;
  const int row_;  // the warp's first
  const uint32_t query_lane_;

  // Sums of the current chunk.
  Softmax sums_[kBlocks][2];
  float values_[kBlocks][kColumnBlocks][4];
};

// The body of a kernel. CTAs take items from the tile counter as they become free; the last CTA to
// find none left resets it.
template <typename Reader>
__device__ inline void RunPrefillItems(const Params& params, PrefillShared& shared,
                                       uint32_t memory) {
  __shared__ bool done;
  AwaitPredecessor();
  PlanHeader& header = *params.plan.header;
  const int work = header.prefill_items * params.kv_heads;
  Reader reader(params, shared, memory);
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
    StorePadding<Reader::kThreads>(params, shared.item.token, shared.item.tokens, shared.head,
                                   Reader::kHeadSize, threadIdx.x);
  }
  if (threadIdx.x == 0) LeavePrefill(header);
}

template <typename Reader>
cudaError_t LaunchPrefillKernel(const Launch& launch, void (*kernel)(Params)) {
  if (Reader::kSharedBytes + static_cast<int>(sizeof(PrefillShared)) + 128 >
      launch.shared_per_cta) {
    return cudaErrorInvalidConfiguration;
  }
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Reader::kSharedBytes);
  if (error != cudaSuccess) return error;
  const int work = MaxPrefillItems(launch.args.step) * launch.args.pages.kv_heads;
  const int ctas = std::min({Reader::kCtas * launch.sms, kMaxCtas, work});
  return LaunchDependent(kernel, dim3(ctas), dim3(Reader::kThreads), Reader::kSharedBytes,
                         launch.stream, MakeParams(launch));
}

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_PREFILL_COMMON_CUH_
