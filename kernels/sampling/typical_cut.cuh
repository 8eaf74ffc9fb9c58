// typical_p keeps, of the tokens that passed the other filters, those whose -log(p) is nearest to
// the entropy. All threads of the block call these functions, which return the same value to each.
// Shared memory is synchronized on entry and on return.
//
// The depth of a token with logit x is (largest - x) * factor: the bits by which its probability
// lies below the likeliest one's. The entropy is the mean depth, weighted by probability, up to a
// constant that -log(p) contains too. So tokens are ordered by the distance of their depth from the
// mean. A radix search in this order, with one histogram of masses per digit, finds where they
// reach the cut.
#ifndef MILLRACE_KERNELS_SAMPLING_TYPICAL_CUT_CUH_
#define MILLRACE_KERNELS_SAMPLING_TYPICAL_CUT_CUH_

#include "kernels/sampling/block_collectives.cuh"
#include "kernels/sampling/sample_internal.cuh"
#include "kernels/sampling/search_memory.cuh"
#include "kernels/sampling/tile_search.cuh"

namespace millrace::kernels::sampling {

class TypicalCut {
 public:
  // Draws from those tokens at `low` and beyond whose mass reaches `typical_p` of their total. `x`
  // is the row of `search`.
  __device__ static __noinline__ int Draw(float typical_p, Key low, const float* x,
                                          const Softmax& softmax, TileSearch& search,
                                          uint64_t random) {
    Typical kept = {.low = low};
    // Tokens below this key have no mass.
    const Key with_mass = LowestKey(OrderedBits(fmaxf(softmax.LogitAt(45), -FLT_MAX)));
    kept.low = max(low, with_mass);
    search.SelectTiles(OrderedBitsOf(kept.low));
    const Mass total = FindMean(softmax, search, &kept);
    const double wanted = static_cast<double>(typical_p) * static_cast<double>(total);
    const Mass need = max(Mass{1}, min(static_cast<Mass>(wanted), total));
    kept.last_untypical = FindLast(x, softmax, search, kept, need);
    WeighKept(softmax, search, kept);
    const Softmax of_row = softmax;
    return search.Draw([=](float logit, int token) { return kept.Has(of_row, logit, token); },
                       random);
  }

 private:
  static constexpr int kDigit = 10;
  static_assert(1 << kDigit == kBins);

  // Sets the mean depth of the tokens that the filters kept, and the unit of distance, such that
  // their keys use all available bits. Returns their mass.
  __device__ static Mass FindMean(const Softmax& row_softmax, const TileSearch& search,
                                  Typical* kept) {
    const Softmax softmax = row_softmax;
    const Key low = kept->low;
    Mass mass = 0, depth = 0, all_mass, all_depth;
    float deepest = 0;
    search.ForSelected([&](int tile, const float(&x)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (KeyOf(x[i], TileSearch::TokenAt(tile, i)) < low) continue;
        const float p = softmax.P(x[i]);
        mass += ToMass(p);
        depth += ToMass(p * softmax.Depth(x[i]));
        deepest = fmaxf(deepest, softmax.Depth(x[i]));
      }
    });
    BlockExclusiveScan(mass, &all_mass);
    BlockExclusiveScan(depth, &all_depth);
    kept->mean_depth =
        static_cast<float>(static_cast<double>(all_depth) / static_cast<double>(all_mass));
    deepest = __uint_as_float(static_cast<uint32_t>(BlockMax(Key{__float_as_uint(deepest)})));
    const float farthest = fmaxf(kept->mean_depth, deepest - kept->mean_depth);
    kept->off_units = farthest > 0 ? 0x1p32f * 0.9999f / farthest : 0;
    return all_mass;
  }

