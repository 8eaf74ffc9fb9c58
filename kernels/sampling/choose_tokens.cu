#include <cuda_runtime.h>

#include "kernels/launch.cuh"
#include "kernels/sampling/guessed_cut.cuh"
#include "kernels/sampling/sample_internal.cuh"
#include "kernels/sampling/tile_search.cuh"
#include "kernels/sampling/typical_cut.cuh"

namespace millrace::kernels::sampling {
namespace {

// Summary of a row from its tiles' statistics.
struct Overview {
  bool finite;
  Key largest;  // of the likeliest token; its id is valid only if the row takes the largest
};

__device__ Overview ReadTiles(const TileStats* stats, int tiles, bool draws) {
  Key largest = 0;
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kTilesAThread; ++i) {
    const int at = i * kSearchThreads + threadIdx.x;
    if (at >= tiles) continue;
    const TileStats tile = stats[at];
    finite = finite && tile.largest == tile.largest;
    const Key key = KeyOf(tile.largest, draws ? 0 : tile.first);
    Memory().tile_bits[at] = OrderedBitsOf(key);
    Memory().tiles.mass[at] = tile.sum;
    largest = max(largest, key);
  }
  return {__syncthreads_and(finite) != 0, BlockMax(largest)};
}

// Computes the tiles' masses without any filter, from the values that ReadTiles stored.
__device__ void WeighTiles(int tiles, const Softmax& softmax) {
#pragma unroll 1
  for (int i = threadIdx.x; i < tiles; i += kSearchThreads) {
    const float largest = FromOrderedBits(Memory().tile_bits[i]);
    Memory().tile_mass[i] = ToMass(Memory().tiles.mass[i] * softmax.P(largest));
  }
  __syncthreads();
}

// Returns the lowest key that min_p keeps: p >= min_p means logit >= largest + log(min_p) * T.
// Without min_p it is the lowest key whose mass is not 0.
__device__ Key MinPCut(const SlotSampling& slot, const Softmax& softmax) {
  float logit = softmax.LogitAt(64);
  if (slot.min_p > 0) {
    const double below = log2(static_cast<double>(slot.min_p)) / softmax.factor;
    logit = fmaxf(logit, static_cast<float>(softmax.largest + below));
  }
  return LowestKey(OrderedBits(fmaxf(logit, -FLT_MAX)));
}

__device__ Mass Part(float fraction, Mass whole) {
  return max(Mass{1},
             static_cast<Mass>(static_cast<double>(fraction) * static_cast<double>(whole)));
}

// Returns a logit below which no token can be among those whose mass reaches `top_p` of the total.
// The tiles' masses are in tile_mass. In a tile whose largest logit is at or above the cut, the
// mass below the cut is at most the tile's mass without its largest token, and at most 255 times p
// at the cut.
__device__ float TopPBound(float top_p, Mass total, int num_tiles, const Softmax& softmax) {
  constexpr int kLevels = 31;  // p = 2^-level
  SearchMemory& memory = Memory();
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < num_tiles; i += kSearchThreads) {
    memory.tiles.mass[i] = static_cast<float>(memory.tile_mass[i]) * 0x1p-44f;
    memory.tiles.largest[i] = softmax.P(FromOrderedBits(memory.tile_bits[i]));
  }
  if (threadIdx.x == 0) memory.at = 0;  // one bit for each level that drops little enough
  __syncthreads();
  const float budget = (1 - top_p) * 0.9999f * static_cast<float>(total) * 0x1p-44f;
  // Each warp tests two levels.
  const int levels[2] = {1 + static_cast<int>(threadIdx.x) / kWarpSize,
                         1 + static_cast<int>(threadIdx.x) / kWarpSize + kSearchWarps};
  float dropped[2] = {};
#pragma unroll 2
  for (int i = threadIdx.x % kWarpSize; i < num_tiles; i += kWarpSize) {
    const float mass = memory.tiles.mass[i], largest = memory.tiles.largest[i];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float p = Exp2(-static_cast<float>(levels[j]));
      dropped[j] += largest < p ? mass : fminf(fmaxf(mass - largest, 0.0f), (kTile - 1) * p);
    }
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const float sum = WarpReduce<Add>(dropped[j]);
    if (threadIdx.x % kWarpSize == 0 && levels[j] < kLevels && sum <= budget) {
      atomicOr(&memory.at, 1 << levels[j]);
    }
  }
  __syncthreads();
  const int level = memory.at == 0 ? 64 : __ffs(memory.at) - 1;
  __syncthreads();
  return softmax.LogitAt(static_cast<float>(level));
}

