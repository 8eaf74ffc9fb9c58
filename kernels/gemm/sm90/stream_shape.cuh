// What stream_kernel.cuh's kernel is told, and how its shared memory is divided.
#ifndef MILLRACE_KERNELS_GEMM_SM90_STREAM_SHAPE_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_STREAM_SHAPE_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/linear.h"
#include "kernels/gemm/sm90/async_copy.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

inline constexpr int kChunk = 128;  // bytes of K: a row of a swizzled matrix
inline constexpr int kMaxStages = 16;

struct StreamParams {
  CUtensorMap weight;  // boxes of kRows and kChunks chunks of [chunks][rows][kChunk bytes]
  CUtensorMap input;   // the same of kTokens tokens; unused where the kernel makes its input
  InputRow made_of;
  Activation made;  // its data are unused
  void* output;     // [tokens][output_stride], BF16 or fp32
  int64_t output_stride;
  const float* weight_scale;  // one, or null
  const float* input_scale;   // one, or null
  unsigned* ticket;           // the next tile to be drawn; 0 between launches
  int rows;
  int tokens;  // 1 ... kTokens
  int tiles;   // of kRows rows
  int fixed;   // tiles that each CTA has without drawing: enough to fill the ring
  int steps;   // of kChunks chunks
  int stages;  // of the ring: 1 ... kMaxStages
  bool fp32;   // the output's type
};

template <Type kElement, int kTileTokens, bool kMakesInput>
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
  static constexpr int kSets = kChunks / kGroup;  // of chunks
  static constexpr int kSums = kTokens / 2;       // a thread's, of a chunk
  // The sums of a stage that warps hand round, twice.
  static constexpr int kExchangeBytes = kGroup == 1 ? 0 : 2 * kSets * kMathThreads * kSums * 4;
  // What wgmma reads behind the last tile's weights lies in the ring, of two stages at least.
  static_assert(kRows * kGroup >= 64 || 2 * kInputBytes >= (64 - kRows) * kChunk);
};

struct StreamBarriers {
  Barrier full[kMaxStages];   // weights and inputs are there
  Barrier empty[kMaxStages];  // all warps have read them
  int tile[kMaxStages];       // whose first step a stage has; kNoTile: there are no more
};
inline constexpr int kNoTile = -1;

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
