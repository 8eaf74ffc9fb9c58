// Decoding, the half that copies: the warps that bring a CTA's tiles into the ring.
#ifndef MILLRACE_KERNELS_ATTENTION_DECODE_COPY_CUH_
#define MILLRACE_KERNELS_ATTENTION_DECODE_COPY_CUH_

#include <cstdint>

#include "kernels/attention/attention_params.cuh"
#include "kernels/attention/attention_ring.cuh"
#include "kernels/attention/decode_segment.cuh"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels::attention {

// The ids of the blocks in which a copying warp's runs of a sequence lie: each lane holds one, and
// one of those that come next, so that the table is read once for many tiles and ahead of them.
template <int kRuns>
class BlockIds {
 public:
  // Of the runs `offset` behind the beginning of each tile.
  __device__ BlockIds(const Params& params, int offset) : params_(params), offset_(offset) {}

  // Of tiles `tile` and, most often, those that follow, of a segment.
  __device__ void Seek(const Segment& segment, int tile) {
    const int ahead = tile - first_;
    if (segment.row.token != token_ || ahead < 0 || ahead >= 2 * kTiles) {
      token_ = segment.row.token;
      first_ = tile;
      held_ = Load(segment, tile);
      next_ = Load(segment, tile + kTiles);
    } else if (ahead >= kTiles) {
      first_ += kTiles;
      held_ = next_;
      next_ = Load(segment, first_ + kTiles);
    }
  }

  // Of a run of a tile that was sought.
  __device__ int Id(int tile, int run) const {
    return __shfl_sync(kFullWarp, held_, (tile - first_) * kRuns + run);
  }

 private:
  static constexpr int kTiles = kWarpSize / kRuns;

  __device__ int Load(const Segment& segment, int tile) const {
    const int lane = threadIdx.x % kWarpSize;
    const int position = (tile + lane / kRuns) * kTile + offset_ + lane % kRuns * kRun;
    const int32_t* blocks = params_.Blocks(segment.row.slot);
    return IsNeeded(position, segment.span) ? blocks[position >> params_.block_shift] : 0;
  }

  const Params& params_;
  const int offset_;
  int token_ = -1;  // the row's first
  int first_ = 0;   // the tile of the first id held
  int held_ = 0;
  int next_ = 0;
};

// The warps that copy: each of them some runs of every tile. What lies before the step's own tokens
// may be copied before the kernel's predecessor has ended, as far as the ring takes it. Where new
// keys and values are made here that is all, and nothing is waited for.
template <typename Kv, int kHeadSize, typename Delay>
class Producer {
 public:
  __device__ Producer(const Params& params, uint32_t ring, const RingCursor& cursor)
      : params_(params),
        ring_(ring),
        thread_(threadIdx.x - kComputingThreads),
        offset_(thread_ / kWarpSize * kRuns * kRun),
        cursor_(cursor),
        ids_(params, offset_) {}

  // `starts`: whether what earlier steps left may be copied before the predecessor has ended.
  __device__ void Run(int ranges, int stages, bool starts) {
    bool waits = !params_.Makes();
    ForEachSegment(params_, ranges, [&](const Segment& segment) {
      const int first = segment.FirstTile();
      const int tiles = segment.EndTile() - first;
      // Of so many tiles what is old is copied before everything else.
      const int ahead = starts && waits ? min(tiles, min(segment.ahead, stages)) : 0;
      for (int i = -ahead; i < tiles; ++i) {
        const bool is_ahead = i < 0;
        const int tile = first + (is_ahead ? i + ahead : i);
        int stage = i + ahead;
        if (!is_ahead) {
          if (waits) WaitForPredecessor();
          waits = false;
          Delay::Wait();
          cursor_.WaitEmpty();
          stage = cursor_.stage();
          if (tile == first && !params_.Makes()) CopyQueries(segment, stage);
        }
        const bool is_started = i < ahead;
        CopyRuns(segment, tile, stage,
                 [&](bool is_old) { return is_old ? is_ahead || !is_started : !is_ahead; });
        if (is_ahead) {
          Delay::ReadAhead();
          continue;
        }
        Delay::Wait();
        cursor_.ArriveWithCopies();
      }
    });
  }

 private:
  using S = attention::Stage<Kv, kHeadSize>;
  static constexpr int kRuns = kTileRuns / kCopyingWarps;

  __device__ uint32_t Stage(int stage) const { return ring_ + stage * S::kBytes; }

  __device__ void CopyQueries(const Segment& segment, int stage) const {
    LoadQueries<kHeadSize, kDecodeRows, kCopyingThreads>(params_, segment.row, segment.head,
                                                         Stage(stage) + S::kRowsOffset, thread_);
  }

  // Starts the copies of the warp's runs of a tile that `wants(whether they are of earlier steps)`.
  template <typename Wants>
  __device__ void CopyRuns(const Segment& segment, int tile, int stage, const Wants& wants) {
    const HeadPages pages = params_.Head(segment.head);
    const Span span = {segment.span.first, segment.span.end - params_.Makes()};
    ids_.Seek(segment, tile);
#pragma unroll 1
    for (int run = 0; run < kRuns; ++run) {
      const int first_row = offset_ + run * kRun;
      const int id = ids_.Id(tile, run);
      if (!wants(tile * kTile + first_row + kRun <= segment.row.position)) continue;
      LoadRun<typename S::T::Row, kWarpSize>(pages, tile * kTile, first_row, span, id, Stage(stage),
                                             thread_ % kWarpSize);
    }
  }

  const Params& params_;
  const uint32_t ring_;
  const int thread_;  // among those that copy
  const int offset_;  // of the warp's runs, in a tile
  RingCursor cursor_;
  BlockIds<kRuns> ids_;
};

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_DECODE_COPY_CUH_