// Finds the lowest key that the filters keep, and leaves the kept tokens' masses in tile_mass.
__device__ Key Filter(const SlotSampling& slot, const Softmax& softmax, uint32_t largest,
                      int vocab_size, const float* x, TileSearch& search) {
  const Key beyond_all = LowestKey(largest + 1);
  Range range = {MinPCut(slot, softmax), beyond_all, 0};
  Mass need = 0;         // the mass that top_p has to reach
  int kept = 0;          // number of kept tokens of the list
  bool decided = false;  // whether `range` and the list are the result of the last filter
  if (slot.top_k > 0 || slot.min_p > 0) {
    const int top_k = slot.top_k > 0 ? min(slot.top_k, vocab_size) : vocab_size;
    range.low = max(range.low, LowestKey(search.BitsReachedBy(top_k, largest)));
    kept = search.Narrow(&range, Measure::kCount, top_k);
    kept = min(kept, max(0, top_k - static_cast<int>(range.above)));
    decided = slot.top_p >= 1;
    if (!decided) {
      const Mass above = range.high == beyond_all ? 0 : search.TotalMass();
      need = Part(slot.top_p, above + search.ListedMass(kept));
      kept = search.CutByMass(kept, above, need);
      decided = kept > 0;
      if (!decided) range = {range.high, beyond_all, 0};
    }
  } else {
    const int tiles = NumTiles(vocab_size);
    WeighTiles(tiles, softmax);
    const Mass all = search.TotalMass();
    const float bound = TopPBound(slot.top_p, all, tiles, softmax);
    need = Part(slot.top_p, all);
    range.low = max(range.low, LowestKey(OrderedBits(bound)));
    if (search.CountTiles(OrderedBitsOf(range.low)) > kTilesForList) {
      kept = CutByGuess(x, vocab_size, softmax, all, need, search);
      decided = kept > 0;
    }
  }
  if (!decided) {
    kept = search.Narrow(&range, Measure::kMass, need);
    kept = search.CutByMass(kept, range.above, need);
  }
  search.AddListed(kept);
  return kept > 0 ? Memory().list[kept - 1] : range.high;
}

__device__ int DrawToken(const SampleRow& row, const SlotSampling& slot, const float* x,
                         int vocab_size, uint32_t largest) {
  const Softmax softmax = {FromOrderedBits(largest), Factor(slot)};
  TileSearch search(x, vocab_size, softmax);
  Key low = LowestKey(OrderedBits(-FLT_MAX));
  if (slot.top_k > 0 || slot.top_p < 1 || slot.min_p > 0) {
    low = Filter(slot, softmax, largest, vocab_size, x, search);
  } else if (slot.typical_p >= 1) {
    WeighTiles(NumTiles(vocab_size), softmax);
  }
  const uint64_t random = RandomBits(slot.seed, slot.sample_index, row.position);
  if (slot.typical_p < 1) return TypicalCut::Draw(slot.typical_p, low, x, softmax, search, random);
  return search.Draw([low](float logit, int token) { return KeyOf(logit, token) >= low; }, random);
}

