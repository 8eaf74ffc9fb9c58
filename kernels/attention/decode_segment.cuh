// The decode kernel's warp roles, pipeline stages and work segments.
#ifndef MILLRACE_KERNELS_ATTENTION_DECODE_SEGMENT_CUH_
#define MILLRACE_KERNELS_ATTENTION_DECODE_SEGMENT_CUH_

#include "kernels/attention/attention_kernels.h"
#include "kernels/attention/attention_math.cuh"
#include "kernels/attention/attention_params.cuh"
#include "kernels/attention/attention_pipeline.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/device_util.cuh"

namespace millrace::kernels::attention {

inline constexpr int kComputingWarps = 4;
inline constexpr int kComputingThreads = kComputingWarps * kWarpSize;
inline constexpr int kCopyingWarps = 2;
inline constexpr int kCopyingThreads = kCopyingWarps * kWarpSize;

template <typename Kv, int kHeadSize>
struct Stage {
  using T = Tile<Kv, kHeadSize>;
  // Queries and, later in the same memory, a tile's scores in float32.
  static constexpr int kRowsBytes =
      kDecodeRows * (kHeadSize * 2 > kTile * 4 ? kHeadSize * 2 : kTile * 4);
  static constexpr int kRowsOffset = 2 * T::kBytes;
  static constexpr int kBytes = 2 * T::kBytes + kRowsBytes;
};

// Static shared memory of a CTA, beside the pipeline stages.
template <typename Kv, int kHeadSize>
struct DecodeShared {
  // The new key and value, computed with a segment's first tile for use in its last one.
  alignas(16) uint8_t kv[2 * Tile<Kv, kHeadSize>::kRowBytes];
  uint64_t barriers[kBarrierBytes / 8];
  bool is_last;
};

// Consecutive chunks of one row and kv head that one CTA processes.
struct Segment {
  DecodeRow row;
  int head;
  Span span;        // of the row
  int first_chunk;  // of the row
  int end_chunk;
  int begin;  // chunks of the segment: [begin, end)
  int end;
  int ahead;  // DecodeRange::ahead

  __device__ int FirstTile() const { return max(span.first / kTile, begin * kTilesPerChunk); }
  __device__ int EndTile() const { return min(CeilDiv(span.end, kTile), end * kTilesPerChunk); }
  // Returns whether the segment contains the row's last position.
  __device__ bool HasLast() const { return end == end_chunk; }
  __device__ bool IsWhole() const { return begin == first_chunk && end == end_chunk; }
};

// Returns whether the previous attention launch has passed its wait. Then the plan, the block
// tables and the pages' old positions may be read before this kernel's own predecessor has ended.
__device__ inline bool MayReadAhead(const Params& params) {
  if (params.launch_number < 2) return false;
  uint32_t last;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
               : "=r"(last)
               : "l"(&params.plan.header->last_launch)
               : "memory");
  return last + 1 == params.launch_number;
}

// Calls run(segment) for each segment of this CTA. Consecutive ranges go to one SM, so that little
// work is spread over all SMs.
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
      if (chunk < end) {
        run(Segment{row, head, span, first_chunk, end_chunk, chunk, end, range.ahead});
      }
      if (last) break;
      if (++head == params.kv_heads) {
        head = 0;
        row = params.plan.decode_rows[++r];
      }
      chunk = -1;
    }
  }
}

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_DECODE_SEGMENT_CUH_
