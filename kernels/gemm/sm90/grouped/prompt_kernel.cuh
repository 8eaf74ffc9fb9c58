// The kernel behind grouped_linear.h for prompts: tiles of kPromptTile tokens.
//
// Rows of input lie by group, so both operands come by the copy engine. A CTA takes tiles of kRows
// rows of a group's weight for up to kPromptTile of its rows, with all of K in sequence: no sum is
// split. Three groups of four warps multiply 64 tokens each, wgmma's larger side, by the same
// weights. So a thread has sums of two tokens alone, and few scales to load, and a tile of few
// tokens costs no products beyond whole groups. While one group adds its sums in fp32 (FP8) or
// writes them, the others keep the tensor cores busy. The CTAs of a cluster share tokens: the L2
// cache could not serve each of them, and its reads cost power, of which there is not enough.
//
// The rows of a last tile that are not of its group are the next group's, or zeros: wgmma's rows do
// not meet, and those are not written.
//
// Ideas: DeepGEMM (sums of 128 products promoted by one warp group while another multiplies),
// CUTLASS (warp specialization, setmaxnreg).
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_PROMPT_KERNEL_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_PROMPT_KERNEL_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/delay.cuh"
#include "kernels/device_util.cuh"
#include "kernels/gemm/sm90/async_copy.cuh"
#include "kernels/gemm/sm90/dense/wide_kernel.cuh"
#include "kernels/gemm/sm90/grouped/prompt_load.cuh"
#include "kernels/gemm/sm90/grouped/prompt_output.cuh"
#include "kernels/gemm/sm90/grouped/prompt_shape.cuh"
#include "kernels/gemm/sm90/wgmma.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels::sm90 {

// `Delay::Wait` is called before every action that another thread may wait for.
template <typename Shape, typename Delay>
class PromptGemm {
 public:
  __device__ PromptGemm(const PromptParams& params, PromptBarriers& barriers,
                        const PromptMemory<Shape>& memory)
      : params_(params), p_(params.p), barriers_(barriers), memory_(memory) {}

  // Called by all multiplying warps.
  __device__ void Run() {
    AwaitPredecessor();
    const int unit = threadIdx.x / 128;
    for (;;) {
      barriers_.full[next_.stage].Wait(next_.phase);
      const GroupedTile tile = barriers_.TileOf(next_.stage);
      if (tile.count == 0) return;
      if (tile.count <= unit * kPromptUnit) {
        Skip();
        continue;
      }
      float sums[kSums] = {};
      if constexpr (Shape::kFp8) {
        AddFp8(tile, sums);
      } else {
        AddBf16(sums);
      }
      const PromptWriter<Shape::kRows> writer(params_, tile);
      writer.Write(sums);
      writer.WritePadding();
    }
  }

 private:
  static constexpr int kSums = Shape::kRows / 2;      // a thread's
  static constexpr int kStepsPerChunk = kChunk / 32;  // wgmma takes 32 bytes of K

  // Leaves a tile to the other groups.
  __device__ void Skip() {
    for (int step = 0; step < p_.chunks; ++step) {
      barriers_.full[next_.stage].Wait(next_.phase);
      next_.Advance(p_.stages);
      if constexpr (Shape::kFourBit) {
        barriers_.unpacked[unpacked_.stage].Wait(unpacked_.phase);
        unpacked_.Advance(kUnpackedStages);
      }
      Free();
    }
  }

