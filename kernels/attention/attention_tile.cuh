// Tiles of keys and values: copies from the pages into shared memory, and loads from there into mma
// fragments.
//
// Rows keep their page layout in shared memory, but their 16-byte words are swizzled (XOR with bits
// of the row index) so that the words of one column of eight rows fall into different banks. FP8
// stays FP8 in shared memory and is converted to FP16, exactly, in registers. 16-bit pages hold
// keys in BF16 and values in FP16, which are used as they are. A fragment converted from FP8 holds
// its elements in another order than a 16-bit fragment. The permutation is undone on the other
// operand: LoadQuery permutes a head's dimensions, LaneColumns the output columns.
#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_TILE_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_TILE_CUH_

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/attention/attention_math.cuh"
#include "kernels/device_util.cuh"
#include "kernels/mma.cuh"
#include "kernels/types.h"

namespace millrace::kernels::attention {

using Fp8 = uint8_t;

// A block of the cache holds a multiple of kRun positions, which are contiguous in memory.
inline constexpr int kRun = 16;
inline constexpr int kTileRuns = kTile / kRun;

using kernels::CopyAsync;

// Copies 16 bytes into shared memory. Writes zeros and reads nothing if not `valid`.
__device__ inline void CopyAsync(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

__device__ inline void CopyAsync4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

// As LoadMatrices (kernels/mma.cuh), each matrix transposed.
__device__ inline void LoadMatricesTransposed(uint32_t address, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// Swizzled layout of rows of kBytes in shared memory.
template <int kBytes>
struct Rows {
  static constexpr int kWords = kBytes / 16;
  // Span of the swizzle in words, such that one column of consecutive rows covers different banks.
  static constexpr int kSpan = kBytes % 128 == 0 ? 8 : kBytes % 64 == 0 ? 4 : 2;
  static_assert(kBytes % 32 == 0);

  __device__ static uint32_t Offset(int row, int word) {
    return row * kBytes + 16 * (word ^ (row / (8 / kSpan) % kSpan));
  }

  // Advances an address from a row's word 0 to word `word`, or from word 1 to word + 1 for even
  // `word`. `word` is a constant, so this costs one instruction and no register.
  __device__ static uint32_t Word(uint32_t address, int word) {
    return (address ^ (16 * (word % kSpan))) + 16 * (word / kSpan * kSpan);
  }
};

// Converts four FP8 codes, lowest byte first, to FP16. The conversion is exact.
__device__ inline void Fp8ToHalf(uint32_t codes, uint32_t& low, uint32_t& high) {
  const auto convert = [](uint32_t pair) {
    const __half2_raw halves =
        __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
    return static_cast<uint32_t>(halves.x) | static_cast<uint32_t>(halves.y) << 16;
  };
  low = convert(codes & 0xffff);
  high = convert(codes >> 16);
}

template <typename Kv, int kHeadSize>
struct Tile {
  using Row = Rows<kHeadSize* static_cast<int>(sizeof(Kv))>;
  using QueryRow = Rows<kHeadSize* static_cast<int>(sizeof(Bf16))>;
  static constexpr int kRowBytes = kHeadSize * sizeof(Kv);
  static constexpr int kBytes = kTile * kRowBytes;  // of keys, and again of values
  static constexpr int kSteps = kHeadSize / 16;     // of the dot product over a head's dimensions
  static constexpr bool kFp8 = sizeof(Kv) == 1;
  static constexpr int kStepsPerPair = kFp8 ? 2 : 1;   // dimensions in a pair of words, in steps
  static constexpr int kBlocksPerWord = kFp8 ? 2 : 1;  // blocks of 8 output columns per word
  static constexpr int kLaneColumns = 2 * kBlocksPerWord;

  // Returns the offset that a lane adds to the address of a query, key or value row before a
  // fragment load.
  __device__ static uint32_t QueryLane(int lane) {
    return kFp8 ? QueryRow::Offset(lane / 4, lane % 4 / 2) + lane % 2 * 8
                : QueryRow::Offset(lane % 16, lane / 16);
  }
  __device__ static uint32_t KeyLane(int lane) {
    return Row::Offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  }
  __device__ static uint32_t ValueLane(int lane) { return Row::Offset(lane, 0); }

  // Loads the query fragment of a step for 16 rows. `rows` is their address plus QueryLane.
  __device__ static void LoadQuery(uint32_t rows, int step, uint32_t (&a)[4]) {
    const uint32_t address = QueryRow::Word(rows, 2 * step);
    if constexpr (kFp8) {
      // Elements (2t, 2t + 1) and (2t + 8, 2t + 9) of a step are dimensions 4t to 4t + 3.
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                     : "=r"(a[half]), "=r"(a[half + 2])
                     : "r"(address + 8 * half * QueryRow::kWords * 16)
                     : "memory");
      }
    } else {
      LoadMatrices(address, a);
    }
  }

  // Converts a query fragment to the type that the product with keys takes.
  __device__ static void ConvertQuery(uint32_t (&a)[4]) {
    if constexpr (kFp8) {
#pragma unroll
      for (uint32_t& pair : a) pair = Bf16ToHalf(pair);
    }
  }

  __device__ static void MultiplyKeys(float (&scores)[4], const uint32_t (&query)[4],
                                      const uint32_t (&keys)[2]) {
    Mma<kFp8>(scores, query, keys[0], keys[1]);
  }
  __device__ static void MultiplyValues(float (&sums)[4], const uint32_t (&probabilities)[4],
                                        const uint32_t (&values)[2]) {
    Mma<true>(sums, probabilities, values[0], values[1]);
  }

  // Loads the B fragments of 16 keys for words 2 pair and 2 pair + 1 of their rows: b[step of the
  // pair][block of 8 keys]. `keys` is the first key's address plus KeyLane.
  __device__ static void LoadKeys(uint32_t keys, int pair, uint32_t (&b)[kStepsPerPair][2][2]) {
    uint32_t words[4];
    LoadMatrices(Row::Word(keys, 2 * pair), words);
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      if constexpr (kFp8) {
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          Fp8ToHalf(words[2 * block + step], b[step][block][0], b[step][block][1]);
        }
      } else {
        b[0][block][0] = words[2 * block];
        b[0][block][1] = words[2 * block + 1];
      }
    }
  }

  // Loads the B fragments of 32 values for one word of their rows: b[step of 16 values][block of
  // columns]. `values` is the first value's address plus ValueLane.
  __device__ static void LoadValues(uint32_t values, int word,
                                    uint32_t (&b)[2][kBlocksPerWord][2]) {
    uint32_t words[4];
    LoadMatricesTransposed(Row::Word(values, word), words);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kFp8) {
        // A register holds two columns of two values; the permutation makes one register per
        // column.
        Fp8ToHalf(__byte_perm(words[i], 0, 0x3120), b[i / 2][0][i % 2], b[i / 2][1][i % 2]);
      } else {
        b[i / 2][0][i % 2] = words[i];
      }
    }
  }

  // Returns the first of the kLaneColumns consecutive columns of a word that a lane holds in each
  // row.
  __device__ static int LaneColumn(int word, int lane) {
    return word * (16 / static_cast<int>(sizeof(Kv))) + lane % 4 * kLaneColumns;
  }

  // Gathers these columns of row `half` from a word's blocks, in order.
  __device__ static void LaneColumns(const float (*blocks)[4], int half,
                                     float (&columns)[kLaneColumns]) {
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      columns[i] = blocks[i % kBlocksPerWord][2 * half + i / kBlocksPerWord];
    }
  }
};

