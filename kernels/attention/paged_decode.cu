// Decoding: rows of few tokens, whose keys and values are read once, as fast as the memory gives
// them. A CTA has two warps that copy tiles into a ring in shared memory, through all that the CTA
// has to do without a pause (decode_copy.cuh), and four that compute. Of a tile of 64 keys each of
// the four multiplies 16 keys with all queries, and, when they have shared the scores, all
// probabilities with a quarter of the values' columns. So each byte is read from shared memory
// once, and every row sees one chain of online softmax over its tiles, as in a prompt.
#include <algorithm>

#include "kernels/attention/decode_copy.cuh"

namespace millrace::kernels::attention {
namespace {

constexpr int kWarps = kComputingWarps;
constexpr int kThreads = kComputingThreads;

// Among the warps that compute.
__device__ void Sync() { asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory"); }

template <typename Kv, int kHeadSize>
class Consumer {
 public:
  __device__ Consumer(const Params& params, uint32_t ring, const RingCursor& cursor, bool& is_last)
      : params_(params),
        ring_(ring),
        is_last_(is_last),
        warp_(threadIdx.x / kWarpSize),
        lane_(threadIdx.x % kWarpSize),
        query_lane_(T::QueryLane(lane_)),
        key_lane_(warp_ * 16 * T::kRowBytes + T::KeyLane(lane_)),
        value_lane_(T::kBytes + T::ValueLane(lane_)),
        cursor_(cursor) {}

  __device__ void Run(int ranges) {
    ForEachSegment(params_, ranges, [&](const Segment& segment) { RunSegment(segment); });
  }

 private:
  using S = Stage<Kv, kHeadSize>;
  using T = Tile<Kv, kHeadSize>;
  static constexpr int kWords = CeilDiv(T::Row::kWords, kWarps);  // of values, a warp

  using Values = float[kWords][T::kBlocksPerWord][4];

  __device__ int Token(int row) const { return row / params_.group; }
  __device__ bool HasWord(int i) const {
    return T::Row::kWords % kWarps == 0 || warp_ * kWords + i < T::Row::kWords;
  }
  // Entry of the partial results of a chunk and row.
  __device__ int64_t PartialRow(const Segment& segment, int chunk, int row) const {
    const int64_t entry =
        segment.row.partial + (chunk - segment.first_chunk) * segment.row.tokens + Token(row);
    return (entry * params_.kv_heads + segment.head) * params_.group + row % params_.group;
  }
  __device__ Bf16* Output(const Segment& segment, int row) const {
    return params_.out + (segment.row.token + Token(row)) * params_.out_stride +
           (segment.head * params_.group + row % params_.group) * kHeadSize;
  }

  __device__ void RunSegment(const Segment& segment) {
    const int rows = segment.row.tokens * params_.group;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = Token(lane_ / 4 + 8 * half);
      position_[half] = segment.row.position + min(token, segment.row.tokens - 1);
      first_[half] = FirstVisible(position_[half], params_.window);
    }
    const int first = segment.FirstTile();
    const int end = segment.EndTile();
    Softmax totals[2] = {EmptySoftmax(), EmptySoftmax()};
    Values total_values = {};
    for (int tile = first; tile < end;) {
      const int chunk = tile / kTilesPerChunk;
      const int chunk_end = min(end, (chunk + 1) * kTilesPerChunk);
      Softmax sums[2] = {EmptySoftmax(), EmptySoftmax()};
      Values values = {};
      for (; tile < chunk_end; ++tile) RunTile(tile, tile == first, sums, values);
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

  __device__ void RunTile(int tile, bool first, Softmax (&sums)[2], Values& values) {
    cursor_.WaitFull();
    const uint32_t stage = ring_ + cursor_.stage() * S::kBytes;
    const uint32_t rows = stage + S::kRowsOffset;
    if (first) {
#pragma unroll
      for (int step = 0; step < T::kSteps; ++step) {
        T::LoadQuery(rows + query_lane_, step, query_[step]);
        T::ConvertQuery(query_[step]);
      }
      Sync();  // all have them: scores may take their place
    }
    Score(tile, stage, rows);
    ValueFragments first_values;  // half of them while waiting for the others' scores
    LoadValues(stage + value_lane_, first_values);
    Sync();
    float scores[kTileBlocks][4];
#pragma unroll
    for (int block = 0; block < kTileBlocks; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(scores[block][2 * half]), "=f"(scores[block][2 * half + 1])
                     : "r"(rows + ScoreOffset(half, block))
                     : "memory");
      }
    }
    const float factors[2] = {AddTile(scores, 0, params_.rule.log2_unit, sums[0]),
                              AddTile(scores, 1, params_.rule.log2_unit, sums[1])};
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
#pragma unroll
      for (int block = 0; block < T::kBlocksPerWord; ++block) Scale(values[i][block], factors);
    }
    AddValues<0>(scores, first_values, values);
    ValueFragments last_values;
    LoadValues(stage + value_lane_ + 32 * T::kRowBytes, last_values);
    cursor_.Release();
    AddValues<1>(scores, last_values, values);
  }

