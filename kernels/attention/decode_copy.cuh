// Decoding, the half that copies: what a CTA has to do, and the warps that bring it into the ring.
#ifndef MILLRACE_KERNELS_ATTENTION_DECODE_COPY_CUH_
#define MILLRACE_KERNELS_ATTENTION_DECODE_COPY_CUH_

#include <cstdint>

#include "kernels/attention/attention_kernels.h"
#include "kernels/attention/attention_params.cuh"
#include "kernels/attention/attention_ring.cuh"
#include "kernels/device_util.cuh"

namespace millrace::kernels::attention {

inline constexpr int kComputingWarps = 4;
inline constexpr int kComputingThreads = kComputingWarps * kWarpSize;
inline constexpr int kCopyingWarps = 2;

template <typename Kv, int kHeadSize>
struct Stage {
  using T = Tile<Kv, kHeadSize>;
  // Queries, then, in the same place, the scores of a tile in float32.
  static constexpr int kRowsBytes =
      kDecodeRows * (kHeadSize * 2 > kTile * 4 ? kHeadSize * 2 : kTile * 4);
  static constexpr int kRowsOffset = 2 * T::kBytes;
  static constexpr int kBytes = 2 * T::kBytes + kRowsBytes;
};

// Consecutive chunks of one row and kv head: all of them, or what a CTA has of them.
struct Segment {
  DecodeRow row;
  int head;
  Span span;        // of the row
  int first_chunk;  // of the row
  int end_chunk;
  int begin;  // chunks of the segment: [begin, end)
  int end;

  __device__ int FirstTile() const { return max(span.first / kTile, begin * kTilesPerChunk); }
  __device__ int EndTile() const { return min(CeilDiv(span.end, kTile), end * kTilesPerChunk); }
  __device__ bool IsWhole() const { return begin == first_chunk && end == end_chunk; }
};

// Calls run(segment) for each segment of this CTA. Neighbours in the line go to one SM, so that
// short lines are spread over all SMs.
template <typename Run>
__device__ inline void ForEachSegment(const Params& params, int ranges, const Run& run) {
  const int sms = ranges / kCtasPerSm;
  for (int i = blockIdx.x; i < ranges; i += gridDim.x) {
    const DecodeRange range = params.plan.ranges[i % sms * kCtasPerSm + i / sms];
    DecodeRow row = range.first;
    int r = range.row;
    int head = range.head;
    int chunk = range.chunk;
    while (true) {
      const Span span = params.Visible(row.position, row.tokens);
      const bool last = r == range.end_row && head == range.end_head;
      const int first_chunk = span.first / kAttentionChunk;
      const int end_chunk = CeilDiv(span.end, kAttentionChunk);
      if (chunk < 0) chunk = first_chunk;
      const int end = last ? range.end_chunk : end_chunk;
      if (chunk < end) run(Segment{row, head, span, first_chunk, end_chunk, chunk, end});
      if (last) break;
      if (++head == params.kv_heads) {
        head = 0;
        row = params.plan.decode_rows[++r];
      }
      chunk = -1;
    }
  }
}

// Each of the warps copies some runs of every tile.
template <typename Kv, int kHeadSize>
__device__ inline void Produce(const Params& params, int ranges, uint32_t ring, RingCursor cursor) {
  using S = Stage<Kv, kHeadSize>;
  constexpr int kRuns = kTileRuns / kCopyingWarps;
  const int thread = threadIdx.x - kComputingThreads;
  const int offset = thread / kWarpSize * kRuns * kRun;  // in a tile
  ForEachSegment(params, ranges, [&](const Segment& segment) {
    const HeadPages pages = params.Head(segment.head);
    const int32_t* blocks = params.Blocks(segment.row.slot);
    int ids[kRuns];
    const auto load_ids = [&](int position) {
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        const int begin = position + run * kRun;
        ids[run] = IsNeeded(begin, segment.span) ? blocks[begin >> pages.block_shift] : 0;
      }
    };
    const int first = segment.FirstTile();
    const int end = segment.EndTile();
    load_ids(first * kTile + offset);
    for (int tile = first; tile < end; ++tile) {
      cursor.WaitEmpty();
      const uint32_t stage = ring + cursor.stage() * S::kBytes;
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        LoadRun<typename S::T::Row, kWarpSize>(pages, tile * kTile, offset + run * kRun,
                                               segment.span, ids[run], stage, thread % kWarpSize);
      }
      if (tile == first) {
        LoadQueries<kHeadSize, kDecodeRows, kCopyingWarps * kWarpSize>(
            params, segment.row, segment.head, stage + S::kRowsOffset, thread);
      }
      cursor.ArriveWithCopies();
      load_ids((tile + 1) * kTile + offset);
    }
  });
}

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_DECODE_COPY_CUH_
