// The kernel behind block_linear.h: stream_kernel.cuh's way of copying, for more tokens.
//
// A CTA has tiles of kTokens tokens and kRows outputs, with all of K in sequence: no sum is split.
// Tokens are wgmma's 64-row side, so that a thread has sums of two tokens, and few scales to load.
// All outputs of a tile have the same scales. Two threads copy
// stages of kChunks times 128 columns into a ring in shared memory: one the weights and their
// scales, which are constant, while the kernel before this one still runs, the other the inputs and
// theirs, when that one has ended. Groups of four warps multiply 64 tokens each.
//
// The tensor cores add the 128 products of a chunk; that sum is scaled and added in fp32, as
// cuBLASLt does, while the tensor cores have the next chunk's to do.
#ifndef MILLRACE_KERNELS_GEMM_SM90_BLOCK_KERNEL_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_BLOCK_KERNEL_CUH_

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/sm90/async_copy.cuh"
#include "kernels/gemm/sm90/block_output.cuh"
#include "kernels/gemm/sm90/stream_shape.cuh"
#include "kernels/gemm/sm90/wgmma.cuh"
#include "kernels/launch.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

struct BlockParams {
  CUtensorMap weight;  // boxes of kRows rows and kChunks chunks
  CUtensorMap input;   // of part_tokens tokens and a chunk
  TokenOutput output;
  BlockScales scales;
  int parts;        // of the tokens
  int part_tokens;  // a multiple of 8, at most kTokens
  int tiles;        // of kRows rows for a part
  int steps;        // stages of a tile
  int stages;       // of the ring: 2 ... kMaxStages
};

template <int kTileTokens, int kTileRows, int kStageChunks>
struct BlockShape {
  static constexpr int kTokens = kTileTokens;
  static constexpr int kRows = kTileRows;
  static constexpr int kChunks = kStageChunks;
  static constexpr int kMathWarps = kTokens / 16;
  static constexpr int kMathThreads = kMathWarps * kWarpSize;
  static constexpr int kThreads = kMathThreads + 2 * kWarpSize;
  static constexpr int kWeightBytes = kRows * kChunks * kChunk;  // of a stage
  static constexpr int kInputBytes = kTokens * kChunks * kChunk;
  // Scales of the weights, and then of the tokens chunk by chunk. Of the weights' four are copied,
  // 16 bytes, which the stage's are among.
  static constexpr int kCopiedScales = 4;
  static constexpr int kWeightScaleBytes = kCopiedScales * sizeof(float);
  static constexpr int kScaleBytes = kWeightScaleBytes + kChunks * kTokens * sizeof(float);
  static constexpr int kStageBytes =
      kWeightBytes + kInputBytes + CeilDiv(kScaleBytes, kSwizzleBytes) * kSwizzleBytes;
  static_assert(kTokens % 64 == 0 && kRows % 16 == 0 && 128 % kRows == 0);
  static_assert(kChunks % 2 == 0 && kCopiedScales % kChunks == 0);  // chunks take turns of two
};

// `Delay::Wait` is called before everything that others may wait for.
template <typename Shape, typename Delay>
class BlockProduct {
 public:
  using Writer = TokenWriter<Shape::kRows>;

  // `ring`: stages * kStageBytes. `staging`: kBytes of a writer for a warp.
  __device__ BlockProduct(const BlockParams& params, StreamBarriers& barriers, uint32_t ring,
                          uint32_t staging)
      : p_(params), barriers_(barriers), ring_(ring), staging_(staging) {}

  // By one thread.
  __device__ void CopyWeights() {
    ForEachStage([&](int tile, int step, int stage) {
      Barrier& full = barriers_.full[stage];
      full.ArriveAndExpect(Shape::kWeightBytes + Shape::kWeightScaleBytes +
                           Shape::kChunks * p_.part_tokens * kChunk +
                           ChunksOf(step) * InputScaleBytes(tile));
      CopyBox(Weights(stage), p_.weight, 0, FirstRow(tile), step * Shape::kChunks, full,
              EvictFirst());
      CopyBytes(WeightScales(stage),
                p_.scales.weight + FirstRow(tile) / 128 * p_.scales.weight_stride +
                    step * Shape::kChunks / Shape::kCopiedScales * Shape::kCopiedScales,
                Shape::kWeightScaleBytes, full);
    });
  }

  // By another.
  __device__ void CopyInputs() {
    PrefetchMap(p_.input);
    AwaitPredecessor();
    ForEachStage([&](int tile, int step, int stage) {
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
    });
  }

