// The kernel behind skinny_linear.h.
//
// A CTA takes tiles of kRows outputs, each for all tokens and with all of K in sequence: no sum is
// split. The producer thread (pipeline.cuh) has the copy engine bring weights and inputs in steps
// of kChunks times 128 bytes of K, straight from the plain matrices into the order that wgmma
// reads. Four warps multiply. Weights are wgmma's 64-row side, so that few tokens waste nothing.
//
// FP8 is summed as cuBLASLt does without fast accumulation: the tensor cores add 128 products,
// which keeps about 14 bits, and those sums are added in fp32. So the chunks of K may be multiplied
// in any order. wgmma takes its 64 rows from shared memory in 32 cycles, however few columns it
// has; a tile of 32 rows would waste half of that. So the 64 rows are two chunks of the tile's
// rows and the columns two chunks of the tokens: of the products those of a chunk with itself are
// used, and the warps, which hold one chunk each, exchange them so that they are added in order.
// BF16, whose sum stays in the tensor cores, lets wgmma read what lies behind a tile of 32 rows,
// and drops those products.
#ifndef MILLRACE_KERNELS_GEMM_SM90_DENSE_SKINNY_KERNEL_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_DENSE_SKINNY_KERNEL_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/delay.cuh"
#include "kernels/device_util.cuh"
#include "kernels/gemm/sm90/async_copy.cuh"
#include "kernels/gemm/sm90/dense/fused_prologue.cuh"
#include "kernels/gemm/sm90/dense/skinny_output.cuh"
#include "kernels/gemm/sm90/dense/skinny_shape.cuh"
#include "kernels/gemm/sm90/wgmma.cuh"
#include "kernels/launch.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

// `Delay::Wait` is called before every action that another thread may wait for.
template <typename Shape, typename Delay>
class SkinnyGemm {
 public:
  // `memory`: all the weights' stages come before the inputs' (with a fused prologue, before the
  // inputs of all steps), so that wgmma finds 64 rows behind the start of the last tile of 32, too;
  // then kExchangeBytes, and stages * kScaleBytes.
  __device__ SkinnyGemm(const SkinnyParams& params, PipelineBarriers& barriers, uint8_t* memory)
      : p_(params),
        barriers_(barriers),
        weights_(SharedAddress(memory)),
        fused_inputs_(memory + params.stages * Shape::kWeightBytes),
        inputs_(SharedAddress(fused_inputs_)),
        exchange_(reinterpret_cast<float*>(
            fused_inputs_ + (Shape::kFused ? params.steps : params.stages) * Shape::kInputBytes)),
        scales_(exchange_ + Shape::kExchangeBytes / sizeof(float)) {}

  // Runs the producer's loop. Called by one thread.
  __device__ void Copy() const {
    Produce(*this,
            {.first = static_cast<int>(blockIdx.x),
             .next = static_cast<int>(gridDim.x),
             .fixed = p_.fixed,
             .tiles = p_.tiles,
             .steps = p_.steps,
             .stages = p_.stages,
             .tile_counter = p_.tile_counter},
            barriers_);
  }

  // The producer's copies (pipeline.cuh).
  __device__ void PaceWeights(int stage) const {
    if constexpr (Shape::kFused) {
      if (stage >= Shape::kEarlyUnderWay) barriers_.full[stage - Shape::kEarlyUnderWay].Wait(0);
    }
  }
  __device__ void CopyWeights(int tile, int step, int stage) const {
    Delay::Wait();
    barriers_.tile[stage] = tile;
    Barrier& full = barriers_.full[stage];
    if constexpr (Shape::kBlocks) {
      full.ArriveAndExpect(Shape::kStageBytes + Shape::kWeightScaleBytes + InputScaleBytes(step));
      const BlockScales& scales = p_.block_scales;
      CopyBytes(
          SharedAddress(ScalesOf(stage)),
          scales.weight + tile * Shape::kRows / 128 * scales.weight_stride + step * Shape::kChunks,
          Shape::kWeightScaleBytes, full);
    } else {
      full.ArriveAndExpect(Shape::kStageBytes);
    }
    CopyBox(weights_ + stage * Shape::kWeightBytes, p_.weight, 0, tile * Shape::kRows,
            step * Shape::kChunks, full, EvictFirst());
  }
  __device__ void PrefetchInputMap() const {
    if constexpr (!Shape::kFused) PrefetchMap(p_.input);
  }
  __device__ void CopyInputs(int /*tile*/, int step, int stage) const {
    if constexpr (!Shape::kFused) {
      Delay::Wait();
      CopyBox(inputs_ + stage * Shape::kInputBytes, p_.input, 0, 0, step * Shape::kChunks,
              barriers_.full[stage], EvictLast());
      if constexpr (Shape::kBlocks) {
        const BlockScales& scales = p_.block_scales;
        CopyBytes(SharedAddress(ScalesOf(stage)) + Shape::kWeightScaleBytes,
                  scales.input + step * Shape::kChunks * scales.padded_tokens,
                  InputScaleBytes(step), barriers_.full[stage]);
      }
    }
  }

