// The kernel behind block_linear.h.
//
// A CTA has tiles of kTokens tokens and kRows outputs, with all of K in sequence: no sum is split.
// Tokens are wgmma's 64-row side, so that a thread has sums of two tokens, and few scales to load.
// All outputs of a tile have the same scales. One thread copies stages of kChunks times 128 columns
// of weights and inputs, with their scales, into the pipeline (pipeline.cuh). Groups of four warps
// multiply 64 tokens each.
//
// The tensor cores add the 128 products of a chunk; that sum is scaled and added in fp32, as
// cuBLASLt does, while the tensor cores have the next chunk's to do.
#ifndef MILLRACE_KERNELS_GEMM_SM90_DENSE_BLOCK_KERNEL_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_DENSE_BLOCK_KERNEL_CUH_

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/sm90/async_copy.cuh"
#include "kernels/gemm/sm90/dense/block_output.cuh"
#include "kernels/gemm/sm90/dense/skinny_shape.cuh"
#include "kernels/gemm/sm90/pipeline.cuh"
#include "kernels/gemm/sm90/wgmma.cuh"
#include "kernels/launch.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

struct BlockParams {
  CUtensorMap weight;  // boxes of kRows rows and kChunks chunks
  CUtensorMap input;   // of part_tokens tokens and a chunk
  TokenOutput output;
  BlockScales scales;
  int parts;        // that the tokens are divided into
  int part_tokens;  // a multiple of 8, at most kTokens
  int tiles;        // of kRows rows for a part
  int steps;        // stages of a tile
  int stages;       // of the pipeline: 2 ... kMaxStages
};

template <int kTileTokens, int kTileRows, int kStageChunks>
struct BlockShape {
  static constexpr int kTokens = kTileTokens;
  static constexpr int kRows = kTileRows;
  static constexpr int kChunks = kStageChunks;
  static constexpr int kMathWarps = kTokens / 16;
  static constexpr int kMathThreads = kMathWarps * kWarpSize;
  static constexpr int kThreads = kMathThreads + kWarpSize;
  static constexpr int kWeightBytes = kRows * kChunks * kChunk;  // of a stage
  static constexpr int kInputBytes = kTokens * kChunks * kChunk;
  // The weights' scales come first, then the tokens', chunk by chunk. Four of the weights' scales
  // are copied, 16 bytes, and the stage's are among them.
  static constexpr int kCopiedScales = 4;
  static constexpr int kWeightScaleBytes = kCopiedScales * sizeof(float);
  static constexpr int kScaleBytes = kWeightScaleBytes + kChunks * kTokens * sizeof(float);
  static constexpr int kStageBytes =
      kWeightBytes + kInputBytes + CeilDiv(kScaleBytes, kSwizzleBytes) * kSwizzleBytes;
  static_assert(kTokens % 64 == 0 && kRows % 16 == 0 && 128 % kRows == 0);
  static_assert(kChunks % 2 == 0 && kCopiedScales % kChunks == 0);  // chunks take turns of two
};

// `Delay::Wait` is called before every action that another thread may wait for.
template <typename Shape, typename Delay>
class BlockGemm {
 public:
  using Writer = TokenWriter<Shape::kRows>;

  // `stages`: params.stages * kStageBytes. `staging`: a writer's kBytes for each warp.
  __device__ BlockGemm(const BlockParams& params, PipelineBarriers& barriers, uint32_t stages,
                       uint32_t staging)
      : p_(params), barriers_(barriers), stages_(stages), staging_(staging) {}

  // Runs the producer's loop. Called by one thread.
  __device__ void Copy() const {
    const int ctas = static_cast<int>(gridDim.x);
    Produce(*this,
            {.first = static_cast<int>(blockIdx.x),
             .next = ctas,
             .fixed = CeilDiv(p_.tiles, ctas),
             .tiles = p_.tiles,
             .steps = p_.steps,
             .stages = p_.stages,
             .tile_counter = nullptr},
            barriers_);
  }

