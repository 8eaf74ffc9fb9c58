// The plan kernel. Decode rows are laid out in one sequence of tiles, which is cut into ranges of
// equal length, one per CTA. Prefill rows are cut into items, longest first. The positions of the
// cuts change no bit of the results.
#include <algorithm>

#include "kernels/attention/attention_kernels.h"
#include "kernels/attention/attention_math.cuh"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels::attention {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarpSize;

// Tiles that all CTAs together may copy before the predecessor kernel has ended: about as many as
// the memory delivers in that time. More would delay the reads of those kernels.
constexpr int kTilesAhead = 300;

struct Row {
  int slot;
  int token;
  int tokens;
  int position;
};

__device__ Row LoadRow(const AttentionStep& step, int r) {
  const int token = step.row_first[r];
  return {step.row_slot[r], token, step.row_first[r + 1] - token, step.row_start[r]};
}

__device__ int Group(const AttentionStep& step) { return step.heads / step.kv_heads; }

__device__ bool Decodes(const AttentionStep& step, const Row& row) {
  return row.tokens > 0 && row.tokens * Group(step) <= kDecodeRows;
}

// The tiles [first_tile, end_tile) and chunks visible to consecutive tokens.
struct Extent {
  int first_tile;
  int end_tile;
  __device__ Extent(const AttentionStep& step, int position, int tokens)
      : first_tile(FirstVisible(position, step.window) / kTile),
        end_tile(CeilDiv(position + tokens, kTile)) {}
  __device__ int Tiles() const { return end_tile - first_tile; }
  __device__ int FirstChunk() const { return first_tile / kTilesPerChunk; }
  __device__ int EndChunk() const { return CeilDiv(end_tile, kTilesPerChunk); }
};

// ---- Decode ----

// Totals over decode rows, for a prefix scan.
struct Sums {
  int rows;
  int tiles;
  int partials;
};

__device__ Sums operator+(const Sums& a, const Sums& b) {
  return {a.rows + b.rows, a.tiles + b.tiles, a.partials + b.partials};
}

__device__ Sums SumsOf(const AttentionStep& step, const Row& row) {
  if (!Decodes(step, row)) return {};
  const Extent extent(step, row.position, row.tokens);
  const int chunks = extent.EndChunk() - extent.FirstChunk();
  return {1, extent.Tiles(), chunks == 1 ? 0 : chunks * row.tokens};
}

// Returns the sum over the threads before this one. `all` receives the sum over all threads.
__device__ Sums SumBefore(const Sums& own, Sums (&warps)[kWarps], Sums& all) {
  const int lane = threadIdx.x % kWarpSize;
  const auto scan = [lane](Sums sums) {
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const Sums before = {__shfl_up_sync(kFullWarp, sums.rows, distance),
                           __shfl_up_sync(kFullWarp, sums.tiles, distance),
                           __shfl_up_sync(kFullWarp, sums.partials, distance)};
      if (lane >= distance) sums = sums + before;
    }
    return sums;
  };
  const Sums in_warp = scan(own);
  const int warp = threadIdx.x / kWarpSize;
  if (lane == kWarpSize - 1) warps[warp] = in_warp;
  __syncthreads();
  if (warp == 0) warps[lane] = scan(warps[lane]);
  __syncthreads();
  all = warps[kWarps - 1];
  const Sums before = {in_warp.rows - own.rows, in_warp.tiles - own.tiles,
                       in_warp.partials - own.partials};
  return warp == 0 ? before : before + warps[warp - 1];
}

__device__ void StoreDecodeRow(const AttentionStep& step, const Plan& plan, const Row& row,
                               const Sums& before, const Sums& own) {
  const bool divisible = own.partials > 0 && before.partials + own.partials <= kPartials;
  const int partial = divisible ? before.partials : kWhole;
  plan.decode_rows[before.rows] = {row.slot, row.token, row.tokens, row.position, partial};
  plan.decode_tiles[before.rows] = before.tiles;
  if (!divisible) return;
  for (int head = 0; head < step.kv_heads; ++head) {
    plan.arrivals[partial * step.kv_heads + head] = 0;
  }
}

