// The kernel behind wide_linear.h.
//
// A CTA has tiles of kRows outputs, each for kTokens tokens and with all of K in sequence: no sum
// is split. The producer thread (pipeline.cuh) copies stages of kChunks times 128 bytes of K.
// Groups of four warps multiply: each has at most 64 rows, wgmma's larger side, and some of the
// tokens. Where outputs are few, the CTAs of a cluster have the same outputs for different tokens,
// and each copies a part of the weights for all of them. The tiles of clusters are all fixed.
//
// FP8 is summed as cuBLASLt does without fast accumulation: the tensor cores add 128 products,
// which keeps about 14 bits, and those sums are added in fp32.
#ifndef MILLRACE_KERNELS_GEMM_SM90_DENSE_WIDE_KERNEL_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_DENSE_WIDE_KERNEL_CUH_

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/sm90/async_copy.cuh"
#include "kernels/gemm/sm90/dense/skinny_kernel.cuh"
#include "kernels/gemm/sm90/dense/wide_output.cuh"
#include "kernels/gemm/sm90/wgmma.cuh"
#include "kernels/launch.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

struct WideParams {
  CUtensorMap weight;  // boxes of kBoxRows rows and kBoxChunks chunks
  CUtensorMap input;   // of part_tokens tokens and kChunks chunks
  WideOutput output;
  const float* weight_scale;  // one, or null
  const float* input_scale;   // one, or null
  unsigned* tile_counter;     // the next tile to be drawn; 0 between launches
  int rows;
  int part_tokens;  // of a cluster's CTA: a multiple of 8, at most kTokens
  int tiles;        // of kRows rows
  int fixed;        // tiles that each cluster has without drawing: enough to fill the pipeline
  int pairs;        // of chunks; FP8's sums of two alternate
  int stages;       // of the pipeline: 2 ... kMaxStages
};

template <Type kElement, int kTileRows, int kTileTokens, int kTokensOfGroup, int kStageChunks,
          int kClusterCtas>
struct WideShape {
  static constexpr Type kType = kElement;
  static constexpr int kRows = kTileRows;
  static constexpr int kTokens = kTileTokens;
  static constexpr int kGroupTokens = kTokensOfGroup;
  static constexpr int kChunks = kStageChunks;
  static constexpr int kCluster = kClusterCtas;
  static_assert(kChunks == 1 || kChunks == 2);
  // The box that a CTA of a cluster copies: some of a stage's chunks, or some rows of its only one.
  static constexpr int kBoxChunks = std::max(kChunks / kCluster, 1);
  static constexpr int kBoxRows = kRows * kChunks / kCluster / kBoxChunks;
  static_assert(kBoxChunks * kBoxRows * kCluster == kChunks * kRows && kBoxRows % 8 == 0);
  static constexpr int kRowGroups = CeilDiv(kRows, 64);
  static constexpr int kMathWarps = 4 * kRowGroups * (kTokens / kGroupTokens);
  static constexpr int kMathThreads = kMathWarps * kWarpSize;
  // So many sums need registers of the producer's group.
  static constexpr bool kManySums = kType == Type::kFp8 && kGroupTokens == 128 && kMathWarps == 8;
  static constexpr int kThreads = kMathThreads + (kManySums ? 4 : 1) * kWarpSize;
  static constexpr int kWeightBytes = kRows * kChunks * kChunk;  // of a stage
  static constexpr int kInputBytes = kTokens * kChunks * kChunk;
  static constexpr int kStageBytes = kWeightBytes + kInputBytes;
  // The rows that wgmma reads behind the last tile's weights lie in the pipeline, which has at
  // least two stages.
  static_assert(kRows % 64 == 0 || 2 * kInputBytes >= (64 - kRows % 64) * kChunk);
};

// `Delay::Wait` is called before every action that another thread may wait for.
template <typename Shape, typename Delay>
class WideGemm {
 public:
  using Writer = OutputWriter<Shape::kGroupTokens>;

  // `memory`: stages * kStageBytes, all the weights' stages before the inputs', so that wgmma finds
  // 64 rows behind the start of fewer, too. `staging`: a writer's kBytes for each warp.
  __device__ WideGemm(const WideParams& params, PipelineBarriers& barriers, uint32_t memory,
                      uint32_t staging)
      : p_(params),
        barriers_(barriers),
        weights_(memory),
        inputs_(memory + params.stages * Shape::kWeightBytes),
        staging_(staging) {}

  // Runs the producer's loop. Called by one thread.
  __device__ void Copy() const {
    Produce(*this,
            {.first = static_cast<int>(blockIdx.x) / Shape::kCluster,
             .next = static_cast<int>(gridDim.x) / Shape::kCluster,
             .fixed = p_.fixed,
             .tiles = p_.tiles,
             .steps = Steps(),
             .stages = p_.stages,
             .tile_counter = p_.tile_counter},
            barriers_);
  }