  // By the warps that multiply.
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
  __device__ uint32_t Inputs(int stage) const { return ring_ + stage * Shape::kStageBytes; }
  __device__ uint32_t Weights(int stage) const { return Inputs(stage) + Shape::kInputBytes; }
  __device__ uint32_t WeightScales(int stage) const { return Weights(stage) + Shape::kWeightBytes; }
  __device__ uint32_t InputScales(int stage, int chunk) const {
    return WeightScales(stage) + Shape::kWeightScaleBytes + chunk * Shape::kTokens * sizeof(float);
  }

  // Chunks of a step that there are.
  __device__ int ChunksOf(int step) const {
    return min(Shape::kChunks, p_.scales.chunks - step * Shape::kChunks);
  }
  // A chunk's scales of the part's tokens that there are.
  __device__ uint32_t InputScaleBytes(int tile) const {
    return min(p_.part_tokens, p_.scales.padded_tokens - FirstToken(tile)) * sizeof(float);
  }

  // Calls copy(tile, step, stage) for each stage when it is empty.
  template <typename Copy>
  __device__ void ForEachStage(const Copy& copy) {
    RingPlace place = {.stage = 0, .parity = 1};  // in their first turn stages are empty
    for (int tile = blockIdx.x; tile < p_.tiles; tile += gridDim.x) {
      for (int step = 0; step < p_.steps; ++step, place.Advance(p_.stages)) {
        barriers_.empty[place.stage].Wait(place.parity);
        Delay::Wait();
        copy(tile, step, place.stage);
      }
    }
  }

  // A chunk's products begin before those of the chunk before are added.
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
    // Nobody comes here, but ptxas multiplies asynchronously only where every way out waits.
    End<0, 0>(parts, sums);
  }

  // The stage's chunks from this one on, but for the end of the last.
  template <int kOfStage>
  __device__ void BeginAndEnd(Parts& parts, float (&sums)[kSums]) {
    Begin<kOfStage>(parts);
    End<kOfStage - 1, 1>(parts, sums);
    if constexpr (kOfStage + 1 < Shape::kChunks) BeginAndEnd<kOfStage + 1>(parts, sums);
  }

  // A chunk's products, asynchronously.
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

  // Adds them, when the products of all but kPending chunks are done.
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

  // The weights' times those of the two tokens that a thread has sums of. A chunk that is not there
  // has no scales, and sums of 0.
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
    barriers_.full[next_.stage].Wait(next_.parity);
    next_.Advance(p_.stages);
  }

  // The oldest stage that is not free.
  __device__ void Free() {
    Delay::Wait();
    if (threadIdx.x % kWarpSize == 0) barriers_.empty[free_].Arrive();
    if (++free_ == p_.stages) free_ = 0;
  }

  const BlockParams& p_;
  StreamBarriers& barriers_;
  const uint32_t ring_, staging_;
  // Of the warps that multiply:
  uint32_t stage_a_, stage_b_;  // the matrices that are being multiplied, as wgmma is told
  RingPlace next_;              // the stage to read next
  int free_ = 0;                // and the one to free next
  int step_ = 0;                // whose sums are added next
};

template <typename Shape, typename Delay>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    BlockKernel(const __grid_constant__ BlockParams params) {
  extern __shared__ __align__(1024) uint8_t memory[];
  __shared__ StreamBarriers barriers;
  using Product = BlockProduct<Shape, Delay>;
  __shared__ __align__(16) uint8_t staging[Shape::kMathWarps * Product::Writer::kBytes];
  Product product(params, barriers, SharedAddress(memory), SharedAddress(staging));
  const int warp = threadIdx.x / kWarpSize;
  // In each of two warps one thread copies.
  const bool copies = threadIdx.x % kWarpSize == 0;
  if (warp == Shape::kMathWarps) {
    if (copies) barriers.Init(params.stages, Shape::kMathWarps);
    ArriveReady<Shape::kThreads>();
  } else {
    WaitReady<Shape::kThreads>();  // in one place: compute-sanitizer takes two for divergence
  }
  if (warp < Shape::kMathWarps) {
    product.Multiply();
    return;
  }
  if (copies) {
    if (warp == Shape::kMathWarps) {
      product.CopyWeights();
    } else {
      product.CopyInputs();
    }
  }
  // The others wait for it first: else the compiler may have it wait for the predecessor with them.
  __syncwarp();
  AwaitPredecessor();
}

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_BLOCK_KERNEL_CUH_