// A chunk boundary in the sequence of (row, head, chunk).
struct Place {
  int row;
  int head;
  int chunk;
  __device__ bool operator==(const Place& other) const {
    return row == other.row && head == other.head && chunk == other.chunk;
  }
};

__device__ Extent ExtentOf(const AttentionStep& step, const Plan& plan, int row) {
  return Extent(step, plan.decode_rows[row].position, plan.decode_rows[row].tokens);
}

// Returns the boundary nearest to tile number `tile`, counted over all rows and heads.
__device__ Place Locate(const AttentionStep& step, const Plan& plan, int rows, int64_t tile) {
  int row = 0;
  // invariant: tiles before `row` <= tile < tiles before `end`
  for (int end = rows; end - row > 1;) {
    const int middle = (row + end) / 2;
    (int64_t{plan.decode_tiles[middle]} * step.kv_heads <= tile ? row : end) = middle;
  }
  const Extent extent = ExtentOf(step, plan, row);
  const int in_row = static_cast<int>(tile - int64_t{plan.decode_tiles[row]} * step.kv_heads);
  Place place = {row, in_row / extent.Tiles(), extent.FirstChunk()};
  const int at = extent.first_tile + in_row % extent.Tiles();
  const bool divisible = plan.decode_rows[row].partial != kWhole;
  const int chunk = at / kTilesPerChunk;
  const int before = divisible ? max(chunk * kTilesPerChunk, extent.first_tile) : extent.first_tile;
  const int behind =
      divisible ? min((chunk + 1) * kTilesPerChunk, extent.end_tile) : extent.end_tile;
  if (at - before <= behind - at) {
    if (divisible) place.chunk = chunk;
    return place;
  }
  if (behind < extent.end_tile) {
    place.chunk = chunk + 1;
    return place;
  }
  if (++place.head == step.kv_heads) place = {row + 1, 0, 0};
  if (place.row < rows) place.chunk = ExtentOf(step, plan, place.row).FirstChunk();
  return place;
}

__device__ DecodeRange Range(const AttentionStep& step, const Plan& plan, int rows, Place begin,
                             Place end) {
  if (begin == end) return {};  // an empty range, which ends at chunk 0 of head 0
  if (end.row == rows || end.chunk == ExtentOf(step, plan, end.row).FirstChunk()) {
    // Ends at the end of the previous (row, head) instead.
    if (--end.head < 0) end = {end.row - 1, step.kv_heads - 1, 0};
    end.chunk = ExtentOf(step, plan, end.row).EndChunk();
  }
  return {plan.decode_rows[begin.row],
          begin.row,
          begin.head,
          begin.chunk,
          end.row,
          end.head,
          end.chunk,
          0};
}

__device__ void PlanDecode(const AttentionStep& step, const Plan& plan, int ctas) {
  __shared__ Sums warps[kWarps];
  const int rows_each = CeilDiv(step.rows, kThreads);
  const int begin = min(static_cast<int>(threadIdx.x) * rows_each, step.rows);
  const int end = min(begin + rows_each, step.rows);
  Sums own = {};
  for (int r = begin; r < end; ++r) own = own + SumsOf(step, LoadRow(step, r));
  Sums all;
  Sums before = SumBefore(own, warps, all);
  for (int r = begin; r < end; ++r) {
    const Row row = LoadRow(step, r);
    const Sums sums = SumsOf(step, row);
    if (sums.rows > 0) StoreDecodeRow(step, plan, row, before, sums);
    before = before + sums;
  }
  __syncthreads();
  static_assert(kMaxCtas <= kThreads);
  const int cta = threadIdx.x;
  DecodeRange range = {};
  if (cta < ctas && all.rows > 0) {
    const int64_t tiles = int64_t{all.tiles} * step.kv_heads;
    const auto locate = [&](int i) {
      return i == ctas ? Place{all.rows, 0, 0} : Locate(step, plan, all.rows, tiles * i / ctas);
    };
    range = Range(step, plan, all.rows, locate(cta), locate(cta + 1));
  }
  const int busy = __syncthreads_count(range.end_chunk > 0);
  range.ahead = max(1, kTilesAhead / max(busy, 1));
  if (cta < ctas) plan.ranges[cta] = range;
}