  // The producer's copies (pipeline.cuh). A CTA of a cluster copies one box of the weights to all.
  __device__ void PaceWeights(int /*stage*/) const {}
  __device__ void CopyWeights(int tile, int step, int stage) const {
    Delay::Wait();
    Barrier& full = barriers_.full[stage];
    constexpr int kBoxesOfChunk = Shape::kRows / Shape::kBoxRows;
    const int row = tile * Shape::kRows + Part() % kBoxesOfChunk * Shape::kBoxRows;
    const int chunk = step * Shape::kChunks + Part() / kBoxesOfChunk * Shape::kBoxChunks;
    const uint32_t to = weights_ + stage * Shape::kWeightBytes +
                        Part() * Shape::kBoxRows * Shape::kBoxChunks * kChunk;
    barriers_.tile[stage] = tile;
    full.ArriveAndExpect(Shape::kWeightBytes + Shape::kChunks * p_.part_tokens * kChunk);
    if constexpr (Shape::kCluster == 1) {
      CopyBox(to, p_.weight, 0, row, chunk, full, EvictFirst());
    } else {
      CopyBoxToCluster(to, p_.weight, 0, row, chunk, full, EvictFirst(),
                       (1 << Shape::kCluster) - 1);
    }
  }
  __device__ void PrefetchInputMap() const { PrefetchMap(p_.input); }
  __device__ void CopyInputs(int /*tile*/, int step, int stage) const {
    Delay::Wait();
    CopyBox(inputs_ + stage * Shape::kInputBytes, p_.input, 0, Part() * p_.part_tokens,
            step * Shape::kChunks, barriers_.full[stage], EvictLast());
  }

  // Runs the consumers' loop. Called by all warps that multiply.
  __device__ void Multiply() {
    float scale = p_.weight_scale == nullptr ? 1 : *p_.weight_scale;
    AwaitPredecessor();
    if (p_.input_scale != nullptr) scale *= *p_.input_scale;
    const int group = threadIdx.x / 128;
    const int row_group = group % Shape::kRowGroups, token_group = group / Shape::kRowGroups;
    a_ = weights_ + row_group * 64 * kChunk;
    b_ = inputs_ + token_group * Shape::kGroupTokens * kChunk;
    const Writer writer(p_.output, staging_ + threadIdx.x / kWarpSize * Writer::kBytes);
    const int first_row = row_group * 64 + threadIdx.x / kWarpSize % 4 * 16;  // the warp's
    const int part = Part() * p_.part_tokens;
    const int first_token = part + token_group * Shape::kGroupTokens;
    const int end = min(part + p_.part_tokens, p_.output.tokens);
    for (;;) {
      barriers_.full[next_.stage].Wait(next_.phase);
      const int tile = barriers_.tile[next_.stage];
      if (tile == kNoTile) return;
      float sums[kSums] = {};
      if constexpr (Shape::kType == Type::kFp8) {
        AddFp8(sums);
      } else {
        AddBf16(sums);
      }
      const int row = tile * Shape::kRows + first_row;
      if (first_row < Shape::kRows && row < p_.rows) {  // rows are a multiple of 16
        writer.Write(row, first_token, end, sums, scale);
      }
    }
  }

 private:
  static constexpr int kSums = Shape::kGroupTokens / 2;
  static constexpr int kStepsPerChunk = kChunk / 32;  // wgmma takes 32 bytes of K
  static constexpr uint32_t kNextWeights = Shape::kRows * kChunk >> 4;

  // Returns this CTA's number in its cluster.
  __device__ static int Part() { return blockIdx.x % Shape::kCluster; }

  // Returns the number of stages of a tile.
  __device__ int Steps() const { return p_.pairs * (2 / Shape::kChunks); }

  // Multiplies a tile in FP8. The sums of a chunk and of the one before alternate in the tensor
  // cores.
  __device__ void AddFp8(float (&sums)[kSums]) {
    constexpr int kOdd = Shape::kChunks - 1;  // the odd chunk's index in its stage
    float even[kSums], odd[kSums];
    NextStage();
    Begin(0, even);
    for (int left = p_.pairs; left > 0; --left) {
      if constexpr (kOdd == 0) NextStage();
      Begin(kOdd, odd);
      End<1>(even, sums);
      if constexpr (kOdd == 0) Free();
      if (left == 1) {
        End<0>(odd, sums);
        Free();
        return;
      }
      NextStage();
      Begin(0, even);
      End<1>(odd, sums);
      Free();
    }
    // Never reached, but ptxas multiplies asynchronously only where every path out waits.
    End<0>(even, sums);
  }

  // Begins the sum of a chunk's products.
  __device__ void Begin(int chunk, float (&part)[kSums]) {
    Fence(part);
    BeginMultiply();
    MultiplyChunk(chunk, part, false);
    EndMultiply();
  }