  __device__ void AddFp8(const GroupedTile& tile, float (&sums)[kSums]) {
    float part[kSums];
    for (int chunk = 0; chunk < p_.chunks; ++chunk) {
      NextStage();
      Fence(part);
      BeginMultiply();
      Multiply(part, false);
      EndMultiply();
      float scales[2][2];  // of a token and a factor
      if constexpr (Shape::kBlocks) ReadScales(tile, chunk, scales);
      WaitForProducts<0>();
      Fence(part);
      Free();
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        if constexpr (Shape::kBlocks) {
          sums[i] = fmaf(part[i], scales[i / 2 % 2][i / 4 % 2], sums[i]);
        } else {
          sums[i] += part[i];
        }
      }
    }
  }

  // Reads the products of the scales of a thread's two tokens and of the weights, those of the gate
  // and of the other factor.
  __device__ void ReadScales(const GroupedTile& tile, int chunk, float (&scales)[2][2]) const {
    const int factors = p_.output.gate != GroupedGate::kNone ? 2 : 1;
    const uint32_t tokens =
        memory_.TokenScales(free_) + (tile.first % Shape::kCopiedScales +
                                      threadIdx.x / kWarpSize * 16 + threadIdx.x % kWarpSize / 4) *
                                         sizeof(float);
    const uint32_t of_chunk = chunk % Shape::kCopiedScales * sizeof(float);
    const float weights[2] = {LoadFloat(memory_.WeightScales(free_, 0) + of_chunk),
                              LoadFloat(memory_.WeightScales(free_, factors - 1) + of_chunk)};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float token = LoadFloat(tokens + 8 * half * sizeof(float));
      scales[half][0] = __fmul_rn(token, weights[0]);
      scales[half][1] = __fmul_rn(token, weights[1]);
    }
  }
  __device__ static float LoadFloat(uint32_t from) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
    return value;
  }

  __device__ void AddBf16(float (&sums)[kSums]) {
    for (int step = 0; step < p_.chunks; ++step) {
      NextStage();
      Fence(sums);
      BeginMultiply();
      Multiply(sums, true);
      EndMultiply();
      if (step == 0) continue;
      WaitForProducts<1>();
      Free();
    }
    WaitForProducts<0>();
    Fence(sums);
    Free();
  }

  __device__ void Multiply(float (&sums)[kSums], bool add) const {
#pragma unroll
    for (int k = 0; k < kStepsPerChunk; ++k) {
      MultiplyAsync<Shape::kType, Shape::kRows>(sums, stage_a_ + k * kNextStep,
                                                stage_b_ + k * kNextStep, add || k > 0);
    }
  }

  // Waits for the next stage to multiply.
  __device__ void NextStage() {
    const int weights = Shape::kFourBit ? unpacked_.stage : next_.stage;
    stage_a_ =
        SwizzledMatrix(memory_.Inputs(next_.stage) + threadIdx.x / 128 * kPromptUnit * kChunk);
    stage_b_ = SwizzledMatrix(memory_.Weights(weights));
    barriers_.full[next_.stage].Wait(next_.phase);
    next_.Advance(p_.stages);
    if constexpr (Shape::kFourBit) {
      barriers_.unpacked[unpacked_.stage].Wait(unpacked_.phase);
      unpacked_.Advance(kUnpackedStages);
    }
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
    if constexpr (Shape::kFourBit) {
      if (lane == 0) barriers_.multiplied[free_unpacked_].Arrive();
      if (++free_unpacked_ == kUnpackedStages) free_unpacked_ = 0;
    }
  }

  const PromptParams& params_;
  const GroupedParams& p_;
  PromptBarriers& barriers_;
  const PromptMemory<Shape> memory_;
  uint32_t stage_a_ = 0, stage_b_ = 0;  // descriptors of the matrices that are being multiplied
  PipelineState next_, unpacked_;       // the stages to read next
  int free_ = 0, free_unpacked_ = 0;    // the stages to free next
};

template <typename Shape, typename Delay>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    PromptKernel(const __grid_constant__ PromptParams params) {
  extern __shared__ __align__(1024) uint8_t memory[];
  __shared__ PromptBarriers barriers;
  const PromptMemory<Shape> addresses(SharedAddress(memory), params.p.stages);
  if (threadIdx.x == 0) barriers.Init<Shape>(params.p.stages);
  __syncthreads();
  Gather<Shape>();
  if (threadIdx.x < Shape::kMathThreads) {
    TakeRegisters<Shape::kMathRegisters>();
    PromptGemm<Shape, Delay>(params, barriers, addresses).Run();
  } else {
    GiveRegisters<Shape::kLoadRegisters>();
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize - Shape::kMathWarps;
    if constexpr (Shape::kFourBit) {
      if (warp > 0) {
        PromptUnpacker<Shape, Delay>(params, barriers, addresses,
                                     memory + (addresses.extra - addresses.weights))
            .Run(warp - 1);
      }
    }
    if (threadIdx.x == Shape::kMathThreads) {
      PromptProducer<Shape, Delay>(params, barriers, addresses).Run();
    }
    // The other lanes wait for the producer first: otherwise the compiler may make it wait with
    // them.
    __syncwarp();
    AwaitPredecessor();
  }
  Gather<Shape>();
}

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_PROMPT_KERNEL_CUH_