// ---- Prompts ----

// Sort key of items by their number of tiles, the largest first. The bucket is the exponent and the
// top three mantissa bits of that number as a float32, so items that differ by less than an eighth
// share a bucket.
constexpr int kBuckets = 256;
__device__ int Bucket(int tiles) {
  const int key = (__float_as_int(static_cast<float>(tiles)) >> 20) - (127 << 3);
  return kBuckets - 1 - min(key, kBuckets - 1);
}

// Calls visit(tiles, item) for each item. Called by all threads; a warp takes a row.
template <typename Visit>
__device__ void ForEachItem(const AttentionStep& step, const Visit& visit) {
  const int tokens = kPrefillRows / Group(step);
  for (int r = threadIdx.x / kWarpSize; r < step.rows; r += kWarps) {
    const Row row = LoadRow(step, r);
    if (Decodes(step, row)) continue;
    for (int first = threadIdx.x % kWarpSize * tokens; first < row.tokens;
         first += kWarpSize * tokens) {
      const PrefillItem item = {row.slot, row.token + first, min(tokens, row.tokens - first),
                                row.position + first};
      visit(Extent(step, item.position, item.tokens).Tiles(), item);
    }
  }
}

// Exclusive prefix sum over the buckets, in place, by one warp. Returns the total.
__device__ int PlaceBuckets(int (&buckets)[kBuckets]) {
  constexpr int kPerLane = kBuckets / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  int sum = 0;
  for (int i = 0; i < kPerLane; ++i) sum += buckets[lane * kPerLane + i];
  int place = sum;
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const int before = __shfl_up_sync(kFullWarp, place, distance);
    if (lane >= distance) place += before;
  }
  const int total = __shfl_sync(kFullWarp, place, kWarpSize - 1);
  place -= sum;
  for (int i = 0; i < kPerLane; ++i) {
    const int number = buckets[lane * kPerLane + i];
    buckets[lane * kPerLane + i] = place;
    place += number;
  }
  return total;
}

__device__ void PlanPrefill(const AttentionStep& step, const Plan& plan) {
  __shared__ int buckets[kBuckets];
  for (int i = threadIdx.x; i < kBuckets; i += kThreads) buckets[i] = 0;
  __syncthreads();
  ForEachItem(step, [&](int tiles, const PrefillItem&) { atomicAdd(&buckets[Bucket(tiles)], 1); });
  __syncthreads();
  if (threadIdx.x < kWarpSize) {
    const int items = PlaceBuckets(buckets);
    if (threadIdx.x == 0) {
      plan.header->prefill_items = items;
      plan.header->next_prefill_item = 0;
      plan.header->idle_prefill_ctas = 0;
    }
  }
  __syncthreads();
  ForEachItem(step, [&](int tiles, const PrefillItem& item) {
    plan.prefill[atomicAdd(&buckets[Bucket(tiles)], 1)] = item;
  });
}

__global__ void __launch_bounds__(kThreads)
    PlanKernel(const __grid_constant__ AttentionStep step, const __grid_constant__ Plan plan,
               int ctas) {
  AwaitPredecessor();
  PlanDecode(step, plan, ctas);
  if (step.max_row_tokens * Group(step) > kDecodeRows) PlanPrefill(step, plan);
  if (threadIdx.x == 0) plan.header->last_launch = 0;
}

}  // namespace

cudaError_t LaunchPlan(const AttentionStep& step, const Plan& plan, int ctas, cudaStream_t stream) {
  return LaunchDependent(PlanKernel, dim3(1), dim3(kThreads), 0, stream, step, plan, ctas);
}

}  // namespace millrace::kernels::attention
