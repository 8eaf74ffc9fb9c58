// The parameters of prompt_kernel.cuh's kernel, and how its shared memory is divided.
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_PROMPT_SHAPE_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_PROMPT_SHAPE_CUH_

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/four_bit.h"
#include "kernels/gemm/grouped_linear.h"
#include "kernels/gemm/sm90/async_copy.cuh"
#include "kernels/gemm/sm90/grouped/grouped_shape.cuh"
#include "kernels/gemm/sm90/pipeline.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

struct PromptParams {
  CUtensorMap input;  // boxes of kBoxTokens tokens and a chunk
  GroupedParams p;    // its weight has boxes of kRows rows and a chunk
  int row_groups;     // of the row tiles that a cluster's CTAs take together
  bool sorted_output;
};

// The tokens that a group of four warps multiplies: wgmma's 64-row side.
inline constexpr int kPromptUnit = 64;
inline constexpr int kPromptUnits = kPromptTile / kPromptUnit;
static_assert(kPromptUnits * kPromptUnit == kPromptTile);

inline constexpr int kUnpackedStages = 3;

template <GroupedKind kOperands>
struct PromptShape {
  static constexpr GroupedKind kKind = kOperands;
  static_assert(kKind != GroupedKind::kFp8BlockOfBf16);
  // The kernel for smaller tiles has the same elements for a kind.
  using Elements = GroupedShape<kKind, 8>;
  static constexpr bool kBlocks = Elements::kBlocks;
  static constexpr bool kFp8 = Elements::kFp8;
  static constexpr bool kFourBit = Elements::kFourBit;
  static constexpr FourBitType kFourBitType = Elements::kFourBitType;
  static constexpr int kGroup = Elements::kGroup;
  static constexpr Type kType = Elements::kType;  // of the products

  // A thread's sums are kRows / 2, of FP8 twice, in the tensor cores and in fp32. Four bits: whole
  // blocks of kFourBitRows. ptxas refuses 256 rows of BF16 in a CTA of 512 threads.
  static constexpr int kRows = kFp8 ? 128 : 192;
  // The CTAs of a cluster have neighbouring rows of weights for the same tokens, and each copies a
  // part of these for all of them.
  static constexpr int kCluster = kFourBit ? 1 : 2;
  static constexpr int kBoxTokens = kPromptUnit / kCluster;
  static constexpr int kMathWarps = 4 * kPromptUnits;
  static constexpr int kMathThreads = kMathWarps * kWarpSize;
  static constexpr int kThreads = kMathThreads + 128;
  // Each thread starts with 128 registers; the loading group gives up those that the other groups
  // take.
  static constexpr int kMathRegisters = kFourBit ? 144 : 160;
  static constexpr int kLoadRegisters = kFourBit ? 80 : 32;
  static_assert(kPromptUnits * kMathRegisters + kLoadRegisters <= 4 * 128);

  // A stage has a chunk of 128 bytes of each row. Four-bit weights arrive as half blocks, 64
  // columns of codes and all scales, and are unpacked into stages of their own.
  static constexpr int kWeightBytes = kRows * kChunk;
  static constexpr int kInputBytes = kPromptTile * kChunk;
  static constexpr int kRowBlocks = kFourBit ? kRows / kFourBitRows : 0;
  static constexpr int kCodeBytes = kFourBitCodeBytes / 2;
  static constexpr int kBlockBytes = Elements::kFourBitBlockBytes;
  static constexpr int kHalfBytes = kBlockBytes - kCodeBytes;
  static_assert(kHalfBytes % 16 == 0);
  // With block scales: four neighbouring ones of the gate's rows, of the other factor's, and those
  // of the tokens. Copies begin at multiples of 16 bytes.
  static constexpr int kCopiedScales = 4;
  static constexpr int kTokenScales = kPromptTile + kCopiedScales;
  static constexpr int kScaleBytes = (2 * kCopiedScales + kTokenScales) * sizeof(float);
  static constexpr int kExtraBytes =
      kFourBit ? kRowBlocks * kHalfBytes : (kBlocks ? kScaleBytes : 0);
  static constexpr int kStageBytes = (kFourBit ? 0 : kWeightBytes) + kInputBytes + kExtraBytes;
  static constexpr int kUnpackedBytes = kFourBit ? kUnpackedStages * kWeightBytes : 0;
  static constexpr int kStages =
      std::min((224 * 1024 - kUnpackedBytes) / kStageBytes, kMaxStages);  // at most
  static_assert(kStages >= kMinGroupedStages);
};

struct PromptBarriers {
  Barrier full[kMaxStages];             // completes when a stage has arrived
  Barrier empty[kMaxStages];            // completes when all warps of the cluster have read it
  Barrier unpacked[kUnpackedStages];    // completes when four-bit weights are unpacked
  Barrier multiplied[kUnpackedStages];  // completes when all warps have multiplied by them
  int4 tile[kMaxStages];                // the GroupedTile that a stage belongs to; no rows: the end

  // Runs on one thread.
  template <typename Shape>
  __device__ void Init(int stages) {
    for (int i = 0; i < stages; ++i) {
      full[i].Init(1);
      empty[i].Init(Shape::kMathWarps * Shape::kCluster + Shape::kRowBlocks);
    }
    if constexpr (Shape::kFourBit) {
      for (int i = 0; i < kUnpackedStages; ++i) {
        unpacked[i].Init(Shape::kRowBlocks * kWarpSize);
        multiplied[i].Init(Shape::kMathWarps);
      }
    }
    FenceBarrierInit();
  }
  __device__ GroupedTile TileOf(int stage) const {
    const int4 entry = tile[stage];
    return {.group = entry.x, .row_tile = entry.y, .first = entry.z, .count = entry.w};
  }
};

// The addresses of a CTA's pipeline in shared memory.
template <typename Shape>
struct PromptMemory {
  uint32_t weights, inputs, extra;  // of the first stage

  __device__ PromptMemory(uint32_t memory, int stages)
      : weights(memory),
        inputs(weights + (Shape::kFourBit ? kUnpackedStages : stages) * Shape::kWeightBytes),
        extra(inputs + stages * Shape::kInputBytes) {}
  // With four bits `stage` is one of those with unpacked weights.
  __device__ uint32_t Weights(int stage) const { return weights + stage * Shape::kWeightBytes; }
  __device__ uint32_t Inputs(int stage) const { return inputs + stage * Shape::kInputBytes; }
  __device__ uint32_t Extra(int stage) const { return extra + stage * Shape::kExtraBytes; }
  // Returns the scales of a gate's rows, or of the other factor's.
  __device__ uint32_t WeightScales(int stage, int factor) const {
    return Extra(stage) + factor * Shape::kCopiedScales * static_cast<int>(sizeof(float));
  }
  __device__ uint32_t TokenScales(int stage) const { return WeightScales(stage, 2); }
};

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_PROMPT_SHAPE_CUH_
