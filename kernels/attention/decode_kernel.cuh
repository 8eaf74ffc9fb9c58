// The decode kernel, for rows of few tokens. It is bound by the memory rate, since keys and values
// are read once.
//
// A CTA has two producer warps that copy tiles into a pipeline in shared memory without pausing
// between segments (decode_copy.cuh), and four consumer warps. Of a tile of 64 keys, each consumer
// warp multiplies 16 keys with all queries. After the warps have shared their scores, each
// multiplies all probabilities with a quarter of the values' columns. So each byte is read from
// shared memory once, and every row sees one chain of online softmax over its tiles, as in prefill.
#ifndef MILLRACE_KERNELS_ATTENTION_DECODE_KERNEL_CUH_
#define MILLRACE_KERNELS_ATTENTION_DECODE_KERNEL_CUH_

#include "kernels/attention/decode_copy.cuh"
#include "kernels/attention/decode_merge.cuh"
#include "kernels/attention/decode_rope.cuh"
#include "kernels/delay.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels::attention {

// The consumer warps. kHalves of a lane's two query rows are in use: one if the tile has at most 8
// rows.
template <typename Kv, int kHeadSize, int kHalves, typename Delay>
class Consumer {
 public:
  __device__ Consumer(const Params& params, uint32_t stages, const PipelineState& pipeline,
                      DecodeShared<Kv, kHeadSize>& shared)
      : params_(params),
        stages_(stages),
        shared_(shared),
        warp_(threadIdx.x / kWarpSize),
        lane_(threadIdx.x % kWarpSize),
        query_lane_(T::QueryLane(lane_)),
        key_lane_(warp_ * 16 * T::kRowBytes + T::KeyLane(lane_)),
        value_lane_(T::kBytes + T::ValueLane(lane_)),
        pipeline_(pipeline) {}

  __device__ void Run(int ranges) {
    if (blockIdx.x == 0) PublishLaunch();
    bool is_first = true;
    ForEachSegment(params_, ranges, [&](const Segment& segment) {
      RunSegment(segment, is_first);
      is_first = false;
    });
  }

 private:
  static constexpr int kWarps = kComputingWarps;
  static constexpr int kThreads = kComputingThreads;
  using S = Stage<Kv, kHeadSize>;
  using T = Tile<Kv, kHeadSize>;
  static constexpr int kWords = CeilDiv(T::Row::kWords, kWarps);  // of values, a warp

  using Query = uint32_t[T::kSteps][4];
  using Values = float[kWords][T::kBlocksPerWord][4];

  // Rope is fused for up to 8 rows only: the code would take registers from the loop over tiles.
  __device__ bool FusesRope() const { return kHalves == 1 && params_.FusesRope(); }
  __device__ bool HasWord(int i) const {
    return T::Row::kWords % kWarps == 0 || warp_ * kWords + i < T::Row::kWords;
  }
  // Returns the index of the partial results of a chunk and query row.
  __device__ int64_t PartialRow(const Segment& segment, int chunk, int row) const {
    const int64_t entry = segment.row.partial + (chunk - segment.first_chunk) * segment.row.tokens +
                          params_.Token(row);
    return (entry * params_.kv_heads + segment.head) * params_.group + params_.HeadOf(row);
  }
  // Returns the element offset of a query row in the outputs.
  __device__ int64_t Output(const Segment& segment, int row) const {
    return params_.RowOffset(params_.out_stride, segment.row.token, segment.head, row, kHeadSize);
  }

  // Synchronizes the consumer warps.
  __device__ static void Sync() {
    Delay::Wait();
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  }

