// A block's search in one row of logits. From the tiles' maxima it knows which tiles hold tokens
// above a cut, and reads no other. All functions are called by all threads of the block, return the
// same to all of them, and begin and end with shared memory at rest.
#ifndef MILLRACE_KERNELS_SAMPLING_TILE_SEARCH_CUH_
#define MILLRACE_KERNELS_SAMPLING_TILE_SEARCH_CUH_

#include "kernels/sampling/block_collectives.cuh"
#include "kernels/sampling/range_bins.cuh"
#include "kernels/sampling/sample_internal.cuh"

namespace millrace::kernels::sampling {

inline constexpr int kTilesAThread = kMaxTiles / kSearchThreads;
inline constexpr int kCapacity = 2048;     // of the list
inline constexpr int kTilesForList = 256;  // up to so many, a list is tried before a histogram

// What a cut is to reach.
enum class Measure { kCount, kMass };

struct SearchMemory {
  uint32_t tile_bits[kMaxTiles];  // OrderedBits of the tile's largest logit
  Mass tile_mass[kMaxTiles];
  union {
    Key list[kCapacity];
    struct {  // the halves of 64-bit sums: shared memory adds 32 bits natively
      uint32_t low[kBins];
      uint32_t high[kBins];
    } bins;
    struct {
      float mass[kMaxTiles];
      float largest[kMaxTiles];
    } tiles;
  };
  Partials partials;
  Mass before;
  int at;
  int count;
};

class TileSearch {
 public:
  // Of logits `x`; masses are those of `softmax`. The caller has filled memory.tile_bits.
  __device__ TileSearch(SearchMemory& memory, const float* x, int vocab_size,
                        const Softmax& softmax)
      : memory_(memory),
        x_(x),
        vocab_size_(vocab_size),
        num_tiles_(NumTiles(vocab_size)),
        softmax_(softmax) {}

  // Calls f(tile, x), warp by warp, with each tile that reaches `ordered_bits`: x[i] is the logit
  // of TokenAt(tile, i). A warp loads two tiles at a time, so that more is in flight.
  template <typename F>
  __device__ void ForTiles(uint32_t ordered_bits, F f) const {
    constexpr int kAtOnce = 2;
    for (int first = threadIdx.x / kWarpSize; first < num_tiles_; first += kAtOnce * kSearchWarps) {
      float4 x[kAtOnce][2];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int tile = first + i * kSearchWarps;
        if (!Reaches(tile, ordered_bits)) continue;
        x[i][0] = LoadLogits(x_, TokenAt(tile, 0), vocab_size_);
        x[i][1] = LoadLogits(x_, TokenAt(tile, 4), vocab_size_);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int tile = first + i * kSearchWarps;
        if (!Reaches(tile, ordered_bits)) continue;
        const float4 &a = x[i][0], &b = x[i][1];
        const float each[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        f(tile, each);
      }
    }
  }

  // A logit that at least `count` tokens reach, as far as the tiles' maxima tell, and few more
  // tiles do. `largest`: OrderedBits of the largest of all.
  __device__ uint32_t BitsReachedBy(int count, uint32_t largest) const {
    uint32_t low = OrderedBits(-FLT_MAX), high = largest + 1;
    if (count > num_tiles_) return low;
    const int enough = count + count / 8 + 1;
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      const int tiles = TilesReaching(middle);
      (tiles >= count ? low : high) = middle;
      if (tiles >= count && tiles <= enough) break;
    }
    return low;
  }

