// What stream_kernel.cuh's kernel is told, and how its shared memory is divided.
#ifndef MILLRACE_KERNELS_GEMM_SM90_STREAM_SHAPE_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_STREAM_SHAPE_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/linear.h"
#include "kernels/gemm/sm90/async_copy.cuh"
#include "kernels/gemm/sm90/gate_output.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

inline constexpr int kChunk = 128;                // bytes of K: a row of a swizzled matrix
inline constexpr int kSwizzleBytes = 8 * kChunk;  // of the rows that are swizzled together
inline constexpr int kMaxStages = 16;

// Scales of 128 x 128 blocks of the weights, and of 128 columns of a token.
struct BlockScales {
  const float* weight;  // [rows / 128][weight_stride]
  const float* input;   // [chunks][padded_tokens]
  int64_t weight_stride;
  int padded_tokens;  // PaddedTokens
  int chunks;         // of 128 columns
};

struct StreamParams {
  CUtensorMap weight;  // boxes of kRows and kChunks chunks of [chunks][rows][kChunk bytes]
  CUtensorMap input;   // the same of kTokens tokens; unused where the kernel makes its input
  InputRow made_of;
  Activation made;  // its data are unused
  void* output;     // [tokens][output_stride], BF16 or fp32
  int64_t output_stride;
  GateOutput gate;            // or this one
  const float* weight_scale;  // one, or null
  const float* input_scale;   // one, or null
  BlockScales block_scales;   // of a kernel for them
  unsigned* ticket;           // the next tile to be drawn; 0 between launches
  int rows;
  int tokens;  // 1 ... kTokens
  int tiles;   // of kRows rows
  int fixed;   // tiles that each CTA has without drawing: enough to fill the ring
  int steps;   // of kChunks chunks
  int stages;  // of the ring: 1 ... kMaxStages
  bool fp32;   // the output's type
};

template <Type kElement, int kTileTokens, bool kMakesInput, bool kBlockScales>
struct StreamShape {
  static constexpr Type kType = kElement;
  static constexpr int kRows = 32;
  static constexpr int kTokens = kTileTokens;
  static constexpr int kChunks = 128 / kRows;  // of a stage, which has 16 KB of weights
  static constexpr int kGroup = kType == Type::kFp8 ? 2 : 1;  // chunks wgmma takes at once
  static constexpr int kColumns = kGroup * kTokens;
  static constexpr int kMathThreads = 128;
  static constexpr int kThreads = kMathThreads + kWarpSize;
  static constexpr int kWeightBytes = kRows * kChunks * kChunk;  // of a stage
  static constexpr int kInputBytes = kTokens * kChunks * kChunk;
  // An input that the kernel makes lies behind the ring, all of it, for all tiles.
  static constexpr bool kMade = kMakesInput;
  // Stages that such a kernel has under way before its predecessor has ended, as measured: fewer
  // let the memory idle, and what the kernels in between load waits in line behind more.
  static constexpr int kEarlyUnderWay = kType == Type::kFp8 ? 4 : 6;
  static constexpr int kStageBytes = kWeightBytes + (kMade ? 0 : kInputBytes);
  static constexpr int kSets = kChunks / kGroup;   // of chunks
  static constexpr int kSums = kTokens / 2;        // a thread's, of a chunk
  static constexpr int kOwnSums = kSums / kGroup;  // and those that it adds of all chunks
  static constexpr int kRowWarps = kRows / 16;     // warps that share a chunk's rows
  // Which of a chunk's sums those are: register i and i + 2 of wgmma's, rows 8 apart, are never
  // parted.
  __device__ static int SumIndex(int part, int i) {
    return kOwnSums == 2 ? part + 2 * i : part * kOwnSums + i;
  }
  // The sums of a stage that warps hand round, twice.
  static constexpr int kExchangeBytes = kGroup == 1 ? 0 : 2 * kSets * kMathThreads * kSums * 4;
  // With block scales, those of a stage: kChunks of the weights' and of each token's.
  static constexpr bool kBlocks = kBlockScales;
  static_assert(!kBlocks || (kType == Type::kFp8 && !kMade));
  static constexpr int kWeightScaleBytes = kChunks * sizeof(float);
  static constexpr int kScaleBytes =
      kBlocks ? kWeightScaleBytes + kChunks * kTokens * static_cast<int>(sizeof(float)) : 0;
  // What wgmma reads behind the last tile's weights lies in the ring, of two stages at least.
  static_assert(kRows * kGroup >= 64 || 2 * kInputBytes >= (64 - kRows) * kChunk);
};

struct StreamBarriers {
  Barrier full[kMaxStages];   // weights and inputs are there
  Barrier empty[kMaxStages];  // all warps have read them
  int tile[kMaxStages];       // whose first step a stage has; kNoTile: there are no more

  // By one thread. `readers`: warps that read a stage.
  __device__ void Init(int stages, int readers) {
    for (int i = 0; i < stages; ++i) {
      full[i].Init(1);
      empty[i].Init(readers);
    }
    FenceBarrierInit();
  }
};
inline constexpr int kNoTile = -1;

// The warp that copies makes the barriers, and begins to copy at once: it arrives, others wait.
template <int kThreads>
__device__ void ArriveReady() {
  __syncwarp();
  asm volatile("bar.arrive 2, %0;" ::"n"(kThreads) : "memory");
}
template <int kThreads>
__device__ void WaitReady() {
  asm volatile("bar.sync 2, %0;" ::"n"(kThreads) : "memory");
}

// A step of a tile. A CTA's fixed tiles are `next` apart.
struct StreamSource {
  int tile, step;
  int left;  // tiles, this one included

  __device__ void Advance(int steps, int next) {
    if (++step < steps) return;
    step = 0;
    tile += next;
    --left;
  }
};

// A place in the ring, and the parity of its turn.
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void Advance(int stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_STREAM_SHAPE_CUH_