  // Publishes this launch's number for the next attention launch (launch.cuh, 5). CTA 0 waits for
  // the predecessor even if it has no work, so that no kernel ends before its predecessor.
  __device__ void PublishLaunch() {
    WaitForPredecessor();
    if (threadIdx.x != 0 || params_.launch_number == 0) return;
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(&params_.plan.header->last_launch),
                 "r"(params_.launch_number)
                 : "memory");
  }

  __device__ void RunSegment(const Segment& segment, bool is_first) {
    const int rows = segment.row.tokens * params_.group;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = params_.Token(lane_ / 4 + 8 * half);
      position_[half] = segment.row.position + min(token, segment.row.tokens - 1);
      first_[half] = FirstVisible(position_[half], params_.window);
    }
    const int first = segment.FirstTile();
    const int end = segment.EndTile();
    // Scoped to the segment, so that its registers are free at the end.
    Query query;
    if (FusesRope()) {
      ComputeHeads(segment, is_first);
    } else if (is_first) {
      WaitForPredecessor();
    }
    LoadQuery(query);
    Softmax totals[2] = {
        params_.FirstTotal(segment.head, lane_ / 4),
        kHalves == 2 ? params_.FirstTotal(segment.head, lane_ / 4 + 8) : EmptySoftmax()};
    Values total_values = {};
    for (int tile = first; tile < end;) {
      const int chunk = tile / kTilesPerChunk;
      const int chunk_end = min(end, (chunk + 1) * kTilesPerChunk);
      Softmax sums[2] = {EmptySoftmax(), EmptySoftmax()};
      Values values = {};
      for (; tile < chunk_end; ++tile) {
        pipeline_.WaitFull();
        if (FusesRope() && tile == segment.row.position / kTile)
          InsertKv(segment.row.position % kTile);
        RunTile(tile, query, sums, values);
      }
      SumOverLanes(sums[0]);
      SumOverLanes(sums[1]);
      if (segment.IsWhole()) {
        MergeChunk(sums, values, totals, total_values);
      } else {
        StorePartial(segment, chunk, rows, sums, values);
      }
    }
    if (segment.IsWhole()) {
      Store(segment, rows, totals, total_values);
    } else {
      MergePartialsIfLast(segment, rows);
    }
  }

  // Computes the segment's queries into its first stage, whose rows are not copied then, and its
  // new key and value. Rows beyond the segment's queries keep old data, which affects no other row.
  __device__ void ComputeHeads(const Segment& segment, bool is_first) {
    FusedRope<Kv, kHeadSize> heads(params_, segment);
    if (is_first) WaitForPredecessor();
    heads.Load();
    if (!is_first) pipeline_.WaitFull();  // implies that all warps have read the rows' old data
    heads.Compute(stages_ + pipeline_.stage() * S::kBytes + S::kRowsOffset,
                  SharedAddress(shared_.kv));
    Sync();
  }

  // Inserts the new key and value into a tile's row. Each warp writes only the part that it reads
  // itself.
  __device__ void InsertKv(int row) const {
    const uint32_t keys = stages_ + pipeline_.stage() * S::kBytes;
    const uint32_t kv = SharedAddress(shared_.kv);
    if (row / 16 == warp_) CopyHead<typename T::Row>(keys, row, kv, 0, T::Row::kWords);
    CopyHead<typename T::Row>(keys + T::kBytes, row, kv + T::kRowBytes, warp_ * kWords, kWords);
    __syncwarp();
  }

  // Loads the query fragments when the segment's first tile, which carries the queries, has
  // arrived.
  __device__ void LoadQuery(Query& query) {
    pipeline_.WaitFull();
    const uint32_t rows = stages_ + pipeline_.stage() * S::kBytes + S::kRowsOffset;
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) {
      T::LoadQuery(rows + query_lane_, step, query[step]);
      T::ConvertQuery(query[step]);
    }
    Sync();  // all warps have their queries, so scores may overwrite them
  }

  __device__ void RunTile(int tile, const Query& query, Softmax (&sums)[2], Values& values) {
    const uint32_t stage = stages_ + pipeline_.stage() * S::kBytes;
    const uint32_t rows = stage + S::kRowsOffset;
    Score(tile, query, stage, rows);
    // half of the values' loads overlap the wait for the others' scores
    ValueFragments first_values;
    LoadValues(stage + value_lane_, first_values);
    Sync();
    float scores[kTileBlocks][4] = {};
#pragma unroll
    for (int block = 0; block < kTileBlocks; ++block) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(scores[block][2 * half]), "=f"(scores[block][2 * half + 1])
                     : "r"(rows + ScoreOffset(half, block))
                     : "memory");
      }
    }
    const TileOffsets offsets = TakeMaxima<kHalves>(scores, params_.rule.log2_unit, sums);
    TakeProbabilities<kHalves>(scores, params_.rule.log2_unit, offsets, sums);
    if (Scales(offsets)) {
      Scale(reinterpret_cast<float(&)[kWords * T::kBlocksPerWord][4]>(values), offsets);
    }
    AddValues<0>(scores, first_values, values);
    ValueFragments last_values;
    LoadValues(stage + value_lane_ + 32 * T::kRowBytes, last_values);
    Delay::Wait();
    pipeline_.Release();
    AddValues<1>(scores, last_values, values);
  }

  // Returns the byte offset, in the shared scores, of the lane's elements of row `half` and a block
  // of keys.
  __device__ uint32_t ScoreOffset(int half, int block) const {
    const int row = lane_ / 4 + 8 * half;
    return row * (kTile * 4) + (block ^ (row % 8)) * 32 + lane_ % 4 * 8;
  }

  // Computes the masked scores of this warp's 16 keys and stores them to shared memory at `rows`.
  __device__ void Score(int tile, const Query& query, uint32_t stage, uint32_t rows) {
    float products[2][4] = {};
    const uint32_t keys = stage + key_lane_;
#pragma unroll
    for (int pair = 0; pair < T::Row::kWords / 2; ++pair) {
      uint32_t b[T::kStepsPerPair][2][2];
      T::LoadKeys(keys, pair, b);
#pragma unroll
      for (int step = 0; step < T::kStepsPerPair; ++step) {
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          T::MultiplyKeys(products[block], query[pair * T::kStepsPerPair + step], b[step][block]);
        }
      }
    }
    if (params_.rule.soft_cap > 0) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        products[i / 4][i % 4] = SoftCap(params_.rule, products[i / 4][i % 4]);
      }
    }
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const int key = tile * kTile + warp_ * 16 + block * 8 + lane_ % 4 * 2;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        float scores[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          scores[i] = products[block][2 * half + i];
          if (key + i > position_[half] || key + i < first_[half]) scores[i] = -Infinity();
        }
        asm volatile(
            "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(rows + ScoreOffset(half, warp_ * 2 + block)),
            "f"(scores[0]), "f"(scores[1])
            : "memory");
      }
    }
  }

  // Loads the fragments of this warp's columns of 32 values, from address `from` on.
  using ValueFragments = uint32_t[kWords][2][T::kBlocksPerWord][2];
  __device__ void LoadValues(uint32_t from, ValueFragments& b) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if (HasWord(i)) T::LoadValues(T::Row::Word(from, warp_ * kWords + i), 0, b[i]);
    }
  }

  // Adds the product of probabilities and values for one half of the tile.
  template <int kHalf>
  __device__ void AddValues(const float (&probabilities)[kTileBlocks][4], const ValueFragments& b,
                            Values& values) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t a[4];
      Probabilities(probabilities, 2 * kHalf + step, a);
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        if (!HasWord(i)) continue;
#pragma unroll
        for (int block = 0; block < T::kBlocksPerWord; ++block) {
          T::MultiplyValues(values[i][block], a, b[i][step][block]);
        }
      }
    }
  }

  __device__ void MergeChunk(const Softmax (&sums)[2], const Values& values, Softmax (&totals)[2],
                             Values& total_values) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const MergeFactors factors = Merge(totals[half], sums[half], params_.rule.log2_unit);
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
#pragma unroll
        for (int block = 0; block < T::kBlocksPerWord; ++block) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            total_values[i][block][e] =
                Merged(total_values[i][block][e], values[i][block][e], factors);
          }
        }
      }
    }
  }

  __device__ void Store(const Segment& segment, int rows, const Softmax (&totals)[2],
                        const Values& values) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane_ / 4 + 8 * half;
      if (row >= rows) continue;
      const float factor = OutputFactor(totals[half], params_.value_scale);
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        if (!HasWord(i)) continue;
        float columns[T::kLaneColumns];
        T::LaneColumns(values[i], half, columns);
        StoreOutputs(params_, Output(segment, row) + T::LaneColumn(warp_ * kWords + i, lane_),
                     columns, factor);
      }
    }
    StorePadding<kThreads>(params_, segment.row.token, segment.row.tokens, segment.head, kHeadSize,
                           threadIdx.x);
  }

  __device__ void StorePartial(const Segment& segment, int chunk, int rows,
                               const Softmax (&sums)[2], const Values& values) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane_ / 4 + 8 * half;
      if (row >= rows) continue;
      const int64_t entry = PartialRow(segment, chunk, row);
      if (warp_ == 0 && lane_ % 4 == 0) {
        params_.scratch.partial_sums[entry] = make_float2(sums[half].max, sums[half].sum);
      }
      float* to = params_.scratch.partial_values + entry * kHeadSize;
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        if (!HasWord(i)) continue;
        float columns[T::kLaneColumns];
        T::LaneColumns(values[i], half, columns);
