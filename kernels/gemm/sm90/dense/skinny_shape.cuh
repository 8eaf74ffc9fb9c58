// The parameters of skinny_kernel.cuh's kernel, and how its shared memory is divided.
#ifndef MILLRACE_KERNELS_GEMM_SM90_DENSE_SKINNY_SHAPE_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_DENSE_SKINNY_SHAPE_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/linear.h"
#include "kernels/gemm/sm90/async_copy.cuh"
#include "kernels/gemm/sm90/gate_output.cuh"
#include "kernels/gemm/sm90/pipeline.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

inline constexpr int kChunk = 128;                // bytes of K: a row of a swizzled matrix
inline constexpr int kSwizzleBytes = 8 * kChunk;  // of the rows that are swizzled together

// The scales of 128 x 128 blocks of the weights, and of 128 columns of each token.
struct BlockScales {
  const float* weight;  // [rows / 128][weight_stride]
  const float* input;   // [chunks][padded_tokens]
  int64_t weight_stride;
  int padded_tokens;  // PaddedTokens
  int chunks;         // of 128 columns
};

struct SkinnyParams {
  CUtensorMap weight;  // boxes of kRows and kChunks chunks of [chunks][rows][kChunk bytes]
  CUtensorMap input;   // the same of kTokens tokens; unused with a fused prologue
  InputRow prologue;
  Activation prologue_input;  // what the prologue stands for; its data are unused
  void* output;               // [tokens][output_stride], BF16 or fp32
  int64_t output_stride;
  GateOutput gate;            // or this one
  const float* weight_scale;  // one, or null
  const float* input_scale;   // one, or null
  BlockScales block_scales;   // of a kernel for them
  unsigned* tile_counter;     // the next tile to be drawn; 0 between launches
  int rows;
  int tokens;  // 1 ... kTokens
  int tiles;   // of kRows rows
  int fixed;   // tiles that each CTA has without drawing: enough to fill the pipeline
  int steps;   // of kChunks chunks
  int stages;  // of the pipeline: 1 ... kMaxStages
  bool fp32;   // the output's type
};

template <Type kElement, int kTileTokens, bool kHasPrologue, bool kBlockScales>
struct SkinnyShape {
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
  // A fused prologue leaves the whole input, for all tiles, behind the pipeline.
  static constexpr bool kFused = kHasPrologue;
  // The stages that such a kernel has under way before its predecessor has ended, as measured: with
  // fewer the memory idles, and loads of the kernels in between queue up behind more.
  static constexpr int kEarlyUnderWay = kType == Type::kFp8 ? 4 : 6;
  static constexpr int kStageBytes = kWeightBytes + (kFused ? 0 : kInputBytes);
  static constexpr int kSets = kChunks / kGroup;   // of chunks
  static constexpr int kSums = kTokens / 2;        // a thread's, of a chunk
  static constexpr int kOwnSums = kSums / kGroup;  // and those that it adds of all chunks
  static constexpr int kRowWarps = kRows / 16;     // warps that share a chunk's rows
  // Returns the index of those among a chunk's sums. Registers i and i + 2 of wgmma's, rows 8
  // apart, stay together.
  __device__ static int SumIndex(int part, int i) {
    return kOwnSums == 2 ? part + 2 * i : part * kOwnSums + i;
  }
  // The sums of a stage that warps exchange, twice.
  static constexpr int kExchangeBytes = kGroup == 1 ? 0 : 2 * kSets * kMathThreads * kSums * 4;
  // With block scales, the scales of a stage: kChunks of the weights' and of each token's.
  static constexpr bool kBlocks = kBlockScales;
  static_assert(!kBlocks || (kType == Type::kFp8 && !kFused));
  static constexpr int kWeightScaleBytes = kChunks * sizeof(float);
  static constexpr int kScaleBytes =
      kBlocks ? kWeightScaleBytes + kChunks * kTokens * static_cast<int>(sizeof(float)) : 0;
  // The rows that wgmma reads behind the last tile's weights lie in the pipeline, which has at
  // least two stages.
  static_assert(kRows * kGroup >= 64 || 2 * kInputBytes >= (64 - kRows) * kChunk);
};

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_DENSE_SKINNY_SHAPE_CUH_
