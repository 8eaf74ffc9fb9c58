// Prefill with Hopper's wgmma, structured like FlashAttention-3 (arXiv:2407.08608). Four producer
// warps copy keys and values into a pipeline in shared memory without pausing between items. Two
// consumer warp groups take 64 query rows each. A group issues the products of the next tile's keys
// and of this tile's values, and computes the next probabilities while the values' products are in
// flight, overlapped with the other group. Queries, scores, probabilities, and the sums of the
// chunk and of the total all stay in registers.
//
// Compiled for all architectures but launched on sm_90a only; elsewhere wgmma compiles to nothing.
#include <algorithm>

#include "kernels/attention/prefill_sm90_copy.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels::attention {
namespace {

constexpr int kComputingThreads = kComputingGroups * kGroupThreads;
constexpr int kThreads = kGroupThreads + kComputingThreads;

// Registers per thread after setmaxnreg, out of 168 that the launch gives to each thread.
constexpr int kCopyingRegisters = 40;
constexpr int kComputingRegisters = 232;

template <int kRegisters, bool kMore>
__device__ void SetRegisters() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kMore) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
  }
#endif
}

template <typename Kv, int kHeadSize>
class Consumer {
 public:
  __device__ Consumer(const Params& params, PrefillSm90Shared& shared, uint32_t base)
      : params_(params),
        shared_(shared),
        base_(base),
        full_(base + L::kBarriersOffset, L::kStages),
        read_(base + L::kBarriersOffset, L::kStages) {}

  __device__ void Run() {
    for (int n = 0;; ++n) {
      full_.WaitFull();
      const PrefillWork& work = shared_.work[n % 2];
      if (work.item.tokens == 0) break;
      RunItem(work);
    }
  }

 private:
  using T = Tile<Kv, kHeadSize>;
  using L = PrefillSm90Layout<Kv, kHeadSize>;
  using Scores = float[kTileBlocks][4];
  static constexpr int kColumnBlocks = kHeadSize / 8;

  // Processes an item whose first tile has arrived.
  __device__ void RunItem(const PrefillWork& work) {
    const Span span = params_.Visible(work.item.position, work.item.tokens);
    int tile = span.first / kTile;
    const int end = CeilDiv(span.end, kTile);
    // Tiles in [first_whole, end_whole) are visible to every row and need no mask.
    const int last = work.item.position + work.item.tokens - 1;
    const int first_whole = CeilDiv(FirstVisible(last, params_.window), kTile);
    const int end_whole = (work.item.position + 1) / kTile;
    LoadQueries();
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // four lanes write the same
      shared_.totals[Row(half)] = params_.FirstTotal(work.head, Row(half));
    }
    for (Softmax& sums : sums_) sums = EmptySoftmax();
#pragma unroll
    for (int i = 0; i < 4 * kColumnBlocks; ++i) total_values_[i / 4][i % 4] = 0;

