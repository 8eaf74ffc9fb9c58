// The kernel behind grouped_linear.h.
//
// A CTA takes tiles of kRows rows of a group's weight for up to kTokens of its rows, with all of K
// in sequence: no sum is split. 128 threads load (grouped_load.cuh); with four bits one, or two
// where teams take turns. Groups of four warps multiply: weights are wgmma's 64-row side, or, with
// four bits and 32 tokens, mma.sync's 16-row side (grouped_four_bit.cuh). DenseTiles says where
// linears with four bits differ.
//
// The columns of a tile that has fewer rows hold what was in shared memory before. wgmma's columns
// do not meet, and those are not written.
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_KERNEL_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_KERNEL_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/delay.cuh"
#include "kernels/device_util.cuh"
#include "kernels/gemm/sm90/async_copy.cuh"
#include "kernels/gemm/sm90/dense/wide_kernel.cuh"
#include "kernels/gemm/sm90/grouped/grouped_four_bit.cuh"
#include "kernels/gemm/sm90/grouped/grouped_load.cuh"
#include "kernels/gemm/sm90/grouped/grouped_output.cuh"
#include "kernels/gemm/sm90/grouped/grouped_shape.cuh"
#include "kernels/gemm/sm90/grouped/grouped_turns.cuh"
#include "kernels/gemm/sm90/wgmma.cuh"
#include "kernels/launch.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

// `Delay::Wait` is called before every action that another thread may wait for.
template <typename Shape, typename Delay>
class GroupedGemm {
 public:
  __device__ GroupedGemm(const GroupedParams& params, GroupedBarriers& barriers,
                         const GroupedMemory<Shape>& memory)
      : p_(params), barriers_(barriers), memory_(memory), addresses_(barriers) {}

  // Called by all multiplying warps.
  __device__ __forceinline__ void Run() {
    AwaitPredecessor();
    for (;;) {
      barriers_.full[next_.stage].Wait(next_.phase);
      const int4 entry = barriers_.tile[next_.stage];
      const GroupedTile tile = {entry.x, entry.y, entry.z, entry.w};
      if (tile.count == 0) return;
      if constexpr (Shape::kGroupWide) {
        // wgmma's columns cost as much with rows as without.
        if (tile.count <= Shape::kTokens / 2) {
          Compute<Shape::kTokens / 2>(tile);
          continue;
        }
      }
      Compute<Shape::kTokens>(tile);
    }
  }

 private:
  static constexpr int kSums = Shape::kTokens / 2;                      // a thread's, of all tokens
  static constexpr int kStepsPerChunk = kChunk / 32;                    // wgmma takes 32 bytes of K
  static constexpr uint32_t kNextWeights = Shape::kRows * kChunk >> 4;  // of the next chunk
  static constexpr uint32_t kNextInputs = Shape::kTokens * kChunk >> 4;

  __device__ static int RowGroup() { return threadIdx.x / 128; }

  // Multiplies and writes a tile of up to kTokens tokens.
  template <int kTokens>
  __device__ __forceinline__ void Compute(const GroupedTile& tile) {
    // Where registers are plenty.
    constexpr bool kLoadsEarly = kTokens <= 32 || (Shape::kGroupWide && kTokens <= 64);
    GroupedColumns<kTokens> columns;
    GroupedWriter<kTokens> writer(p_, tile,
                                  tile.row_tile * Shape::kRows + threadIdx.x / kWarpSize * 16);
    if constexpr (kLoadsEarly) {
      columns.LoadPairs(p_, tile);
      if constexpr (Shape::kGroupWide) writer.LoadRows();
    }
    float sums[kTokens / 2] = {};
    if constexpr (Shape::kFourBit) {
      WithSteps<Shape::kFourBitType>(
          p_.four_bit_steps, [&](auto steps) __attribute__((always_inline)) {
            if constexpr (Shape::kWgmma) {
              AddFourBitWgmma<decltype(steps)::value, kTokens>(sums);
            } else {
              AddFourBit<decltype(steps)::value>(sums);
            }
          });
    } else if constexpr (Shape::kFp8) {
      AddFp8(sums);
    } else {
      AddBf16(sums);
    }
    if constexpr (!kLoadsEarly) columns.LoadPairs(p_, tile);
    if constexpr (!kLoadsEarly || !Shape::kGroupWide) writer.LoadRows();
    columns.template LoadScales<Shape::kFourBit>(p_, tile);
    writer.Write(sums, columns);
    if (p_.output.gate != GroupedGate::kNone && tile.row_tile + 1 == p_.row_tiles) {
      WritePadding(p_, tile, threadIdx.x, Shape::kMathThreads);
    }
  }

