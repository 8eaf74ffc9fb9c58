// A block's search in one row of logits. The tiles' maxima tell which tiles hold tokens above a
// cut, and only those are read. All threads of the block call these functions, which return the
// same value to each. Shared memory is synchronized on entry and on return. The larger functions
// are not inlined: the kernel runs once per step, so fetching its code costs time.
#ifndef MILLRACE_KERNELS_SAMPLING_TILE_SEARCH_CUH_
#define MILLRACE_KERNELS_SAMPLING_TILE_SEARCH_CUH_

#include "kernels/sampling/block_collectives.cuh"
#include "kernels/sampling/range_bins.cuh"
#include "kernels/sampling/sample_internal.cuh"
#include "kernels/sampling/search_memory.cuh"

namespace millrace::kernels::sampling {

inline constexpr int kTilesAThread = kMaxTiles / kSearchThreads;
// up to this many tiles, a list is tried before a histogram
inline constexpr int kTilesForList = 256;

// Quantity that a cut has to reach.
enum class Measure { kCount, kMass };

class TileSearch {
 public:
  // Searches the logits `x`, with masses according to `softmax`. The caller has filled
  // Memory().tile_bits.
  __device__ TileSearch(const float* x, int vocab_size, const Softmax& softmax)
      : x_(x), vocab_size_(vocab_size), num_tiles_(NumTiles(vocab_size)), softmax_(softmax) {}

  // Returns the ordered bits of a logit that at least `count` tokens reach, judging by the tiles'
  // maxima, and that few more tiles reach. `largest` is OrderedBits of the row's largest logit.
  __device__ __noinline__ uint32_t BitsReachedBy(int count, uint32_t largest) const {
    uint32_t low = OrderedBits(-FLT_MAX), high = largest + 1;
    if (count > num_tiles_) return low;
    uint32_t tiles[kTilesAThread];
#pragma unroll
    for (int i = 0; i < kTilesAThread; ++i) {
      const int tile = i * kSearchThreads + threadIdx.x;
      tiles[i] = tile < num_tiles_ ? Memory().tile_bits[tile] : 0;
    }
    const int enough = count + count / 8 + 1;
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      int reaching = __syncthreads_count(tiles[0] >= middle);
#pragma unroll
      for (int i = 1; i < kTilesAThread; ++i) {
        if (i * kSearchThreads < num_tiles_) reaching += __syncthreads_count(tiles[i] >= middle);
      }
      (reaching >= count ? low : high) = middle;
      if (reaching >= count && reaching <= enough) break;
    }
    return low;
  }

  // Lists the undecided tokens, the likeliest first, and stores the masses of the tokens above in
  // tile_mass. Returns the number of undecided tokens; if it exceeds kCapacity, the list is not
  // usable.
  __device__ int List(const Range& range) {
    SelectTiles(OrderedBitsOf(range.low));
    return ListSelected(range);
  }

  // Narrows the range until the undecided tokens fit the sorted list and the tokens above do not
  // reach `need`. Returns the list's length. If the whole range does not reach `need`, all of it
  // counts as above and the list is empty.
  __device__ __noinline__ int Narrow(Range* range, Measure measure, Mass need) {
    bool try_list = SelectTiles(OrderedBitsOf(range->low)) <= kTilesForList;
    for (;;) {
      if (!try_list) {
        Histogram(range, measure, need);
        SelectTiles(OrderedBitsOf(range->low));
      }
      const int count = ListSelected(*range);
      if (count <= kCapacity) return count;
      try_list = false;
    }
  }