    Scores scores;
    MultiplyKeys(scores);
    WgmmaWait<0>();
    WgmmaFence(scores);
    const float log2_unit = params_.rule.log2_unit;
    const auto finish_scores = [&](int tile) {
      if (params_.rule.soft_cap > 0) [[unlikely]]
        CapScores(scores);
      if (tile < first_whole || tile >= end_whole) [[unlikely]]
        Mask(work.item, tile, scores);
    };
    finish_scores(tile);
    TakeProbabilities(scores, log2_unit, TakeMaxima(scores, log2_unit, sums_), sums_);
    PackScores(scores);
    bool first = true;  // whether `tile` is the first of a chunk
    if (tile + 1 < end) full_.WaitFull();
    while (tile + 1 < end) {
      MultiplyKeys(scores);
      MultiplyValues(first);
      ++tile;
      if (tile + 1 < end) full_.WaitFull();
      first = tile % kTilesPerChunk == 0;
      const Softmax before[2] = {sums_[0], sums_[1]};
      if (first) sums_[0] = sums_[1] = EmptySoftmax();
      WgmmaWait<1>();
      WgmmaFence(scores);
      finish_scores(tile);
      const TileOffsets offsets = TakeMaximaByVote(scores, log2_unit, sums_);
      // The values' products are done by now. The waits stand in branches, with different texts, so
      // that the compiler leaves the code above in place. The code below overlaps the exponentials.
      if (first) {
        WgmmaWait<0, 0>();
        WgmmaFence(values_);
        MergeChunk(before);
      } else if (Scales(offsets)) {
        WgmmaWait<0, 1>();
        WgmmaFence(values_);
        Scale(values_, offsets);
      } else {
        WgmmaWait<0, 2>();
        WgmmaFence(values_);
      }
      read_.Release();
      TakeProbabilities(scores, log2_unit, offsets, sums_);
      PackScores(scores);
    }
    MultiplyValues(first);
    WgmmaWait<0>();
    WgmmaFence(values_);
    read_.Release();
    MergeChunk(sums_);
    Store(work);
  }

  __device__ void LoadQueries() {
    const uint32_t rows = base_ + L::kQueryOffset + WarpRow() * kHeadSize * 2 +
                          T::QueryRow::Offset(Lane() % 16, Lane() / 16);
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) {
      LoadMatrices(T::QueryRow::Word(rows, 2 * step), query_[step]);
      T::ConvertQuery(query_[step]);
    }
    __syncwarp();
    if (Lane() == 0) MbarrierArrive(base_ + L::kQueriesReadOffset);
  }

  // Issues the products of the queries with the keys of the tile that `full_` has waited for.
  __device__ void MultiplyKeys(Scores& scores) {
    const WgmmaMatrices keys(base_ + full_.stage() * L::kStageBytes, 0);
    full_.Advance();
    WgmmaFence(scores);
    WgmmaBegin();
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) {
      WgmmaKeys<L::kFp8>(scores, query_[step],
                         keys.At(step / 4 * SwizzledRow<kHeadSize>::kColumnBytes + step % 4 * 32),
                         step > 0);
    }
    WgmmaCommit();
  }

  // Issues the products of the probabilities with the oldest tile's values. `first` starts a new
  // sum.
  __device__ void MultiplyValues(bool first) {
    const WgmmaMatrices values(base_ + read_.stage() * L::kStageBytes + L::kTileBytes,
                               SwizzledRow<kHeadSize>::kColumnBytes);
    WgmmaFence(values_);
    WgmmaBegin();
#pragma unroll
    for (int step = 0; step < kTile / 16; ++step) {
      WgmmaValues(values_, probabilities_[step], values.At(step * 16 * 128), step > 0 || !first);
    }
    WgmmaCommit();
  }

  __device__ void CapScores(Scores& scores) const {
#pragma unroll
    for (int i = 0; i < kTileBlocks * 4; ++i) {
      scores[i / 4][i % 4] = SoftCap(params_.rule, scores[i / 4][i % 4]);
    }
  }

  __device__ void Mask(const PrefillItem& item, int tile, Scores& scores) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = min(params_.Token(Row(half)), item.tokens - 1);
      const int position = item.position + token;
      const int first = FirstVisible(position, params_.window);
