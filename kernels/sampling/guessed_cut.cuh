// Finds top_p's cut in a row whose tiles mostly compete for it. A sample of the row estimates
// between which logits the cut lies; one reading of the row then lists the tokens between them and
// sums the mass above. All threads of the block call these functions. Shared memory is synchronized
// on entry and on return.
#ifndef MILLRACE_KERNELS_SAMPLING_GUESSED_CUT_CUH_
#define MILLRACE_KERNELS_SAMPLING_GUESSED_CUT_CUH_

#include "kernels/sampling/block_collectives.cuh"
#include "kernels/sampling/sample_internal.cuh"
#include "kernels/sampling/search_memory.cuh"
#include "kernels/sampling/tile_search.cuh"

namespace millrace::kernels::sampling {

// The sample consists of evenly spaced pieces of 128 tokens.
inline constexpr int kPiece = 4 * kWarpSize;
inline constexpr int kPieces = 64;
inline constexpr int kSampled = kPieces * kPiece;

// Bin edges of the sampled logits. Larger logits fall into lower bins.
struct SampleBins {
  float top;
  float width;
  __device__ float LogitAt(float bin) const { return top - bin * width; }
};

// Counts the sampled tokens per bin in Memory().guess.counts.
__device__ inline SampleBins CountSample(const float* x, int vocab_size, const Softmax& softmax) {
  constexpr int kLoads = kPieces / kSearchWarps;
  int* const counts = Memory().guess.counts;
  float4 loaded[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int piece = i * kSearchWarps + threadIdx.x / kWarpSize;
    const int begin = piece * (vocab_size / kPiece) / kPieces * kPiece;
    loaded[i] = LoadLogitsHere(x + begin + threadIdx.x % kWarpSize * 4);
  }
  float smallest = softmax.largest;
#pragma unroll
  for (const float4& four : loaded) {
    smallest = fminf(smallest, fminf(fminf(four.x, four.y), fminf(four.z, four.w)));
  }
  smallest = FromOrderedBits(~static_cast<uint32_t>(BlockMax(Key{~OrderedBits(smallest)})));
  const float span = softmax.largest - fmaxf(smallest, softmax.LogitAt(40));
  const float scale = kBins / span;
  for (int i = threadIdx.x; i < kBins; i += kSearchThreads) counts[i] = 0;
  __syncthreads();
#pragma unroll
  for (const float4& four : loaded) {
    for (const float logit : {four.x, four.y, four.z, four.w}) {
      const int bin = static_cast<int>((softmax.largest - logit) * scale);
      atomicAdd(&counts[min(max(bin, 0), kBins - 1)], 1);
    }
  }
  __syncthreads();
  return {softmax.largest, span / kBins};
}

// Estimates the window of logits in `x` that contains the cut with a mass of `dropped` below it, in
// units of the likeliest token's probability. The window holds fewer than kMaxListed tokens, unless
// many are equal. `vocab_size` is at least kSampled.
__device__ __noinline__ inline Window GuessWindow(const float* x, int vocab_size,
                                                  const Softmax& row_softmax, float dropped) {
  constexpr int kEach = kBins / kSearchThreads;
  const Softmax softmax = row_softmax;
  auto& guess = Memory().guess;
  const SampleBins bins = CountSample(x, vocab_size, softmax);
  const int first = threadIdx.x * kEach;
  int count = 0;
  Mass mass = 0, all_mass, all;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int here = guess.counts[first + i];
    count += here;
    mass += ToMass(static_cast<float>(here) * softmax.P(bins.LogitAt(first + i + 0.5f)));
  }
  if (threadIdx.x == 0) {
    guess.cut = guess.slack = 0;
    guess.window = {bins.LogitAt(1.1f * kBins), INFINITY};
  }
  const Mass mass_before = BlockExclusiveScan(mass, &all_mass);
  const auto before = static_cast<float>(BlockExclusiveScan(count, &all));
  // The mass below the cut is estimated, since a few tokens above it may have most of the mass.
  const float part = static_cast<float>(kSampled) / static_cast<float>(vocab_size);
  const Mass need = all_mass - min(ToMass(dropped * part), max(all_mass, Mass{1}) - 1);
  if (mass_before < need && need <= mass_before + mass) {
    const float at = static_cast<float>(need - mass_before) / static_cast<float>(mass);
    // Three and a half standard deviations of the sampled count below the cut.
    const float slack = 16 + 3.5f * sqrtf(dropped * part / softmax.P(bins.LogitAt(first)));
    guess.cut = before + at * static_cast<float>(count);
    guess.slack = fminf(slack, 0.4f * kMaxListed * part);
  }
  __syncthreads();
  const float begin = guess.cut - guess.slack, end = guess.cut + guess.slack;
  const float through = before + static_cast<float>(count);
  const auto logit_of = [&](float rank) {
    return bins.LogitAt(first + kEach * (rank - before) / static_cast<float>(count));
  };
  if (before < begin && begin <= through) guess.window.high = logit_of(begin);
  if (before < end && end <= through) guess.window.low = logit_of(end);
  __syncthreads();
  const Window window = guess.window;
  __syncthreads();
  return window;
}