  // Returns the key of the last token that it takes to reach `need`, in key order.
  __device__ static Key FindLast(const float* x, const Softmax& softmax, const TileSearch& search,
                                 const Typical& kept, Mass need) {
    Key prefix = 0;  // the upper digits of the key
    Mass before = 0;
    int shift = kUntypicalBits;
    int count = kCapacity + 1;
    while (shift > 0 && count > kCapacity) {
      const int digit = min(shift, kDigit);
      shift -= digit;
      Histogram(softmax, search, kept, prefix, shift, digit);
      const int bin = SelectBin(need, &before, &count);
      prefix = prefix << digit | static_cast<uint32_t>(bin);
    }
    List(softmax, search, kept, prefix, shift);
    const int listed = min(count, kCapacity);
    if (listed > 1) BlockSortDescending(Memory().list, listed);
    constexpr int kEach = kCapacity / kSearchThreads;
    const int first = threadIdx.x * kEach;
    Mass masses[kEach];
    Mass sum = 0, all;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      masses[i] = 0;
      if (first + i < listed) {
        masses[i] = softmax.MassOf(x[UntypicalToken(~Memory().list[first + i])]);
      }
      sum += masses[i];
    }
    if (threadIdx.x == 0) Memory().at = listed - 1;
    before += BlockExclusiveScan(sum, &all);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (before < need && need <= before + masses[i]) Memory().at = first + i;
      before += masses[i];
    }
    __syncthreads();
    const Key last = ~Memory().list[Memory().at];
    __syncthreads();
    return last;
  }

  // Computes the masses and the counts of the tokens whose keys begin with `prefix`, by their next
  // digit. The counts use the memory of Listed().
  __device__ static __noinline__ void Histogram(const Softmax& row_softmax,
                                                const TileSearch& search, const Typical& row_kept,
                                                Key prefix, int shift, int digit) {
    SearchMemory& memory = Memory();
    int* const counts = reinterpret_cast<int*>(Listed());
    for (int i = threadIdx.x; i < kBins; i += kSearchThreads) memory.bins[i] = 0, counts[i] = 0;
    __syncthreads();
    const Softmax softmax = row_softmax;
    const Typical kept = row_kept;
    search.ForSelected([=, &memory](int tile, const float(&x)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int token = TileSearch::TokenAt(tile, i);
        if (KeyOf(x[i], token) < kept.low) continue;
        const Key key = kept.UntypicalKey(softmax, x[i], token);
        if (key >> shift >> digit != prefix) continue;
        const int bin = static_cast<int>(key >> shift) & ((1 << digit) - 1);
        AddMass(memory.bins[bin], softmax.MassOf(x[i]));
        atomicAdd(&counts[bin], 1);
      }
    });
    __syncthreads();
  }

  // Returns the bin in which `need` is reached. Adds the mass of earlier bins to `before` and sets
  // `count` to the bin's number of tokens.
  __device__ static int SelectBin(Mass need, Mass* before, int* count) {
    constexpr int kEach = kBins / kSearchThreads;
    SearchMemory& memory = Memory();
    const int* const counts = reinterpret_cast<const int*>(Listed());
    const int first = threadIdx.x * kEach;
    Mass sum = 0, all;
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum += memory.bins[first + i];
    Mass through = *before + BlockExclusiveScan(sum, &all);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const Mass mass = memory.bins[first + i];
      if (through < need && need <= through + mass) {
        memory.at = first + i, memory.before = through, memory.count = counts[first + i];
      }
      through += mass;
    }
    __syncthreads();
    const int bin = memory.at;
    *before = memory.before;
    *count = memory.count;
    __syncthreads();
    return bin;
  }

  // Lists the complements of the keys that begin with `prefix`, so that a descending sort puts the
  // smallest key first.
  __device__ static __noinline__ void List(const Softmax& row_softmax, const TileSearch& search,
                                           const Typical& row_kept, Key prefix, int shift) {
    SearchMemory& memory = Memory();
    if (threadIdx.x == 0) memory.count = 0;
    __syncthreads();
    const Softmax softmax = row_softmax;
    const Typical kept = row_kept;
    search.ForSelected([=, &memory](int tile, const float(&x)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int token = TileSearch::TokenAt(tile, i);
        if (KeyOf(x[i], token) < kept.low) continue;
        const Key key = kept.UntypicalKey(softmax, x[i], token);
        if (key >> shift != prefix) continue;
        const int at = atomicAdd(&memory.count, 1);
        if (at < kCapacity) memory.list[at] = ~key;
      }
    });
    __syncthreads();
  }

  __device__ static __noinline__ void WeighKept(const Softmax& row_softmax,
                                                const TileSearch& search, const Typical& row_kept) {
    SearchMemory& memory = Memory();
    for (int i = threadIdx.x; i < kMaxTiles; i += kSearchThreads) memory.tile_mass[i] = 0;
    __syncthreads();
    const Softmax softmax = row_softmax;
    const Typical kept = row_kept;
    search.ForSelected([=, &memory](int tile, const float(&x)[8]) {
      Mass mass = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (kept.Has(softmax, x[i], TileSearch::TokenAt(tile, i))) mass += softmax.MassOf(x[i]);
      }
      mass = WarpInclusiveScan(mass);
      if (threadIdx.x % kWarpSize == kWarpSize - 1) memory.tile_mass[tile] = mass;
    });
    __syncthreads();
  }
};

}  // namespace millrace::kernels::sampling

#endif  // MILLRACE_KERNELS_SAMPLING_TYPICAL_CUT_CUH_