#pragma unroll
      for (int block = 0; block < kTileBlocks; ++block) {
        const int key = tile * kTile + block * 8 + Lane() % 4 * 2;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (key + e > position || key + e < first) scores[block][2 * half + e] = -Infinity();
        }
      }
    }
  }

  __device__ void PackScores(const Scores& scores) {
#pragma unroll
    for (int step = 0; step < kTile / 16; ++step) Probabilities(scores, step, probabilities_[step]);
  }

  __device__ void MergeChunk(const Softmax (&sums)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Softmax own = sums[half];
      SumOverLanes(own);
      Softmax total = shared_.totals[Row(half)];
      const MergeFactors factors = Merge(total, own, params_.rule.log2_unit);
      __syncwarp();  // four lanes read it and write the same
      shared_.totals[Row(half)] = total;
#pragma unroll
      for (int block = 0; block < kColumnBlocks; ++block) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          total_values_[block][e] = Merged(total_values_[block][e], values_[block][e], factors);
        }
      }
    }
  }

  __device__ void Store(const PrefillWork& work) const {
    const PrefillItem& item = work.item;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Row(half);
      if (row >= item.tokens * params_.group) continue;
      const float factor = OutputFactor(shared_.totals[row], params_.value_scale);
      const int64_t to = Lane() % 4 * 2 + params_.RowOffset(params_.out_stride, item.token,
                                                            work.head, row, kHeadSize);
#pragma unroll
      for (int block = 0; block < kColumnBlocks; ++block) {
        const float columns[2] = {total_values_[block][2 * half],
                                  total_values_[block][2 * half + 1]};
        StoreOutputs(params_, to + block * 8, columns, factor);
      }
    }
    StorePadding<kComputingThreads>(params_, item.token, item.tokens, work.head, kHeadSize,
                                    threadIdx.x - kGroupThreads);
  }

  __device__ static int Lane() { return threadIdx.x % kWarpSize; }
  __device__ static int WarpRow() { return (threadIdx.x - kGroupThreads) / kWarpSize * 16; }
  __device__ static int Row(int half) { return WarpRow() + Lane() / 4 + 8 * half; }

  const Params& params_;
  PrefillSm90Shared& shared_;
  const uint32_t base_;
  PipelineState full_;  // the next tile whose keys are multiplied
  PipelineState read_;  // the oldest tile whose values are not yet read

  uint32_t query_[T::kSteps][4];
  uint32_t probabilities_[kTile / 16][4];
  // Sums of the current chunk, and of all chunks before it.
  Softmax sums_[2];
  float values_[kColumnBlocks][4];
  float total_values_[kColumnBlocks][4];
};

template <typename Kv, int kHeadSize>
__global__ void __launch_bounds__(kThreads, 1)
    PrefillSm90Kernel(const __grid_constant__ Params params) {
  using L = PrefillSm90Layout<Kv, kHeadSize>;
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<PrefillSm90Shared*>(memory + L::kSharedOffset);
  const uint32_t base = SharedBase(memory);
  if (threadIdx.x == 0) {
    InitPipeline(base + L::kBarriersOffset, L::kStages, kGroupThreads / kWarpSize,
                 kComputingThreads / kWarpSize);
    MbarrierInit(base + L::kQueriesReadOffset, kComputingThreads / kWarpSize);
  }
  AwaitPredecessor();
  __syncthreads();
  if (threadIdx.x < kGroupThreads) {
    SetRegisters<kCopyingRegisters, false>();
    PrefillProducer<Kv, kHeadSize>(params, shared, base).Run();
  } else {
    SetRegisters<kComputingRegisters, true>();
    Consumer<Kv, kHeadSize>(params, shared, base).Run();
  }
}

template <typename Kv, int kHeadSize>
cudaError_t LaunchKernel(const Launch& launch) {
  constexpr int kBytes = PrefillSm90Layout<Kv, kHeadSize>::kBytes;
  if (kBytes > launch.shared_per_cta) return cudaErrorInvalidConfiguration;
  const auto kernel = PrefillSm90Kernel<Kv, kHeadSize>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const int work = MaxPrefillItems(launch.args.step) * launch.args.pages.kv_heads;
  return LaunchDependent(kernel, dim3(std::min(launch.sms, work)), dim3(kThreads), kBytes,
                         launch.stream, MakeParams(launch));
}

}  // namespace

bool TakesPrefillSm90(const AttentionArgs& args) {
  const KvPages& pages = args.pages;
  return pages.head_size == 128 || (pages.head_size == 64 && pages.type == Type::kBf16);
}

cudaError_t LaunchPrefillSm90(const Launch& launch) {
  if (launch.args.pages.type == Type::kFp8) return LaunchKernel<Fp8, 128>(launch);
  return launch.args.pages.head_size == 64 ? LaunchKernel<Bf16, 64>(launch)
                                           : LaunchKernel<Bf16, 128>(launch);
}

}  // namespace millrace::kernels::attention