// Location of one kv head's keys in the pages, in bytes. Values lie value_offset bytes behind.
struct HeadPages {
  const uint8_t* data;
  int64_t block_stride;
  int64_t value_offset;
  int block_shift;  // log2 of the block size
};

// Positions [first, end) of a sequence. A tile's rows outside of them are filled with zeros.
struct Span {
  int first;
  int end;
};

// Returns whether a run intersects `span`. The block table is not read for runs that do not.
__device__ inline bool IsNeeded(int position, const Span& span) {
  return position < span.end && position + kRun > span.first;
}

// Calls visit(row, word) for the 16-byte words of a run that belong to `thread` of kThreads.
template <typename Row, int kThreads, typename Visit>
__device__ inline void ForEachWord(int thread, const Visit& visit) {
  constexpr int kWords = kRun * Row::kWords;
#pragma unroll
  for (int i = 0; i < (kWords + kThreads - 1) / kThreads; ++i) {
    const int word = i * kThreads + thread;
    if (kWords % kThreads == 0 || word < kWords) visit(word / Row::kWords, word % Row::kWords);
  }
}

// Starts the copies of the run that begins at row `first_row` of a tile and lies in block `id`, by
// kThreads threads. Keys go to the tile at address `keys`, values one tile (keys' bytes) behind.
// Row is the layout of a tile's rows in shared memory.
template <typename Row, int kThreads>
__device__ inline void LoadRun(const HeadPages& pages, int tile_position, int first_row,
                               const Span& span, int id, uint32_t keys, int thread) {
  constexpr int kRowBytes = Row::kWords * 16;
  const int position = tile_position + first_row;
  const uint8_t* from = pages.data + id * pages.block_stride +
                        (position & ((1 << pages.block_shift) - 1)) * kRowBytes;
  const uint8_t* values = from + pages.value_offset;
  if (position >= span.first && position + kRun <= span.end) {
    ForEachWord<Row, kThreads>(thread, [&](int row, int word) {
      const uint32_t to = keys + Row::Offset(first_row + row, word);
      const int at = row * kRowBytes + word * 16;
      CopyAsync(to, from + at);
      CopyAsync(to + kTile * kRowBytes, values + at);
    });
  } else {
    ForEachWord<Row, kThreads>(thread, [&](int row, int word) {
      const uint32_t to = keys + Row::Offset(first_row + row, word);
      const int at = row * kRowBytes + word * 16;
      const bool valid = position + row >= span.first && position + row < span.end;
      CopyAsync(to, from + at, valid);
      CopyAsync(to + kTile * kRowBytes, values + at, valid);
    });
  }
}

// Calls launch.operator()<Kv, kHeadSize>() for the pages' element type and head size. Returns
// cudaErrorInvalidValue for a head size without a kernel.
template <typename Kv, typename Launch>
cudaError_t ForHeadSize(int head_size, const Launch& launch) {
  switch (head_size) {
    case 64:
      return launch.template operator()<Kv, 64>();
    case 96:
      return launch.template operator()<Kv, 96>();
    case 128:
      return launch.template operator()<Kv, 128>();
    case 256:
      return launch.template operator()<Kv, 256>();
  }
  return cudaErrorInvalidValue;
}
template <typename Launch>
cudaError_t ForPages(const KvPages& pages, const Launch& launch) {
  return pages.type == Type::kFp8 ? ForHeadSize<Fp8>(pages.head_size, launch)
                                  : ForHeadSize<Bf16>(pages.head_size, launch);
}

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_TILE_CUH_