  // Lists the undecided tokens, the likeliest first, and puts the masses of those above into
  // tile_mass. Returns how many are undecided; the list holds nothing of use if more than
  // kCapacity.
  __device__ int List(const Range& range) {
    const int lane = threadIdx.x % kWarpSize;
    if (threadIdx.x == 0) memory_.count = 0;
    for (int i = threadIdx.x; i < num_tiles_; i += kSearchThreads) memory_.tile_mass[i] = 0;
    __syncthreads();
    const float low = LogitOf(range.low), high = LogitOf(range.high);
    ForTiles(OrderedBitsOf(range.low), [&](int tile, const float(&x)[8]) {
      float p = 0;
      bool near = false;  // a logit that is not clearly outside the range
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (x[i] > high) p += softmax_.P(x[i]);
        near = near || (x[i] >= low && x[i] <= high);
      }
      if (__any_sync(kFullWarp, near)) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const Key key = KeyOf(x[i], TokenAt(tile, i));
          if (x[i] == high && key >= range.high) p += softmax_.P(x[i]);
          Append(key, key >= range.low && key < range.high);
        }
      }
      p = WarpReduce<Add>(p);
      if (lane == 0) memory_.tile_mass[tile] = ToMass(p);
    });
    __syncthreads();
    const int count = memory_.count;
    __syncthreads();
    if (count > 0 && count <= kCapacity) BlockSortDescending(memory_.list, count);
    return count;
  }

  // Narrows the range until what is undecided is in the list, sorted, and the tokens above are too
  // few to reach `need`. Returns the list's length. If all of the range does not reach `need`, all
  // of it is above and the list is empty.
  template <Measure kMeasure>
  __device__ int Narrow(Range* range, Mass need) {
    // A list is tried first where few tiles have a say.
    if (TilesReaching(OrderedBitsOf(range->low)) > kTilesForList) {
      Histogram<kMeasure>(range, need);
    }
    int count = List(*range);
    while (count > kCapacity) {
      Histogram<kMeasure>(range, need);
      count = List(*range);
    }
    return count;
  }

  // How many of the first `count` of the list it takes to reach need_of(their mass), given what
  // lies above: all if they do not, 0 if what lies above does. Sets `need`.
  template <typename NeedOf>
  __device__ int CutByMass(int count, Mass above, NeedOf need_of, Mass* need) {
    constexpr int kEach = kCapacity / kSearchThreads;
    const int first = threadIdx.x * kEach;
    Mass masses[kEach];
    Mass sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      masses[i] = first + i < count ? softmax_.MassOf(LogitOf(memory_.list[first + i])) : 0;
      sum += masses[i];
    }
    Mass total;
    Mass before = above + BlockExclusiveScan(memory_.partials, sum, &total);
    *need = need_of(total);
    if (above >= *need) return 0;
    if (threadIdx.x == 0) memory_.at = count;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const Mass after = before + masses[i];
      if (before < *need && after >= *need && first + i < count) memory_.at = first + i + 1;
      before = after;
    }
    __syncthreads();
    const int cut = memory_.at;
    __syncthreads();
    return cut;
  }

  // Adds the first `count` of the list to their tiles' masses.
  __device__ void AddListed(int count) {
    for (int i = threadIdx.x; i < count; i += kSearchThreads) {
      const Key key = memory_.list[i];
      atomicAdd(&memory_.tile_mass[TokenOf(key) / kTile], softmax_.MassOf(LogitOf(key)));
    }
    __syncthreads();
  }

  __device__ Mass TotalMass() {
    Mass sum = 0, total;
    for (int i = threadIdx.x; i < num_tiles_; i += kSearchThreads) sum += memory_.tile_mass[i];
    BlockExclusiveScan(memory_.partials, sum, &total);
    return total;
  }

  // Inverts the distribution function over the tokens at `low` and beyond, whose tiles' masses are
  // in tile_mass; `random` / 2^64 is uniform in [0, 1).
  __device__ int Draw(Key low, uint64_t random) {
    const int first = threadIdx.x * kTilesAThread;
    Mass masses[kTilesAThread];
    Mass sum = 0, total;
#pragma unroll
    for (int i = 0; i < kTilesAThread; ++i) {
      masses[i] = first + i < num_tiles_ ? memory_.tile_mass[first + i] : 0;
      sum += masses[i];
    }
    Mass before = BlockExclusiveScan(memory_.partials, sum, &total);
    const Mass target = __umul64hi(random, total);
#pragma unroll
    for (int i = 0; i < kTilesAThread; ++i) {
      if (before <= target && target < before + masses[i]) {
        memory_.at = first + i, memory_.before = before;
      }
      before += masses[i];
    }
    __syncthreads();
    const int tile = memory_.at;
    const Mass rest = target - memory_.before;
    __syncthreads();
    if (threadIdx.x < kWarpSize) {
      const int token = WalkTile(tile, low, rest);
      if (threadIdx.x == 0) memory_.at = token;
    }
    __syncthreads();
    return memory_.at;
  }

  // 1 + how many logits are larger.
  __device__ int Rank(float logit) {
    int above = 0;
    ForTiles(OrderedBits(logit), [&](int, const float(&x)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) above += x[i] > logit;
    });
    Mass total;
    BlockExclusiveScan(memory_.partials, above, &total);
    return 1 + static_cast<int>(total);
  }

  // The lowest of the tokens with the largest logit of all.
  __device__ int FirstLargest(uint32_t ordered_bits) {
    int tile = kMaxTiles;
    for (int i = threadIdx.x; i < num_tiles_; i += kSearchThreads) {
      if (memory_.tile_bits[i] == ordered_bits) tile = min(tile, i);
    }
    tile = kMaxTiles - BlockMax(memory_.partials, kMaxTiles - tile);
    if (threadIdx.x < kWarpSize) {
      int token = kMaxSampledVocab;
      for (int half = 1; half >= 0; --half) {
        const int column = tile * kTile + half * 128 + threadIdx.x * 4;
        const float4 x = LoadLogits(x_, column, vocab_size_);
        if (OrderedBits(x.w) == ordered_bits) token = column + 3;
        if (OrderedBits(x.z) == ordered_bits) token = column + 2;
        if (OrderedBits(x.y) == ordered_bits) token = column + 1;
        if (OrderedBits(x.x) == ordered_bits) token = column;
      }
      token = __reduce_min_sync(kFullWarp, token);
      if (threadIdx.x == 0) memory_.at = token;
    }
    __syncthreads();
    return memory_.at;
  }

  // A logit below which no token can be among those whose mass reaches `top_p` of the total; the
  // tiles' masses are in tile_mass. Of a tile that holds a token at the cut or above, what lies
  // below the cut is at most its mass without its largest token, and at most 255 times p at the
  // cut.
  __device__ float TopPBound(float top_p, Mass total) {
    constexpr int kLevels = 31;  // p = 2^-level
    __syncthreads();
    for (int i = threadIdx.x; i < num_tiles_; i += kSearchThreads) {
      memory_.tiles.mass[i] = static_cast<float>(memory_.tile_mass[i]) * 0x1p-44f;
      memory_.tiles.largest[i] = softmax_.P(FromOrderedBits(memory_.tile_bits[i]));
    }
    if (threadIdx.x == 0) memory_.at = 0;  // a bit for each level that drops little enough
    __syncthreads();
    const float budget = (1 - top_p) * 0.9999f * static_cast<float>(total) * 0x1p-44f;
    for (int level = 1 + threadIdx.x / kWarpSize; level < kLevels; level += kSearchWarps) {
      const float p = Exp2(-static_cast<float>(level));
      float dropped = 0;
      for (int i = threadIdx.x % kWarpSize; i < num_tiles_; i += kWarpSize) {
        const float mass = memory_.tiles.mass[i], largest = memory_.tiles.largest[i];
        dropped += largest < p ? mass : fminf(fmaxf(mass - largest, 0.0f), (kTile - 1) * p);
      }
      dropped = WarpReduce<Add>(dropped);
      if (threadIdx.x % kWarpSize == 0 && dropped <= budget) atomicOr(&memory_.at, 1 << level);
    }
    __syncthreads();
    const int level = memory_.at == 0 ? 64 : __ffs(memory_.at) - 1;
    __syncthreads();
    return LogitAt(static_cast<float>(level));
  }

  // The logit with p = 2^-level, or a little less. At level 64 nothing below has any mass.
  __device__ float LogitAt(float level) const {
    return softmax_.largest - level * 1.00001f / softmax_.factor;
  }

 private:
  // Of the eight that a lane holds of a tile: two runs of four.
  __device__ static int TokenAt(int tile, int i) {
    return tile * kTile + i / 4 * (kTile / 2) + threadIdx.x % kWarpSize * 4 + i % 4;
  }

  // Into the list, if there is room; the whole warp.
  __device__ void Append(Key key, bool wanted) {
    const unsigned lane = threadIdx.x % kWarpSize;
    const unsigned lanes = __ballot_sync(kFullWarp, wanted);
    if (lanes == 0) return;
    int at = lane == 0 ? atomicAdd(&memory_.count, __popc(lanes)) : 0;
    at = __shfl_sync(kFullWarp, at, 0) + __popc(lanes & ((1u << lane) - 1));
    if (wanted && at < kCapacity) memory_.list[at] = key;
  }

  __device__ bool Reaches(int tile, uint32_t ordered_bits) const {
    return tile < num_tiles_ && memory_.tile_bits[tile] >= ordered_bits;
  }

  __device__ int TilesReaching(uint32_t ordered_bits) const {
    int count = 0;
    for (int first = 0; first < num_tiles_; first += kSearchThreads) {
      count += __syncthreads_count(Reaches(first + threadIdx.x, ordered_bits));
    }
    return count;
  }

  // The token at which the tile's mass from `low` up passes `rest`; one warp.
  __device__ int WalkTile(int tile, Key low, Mass rest) const {
    constexpr int kEach = kTile / kWarpSize;
    const int lane = threadIdx.x % kWarpSize;
    const int first = tile * kTile + lane * kEach;
    const float4 a = LoadLogits(x_, first, vocab_size_);
    const float4 b = LoadLogits(x_, first + 4, vocab_size_);
    const float x[kEach] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    Mass masses[kEach];
    Mass sum = 0;
    int last_kept = -1, last_with_mass = -1;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool kept = KeyOf(x[i], first + i) >= low;
      masses[i] = kept ? softmax_.MassOf(x[i]) : 0;
      sum += masses[i];
      if (kept) last_kept = first + i;
      if (masses[i] > 0) last_with_mass = first + i;
    }
    Mass before = WarpInclusiveScan(sum) - sum;
    int found = kMaxSampledVocab;