  // Runs the consumers' loop. Called by all warps that multiply.
  __device__ void Multiply() {
    if constexpr (Shape::kFused) {
      __shared__ typename FusedPrologue<Shape::kType>::Shared shared;
      FusedPrologue<Shape::kType> input(p_.prologue, p_.prologue_input);
      AwaitPredecessor();
      constexpr int kStepColumns =
          Shape::kChunks * kChunk / (Shape::kType == Type::kFp8 ? 1 : sizeof(Bf16));
      input.Make(fused_inputs_, Shape::kTokens * kChunk, p_.steps * kStepColumns, shared);
    } else {
      AwaitPredecessor();
    }
    ForEachTile([&](int tile) {
      float sums[kOwnSums] = {};
      if constexpr (Shape::kType == Type::kFp8) {
        AddFp8(sums);
      } else {
        AddBf16(sums);
      }
      SkinnyWriter<Shape>(p_).Write(tile, sums);
    });
  }

 private:
  static constexpr int kStepsPerChunk = kChunk / 32;  // wgmma takes 32 bytes of K
  static constexpr int kSets = Shape::kSets;
  static constexpr int kSums = Shape::kSums;
  static constexpr int kOwnSums = Shape::kOwnSums;
  static constexpr int kRowWarps = Shape::kRowWarps;
  static constexpr uint32_t kNextWeights = Shape::kGroup * Shape::kRows * kChunk >> 4;
  static constexpr uint32_t kNextInputs = Shape::kColumns * kChunk >> 4;

  // Returns the weights' scales of a stage, which the inputs' follow, chunk by chunk.
  __device__ float* ScalesOf(int stage) const {
    return scales_ + stage * (Shape::kScaleBytes / static_cast<int>(sizeof(float)));
  }
  // Returns how many chunks a step has; the last one may have fewer.
  __device__ int ChunksOf(int step) const {
    return min(Shape::kChunks, p_.block_scales.chunks - step * Shape::kChunks);
  }
  __device__ uint32_t InputScaleBytes(int step) const {
    return ChunksOf(step) * p_.block_scales.padded_tokens * sizeof(float);
  }

  // The tensor cores' sums of one step.
  using Parts = float[kSets][Shape::kColumns / 2];

  // Calls add(tile) for each tile, whose number stands beside its first step. No product is under
  // way between two tiles: the compiler must know how many there are, and this loop's end is read
  // from memory.
  template <typename Add>
  __device__ void ForEachTile(const Add& add) {
    for (;;) {
      barriers_.full[next_.stage].Wait(next_.phase);
      const int tile = barriers_.tile[next_.stage];
      if (tile == kNoTile) return;
      add(tile);
    }
  }

  // Multiplies a tile in FP8. Two steps are under way at a time.
  __device__ void AddFp8(float (&sums)[kOwnSums]) {
    Parts even, odd;
    BeginStep(0, even);
    for (int step = 1; step < p_.steps; step += 2) {
      BeginStep(step, odd);
      EndStep<1>(step - 1, even, sums);
      if (step + 1 == p_.steps) {
        EndStep<0>(step, odd, sums);
        return;
      }
      BeginStep(step + 1, even);
      EndStep<1>(step, odd, sums);
    }
    EndStep<0>(p_.steps - 1, even, sums);
  }

