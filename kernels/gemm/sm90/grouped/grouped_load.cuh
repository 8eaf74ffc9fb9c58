// The loading threads of grouped_kernel.cuh: they choose the tiles and fill the pipeline.
//
// One thread has the copy engine bring weights and, with four bits, inputs, whose rows then lie by
// group. Other rows of a group lie anywhere in the input, so all loading threads copy them, 16
// bytes at a time, into the order that wgmma reads: rows of 128 bytes whose 16-byte words are
// permuted by the row's number modulo 8. The ring runs on from tile to tile.
//
// A thread's copies arrive by themselves when they have ended. Who reads them by wgmma fences first
// (fence.proxy.async): a fence of the thread that copies would wait for the copies begun since,
// too. Inputs that are quantized wait in registers instead, for kLoadLag stages, so that some are
// under way at a time; the thread that has written them fences and arrives.
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_LOAD_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_LOAD_CUH_

#include <algorithm>
#include <cstdint>

#include "kernels/activation_row.cuh"
#include "kernels/device_util.cuh"
#include "kernels/fp8.cuh"
#include "kernels/gemm/sm90/async_copy.cuh"
#include "kernels/gemm/sm90/grouped/grouped_shape.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels::sm90 {

// Copies 16 bytes, or zeros.
__device__ inline void CopyAsyncOrZero(uint32_t to, const void* from, bool copies) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(copies ? 16 : 0)
               : "memory");
}
__device__ inline void CopyFloatAsync(uint32_t to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
// Makes what this thread has written to shared memory visible to the tensor cores and copy engine.
__device__ inline void FenceShared() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// The addresses of a CTA's pipeline in shared memory.
template <typename Shape>
struct GroupedMemory {
  uint32_t weights, inputs, scales;  // of the first stage
  uint32_t sums;                     // that teams hand on
  uint32_t ends;                     // kEndBytes of each stage

  __device__ GroupedMemory(uint32_t memory, int stages)
      : weights(memory),
        inputs(weights + stages * Shape::kWeightBytes),
        scales(inputs + stages * Shape::kInputBytes),
        sums(scales + stages * Shape::kScaleBytes),
        ends(sums + Shape::kSumBytes) {}
  __device__ uint32_t Weights(int stage) const { return weights + stage * Shape::kWeightBytes; }
  // Returns the four-bit blocks of a stage that a group of four warps multiplies.
  __device__ uint32_t Blocks(int stage, int row_group) const {
    return Weights(stage) + row_group * Shape::kFourBitBlocks * Shape::kFourBitBlockBytes;
  }
  __device__ uint32_t Inputs(int stage) const { return inputs + stage * Shape::kInputBytes; }
  // Returns the scales of a chunk of a stage: [2] of the weights, then [kTokens] of the inputs.
  __device__ uint32_t Scales(int stage, int chunk) const {
    return scales + (stage * Shape::kChunks + chunk) * Shape::kChunkScales * 4;
  }
};

// `Delay::Wait` is called before every action that another thread may wait for.
template <typename Shape, typename Delay>
class GroupedLoader {
 public:
  __device__ GroupedLoader(const GroupedParams& params, GroupedBarriers& barriers,
                           const GroupedMemory<Shape>& memory)
      : p_(params), barriers_(barriers), memory_(memory), list_(params) {}

  // Whether the copy engine brings the inputs, too: rows that lie one after the other.
  static constexpr bool kCopiesRows = Shape::kFourBit;

  // Called by all loading threads; `thread` is this one's number among them. What tells where a
  // tile's rows lie is read one tile ahead, and which tile that is two ahead: a read takes as long
  // as a stage.
  __device__ void Run(int thread) {
    thread_ = thread;
    if (kCopiesRows && thread_ > 0) return;
    ReleaseDependents();
    if (p_.groups.order == nullptr && thread_ == 0) PrefetchWeights();
    WaitForPredecessor();
    const int apart = static_cast<int>(gridDim.x);
    int number = static_cast<int>(blockIdx.x);
    int4 entry = list_.EntryOf(number);  // as long as the list may be, so it may be read
    const int tiles = list_.Count();
    GroupedTile tile = number < tiles ? list_.TileOf(number, entry) : GroupedTile{};
    Pairs pairs = PairsOf(tile);
    if (number + apart < tiles) entry = list_.EntryOf(number + apart);
    for (; number < tiles; number += apart) {
      const GroupedTile next =
          number + apart < tiles ? list_.TileOf(number + apart, entry) : GroupedTile{};
      const Pairs next_pairs = PairsOf(next);
      if (number + 2 * apart < tiles) entry = list_.EntryOf(number + 2 * apart);
      LoadTile(tile, pairs);
      tile = next;
      pairs = next_pairs;
    }
    End();
  }

 private:
  // The words of 16 bytes that a chunk of an input row takes, as the input has it.
  static constexpr int kWordsOfChunk = kChunk / 16 * (Shape::kQuantizes ? 2 : 1);
  static constexpr int kRowWords = Shape::kChunks * kWordsOfChunk;  // of an input row, in a stage
  static constexpr int kPieces = CeilDiv(Shape::kTokens * kRowWords, Shape::kLoadThreads);
  static constexpr int kRowsApart = Shape::kLoadThreads / kRowWords;  // of a thread's pieces
  static_assert(Shape::kHasDenseTiles ||
                (Shape::kLoadThreads % kRowWords == 0 && kPieces * kRowsApart == Shape::kTokens));

  // The inputs of a stage that a thread has loaded and is to quantize.
  struct Loaded {
    uint4 words[Shape::kQuantizes ? kPieces : 1];
  };

  // The pairs of a tile's rows that this thread copies pieces of, and of the row that its first
  // scale belongs to.
  struct Pairs {
    int of_piece[kPieces];
    int of_scale;
  };

  __device__ int PairOf(const GroupedTile& tile, int row) const {
    if (row < 0 || row >= tile.count) return 0;
    return p_.groups.order == nullptr ? tile.first + row : p_.groups.order[tile.first + row];
  }
  __device__ Pairs PairsOf(const GroupedTile& tile) const {
    Pairs pairs;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) pairs.of_piece[i] = PairOf(tile, RowOfPiece(i));
    pairs.of_scale = Shape::kBlocks ? PairOf(tile, thread_ % Shape::kChunkScales - 2) : 0;
    return pairs;
  }
  // Returns the tile's row that a piece of this thread belongs to.
  __device__ int RowOfPiece(int i) const { return thread_ / kRowWords + i * kRowsApart; }

  __device__ void LoadTile(const GroupedTile& tile, const Pairs& pairs) {
    unsigned words[kPieces];  // where a thread's rows begin
#pragma unroll
    for (int i = 0; i < kPieces; ++i) words[i] = pairs.of_piece[i] / p_.slots * p_.input_words;
    const int scale_row = pairs.of_scale / p_.slots;
    for (int step = 0; step < p_.steps; ++step) {
      const int stage = next_.stage;
      barriers_.empty[stage].Wait(next_.phase);
      if (thread_ == 0) {
        Delay::Wait();
        if (--prefetched_ < 0) LoadWeights(tile, step, stage);
      }
      if (kCopiesRows) {
        CopyInputs(tile, step, stage);
        next_.Advance(p_.stages);
        continue;
      }
      Loaded loaded;
      if constexpr (Shape::kQuantizes) {
        loaded = LoadToQuantize(tile, step, words);
      } else {
        LoadInputs(tile, step, stage, words);
      }
      if constexpr (Shape::kBlocks) LoadScales(tile, step, stage, scale_row);
      if constexpr (!Shape::kQuantizes) {
        Delay::Wait();
        barriers_.full[stage].ArriveWhenCopied();
        next_.Advance(p_.stages);
        continue;
      }
      CommitCopies();
      next_.Advance(p_.stages);
      if (++begun_ > kLoadLag) {
        WaitForCopies<kLoadLag>();
        Finish(loaded_[kLoadLag - 1]);
      }
      if constexpr (Shape::kQuantizes) {
#pragma unroll
        for (int i = kLoadLag - 1; i > 0; --i) loaded_[i] = loaded_[i - 1];
        loaded_[0] = loaded;
      }
    }
  }

  // Has the copy engine bring a stage's inputs, with kGroupWide the boxes that have rows.
  __device__ void CopyInputs(const GroupedTile& tile, int step, int stage) const {
    Barrier& full = barriers_.full[stage];
    const uint32_t to = memory_.Inputs(stage);
    const int first_chunk = step * Shape::kChunks;
    if constexpr (Shape::kGroupWide) {
      for (int row = 0; row < tile.count; row += Shape::kBoxTokens) {
        for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
          CopyBox(to + (chunk * Shape::kTokens + row) * kChunk, p_.input_rows, 0, tile.first + row,
                  first_chunk + chunk, full, EvictLast());
        }
      }
    } else {
      CopyBox(to, p_.input_rows, 0, tile.first, first_chunk, full, EvictLast());
    }
  }
  // Returns the bytes that CopyInputs brings.
  __device__ static uint32_t InputBytes(const GroupedTile& tile) {
    if (!Shape::kGroupWide) return kCopiesRows ? Shape::kInputBytes : 0;
    return CeilDiv(tile.count, Shape::kBoxTokens) * Shape::kBoxTokens * Shape::kChunks * kChunk;
  }

  // Copies weights of the first tile before the predecessor has ended: they depend on nothing.
  __device__ void PrefetchWeights() {
    const int number = static_cast<int>(blockIdx.x);
    if (number >= list_.Count()) return;
    const GroupedTile tile = list_.TileOf(number, list_.EntryOf(number));
    const int stages = min(min(p_.steps, p_.stages), Shape::kEarlyStages);
    for (; prefetched_ < stages; ++prefetched_) {
      LoadWeights(tile, prefetched_, prefetched_);
    }
  }

  // Lets the inputs of the oldest stage that was begun arrive.
  __device__ void Finish(const Loaded& loaded) {
    if constexpr (Shape::kQuantizes) Quantize(loaded);
    FenceShared();
    Arrive();
  }

  // Lets the last inputs arrive, and then the end.
  __device__ void End() {
    WaitForCopies<0>();
#pragma unroll
    for (int i = kLoadLag - 1; i >= 0; --i) {
      if (begun_ > i) Finish(loaded_[i]);
    }
    barriers_.empty[next_.stage].Wait(next_.phase);
    if (thread_ == 0) {
      barriers_.tile[next_.stage] = make_int4(0, 0, 0, 0);
      barriers_.full[next_.stage].Arrive();
    }
    if (kCopiesRows) return;
    Delay::Wait();
    barriers_.full[next_.stage].Arrive();
  }

  __device__ void Arrive() {
    Delay::Wait();
    barriers_.full[arriving_].Arrive();
    if (++arriving_ == p_.stages) arriving_ = 0;
  }

  // Also tells whose tile the stage is, before it arrives.
  __device__ void LoadWeights(const GroupedTile& tile, int step, int stage) const {
    Barrier& full = barriers_.full[stage];
    barriers_.tile[stage] = make_int4(tile.group, tile.row_tile, tile.first, tile.count);
    if constexpr (Shape::kFourBit) {
      const int column_blocks = p_.chunks / 2;
      const int first = step * Shape::kFourBitBlocks;
      const uint32_t bytes =
          min(Shape::kFourBitBlocks, column_blocks - first) * Shape::kFourBitBlockBytes;
      full.ArriveAndExpect(Shape::kRowGroups * bytes + InputBytes(tile));
      const int row_blocks = CeilDiv(p_.rows, kFourBitRows);
#pragma unroll
      for (int i = 0; i < Shape::kRowGroups; ++i) {
        // A row block past the last one stands for rows that are not written.
        const int row_block = min(tile.row_tile * Shape::kRowGroups + i, row_blocks - 1);
        const int64_t block =
            (int64_t{tile.group} * row_blocks + row_block) * column_blocks + first;
        CopyBytes(memory_.Blocks(stage, i), p_.four_bit + block * Shape::kFourBitBlockBytes, bytes,
                  full, EvictFirst());
      }
    } else {
      full.ArriveAndExpect(Shape::kWeightBytes);
      CopyBox(memory_.Weights(stage), p_.weight, 0,
              tile.group * p_.rows + tile.row_tile * Shape::kRows, step * Shape::kChunks, full,
              EvictFirst());
    }
  }

  // Chunks past the row's end are zeros, as the copy engine leaves them of the weights.
  __device__ void LoadInputs(const GroupedTile& tile, int step, int stage,
                             const unsigned (&words)[kPieces]) const {
    const int word = thread_ % kRowWords;
    const bool inside = step * Shape::kChunks + word / kWordsOfChunk < p_.chunks;
    const uint32_t to = memory_.Inputs(stage) + word / kWordsOfChunk * (Shape::kTokens * kChunk);
    const unsigned from = inside ? step * kRowWords + word : 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int row = RowOfPiece(i);
      if (row >= tile.count) continue;
      CopyAsyncOrZero(to + row * kChunk + (word % kWordsOfChunk ^ row % 8) * 16,
                      p_.input + (int64_t{words[i]} + from) * 16, inside);
    }
  }

  // Chunks past the row's end and rows that there are not are zeros.
  __device__ Loaded LoadToQuantize(const GroupedTile& tile, int step,
                                   const unsigned (&words)[kPieces]) const {
    const int word = thread_ % kRowWords;
    const bool inside = step * Shape::kChunks + word / kWordsOfChunk < p_.chunks;
    Loaded loaded;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int64_t at = int64_t{words[i]} + step * kRowWords + word;
      loaded.words[i] = inside && RowOfPiece(i) < tile.count
                            ? reinterpret_cast<const uint4*>(p_.input)[at]
                            : make_uint4(0, 0, 0, 0);
    }
    return loaded;
  }

  // Quantizes what a stage was begun with: 16 neighbouring lanes have the 128 columns of a row that
  // share a scale. The bits are those of LaunchQuantize with Scaling::kTokenGroup.
  __device__ void Quantize(const Loaded& loaded) const {
    const int word = thread_ % kRowWords, chunk = word / kWordsOfChunk;
    const int of_chunk = word % kWordsOfChunk;  // eight columns
    const uint32_t to = memory_.Inputs(arriving_) + chunk * (Shape::kTokens * kChunk);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int row = RowOfPiece(i);
      float values[8];
      Unpack8(loaded.words[i], values);
      const float scale = Fp8Scale(WarpReduce<Max, kColumnPadding / 8>(Amax(values)));
      const uint2 codes = Fp8Codes8(values, Fp8Inverse(scale));
      asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(
                       to + row * kChunk + (of_chunk / 2 ^ row % 8) * 16 + of_chunk % 2 * 8),
                   "r"(codes.x), "r"(codes.y)
                   : "memory");
      if (of_chunk == 0) {
        asm volatile(
            "st.shared.f32 [%0], %1;" ::"r"(memory_.Scales(arriving_, chunk) + (2 + row) * 4),
            "f"(scale)
            : "memory");
      }
    }
  }

  // `scale_row`: the input's row of this thread's first scale. Scales that are computed here are
  // not loaded.
  __device__ void LoadScales(const GroupedTile& tile, int step, int stage, int scale_row) const {
    constexpr int kScales = Shape::kChunks * Shape::kChunkScales;
    const bool gated = p_.output.gate != GroupedGate::kNone;
    for (int i = thread_; i < kScales; i += Shape::kLoadThreads) {
      const int chunk = i / Shape::kChunkScales, which = i % Shape::kChunkScales;
      const int column = step * Shape::kChunks + chunk;
      if (column >= p_.chunks || which - 2 >= (Shape::kQuantizes ? 0 : tile.count)) continue;
      const uint32_t to = memory_.Scales(stage, chunk) + which * 4;
      if (which >= 2) {
        const int64_t row = i == thread_ ? scale_row : PairOf(tile, which - 2) / p_.slots;
        CopyFloatAsync(to, p_.input_scales + int64_t{column} * p_.padded_tokens + row);
        continue;
      }
      const int row = tile.row_tile * Shape::kRows / (gated ? 2 : 1);
      const int64_t row_block = int64_t{tile.group} * (gated ? 2 : 1) * p_.row_blocks +
                                (gated ? which * p_.row_blocks : 0) + row / 128;
      CopyFloatAsync(to, p_.weight_scales + row_block * p_.block_scale_stride + column);
    }
  }

  const GroupedParams& p_;
  GroupedBarriers& barriers_;
  const GroupedMemory<Shape> memory_;
  const TileList<Shape::kTokens> list_;
  int thread_ = 0;
  PipelineState next_ = {.stage = 0, .phase = 1};  // in their first phase stages are empty
  int arriving_ = 0;                               // the stage whose inputs arrive next
  int begun_ = 0;                                  // stages
  int prefetched_ = 0;                             // stages whose weights are on their way
  Loaded loaded_[kLoadLag] = {};                   // of the stages begun last, the last one first
};

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_LOAD_CUH_