  // Adds it when all but kPending are done.
  template <int kPending>
  __device__ void End(float (&part)[kSums], float (&sums)[kSums]) {
    WaitForProducts<kPending>();
    Fence(part);
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] += part[i];
  }

  __device__ void AddBf16(float (&sums)[kSums]) {
    for (int step = 0; step < Steps(); ++step) {
      NextStage();
      Fence(sums);
      BeginMultiply();
#pragma unroll
      for (int chunk = 0; chunk < Shape::kChunks; ++chunk) MultiplyChunk(chunk, sums, true);
      EndMultiply();
      if (step == 0) continue;
      WaitForProducts<1>();
      Free();
    }
    WaitForProducts<0>();
    Fence(sums);
    Free();
  }

  __device__ void MultiplyChunk(int chunk, float (&sums)[kSums], bool add) {
    const uint32_t next_inputs = p_.part_tokens * (kChunk >> 4);  // of a box
#pragma unroll
    for (int k = 0; k < kStepsPerChunk; ++k) {
      MultiplyAsync<Shape::kType, Shape::kGroupTokens>(
          sums, stage_a_ + chunk * kNextWeights + k * kNextStep,
          stage_b_ + chunk * next_inputs + k * kNextStep, add || k > 0);
    }
  }

  // Waits for the next stage to multiply.
  __device__ void NextStage() {
    stage_a_ = SwizzledMatrix(a_ + next_.stage * Shape::kWeightBytes);
    stage_b_ = SwizzledMatrix(b_ + next_.stage * Shape::kInputBytes);
    barriers_.full[next_.stage].Wait(next_.phase);
    next_.Advance(p_.stages);
  }

  // Frees the oldest stage that is in use.
  __device__ void Free() {
    Delay::Wait();
    const int lane = threadIdx.x % kWarpSize;
    if constexpr (Shape::kCluster == 1) {
      if (lane == 0) barriers_.empty[free_].Arrive();
    } else {
      if (lane < Shape::kCluster) barriers_.empty[free_].ArriveAt(lane);
    }
    if (++free_ == p_.stages) free_ = 0;
  }

  const WideParams& p_;
  PipelineBarriers& barriers_;
  const uint32_t weights_, inputs_;  // the pipeline's stages
  const uint32_t staging_;
  uint32_t a_, b_;              // where this group's matrices lie in the first stage
  uint32_t stage_a_, stage_b_;  // descriptors of those that are being multiplied
  PipelineState next_;          // of the warps that multiply: the stage to read next
  int free_ = 0;                // the stage to free next
};

// Returns `value`, which lies in shared memory, such that the compiler does not compute its address
// again for each use.
template <typename T>
__device__ T& KnownOnce(T& value) {
  const uint32_t address = __shfl_sync(kFullWarp, SharedAddress(&value), 0);
  return *static_cast<T*>(__cvta_shared_to_generic(address));
}

// Change a group's share of registers. Called by all of its warps.
template <int kRegisters>
__device__ void TakeRegisters() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ void GiveRegisters() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// Synchronizes all CTAs of a cluster: none sends to one that is not ready, nor to one that has
// left.
template <typename Shape>
__device__ void Gather() {
  if constexpr (Shape::kCluster > 1) {
    __syncwarp();
    SyncCluster();
  }
}

template <typename Shape, typename Delay>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    WideKernel(const __grid_constant__ WideParams params) {
  extern __shared__ __align__(1024) uint8_t memory[];
  __shared__ PipelineBarriers shared_barriers;
  __shared__ __align__(16)
      uint8_t staging[Shape::kMathWarps * WideGemm<Shape, Delay>::Writer::kBytes];
  PipelineBarriers& barriers = KnownOnce(shared_barriers);
  WideGemm<Shape, Delay> gemm(params, barriers, SharedAddress(&KnownOnce(memory[0])),
                              SharedAddress(staging));
  constexpr int kReadyThreads = Shape::kMathThreads + kWarpSize;
  if (threadIdx.x < Shape::kMathThreads) {
    WaitReady<kReadyThreads>();
    Gather<Shape>();
    if constexpr (Shape::kManySums) TakeRegisters<232>();
    gemm.Multiply();
  } else {
    const bool copies = threadIdx.x < kReadyThreads;  // this warp
    if (copies) {
      if (threadIdx.x == Shape::kMathThreads) {
        barriers.Init(params.stages, Shape::kMathWarps * Shape::kCluster);
      }
      ArriveReady<kReadyThreads>();
    }
    Gather<Shape>();
    if constexpr (Shape::kManySums) GiveRegisters<40>();
    if (threadIdx.x == Shape::kMathThreads) gemm.Copy();
    // The other lanes wait for the producer first: otherwise the compiler may make it wait with
    // them.
    __syncwarp();
    AwaitPredecessor();
  }
  Gather<Shape>();
}

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_DENSE_WIDE_KERNEL_CUH_