// Returns log(sum(exp(x))) of the raw logits. Stores their tiles' maxima in tile_bits.
__device__ double RawLogSum(const TileStats* stats, int tiles, uint32_t* largest) {
  Key key = 0;
  for (int i = threadIdx.x; i < tiles; i += kSearchThreads) {
    Memory().tile_bits[i] = OrderedBits(stats[i].raw_largest);
    key = max(key, LowestKey(Memory().tile_bits[i]));
  }
  *largest = OrderedBitsOf(BlockMax(key));
  const Softmax softmax = {FromOrderedBits(*largest), kLog2E};
  Mass sum = 0, total;
  for (int i = threadIdx.x; i < tiles; i += kSearchThreads) {
    sum += ToMass(stats[i].raw_sum * softmax.P(stats[i].raw_largest));
  }
  BlockExclusiveScan(sum, &total);
  return softmax.largest + log(static_cast<double>(total) * 0x1p-44);
}

// Lists the `count` likeliest tokens.
__device__ void ListTop(int count, uint32_t largest, TileSearch& search) {
  Range range = {LowestKey(search.BitsReachedBy(count, largest)), LowestKey(largest + 1), 0};
  search.Narrow(&range, Measure::kCount, count);
  if (range.above == 0) return;
  const Key last = Memory().list[count - range.above - 1];  // the range contains the cut
  __syncthreads();
  search.List({last, LowestKey(largest + 1), 0});
}

__device__ void WriteLogprobs(const SampleArgs& args, int row, int token, int top_logprobs,
                              const TileStats* stats, SampleResult* result) {
  const float* logits = args.logits + row * args.logits_stride;
  uint32_t largest;
  const double log_sum = RawLogSum(stats, NumTiles(args.vocab_size), &largest);
  TileSearch search(logits, args.vocab_size, {FromOrderedBits(largest), kLog2E});
  const float logit = logits[token];
  result->logprob = static_cast<float>(logit - log_sum);
  result->rank = search.Rank(logit);
  const int top = min(min(top_logprobs, kMaxSampledTop), args.vocab_size);
  if (top <= 0) return;
  ListTop(top, largest, search);
  if (threadIdx.x < top) {
    const Key key = Memory().list[threadIdx.x];
    args.tops[row * kMaxSampledTop + threadIdx.x] = {TokenOf(key),
                                                     static_cast<float>(LogitOf(key) - log_sum)};
  }
}

__global__ void __launch_bounds__(kSearchThreads, 2) ChooseTokensKernel(const SampleArgs args) {
  AwaitPredecessor();
  const int row = blockIdx.x;
  if (row >= *args.num_rows) return;
  const SampleRow wanted = args.rows[row];
  const int tiles = NumTiles(args.vocab_size);
  const TileStats* stats = static_cast<const TileStats*>(args.workspace) + int64_t{row} * tiles;
  const SlotSampling slot = args.slots[wanted.slot];
  const bool scores = wanted.target >= 0;
  const bool draws = Draws(wanted, slot);

  const Overview overview = ReadTiles(stats, tiles, draws);
  const uint32_t largest = OrderedBitsOf(overview.largest);
  SampleResult result = {};
  result.ok = overview.finite &&
              (scores ? wanted.target < args.vocab_size : largest >= OrderedBits(-FLT_MAX));
  if (result.ok) {
    if (scores) {
      result.token = wanted.target;
    } else if (draws) {
      const float* x = Adjusts(wanted, slot) ? args.adjusted : args.logits;
      result.token =
          DrawToken(wanted, slot, x + row * args.logits_stride, args.vocab_size, largest);
    } else {
      result.token = TokenOf(overview.largest);
    }
    if (slot.top_logprobs >= 0) {
      __syncthreads();
      WriteLogprobs(args, row, result.token, slot.top_logprobs, stats, &result);
    }
  }
  if (threadIdx.x != 0) return;
  args.results[row] = result;
  if (scores) return;
  args.last_tokens[wanted.slot] = result.token;
  if (args.history != nullptr && wanted.position < args.history_stride) {
    args.history[wanted.slot * args.history_stride + wanted.position] = result.token;
  }
}

}  // namespace

cudaError_t LaunchChooseTokens(const SampleArgs& args, cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(
      ChooseTokensKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kListedBytes);
  if (error != cudaSuccess) return error;
  return LaunchDependent(ChooseTokensKernel, args.max_rows, kSearchThreads, kListedBytes, stream,
                         args);
}

}  // namespace millrace::kernels::sampling