// A lane's logits of four tiles that a warp reads at once. Each half warp has the first or second
// of a pair of tiles.
struct FourTiles {
  static constexpr int kLanes = kWarpSize / 2;
  static constexpr int kLoads = 4 * kTile / (4 * kWarpSize);
  float4 x[kLoads];

  // Returns the lane's first token.
  __device__ static int TokenAt(int first_tile) {
    return first_tile * kTile + threadIdx.x % kWarpSize / kLanes * kTile + threadIdx.x % kLanes * 4;
  }
  // Offset of the lane's token `i` (0 to 31) from its first one.
  __device__ static constexpr unsigned OffsetOf(unsigned i) {
    return i / 16 * (2 * kTile) + i % 16 / 4 * (4 * kLanes) + i % 4;
  }
  __device__ void Load(const float* row, int vocab_size, int first_tile) {
    const int first = TokenAt(first_tile);
    if ((first_tile + 4) * kTile <= vocab_size) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) x[i] = LoadLogitsHere(row + first + OffsetOf(4 * i));
    } else {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        x[i] = LoadLogits(row, first + OffsetOf(4 * i), vocab_size);
        MaskLogits(x[i], first + OffsetOf(4 * i), vocab_size);
      }
    }
  }
};

// Lists the window's tokens in any order and stores the masses above it in tile_mass. Returns the
// number of tokens in the window; if it exceeds kMaxListed, the list is not usable.
__device__ __noinline__ inline int ListWindow(const float* x, int vocab_size,
                                              const Softmax& row_softmax, const Window& guessed) {
  const int tiles = NumTiles(vocab_size), lane = threadIdx.x % kWarpSize;
  const Softmax softmax = row_softmax;
  const Window window = guessed;
  if (threadIdx.x == 0) Memory().count = 0;
  __syncthreads();
#pragma unroll 1
  for (int first = threadIdx.x / kWarpSize * 4; first < tiles; first += 4 * kSearchWarps) {
    FourTiles four;
    four.Load(x, vocab_size, first);
    uint32_t near = 0;
    float sums[2] = {};
#pragma unroll
    for (int i = 0; i < FourTiles::kLoads; ++i) {
      const float each[4] = {four.x[i].x, four.x[i].y, four.x[i].z, four.x[i].w};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float p = softmax.P(each[c]);  // computed for each, since a branch would cost more
        const bool above = each[c] >= window.high;
        const bool in = each[c] >= window.low & !above;
        if (above) sums[i / 4] += p;
        near |= in ? 1u << (4 * i + c) : 0;
      }
    }
    const int mine = __popc(near);
    int through = mine;
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const int left = __shfl_up_sync(kFullWarp, through, distance);
      if (lane >= distance) through += left;
    }
    int at = 0;
    if (lane == kWarpSize - 1) at = atomicAdd(&Memory().count, through);
    at = __shfl_sync(kFullWarp, at, kWarpSize - 1) + through - mine;
    const int token = FourTiles::TokenAt(first);
    for (; near != 0 && at < kMaxListed; near &= near - 1, ++at) {
      const int found = token + FourTiles::OffsetOf(__ffs(near) - 1);
      Listed()[at] = {x[found], found};  // read again, since registers cannot be indexed
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int tile = first + 2 * i + lane / FourTiles::kLanes;
      const float sum = WarpReduce<Add, FourTiles::kLanes>(sums[i]);
      if (lane % FourTiles::kLanes == 0 && tile < tiles) Memory().tile_mass[tile] = ToMass(sum);
    }
  }
  __syncthreads();
  const int count = Memory().count;
  __syncthreads();
  return count;
}