  // Multiplies a tile in FP8. The tensor cores' sums of a chunk and of the one before alternate.
  __device__ void AddFp8(float (&sums)[kSums]) {
    const int pairs = CeilDiv(p_.chunks, 2);
    float even[kSums], odd[kSums];
    chunk_ = 0;
    NextStage();
    Begin(0, even);
    for (int left = pairs; left > 0; --left) {
      Begin(1, odd);
      End<1>(0, even, sums);
      if (left == 1) {
        End<0>(1, odd, sums);
        Free();
        return;
      }
      NextStage();
      Begin(0, even);
      End<1>(1, odd, sums);
      Free();
    }
    // Never reached, but ptxas multiplies asynchronously only where every path out waits.
    End<0>(0, even, sums);
  }

  // Begins the sum of a chunk's products.
  __device__ void Begin(int of_stage, float (&part)[kSums]) {
    Fence(part);
    BeginMultiply();
    MultiplyChunk(of_stage, part, false);
    EndMultiply();
  }

  // Adds it when all but kPending are done. The chunk lies in the oldest stage in use.
  template <int kPending>
  __device__ void End(int of_stage, float (&part)[kSums], float (&sums)[kSums]) {
    WaitForProducts<kPending>();
    Fence(part);
    if constexpr (Shape::kBlocks) {
      AddScaled(of_stage, part, sums);
    } else {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i] += part[i];
    }
  }

  // Adds a chunk's sums times their block scales. A chunk beyond K has none, and sums of 0.
  __device__ void AddScaled(int of_stage, const float (&part)[kSums], float (&sums)[kSums]) {
    if (chunk_++ >= p_.chunks) return;
    const uint32_t scales = memory_.Scales(free_, of_stage);
    const float2 weights = LoadPair(scales);
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
      const float2 inputs = LoadPair(scales + (2 + 2 * i + threadIdx.x % 4 * 2) * 4);
      sums[i] = fmaf(part[i], __fmul_rn(inputs.x, weights.x), sums[i]);
      sums[i + 1] = fmaf(part[i + 1], __fmul_rn(inputs.y, weights.x), sums[i + 1]);
      sums[i + 2] = fmaf(part[i + 2], __fmul_rn(inputs.x, weights.y), sums[i + 2]);
      sums[i + 3] = fmaf(part[i + 3], __fmul_rn(inputs.y, weights.y), sums[i + 3]);
    }
  }
  __device__ static float2 LoadPair(uint32_t from) {
    float2 pair;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(pair.x), "=f"(pair.y)
                 : "r"(from)
                 : "memory");
    return pair;
  }

  __device__ void AddBf16(float (&sums)[kSums]) {
    for (int step = 0; step < p_.steps; ++step) {
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

  __device__ void MultiplyChunk(int of_stage, float (&sums)[kSums], bool add) const {
#pragma unroll
    for (int k = 0; k < kStepsPerChunk; ++k) {
      MultiplyAsync<Shape::kType, Shape::kTokens>(
          sums, stage_a_ + of_stage * kNextWeights + k * kNextStep,
          stage_b_ + of_stage * kNextInputs + k * kNextStep, add || k > 0);
    }
  }

  // Multiplies a tile of four-bit weights, whose stages are blocks of 128 columns.
  template <FourBitSteps kSteps>
  __device__ void AddFourBit(float (&sums)[kSums]) {
    static_assert(Shape::kFourBitBlocks == 1);
    const FourBitLane<Shape> lane;
    FourBitBlock<Shape> even, odd;
    uint32_t even_stage = ReadBlock(lane, even);
    for (int left = p_.chunks / 2 - 1; left > 0; left -= 2) {
      const uint32_t odd_stage = ReadBlock(lane, odd);
      even.template Multiply<kSteps>(sums);
      FreeBlock(even_stage);
      if (left == 1) {
        odd.template Multiply<kSteps>(sums);
        FreeBlock(odd_stage);
        return;
      }
      even_stage = ReadBlock(lane, even);
      odd.template Multiply<kSteps>(sums);
      FreeBlock(odd_stage);
    }
    even.template Multiply<kSteps>(sums);
    FreeBlock(even_stage);
  }

  // The same by wgmma, from registers: half a block is unpacked while the half before it is
  // multiplied, each in registers of its own.
  template <FourBitSteps kSteps, int kTokens>
  __device__ __forceinline__ void AddFourBitWgmma(float (&sums)[kTokens / 2]) {
    static_assert(Shape::kFourBitBlocks == 1);
    const FourBitLane<Shape> lane;
    HalfBlock first, second;
    NextStage();
    first.template Unpack<kSteps, 0>(lane, memory_.Blocks(stage_, RowGroup()));
    for (int left = p_.chunks / 2; left > 0; --left) {
      // The compiler forgets from stage to stage that all lanes have the same descriptor. Dense
      // linears of many columns are slower by 2 % where it is told again.
      const uint32_t inputs = Shape::kGroupWide ? __shfl_sync(kFullWarp, stage_b_, 0) : stage_b_;
      Begin<kTokens>(first, inputs, sums);
      second.template Unpack<kSteps, 4>(lane, memory_.Blocks(stage_, RowGroup()));
      End<kTokens>(first, sums);
      Begin<kTokens>(second, inputs + kNextInputs, sums);
      if (left > 1) {
        NextStage();
        first.template Unpack<kSteps, 0>(lane, memory_.Blocks(stage_, RowGroup()));
      }
      End<kTokens>(second, sums);
      Free();
    }
  }

  using HalfBlock = FourBitValues<Shape, 4>;

  // Begins to multiply half a block. `inputs`: the descriptor of its chunk.
  template <int kTokens>
  __device__ void Begin(HalfBlock& values, uint32_t inputs, float (&sums)[kTokens / 2]) {
    values.FenceAll();
    Fence(sums);
    BeginMultiply();
    values.template Multiply<kTokens>(inputs, sums);
    EndMultiply();
  }
  template <int kTokens>
  __device__ void End(HalfBlock& values, float (&sums)[kTokens / 2]) {
    WaitForProducts<0>();
    Fence(sums);
    values.FenceAll();
  }

  // Reads the block of the next stage, and returns the address of the barrier that frees it.
  __device__ uint32_t ReadBlock(const FourBitLane<Shape>& lane, FourBitBlock<Shape>& block) {
    const int stage = next_.stage;
    const uint32_t full = addresses_.full + stage * sizeof(Barrier);
    Barrier::WaitAtAddress(full, next_.phase);
    next_.Advance(p_.stages);
    block.Read(lane, memory_.Weights(stage), memory_.Inputs(stage));
    return full + GroupedBarriers::kFromFullToEmpty;
  }

  __device__ void FreeBlock(uint32_t barrier) const {
    Delay::Wait();
    if (addresses_.first_lane) Barrier::ArriveAtAddress(barrier);
  }

  // Waits for the next stage to multiply.
  __device__ void NextStage() {
    stage_ = next_.stage;
    if constexpr (!Shape::kFourBit) {
      stage_a_ = SwizzledMatrix(memory_.Weights(stage_) + RowGroup() * 64 * kChunk);
    }
    if constexpr (Shape::kWgmma) stage_b_ = SwizzledMatrix(memory_.Inputs(stage_));
    barriers_.full[stage_].Wait(next_.phase);
    if constexpr (Shape::kWgmma && !Shape::kQuantizes) {
      if (!GroupedLoader<Shape, Delay>::kCopiesRows) FenceShared();
    }
    next_.Advance(p_.stages);
  }

  // Frees the oldest stage that is in use.
  __device__ void Free() {
    Delay::Wait();
    if (addresses_.first_lane) barriers_.empty[free_].Arrive();
    if (++free_ == p_.stages) free_ = 0;
  }

  const GroupedParams& p_;
  GroupedBarriers& barriers_;
  const GroupedMemory<Shape> memory_;
  const BarrierAddresses addresses_;
  uint32_t stage_a_ = 0, stage_b_ = 0;  // descriptors of the matrices that are being multiplied
  PipelineState next_;                  // the stage to read next
  int stage_ = 0;                       // the stage that is being multiplied
  int free_ = 0;                        // the stage to free next
  int chunk_ = 0;                       // the chunk that is added next
};

template <typename Shape, typename Delay>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kCtasPerSm)
    GroupedKernel(const __grid_constant__ GroupedParams params) {
  extern __shared__ __align__(1024) uint8_t memory[];
  __shared__ GroupedBarriers barriers;
  const GroupedMemory<Shape> addresses(SharedAddress(memory), params.stages);
  if (threadIdx.x == 0) {
    const bool copies = GroupedLoader<Shape, Delay>::kCopiesRows;
    barriers.Init(params.stages, copies ? 0 : Shape::kLoadThreads, Shape::kReaders);
  }
  __syncthreads();
  if (threadIdx.x < Shape::kMathThreads) {
    if constexpr (Shape::kGroupWide) TakeRegisters<Shape::kMathRegisters>();
    using Gemm = std::conditional_t<(Shape::kTeams > 1), FourBitTurns<Shape, Delay>,
                                    GroupedGemm<Shape, Delay>>;
    Gemm(params, barriers, addresses).Run();
  } else {
    if constexpr (Shape::kGroupWide) GiveRegisters<Shape::kLoadRegisters>();
    using Loader = std::conditional_t<(Shape::kTeams > 1), TurnsLoader<Shape, Delay>,
                                      GroupedLoader<Shape, Delay>>;
    Loader(params, barriers, addresses).Run(static_cast<int>(threadIdx.x) - Shape::kMathThreads);
  }
}

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_KERNEL_CUH_