#pragma unroll
    for (int i = kEach - 1; i >= 0; --i) {
      Mass through = before;
#pragma unroll
      for (int j = 0; j <= i; ++j) through += masses[j];
      if (through > rest) found = first + i;
    }
    found = __reduce_min_sync(kFullWarp, found);
    if (found < kMaxSampledVocab) return found;
    // The tile's statistics rounded its mass up: the last one that can be drawn.
    const int with_mass = __reduce_max_sync(kFullWarp, last_with_mass);
    return with_mass >= 0 ? with_mass : __reduce_max_sync(kFullWarp, last_kept);
  }

  // Narrows the range to the bin in which `need` is reached.
  template <Measure kMeasure>
  __device__ void Histogram(Range* range, Mass need) {
    for (int i = threadIdx.x; i < kBins; i += kSearchThreads) {
      memory_.bins.low[i] = memory_.bins.high[i] = 0;
    }
    __syncthreads();
    const RangeBins bins(*range);
    const float low = LogitOf(range->low), high = LogitOf(range->high);
    ForTiles(OrderedBitsOf(range->low), [&](int tile, const float(&x)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (x[i] < low || x[i] > high) continue;
        const Key key = KeyOf(x[i], TokenAt(tile, i));
        if (x[i] == low || x[i] == high || bins.scale == 0) {  // the whole key counts
          if (key < range->low || key >= range->high) continue;
        }
        const int bin = bins.Of(key, x[i]);
        const Mass amount = kMeasure == Measure::kCount ? 1 : softmax_.MassOf(x[i]);
        const uint32_t low_half = static_cast<uint32_t>(amount);
        uint32_t high_half = static_cast<uint32_t>(amount >> 32);
        if (atomicAdd(&memory_.bins.low[bin], low_half) > ~low_half) ++high_half;  // carry
        if (high_half > 0) atomicAdd(&memory_.bins.high[bin], high_half);
      }
    });
    if (threadIdx.x == 0) memory_.at = kBins;
    __syncthreads();
    SelectBin(bins, range, need);
  }

  __device__ void SelectBin(const RangeBins& bins, Range* range, Mass need) {
    constexpr int kEach = kBins / kSearchThreads;
    const int first = threadIdx.x * kEach;
    Mass amounts[kEach];
    Mass sum = 0, total;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      amounts[i] = Mass{memory_.bins.high[first + i]} << 32 | memory_.bins.low[first + i];
      sum += amounts[i];
    }
    Mass before = range->above + BlockExclusiveScan(memory_.partials, sum, &total);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (before < need && before + amounts[i] >= need) {
        memory_.at = first + i, memory_.before = before;
      }
      before += amounts[i];
    }
    __syncthreads();
    const int bin = memory_.at;
    if (bin == kBins) {
      *range = {range->low, range->low, range->above + total};
    } else {
      // An edge a lane.
      const Key edge = bins.LowOf(bin - static_cast<int>(threadIdx.x % 2), *range);
      *range = {__shfl_sync(kFullWarp, edge, 0), __shfl_sync(kFullWarp, edge, 1), memory_.before};
    }
    __syncthreads();
  }

  SearchMemory& memory_;
  const float* x_;
  int vocab_size_;
  int num_tiles_;
  Softmax softmax_;
};

}  // namespace millrace::kernels::sampling

#endif  // MILLRACE_KERNELS_SAMPLING_TILE_SEARCH_CUH_