  // Returns the mass of the first `count` listed tokens.
  __device__ __noinline__ Mass ListedMass(int count) const {
    Mass sum = 0, total;
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += kSearchThreads) {
      sum += softmax_.MassOf(LogitOf(Memory().list[i]));
    }
    BlockExclusiveScan(sum, &total);
    return total;
  }

  // Returns how many of the first `count` listed tokens it takes to reach `need`, given the mass
  // `above`: `count` if they do not reach it, 0 if `above` already does.
  __device__ __noinline__ int CutByMass(int count, Mass above, Mass need) const {
    if (above >= need) return 0;
    constexpr int kEach = kCapacity / kSearchThreads;
    const int first = threadIdx.x * kEach;
    Mass masses[kEach];
    Mass sum = 0, total;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      masses[i] = first + i < count ? softmax_.MassOf(LogitOf(Memory().list[first + i])) : 0;
      sum += masses[i];
    }
    Mass before = above + BlockExclusiveScan(sum, &total);
    if (threadIdx.x == 0) Memory().at = count;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const Mass after = before + masses[i];
      if (before < need && after >= need) Memory().at = first + i + 1;
      before = after;
    }
    __syncthreads();
    const int cut = Memory().at;
    __syncthreads();
    return cut;
  }

  // Adds the masses of the first `count` listed tokens to their tiles' masses.
  __device__ void AddListed(int count) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += kSearchThreads) {
      const Key key = Memory().list[i];
      AddMass(Memory().tile_mass[TokenOf(key) / kTile], softmax_.MassOf(LogitOf(key)));
    }
    __syncthreads();
  }

  // Returns how many tiles' maxima reach `ordered_bits`.
  __device__ int CountTiles(uint32_t ordered_bits) const {
    int reaching = 0;
#pragma unroll
    for (int i = 0; i < kTilesAThread; ++i) {
      const int tile = i * kSearchThreads + threadIdx.x;
      reaching +=
          __syncthreads_count(tile < num_tiles_ && Memory().tile_bits[tile] >= ordered_bits);
    }
    return reaching;
  }

  __device__ __noinline__ Mass TotalMass() const {
    Mass sum = 0, total;
#pragma unroll
    for (int i = 0; i < kTilesAThread; ++i) {
      const int tile = i * kSearchThreads + threadIdx.x;
      if (tile < num_tiles_) sum += Memory().tile_mass[tile];
    }
    BlockExclusiveScan(sum, &total);
    return total;
  }

  // Inverts the distribution function over the tokens for which `kept`(logit, token) holds. Their
  // tiles' masses are in tile_mass; `random` / 2^64 is uniform in [0, 1).
  template <typename Kept>
  __device__ int Draw(Kept kept, uint64_t random) const {
    const int first = threadIdx.x * kTilesAThread;
    Mass masses[kTilesAThread];
    Mass sum = 0, total;
#pragma unroll
    for (int i = 0; i < kTilesAThread; ++i) {
      masses[i] = first + i < num_tiles_ ? Memory().tile_mass[first + i] : 0;
      sum += masses[i];
    }
    Mass before = BlockExclusiveScan(sum, &total);
    const Mass target = __umul64hi(random, total);
#pragma unroll
    for (int i = 0; i < kTilesAThread; ++i) {
      if (before <= target && target < before + masses[i]) {
        Memory().at = first + i, Memory().before = before;
      }
      before += masses[i];
    }
    __syncthreads();
    const int tile = Memory().at;
    const Mass remainder = target - Memory().before;
    __syncthreads();
    if (threadIdx.x < kWarpSize) {
      const int token = WalkTile(tile, kept, remainder);
      if (threadIdx.x == 0) Memory().at = token;
    }
    __syncthreads();
    return Memory().at;
  }

  // Returns 1 + the number of larger logits.
  __device__ int Rank(float logit) {
    Mass above = 0, total;
    SelectTiles(OrderedBits(logit));
    ForSelected([&](int, const float(&x)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) above += x[i] > logit;
    });
    BlockExclusiveScan(above, &total);
    return 1 + static_cast<int>(total);
  }

  // Stores the tiles whose maxima reach `ordered_bits` in Memory().selected. Returns their number.
  __device__ __noinline__ int SelectTiles(uint32_t ordered_bits) {
    const unsigned lane = threadIdx.x % kWarpSize;
    if (threadIdx.x == 0) Memory().count = 0;
    __syncthreads();
    for (int first = 0; first < num_tiles_; first += kSearchThreads) {
      const int tile = first + threadIdx.x;
      const bool reaches = tile < num_tiles_ && Memory().tile_bits[tile] >= ordered_bits;
      const unsigned lanes = __ballot_sync(kFullWarp, reaches);
      const int at = Take(__popc(lanes)) + __popc(lanes & ((1u << lane) - 1));
      if (reaches) Memory().selected[at] = static_cast<uint16_t>(tile);
    }
    __syncthreads();
    num_selected_ = Memory().count;
    __syncthreads();
    return num_selected_;
  }

  // Calls f(tile, x) for each selected tile, one warp per tile; x[i] is the logit of TokenAt(tile,
  // i). A warp loads two tiles at a time to have more loads in flight. Here and in f, members are
  // copied to locals first, since the compiler would reload them after each write to shared memory.
  template <typename F>
  __device__ void ForSelected(F f) const {
    constexpr int kAtOnce = 2;
    const float* const row = x_;
    const int vocab_size = vocab_size_, selected = num_selected_;
    const int warp = threadIdx.x / kWarpSize;
    for (int first = warp; first < selected; first += kAtOnce * kSearchWarps) {
      int tiles[kAtOnce];
      float4 x[kAtOnce][2];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + i * kSearchWarps;
        tiles[i] = at < selected ? Memory().selected[at] : kMaxTiles;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        x[i][0] = LoadLogitsHere(row, TokenAt(tiles[i], 0), vocab_size);
        x[i][1] = LoadLogitsHere(row, TokenAt(tiles[i], 4), vocab_size);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (tiles[i] == kMaxTiles) continue;
        float4 &a = x[i][0], &b = x[i][1];
        if ((tiles[i] + 1) * kTile > vocab_size) {
          MaskLogits(a, TokenAt(tiles[i], 0), vocab_size);
          MaskLogits(b, TokenAt(tiles[i], 4), vocab_size);
        }
        const float each[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        f(tiles[i], each);
      }
    }
  }

  // Token of the i-th of the eight logits that a lane holds of a tile: two runs of four.
  __device__ static int TokenAt(int tile, int i) {
    return tile * kTile + i / 4 * (kTile / 2) + threadIdx.x % kWarpSize * 4 + i % 4;
  }

 private:
  // Reserves `size` entries for a warp by advancing Memory().count. Returns the first.
  __device__ static int Take(int size) {
    int first = 0;
    if (size > 0 && threadIdx.x % kWarpSize == 0) first = atomicAdd(&Memory().count, size);
    return __shfl_sync(kFullWarp, first, 0);
  }

  __device__ __noinline__ int ListSelected(const Range& range) const {
    const unsigned lane = threadIdx.x % kWarpSize;
    if (threadIdx.x == 0) Memory().count = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < num_tiles_; i += kSearchThreads) Memory().tile_mass[i] = 0;
    __syncthreads();
    const Range within = range;
    const Softmax softmax = softmax_;
    const float low = LogitOf(within.low), high = LogitOf(within.high);
    ForSelected([=](int tile, const float(&x)[8]) {
      float p = 0;
      bool near = false;  // whether a logit is not clearly outside the range
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (x[i] > high) p += softmax.P(x[i]);
        near |= (x[i] >= low) & (x[i] <= high);
      }
      if (__any_sync(kFullWarp, near)) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const Key key = KeyOf(x[i], TokenAt(tile, i));
          if (x[i] == high && key >= within.high) p += softmax.P(x[i]);
          const bool undecided = key >= within.low && key < within.high;
          const unsigned lanes = __ballot_sync(kFullWarp, undecided);
          if (lanes == 0) continue;
          const int at = Take(__popc(lanes)) + __popc(lanes & ((1u << lane) - 1));
          if (undecided && at < kCapacity) Memory().list[at] = key;
        }
      }
      p = WarpReduce<Add>(p);
      if (lane == 0) Memory().tile_mass[tile] = ToMass(p);
    });
    __syncthreads();
    const int count = Memory().count;
    __syncthreads();
    if (count > 1 && count <= kCapacity) BlockSortDescending(Memory().list, count);
    return count;
  }

  __device__ static void ClearBins() {
    for (int i = threadIdx.x; i < kBins; i += kSearchThreads) Memory().bins[i] = 0;
    if (threadIdx.x == 0) Memory().at = kBins;
    __syncthreads();
  }

  // Narrows the range to the bin in which `need` is reached.
  __device__ __noinline__ void Histogram(Range* range, Measure measure, Mass need) const {
    SearchMemory& memory = Memory();
    ClearBins();
    const Range within = *range;
    const RangeBins bins(within);
    const float low = LogitOf(within.low), high = LogitOf(within.high);
    // in (clear_low, high) the logit alone decides
    const float clear_low = bins.scale > 0 ? low : INFINITY;
    // A token adds its mass, or exp2(0) = 1 when tokens are counted.
    const bool by_mass = measure == Measure::kMass;
    const Softmax softmax = by_mass ? softmax_ : Softmax{0, 0};
    const float unit = by_mass ? kMassUnits : 1.0f;
    ForSelected([=, &memory](int tile, const float(&x)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        int bin = -1;
        if (x[i] > clear_low && x[i] < high) {
          bin = bins.OfLogit(x[i]);
        } else if (x[i] >= low && x[i] <= high) {  // the whole key decides
          const Key key = KeyOf(x[i], TokenAt(tile, i));
          if (key >= within.low && key < within.high) bin = bins.Of(key);
        }
        if (bin >= 0) AddMass(memory.bins[bin], __float2ull_rn(softmax.P(x[i]) * unit));
      }
    });
    __syncthreads();
    SelectBin(bins, range, need);
  }

  __device__ static void SelectBin(const RangeBins& bins, Range* range, Mass need) {
    constexpr int kEach = kBins / kSearchThreads;
    const int first = threadIdx.x * kEach;
    SearchMemory& memory = Memory();
    Mass amounts[kEach];
    Mass sum = 0, total;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      amounts[i] = memory.bins[first + i];
      sum += amounts[i];
    }
    Mass before = range->above + BlockExclusiveScan(sum, &total);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (before < need && before + amounts[i] >= need) {
        memory.at = first + i, memory.before = before;
      }
      before += amounts[i];
    }
    __syncthreads();
    const int bin = memory.at;
    if (bin == kBins) {
      *range = {range->low, range->low, range->above + total};
    } else {
      // Even lanes compute the lower edge, odd lanes the upper one.
      const Key edge = bins.LowOf(bin - static_cast<int>(threadIdx.x % 2), *range);
      *range = {__shfl_sync(kFullWarp, edge, 0), __shfl_sync(kFullWarp, edge, 1), memory.before};
    }
    __syncthreads();
  }

  // Returns the token at which the tile's cumulative mass of kept tokens exceeds `remainder`.
  // Called by one warp.
  template <typename Kept>
  __device__ int WalkTile(int tile, Kept keeps, Mass remainder) const {
    constexpr int kEach = kTile / kWarpSize;
    const int first = tile * kTile + threadIdx.x % kWarpSize * kEach;
    float4 a = LoadLogits(x_, first, vocab_size_);
    float4 b = LoadLogits(x_, first + 4, vocab_size_);
    MaskLogits(a, first, vocab_size_);
    MaskLogits(b, first + 4, vocab_size_);
    const float x[kEach] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    Mass masses[kEach];
    Mass sum = 0;
    int last_kept = -1, last_with_mass = -1;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool kept = keeps(x[i], first + i);
      masses[i] = kept ? softmax_.MassOf(x[i]) : 0;
      sum += masses[i];
      if (kept) last_kept = first + i;
      if (masses[i] > 0) last_with_mass = first + i;
    }
    Mass through = WarpInclusiveScan(sum) - sum;
    int found = kMaxSampledVocab;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      through += masses[i];
      if (through > remainder) found = min(found, first + i);
    }
    found = __reduce_min_sync(kFullWarp, found);
    if (found < kMaxSampledVocab) return found;
    // The tile's mass was rounded up, so `remainder` lies beyond it: takes the last token that can
    // be drawn.
    const int with_mass = __reduce_max_sync(kFullWarp, last_with_mass);
    return with_mass >= 0 ? with_mass : __reduce_max_sync(kFullWarp, last_kept);
  }

  const float* x_;
  int vocab_size_;
  int num_tiles_;
  int num_selected_ = 0;
  Softmax softmax_;
};

}  // namespace millrace::kernels::sampling

#endif  // MILLRACE_KERNELS_SAMPLING_TILE_SEARCH_CUH_