  // Begins the products of the next step. Sums that do not wait for one another alternate.
  __device__ void BeginStep(int step, Parts& parts) {
    barriers_.full[next_.stage].Wait(next_.phase);
    const uint32_t a = Weights(next_.stage), b = Inputs(step);
    next_.Advance(p_.stages);
#pragma unroll
    for (int set = 0; set < kSets; ++set) Fence(parts[set]);
    BeginMultiply();
#pragma unroll
    for (int k = 0; k < kStepsPerChunk; ++k) {
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        MultiplyAsync<Shape::kType, Shape::kColumns>(parts[set],
                                                     a + set * kNextWeights + k * kNextStep,
                                                     b + set * kNextInputs + k * kNextStep, k > 0);
      }
    }
    EndMultiply();
  }

  // Adds a step to the sums, when all but kPending are done, and frees its stage.
  template <int kPending>
  __device__ void EndStep(int step, Parts& parts, float (&sums)[kOwnSums]) {
    WaitForProducts<kPending>();
#pragma unroll
    for (int set = 0; set < kSets; ++set) Fence(parts[set]);
    Scales scales;
    if constexpr (Shape::kBlocks) ReadScales(step, scales);
    Free();
    AddOfAllWarps(parts, scales, sums);
  }

  // The block scales of a step: for each chunk, those of the two tokens that a thread adds sums of.
  using Scales = float[Shape::kChunks][2];

  // Reads the scales of the oldest stage that is in use.
  __device__ void ReadScales(int step, Scales& scales) const {
    const float* const of_weights = ScalesOf(free_);
    const int part = threadIdx.x / kWarpSize / kRowWarps;
    const float* const of_tokens =
        of_weights + Shape::kChunks + part * kOwnSums / 4 * 8 + threadIdx.x % 4 * 2;
    const int chunks = ChunksOf(step);
#pragma unroll
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // a chunk beyond K has no scales, and sums of 0
        scales[chunk][i] =
            chunk < chunks
                ? of_tokens[chunk * p_.block_scales.padded_tokens + (kOwnSums == 2 ? part : i)] *
                      of_weights[chunk]
                : 0;
      }
    }
  }

  // Warp w holds the sums of chunk w / kRowWarps of a set, for rows 16 * (w % kRowWarps) and on. It
  // adds kOwnSums of each lane's sums, of all chunks in order. Two sets of the exchanged sums
  // alternate: a thread that writes one has passed the barrier after its last reading.
  __device__ void AddOfAllWarps(const Parts& parts, const Scales& scales, float (&sums)[kOwnSums]) {
    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
    const int part = warp / kRowWarps;
    const auto at = [&](int set, int of_warp, int i) -> float& {
      return exchange_[((turn_ * kSets + set) * 4 + of_warp) * kSums * kWarpSize + i * kWarpSize +
                       lane];
    };
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        float own = parts[set][i];
#pragma unroll
        for (int chunk = 1; chunk < Shape::kGroup; ++chunk) {
          if (part == chunk) own = parts[set][chunk * kSums + i];
        }
        at(set, warp, i) = own;
      }
    }
    Delay::Wait();
    asm volatile("bar.sync 1, %0;" ::"n"(Shape::kMathThreads) : "memory");
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
#pragma unroll
      for (int chunk = 0; chunk < Shape::kGroup; ++chunk) {
#pragma unroll
        for (int i = 0; i < kOwnSums; ++i) {
          const float sum = at(set, chunk * kRowWarps + warp % kRowWarps, Shape::SumIndex(part, i));
          if constexpr (Shape::kBlocks) {
            sums[i] = fmaf(sum, scales[set * Shape::kGroup + chunk][i % 2], sums[i]);
          } else {
            sums[i] += sum;
          }
        }
      }
    }
    turn_ ^= 1;
  }

  __device__ void AddBf16(float (&sums)[kSums]) {
    for (int step = 0; step < p_.steps; ++step) {
      barriers_.full[next_.stage].Wait(next_.phase);
      const uint32_t a = Weights(next_.stage), b = Inputs(step);
      next_.Advance(p_.stages);
      Fence(sums);
      BeginMultiply();
#pragma unroll
      for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
#pragma unroll
        for (int k = 0; k < kStepsPerChunk; ++k) {
          MultiplyAsync<Shape::kType, Shape::kTokens>(
              sums, a + chunk * kNextWeights + k * kNextStep,
              b + chunk * kNextInputs + k * kNextStep, true);
        }
      }
      EndMultiply();
      if (step == 0) continue;
      WaitForProducts<1>();
      Free();
    }
    WaitForProducts<0>();
    Fence(sums);
    Free();
  }

  __device__ uint32_t Weights(int stage) const {
    return SwizzledMatrix(weights_ + stage * Shape::kWeightBytes);
  }
  // Returns the inputs of the next stage.
  __device__ uint32_t Inputs(int step) const {
    return SwizzledMatrix(inputs_ + (Shape::kFused ? step : next_.stage) * Shape::kInputBytes);
  }

  // Frees the oldest stage that is in use.
  __device__ void Free() {
    Delay::Wait();
    if (threadIdx.x % kWarpSize == 0) barriers_.empty[free_].Arrive();
    if (++free_ == p_.stages) free_ = 0;
  }

  const SkinnyParams& p_;
  PipelineBarriers& barriers_;
  const uint32_t weights_;       // the pipeline's stages
  uint8_t* const fused_inputs_;  // behind the weights, of a fused prologue
  const uint32_t inputs_;
  float* const exchange_;
  float* const scales_;
  // State of the warps that multiply:
  PipelineState next_;  // the stage to read next
  int free_ = 0;        // the stage to free next
  int turn_ = 0;        // of the exchange
};

template <typename Shape, typename Delay>
__global__ void __launch_bounds__(Shape::kThreads, 2)
    SkinnyKernel(const __grid_constant__ SkinnyParams params) {
  extern __shared__ __align__(1024) uint8_t memory[];
  __shared__ PipelineBarriers barriers;
  SkinnyGemm<Shape, Delay> gemm(params, barriers, memory);
  if (threadIdx.x < Shape::kMathThreads) {
    WaitReady<Shape::kThreads>();
    gemm.Multiply();
    return;
  }
  const bool copies = threadIdx.x == Shape::kMathThreads;
  if (copies) barriers.Init(params.stages, Shape::kMathThreads / kWarpSize);
  ArriveReady<Shape::kThreads>();
  if (copies) gemm.Copy();
  // The other lanes wait for the producer first: otherwise the compiler may make it wait with them.
  __syncwarp();
  AwaitPredecessor();
}

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_DENSE_SKINNY_KERNEL_CUH_