  // Of the lane's elements of row `half` and a block of keys, in the shared scores.
  __device__ uint32_t ScoreOffset(int half, int block) const {
    const int row = lane_ / 4 + 8 * half;
    return row * (kTile * 4) + (block ^ (row % 8)) * 32 + lane_ % 4 * 8;
  }

  // The scores of this warp's 16 keys.
  __device__ void Score(int tile, uint32_t stage, uint32_t rows) {
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
          T::MultiplyKeys(products[block], query_[pair * T::kStepsPerPair + step], b[step][block]);
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
      for (int half = 0; half < 2; ++half) {
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

  // This warp's columns of 32 values, from address `from` on.
  using ValueFragments = uint32_t[kWords][2][T::kBlocksPerWord][2];
  __device__ void LoadValues(uint32_t from, ValueFragments& b) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if (HasWord(i)) T::LoadValues(T::Row::Word(from, warp_ * kWords + i), 0, b[i]);
    }
  }

  // Probabilities times these, of a half of the tile.
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
        StoreOutputs(Output(segment, row) + T::LaneColumn(warp_ * kWords + i, lane_), columns,
                     factor);
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

  // Whichever CTA brings a row's last partial result merges them, in the chunks' order.
  __device__ void MergePartialsIfLast(const Segment& segment, int rows) {
    const uint32_t chunks = segment.end_chunk - segment.first_chunk;
    Sync();  // all is stored, which the one thread's release then tells
    if (threadIdx.x == 0) {
      uint32_t* arrivals =
          params_.plan.arrivals + segment.row.partial * params_.kv_heads + segment.head;
      const uint32_t own = segment.end - segment.begin;
      uint32_t before;
      asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                   : "=r"(before)
                   : "l"(arrivals), "r"(own)
                   : "memory");
      is_last_ = before + own == chunks;
      if (is_last_) *arrivals = 0;
    }
    Sync();
    if (!is_last_) return;
    for (int row = warp_; row < rows; row += kWarps) {
#pragma unroll
      for (int column = 0; column < kHeadSize; column += 4 * kWarpSize) {
        MergePartials(segment, row, column + 4 * lane_, chunks);
      }
    }
    StorePadding<kThreads>(params_, segment.row.token, segment.row.tokens, segment.head, kHeadSize,
                           threadIdx.x);
  }