  // The producer's copies (pipeline.cuh).
  __device__ void PaceWeights(int /*stage*/) const {}
  __device__ void CopyWeights(int tile, int step, int stage) const {
    Delay::Wait();
    Barrier& full = barriers_.full[stage];
    barriers_.tile[stage] = tile;
    full.ArriveAndExpect(Shape::kWeightBytes + Shape::kWeightScaleBytes +
                         Shape::kChunks * p_.part_tokens * kChunk +
                         ChunksOf(step) * InputScaleBytes(tile));
    CopyBox(Weights(stage), p_.weight, 0, FirstRow(tile), step * Shape::kChunks, full,
            EvictFirst());
    CopyBytes(WeightScales(stage),
              p_.scales.weight + FirstRow(tile) / 128 * p_.scales.weight_stride +
                  step * Shape::kChunks / Shape::kCopiedScales * Shape::kCopiedScales,
              Shape::kWeightScaleBytes, full);
  }
  __device__ void PrefetchInputMap() const { PrefetchMap(p_.input); }
  __device__ void CopyInputs(int tile, int step, int stage) const {
    Delay::Wait();
    Barrier& full = barriers_.full[stage];
    const int token = FirstToken(tile);
#pragma unroll
    for (int i = 0; i < Shape::kChunks; ++i) {
      const int chunk = step * Shape::kChunks + i;
      CopyBox(Inputs(stage) + i * Shape::kTokens * kChunk, p_.input, 0, token, chunk, full,
              EvictLast());
      if (i >= ChunksOf(step)) continue;
      CopyBytes(InputScales(stage, i), p_.scales.input + chunk * p_.scales.padded_tokens + token,
                InputScaleBytes(tile), full);
    }
  }

  // Runs the consumers' loop. Called by all warps that multiply.
  __device__ void Multiply() {
    AwaitPredecessor();
    const int warp = threadIdx.x / kWarpSize;
    const Writer writer(p_.output, staging_ + warp * Writer::kBytes);
    for (int tile = blockIdx.x; tile < p_.tiles; tile += gridDim.x) {
      float sums[kSums] = {};
      step_ = 0;
      Add(sums);
      const int end = min(FirstToken(tile) + p_.part_tokens, p_.output.tokens);
      writer.Write(FirstRow(tile), FirstToken(tile) + warp * 16, end, sums);
    }
  }

 private:
  static constexpr int kSums = Shape::kRows / 2;      // a thread's
  static constexpr int kStepsPerChunk = kChunk / 32;  // wgmma takes 32 bytes of K
  static constexpr uint32_t kNextInputs = Shape::kTokens * kChunk >> 4;  // of the next chunk
  static constexpr uint32_t kNextWeights = Shape::kRows * kChunk >> 4;
  using Parts = float[2][kSums];  // of two chunks

  __device__ int FirstRow(int tile) const { return tile / p_.parts * Shape::kRows; }
  __device__ int FirstToken(int tile) const { return tile % p_.parts * p_.part_tokens; }

  // Where things lie in a stage.
  __device__ uint32_t Inputs(int stage) const { return stages_ + stage * Shape::kStageBytes; }
  __device__ uint32_t Weights(int stage) const { return Inputs(stage) + Shape::kInputBytes; }
  __device__ uint32_t WeightScales(int stage) const { return Weights(stage) + Shape::kWeightBytes; }
  __device__ uint32_t InputScales(int stage, int chunk) const {
    return WeightScales(stage) + Shape::kWeightScaleBytes + chunk * Shape::kTokens * sizeof(float);
  }

  // Returns how many chunks a step has; the last one may have fewer.
  __device__ int ChunksOf(int step) const {
    return min(Shape::kChunks, p_.scales.chunks - step * Shape::kChunks);
  }
  // Returns the bytes of a chunk's scales for the tokens of a tile.
  __device__ uint32_t InputScaleBytes(int tile) const {
    return min(p_.part_tokens, p_.scales.padded_tokens - FirstToken(tile)) * sizeof(float);
  }

  // Multiplies a tile. Each chunk's products begin before those of the previous chunk are added.
  __device__ void Add(float (&sums)[kSums]) {
    Parts parts;
    Begin<0>(parts);
    for (int left = p_.steps; left > 0; --left) {
      BeginAndEnd<1>(parts, sums);
      if (left == 1) {
        End<Shape::kChunks - 1, 0>(parts, sums);
        return;
      }
      Begin<0>(parts);
      End<Shape::kChunks - 1, 1>(parts, sums);
    }
    // Never reached, but ptxas multiplies asynchronously only where every path out waits.
    End<0, 0>(parts, sums);
  }

  // Begins the stage's chunks from kOfStage on, and ends all but the last.
  template <int kOfStage>
  __device__ void BeginAndEnd(Parts& parts, float (&sums)[kSums]) {
    Begin<kOfStage>(parts);
    End<kOfStage - 1, 1>(parts, sums);
    if constexpr (kOfStage + 1 < Shape::kChunks) BeginAndEnd<kOfStage + 1>(parts, sums);
  }