#pragma unroll
        for (int e = 0; e < T::kLaneColumns; e += 2) {
          *reinterpret_cast<float2*>(to + T::LaneColumn(warp_ * kWords + i, lane_) + e) =
              make_float2(columns[e], columns[e + 1]);
        }
      }
    }
  }

  // Merges a row's partial results, in the order of the chunks, if this CTA stored the last of
  // them.
  __device__ void MergePartialsIfLast(const Segment& segment, int rows) {
    const uint32_t chunks = segment.end_chunk - segment.first_chunk;
    Sync();  // the release below then publishes the stores of all threads
    if (threadIdx.x == 0) {
      uint32_t* arrivals =
          params_.plan.arrivals + segment.row.partial * params_.kv_heads + segment.head;
      const uint32_t own = segment.end - segment.begin;
      uint32_t before;
      asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                   : "=r"(before)
                   : "l"(arrivals), "r"(own)
                   : "memory");
      shared_.is_last = before + own == chunks;
      if (shared_.is_last) *arrivals = 0;
    }
    Sync();
    if (!shared_.is_last) return;
    for (int row = warp_; row < rows; row += kWarps) {
#pragma unroll
      for (int column = 4 * lane_; column - 4 * lane_ < kHeadSize; column += 4 * kWarpSize) {
        const int64_t first = PartialRow(segment, segment.first_chunk, row);
        const bool active = column < kHeadSize;
        MergePartials(
            params_,
            {.sums = params_.scratch.partial_sums + first,
             .values = params_.scratch.partial_values + first * kHeadSize + (active ? column : 0),
             .sums_stride = segment.row.tokens * params_.kv_heads * params_.group,
             .values_stride = segment.row.tokens * params_.kv_heads * params_.group * kHeadSize,
             .chunks = static_cast<int>(chunks),
             .log2_unit = params_.rule.log2_unit,
             .value_scale = params_.value_scale,
             .first_total = params_.FirstTotal(segment.head, row),
             .out = active ? Output(segment, row) + column : -1});
      }
    }
    StorePadding<kThreads>(params_, segment.row.token, segment.row.tokens, segment.head, kHeadSize,
                           threadIdx.x);
  }

  const Params& params_;
  const uint32_t stages_;
  DecodeShared<Kv, kHeadSize>& shared_;
  const int warp_;
  const int lane_;
  const uint32_t query_lane_;
  const uint32_t key_lane_;  // in a stage
  const uint32_t value_lane_;

  PipelineState pipeline_;
  int position_[2];  // of the tokens of the lane's two rows
  int first_[2];     // the first positions that they see
};

inline constexpr int kDecodeThreads = kComputingThreads + kCopyingThreads;

template <typename Kv, int kHeadSize, int kHalves, typename Delay>
__global__ void __launch_bounds__(kDecodeThreads, kHeadSize > 128 ? 1 : kCtasPerSm)
    DecodeKernel(const __grid_constant__ Params params, int ranges, int stages) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ DecodeShared<Kv, kHeadSize> shared;
  const uint32_t barriers = SharedAddress(shared.barriers);
  if (threadIdx.x == 0) InitPipeline(barriers, stages, kCopyingWarps, kComputingWarps);
  ReleaseDependents();
  const bool starts = __syncthreads_or(threadIdx.x == 0 && MayReadAhead(params));
  if (!starts) WaitForPredecessor();
  const PipelineState pipeline(barriers, stages);
  if (threadIdx.x >= kComputingThreads) {
    Producer<Kv, kHeadSize, Delay>(params, SharedAddress(memory), pipeline)
        .Run(ranges, stages, starts);
  } else {
    Consumer<Kv, kHeadSize, kHalves, Delay>(params, SharedAddress(memory), pipeline, shared)
        .Run(ranges);
  }
}

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_DECODE_KERNEL_CUH_