  // By a warp: columns [column, column + 4) of a row, if there are such. The lanes have a chunk's
  // factors each, which need only the largest scores before it; the sums then follow one another.
  __device__ void MergePartials(const Segment& segment, int row, int column, int chunks) {
    const int64_t stride = int64_t{segment.row.tokens} * params_.kv_heads * params_.group;
    const int64_t first = PartialRow(segment, segment.first_chunk, row);
    const float2* sums = params_.scratch.partial_sums + first;
    const bool active = column < kHeadSize;
    const float* values =
        params_.scratch.partial_values + first * kHeadSize + (active ? column : 0);
    constexpr int kAhead = 16;  // reads at once
    Softmax total = EmptySoftmax();
    float total_values[4] = {};
    for (int begin = 0; begin < chunks; begin += kWarpSize) {
      const float2 sum =
          begin + lane_ < chunks ? __ldcg(sums + (begin + lane_) * stride) : make_float2(0, 0);
      const Softmax own = begin + lane_ < chunks ? Softmax{sum.x, sum.y} : EmptySoftmax();
      float max = own.max;  // of the chunks up to the lane's
#pragma unroll
      for (int distance = 1; distance < kWarpSize; distance *= 2) {
        const float before = __shfl_up_sync(kFullWarp, max, distance);
        if (lane_ >= distance) max = fmaxf(max, before);
      }
      const float before = __shfl_up_sync(kFullWarp, max, 1);
      Softmax lane_total = {lane_ == 0 ? total.max : fmaxf(total.max, before), 0};
      const MergeFactors lane_factors = Merge(lane_total, own, params_.rule.log2_unit);
      for (int part = 0; part < kWarpSize; part += kAhead) {
        float4 value[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          value[i] = make_float4(0, 0, 0, 0);
          const int chunk = begin + part + i;
          if (chunk < chunks) {
            value[i] = __ldcg(reinterpret_cast<const float4*>(values + chunk * stride * kHeadSize));
          }
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const MergeFactors factors = {__shfl_sync(kFullWarp, lane_factors.total, part + i),
                                        __shfl_sync(kFullWarp, lane_factors.chunk, part + i)};
          total.sum = Merged(total.sum, __shfl_sync(kFullWarp, own.sum, part + i), factors);
          total_values[0] = Merged(total_values[0], value[i].x, factors);
          total_values[1] = Merged(total_values[1], value[i].y, factors);
          total_values[2] = Merged(total_values[2], value[i].z, factors);
          total_values[3] = Merged(total_values[3], value[i].w, factors);
        }
      }
      total.max = fmaxf(total.max, __shfl_sync(kFullWarp, max, kWarpSize - 1));
    }
    if (!active) return;
    StoreOutputs(Output(segment, row) + column, total_values,
                 OutputFactor(total, params_.value_scale));
  }

  const Params& params_;
  const uint32_t ring_;
  bool& is_last_;  // shared
  const int warp_;
  const int lane_;
  const uint32_t query_lane_;
  const uint32_t key_lane_;  // in a stage
  const uint32_t value_lane_;

  RingCursor cursor_;
  int position_[2];  // of the tokens of the lane's two rows, and the first that they see
  int first_[2];
  uint32_t query_[T::kSteps][4];
};

template <typename Kv, int kHeadSize>
__global__ void __launch_bounds__(kThreads + kCopyingWarps * kWarpSize,
                                  kHeadSize > 128 ? 1 : kCtasPerSm)
    DecodeKernel(const __grid_constant__ Params params, int ranges, int stages) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ RingBarriers barriers;
  __shared__ bool is_last;
  if (threadIdx.x == 0) barriers.Init(stages, kCopyingWarps, kWarps);
  __syncthreads();
  const uint32_t ring = SharedAddress(memory);
  const RingCursor cursor(barriers, stages);
  if (threadIdx.x >= kThreads) {
    Produce<Kv, kHeadSize>(params, ranges, ring, cursor);
  } else {
    Consumer<Kv, kHeadSize>(params, ring, cursor, is_last).Run(ranges);
  }
}

template <typename Kv, int kHeadSize>
cudaError_t LaunchKernel(const Launch& launch) {
  constexpr int kStage = Stage<Kv, kHeadSize>::kBytes;
  constexpr int kStatic = 256;
  constexpr int kFixed = 1024 + kStatic;  // what a CTA takes beside its ring
  const int half = launch.shared_per_sm / kCtasPerSm - kFixed;
  const int ctas = half >= 3 * kStage ? kCtasPerSm : 1;
  const int shared =
      std::min(ctas == 1 ? launch.shared_per_sm - kFixed : half, launch.shared_per_cta - kStatic);
  const int stages = std::min(shared / kStage, kMaxStages);
  if (stages == 0) return cudaErrorInvalidConfiguration;
  const auto kernel = DecodeKernel<Kv, kHeadSize>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, stages * kStage);
  if (error != cudaSuccess) return error;
  const int ranges = std::min(kCtasPerSm * launch.sms, kMaxCtas);
  kernel<<<std::min(ctas * launch.sms, ranges), kThreads + kCopyingWarps * kWarpSize,
           stages * kStage, launch.stream>>>(MakeParams(launch), ranges, stages);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchDecode(const Launch& launch) {
  return ForPages(launch.args.pages, [&]<typename Kv, int kHeadSize>() {
    return LaunchKernel<Kv, kHeadSize>(launch);
  });
}

}  // namespace millrace::kernels::attention
