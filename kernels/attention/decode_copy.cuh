// The producer warps of the decode kernel, which copy a CTA's tiles into the pipeline.
#ifndef MILLRACE_KERNELS_ATTENTION_DECODE_COPY_CUH_
#define MILLRACE_KERNELS_ATTENTION_DECODE_COPY_CUH_

#include <cstdint>

#include "kernels/attention/attention_params.cuh"
#include "kernels/attention/attention_pipeline.cuh"
#include "kernels/attention/decode_segment.cuh"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels::attention {

// Block ids of a copying warp's runs of a sequence. Each lane holds one id and prefetches another,
// so the block table is read once for many tiles and ahead of their use.
template <int kRuns>
class BlockIds {
 public:
  // Holds the ids of the runs that begin `offset` positions into each tile.
  __device__ BlockIds(const Params& params, int offset) : params_(params), offset_(offset) {}

  // Makes the ids of tile `tile` of a segment available. Tiles are usually sought in ascending
  // order.
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

  // Returns the block id of a run of a tile for which Seek was called.
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
  int token_ = -1;  // the row's first token
  int first_ = 0;   // the tile of the first id held
  int held_ = 0;
  int next_ = 0;
};

// The producer loop. Each copying warp takes some runs of every tile. Positions before the step's
// own tokens may be copied before the kernel's predecessor has ended, up to the pipeline's
// capacity. With fused rope only such positions are copied, and the producer waits for nothing.
template <typename Kv, int kHeadSize, typename Delay>
class Producer {
 public:
  __device__ Producer(const Params& params, uint32_t stages, const PipelineState& pipeline)
      : params_(params),
        stages_(stages),
        thread_(threadIdx.x - kComputingThreads),
        offset_(thread_ / kWarpSize * kRuns * kRun),
        pipeline_(pipeline),
        ids_(params, offset_) {}

  // `starts` says whether positions of earlier steps may be copied before the predecessor has
  // ended.
  __device__ void Run(int ranges, int stages, bool starts) {
    bool waits = !params_.FusesRope();
    ForEachSegment(params_, ranges, [&](const Segment& segment) {
      const int first = segment.FirstTile();
      const int tiles = segment.EndTile() - first;
      // The old positions of this many tiles are copied before everything else.
      const int ahead = starts && waits ? min(tiles, min(segment.ahead, stages)) : 0;
      for (int i = -ahead; i < tiles; ++i) {
        const bool is_ahead = i < 0;
        const int tile = first + (is_ahead ? i + ahead : i);
        int stage = i + ahead;
        if (!is_ahead) {
          if (waits) WaitForPredecessor();
          waits = false;
          Delay::Wait();
          pipeline_.WaitEmpty();
          stage = pipeline_.stage();
          if (tile == first && !params_.FusesRope()) CopyQueries(segment, stage);
        }
        const bool is_started = i < ahead;
        CopyRuns(segment, tile, stage,
                 [&](bool is_old) { return is_old ? is_ahead || !is_started : !is_ahead; });
        if (is_ahead) {
          Delay::ReadAhead();
          continue;
        }
        Delay::Wait();
        pipeline_.ArriveWithCopies();
      }
    });
  }

 private:
  using S = attention::Stage<Kv, kHeadSize>;
  static constexpr int kRuns = kTileRuns / kCopyingWarps;

  __device__ uint32_t Stage(int stage) const { return stages_ + stage * S::kBytes; }

  __device__ void CopyQueries(const Segment& segment, int stage) const {
    LoadQueries<kHeadSize, kDecodeRows, kCopyingThreads>(params_, segment.row, segment.head,
                                                         Stage(stage) + S::kRowsOffset, thread_);
  }

  // Starts the copies of those of the warp's runs of a tile for which wants(is_old) holds. A run is
  // old if all its positions precede the step's.
  template <typename Wants>
  __device__ void CopyRuns(const Segment& segment, int tile, int stage, const Wants& wants) {
    const HeadPages pages = params_.Head(segment.head);
    const Span span = {segment.span.first, segment.span.end - params_.FusesRope()};
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
  const uint32_t stages_;
  const int thread_;  // index among the copying threads
  const int offset_;  // of the warp's runs, in a tile
  PipelineState pipeline_;
  BlockIds<kRuns> ids_;
};

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_DECODE_COPY_CUH_