// Narrows `count` listed tokens, with mass `above` before them, to the bin in which `need` is
// reached. Stores that bin's tokens, sorted, in Memory().list and adds the masses of likelier
// tokens to tile_mass and `above`. Returns the list's length, or 0 if `need` is not reached or the
// bin exceeds kCapacity.
__device__ __noinline__ inline int NarrowListed(int count, const Softmax& row_softmax,
                                                const Window& window, Mass need, Mass* above) {
  constexpr int kEach = kBins / kSearchThreads;
  SearchMemory& memory = Memory();
  const Softmax softmax = row_softmax;
  const float top = fminf(window.high, softmax.largest);
  const float scale = kBins / (top - window.low);
  const auto bin_of = [=](float logit) {
    return min(max(static_cast<int>((top - logit) * scale), 0), kBins - 1);
  };
  const int first = threadIdx.x * kEach;
#pragma unroll
  for (int i = 0; i < kEach; ++i) memory.bins[first + i] = 0;
  if (threadIdx.x == 0) memory.at = kBins, memory.count = 0;
  __syncthreads();
#pragma unroll 2
  for (int i = threadIdx.x; i < count; i += kSearchThreads) {
    const float logit = Listed()[i].logit;
    AddMass(memory.bins[bin_of(logit)], softmax.MassOf(logit));
  }
  __syncthreads();
  Mass mass = 0, all;
#pragma unroll
  for (int i = 0; i < kEach; ++i) mass += memory.bins[first + i];
  Mass before = *above + BlockExclusiveScan(mass, &all);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const Mass after = before + memory.bins[first + i];
    if (before < need && need <= after) memory.at = first + i, memory.before = before;
    before = after;
  }
  __syncthreads();
  const int cut = memory.at;  // the bin's index, read before the list overwrites the bins
  if (cut == kBins) return 0;
  *above = memory.before;
#pragma unroll 2
  for (int i = threadIdx.x; i < count; i += kSearchThreads) {
    const ListedToken listed = Listed()[i];
    const int bin = bin_of(listed.logit);
    if (bin < cut) {
      AddMass(memory.tile_mass[listed.token / kTile], softmax.MassOf(listed.logit));
    } else if (bin == cut) {
      const int at = atomicAdd(&memory.count, 1);
      if (at < kCapacity) memory.list[at] = KeyOf(listed.logit, listed.token);
    }
  }
  __syncthreads();
  const int left = memory.count;
  __syncthreads();
  if (left > kCapacity) return 0;
  if (left > 1) BlockSortDescending(memory.list, left);
  return left;
}

// Finds the cut at which the mass of the likeliest tokens reaches `need` of `all`, by reading the
// row once. Returns how many tokens of Memory().list are kept; tile_mass then holds the masses of
// the likelier ones. Returns 0 if the cut is outside the estimated window.
__device__ __noinline__ inline int CutByGuess(const float* x, int vocab_size,
                                              const Softmax& softmax, Mass all, Mass need,
                                              const TileSearch& search) {
  if (vocab_size < kSampled) return 0;
  const float dropped = static_cast<float>(all - min(need, all)) / kMassUnits;
  const Window window = GuessWindow(x, vocab_size, softmax, dropped);
  const int count = ListWindow(x, vocab_size, softmax, window);
  Mass above = search.TotalMass();
  if (count > kMaxListed || above >= need) return 0;
  const int left = NarrowListed(count, softmax, window, need, &above);
  return search.CutByMass(left, above, need);
}

}  // namespace millrace::kernels::sampling

#endif  // MILLRACE_KERNELS_SAMPLING_GUESSED_CUT_CUH_