  // Begins a chunk's products.
  template <int kOfStage>
  __device__ void Begin(Parts& parts) {
    if constexpr (kOfStage == 0) NextStage();
    float(&part)[kSums] = parts[kOfStage % 2];
    Fence(part);
    BeginMultiply();
#pragma unroll
    for (int k = 0; k < kStepsPerChunk; ++k) {
      MultiplyAsync<Type::kFp8, Shape::kRows>(
          part, stage_a_ + kOfStage * kNextInputs + k * kNextStep,
          stage_b_ + kOfStage * kNextWeights + k * kNextStep, k > 0);
    }
    EndMultiply();
  }

  // Adds a chunk's products when all but kPending chunks are done.
  template <int kOfStage, int kPending>
  __device__ void End(Parts& parts, float (&sums)[kSums]) {
    float scales[2];
    ReadScales(kOfStage, scales);
    float(&part)[kSums] = parts[kOfStage % 2];
    WaitForProducts<kPending>();
    Fence(part);
    if constexpr (kOfStage == Shape::kChunks - 1) {
      Free();
      ++step_;
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = fmaf(part[i], scales[i % 4 / 2], sums[i]);
  }

  // Reads the products of the weights' scale and those of the two tokens that a thread has sums of.
  // A chunk beyond K has no scales, and sums of 0.
  __device__ void ReadScales(int of_stage, float (&scales)[2]) const {
    const int chunk = step_ * Shape::kChunks + of_stage;
    const float of_weights = LoadScale(WeightScales(free_), chunk % Shape::kCopiedScales);
    const int token = threadIdx.x / kWarpSize * 16 + threadIdx.x % kWarpSize / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float of_token = LoadScale(InputScales(free_, of_stage), token + 8 * i);
      scales[i] = chunk < p_.scales.chunks ? of_token * of_weights : 0;
    }
  }
  __device__ static float LoadScale(uint32_t from, int i) {
    float scale;
    asm volatile("ld.shared.f32 %0, [%1];"
                 : "=f"(scale)
                 : "r"(from + i * static_cast<int>(sizeof(float)))
                 : "memory");
    return scale;
  }

  // Waits for the next stage to multiply.
  __device__ void NextStage() {
    stage_a_ = SwizzledMatrix(Inputs(next_.stage) + threadIdx.x / 128 * 64 * kChunk);
    stage_b_ = SwizzledMatrix(Weights(next_.stage));
    barriers_.full[next_.stage].Wait(next_.phase);
    next_.Advance(p_.stages);
  }

  // Frees the oldest stage that is in use.
  __device__ void Free() {
    Delay::Wait();
    if (threadIdx.x % kWarpSize == 0) barriers_.empty[free_].Arrive();
    if (++free_ == p_.stages) free_ = 0;
  }

  const BlockParams& p_;
  PipelineBarriers& barriers_;
  const uint32_t stages_, staging_;
  // State of the warps that multiply:
  uint32_t stage_a_, stage_b_;  // descriptors of the matrices that are being multiplied
  PipelineState next_;          // the stage to read next
  int free_ = 0;                // the stage to free next
  int step_ = 0;                // the step whose sums are added next
};

template <typename Shape, typename Delay>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    BlockKernel(const __grid_constant__ BlockParams params) {
  extern __shared__ __align__(1024) uint8_t memory[];
  __shared__ PipelineBarriers barriers;
  using Gemm = BlockGemm<Shape, Delay>;
  __shared__ __align__(16) uint8_t staging[Shape::kMathWarps * Gemm::Writer::kBytes];
  Gemm gemm(params, barriers, SharedAddress(memory), SharedAddress(staging));
  if (threadIdx.x < Shape::kMathThreads) {
    WaitReady<Shape::kThreads>();
    gemm.Multiply();
    return;
  }
  const bool copies = threadIdx.x == Shape::kMathThreads;
  if (copies) barriers.Init(params.stages, Shape::kMathWarps);
  ArriveReady<Shape::kThreads>();
  if (copies) gemm.Copy();
  // The other lanes wait for the producer first: otherwise the compiler may make it wait with them.
  __syncwarp();
  AwaitPredecessor();
}

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_DENSE_BLOCK_KERNEL_CUH_
