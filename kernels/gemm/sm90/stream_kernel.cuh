// The kernel behind stream_linear.h.
//
// A CTA takes tiles of kRows outputs, each for all tokens and with all of K in sequence: no sum is
// split. One thread copies: weights and inputs come in steps of kChunks times 128 bytes of K into a
// ring in shared memory, by the copy engine, straight from the plain matrices into the order that
// wgmma reads. It fills the ring with weights, which are constant, while the kernel before this one
// still runs, and adds the inputs when that one has ended. Four warps multiply: weights are wgmma's
// 64-row side, so that few tokens waste nothing.
//
// Which CTA takes which tile changes no bit. The first ones are fixed, since they are copied before
// anything may be drawn; the others are drawn from a counter, one after the other: the memory
// serves some SMs 15 % faster than others (measured on an H200), and those take more.
//
// FP8 is summed as cuBLASLt does without fast accumulation: the tensor cores add 128 products,
// which keeps about 14 bits, and those sums are added in fp32. So the chunks of K may be multiplied
// in any order. wgmma takes its 64 rows from shared memory in 32 cycles, however few columns it
// has; a tile of 32 rows would waste half of that. There the 64 rows are two chunks of the tile's
// rows and the columns two chunks of the tokens: of the products those of a chunk with itself are
// used, and the warps, which hold one chunk each, hand them round to be added in order. BF16, whose
// sum stays in the tensor cores, lets wgmma read what lies behind a tile of 32 rows, and drops
// those products.
#ifndef MILLRACE_KERNELS_GEMM_SM90_STREAM_KERNEL_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_STREAM_KERNEL_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/delay.cuh"
#include "kernels/device_util.cuh"
#include "kernels/gemm/sm90/async_copy.cuh"
#include "kernels/gemm/sm90/made_input.cuh"
#include "kernels/gemm/sm90/stream_output.cuh"
#include "kernels/gemm/sm90/stream_shape.cuh"
#include "kernels/gemm/sm90/wgmma.cuh"
#include "kernels/launch.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

// `Delay::Wait` is called before everything that others may wait for.
template <typename Shape, typename Delay>
class Stream {
 public:
  // `memory`: all the weights' stages before the inputs' (or, if they are made, those of `steps`),
  // so that wgmma finds 64 rows behind the start of the last tile of 32 too; then kExchangeBytes,
  // and stages * kScaleBytes.
  __device__ Stream(const StreamParams& params, StreamBarriers& barriers, uint8_t* memory)
      : p_(params),
        barriers_(barriers),
        weights_(SharedAddress(memory)),
        made_(memory + params.stages * Shape::kWeightBytes),
        inputs_(SharedAddress(made_)),
        exchange_(reinterpret_cast<float*>(made_ + (Shape::kMade ? params.steps : params.stages) *
                                                       Shape::kInputBytes)),
        scales_(exchange_ + Shape::kExchangeBytes / sizeof(float)) {}

  // By one thread.
  __device__ void Copy() {
    StreamSource weights{.tile = static_cast<int>(blockIdx.x), .step = 0, .left = p_.fixed};
    StreamSource inputs = weights;
    int ahead = 0;
    for (; ahead < p_.stages && IsThere(weights); ++ahead) {
      if constexpr (Shape::kMade) {
        if (ahead >= Shape::kEarlyUnderWay) {
          barriers_.full[ahead - Shape::kEarlyUnderWay].Wait(0);
        }
      }
      CopyWeights(weights, ahead);
    }
    ReleaseDependents();
    if constexpr (!Shape::kMade) PrefetchMap(p_.input);
    WaitForPredecessor();
    RingPlace place = {.stage = 0, .parity = 1};  // in their first turn stages are empty
    for (int i = 0; i < ahead; ++i, place.Advance(p_.stages)) {
      if constexpr (!Shape::kMade) CopyInputs(inputs, i);
    }
    while (IsThere(weights)) CopyStep(weights, place);
    const int drawn = p_.tiles - p_.fixed * gridDim.x;
    if (drawn > 0) CopyDrawn(drawn, place);
    barriers_.empty[place.stage].Wait(place.parity);
    barriers_.tile[place.stage] = kNoTile;
    barriers_.full[place.stage].Arrive();
  }

  // By the warps that multiply.
  __device__ void Multiply() {
    if constexpr (Shape::kMade) {
      __shared__ typename MadeInput<Shape::kType>::Shared shared;
      MadeInput<Shape::kType> input(p_.made_of, p_.made);
      AwaitPredecessor();
      constexpr int kStepColumns =
          Shape::kChunks * kChunk / (Shape::kType == Type::kFp8 ? 1 : sizeof(Bf16));
      input.Make(made_, Shape::kTokens * kChunk, p_.steps * kStepColumns, shared);
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
      StreamWriter<Shape>(p_).Write(tile, sums);
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

  __device__ bool IsThere(const StreamSource& source) const {
    return source.left > 0 && source.tile < p_.tiles;
  }

  __device__ void CopyWeights(StreamSource& from, int stage) {
    Delay::Wait();
    barriers_.tile[stage] = from.tile;
    Barrier& full = barriers_.full[stage];
    if constexpr (Shape::kBlocks) {
      full.ArriveAndExpect(Shape::kStageBytes + Shape::kWeightScaleBytes +
                           InputScaleBytes(from.step));
      const BlockScales& scales = p_.block_scales;
      CopyBytes(SharedAddress(ScalesOf(stage)),
                scales.weight + from.tile * Shape::kRows / 128 * scales.weight_stride +
                    from.step * Shape::kChunks,
                Shape::kWeightScaleBytes, full);
    } else {
      full.ArriveAndExpect(Shape::kStageBytes);
    }
    CopyBox(weights_ + stage * Shape::kWeightBytes, p_.weight, 0, from.tile * Shape::kRows,
            from.step * Shape::kChunks, full, EvictFirst());
    from.Advance(p_.steps, gridDim.x);
  }

  __device__ void CopyInputs(StreamSource& from, int stage) {
    Delay::Wait();
    CopyBox(inputs_ + stage * Shape::kInputBytes, p_.input, 0, 0, from.step * Shape::kChunks,
            barriers_.full[stage], EvictLast());
    if constexpr (Shape::kBlocks) {
      const BlockScales& scales = p_.block_scales;
      CopyBytes(SharedAddress(ScalesOf(stage)) + Shape::kWeightScaleBytes,
                scales.input + from.step * Shape::kChunks * scales.padded_tokens,
                InputScaleBytes(from.step), barriers_.full[stage]);
    }
    from.Advance(p_.steps, gridDim.x);
  }

  // The weights' scales and then the inputs', chunk by chunk.
  __device__ float* ScalesOf(int stage) const {
    return scales_ + stage * (Shape::kScaleBytes / static_cast<int>(sizeof(float)));
  }
  // Chunks of a step that there are.
  __device__ int ChunksOf(int step) const {
    return min(Shape::kChunks, p_.block_scales.chunks - step * Shape::kChunks);
  }
  __device__ uint32_t InputScaleBytes(int step) const {
    return ChunksOf(step) * p_.block_scales.padded_tokens * sizeof(float);
  }

  __device__ void CopyStep(StreamSource& from, RingPlace& place) {
    barriers_.empty[place.stage].Wait(place.parity);
    StreamSource inputs = from;
    CopyWeights(from, place.stage);
    if constexpr (!Shape::kMade) CopyInputs(inputs, place.stage);
    place.Advance(p_.stages);
  }

  // Every CTA draws until nothing is left, once too often, so the number of draws is known: with
  // the last one the counter is 0 again. The next tile is drawn shortly before it is needed.
  __device__ void CopyDrawn(int drawn, RingPlace& place) {
    const auto draw = [&] { return static_cast<int>(atomicInc(p_.ticket, drawn + gridDim.x - 1)); };
    for (int ticket = draw(); ticket < drawn;) {
      const int first = p_.fixed * gridDim.x + ticket;
      for (StreamSource from{.tile = first, .step = 0, .left = 1}; from.left > 0;) {
        if (from.step == max(p_.steps - 2, 0)) ticket = draw();
        CopyStep(from, place);
      }
    }
  }

  // The tensor cores' sums of one step.
  using Parts = float[kSets][Shape::kColumns / 2];

  // Calls add(tile) for each tile, whose number lies beside its first step. Between two tiles no
  // product is under way: the compiler wants to know how many there are, and this loop's end is
  // read from memory.
  template <typename Add>
  __device__ void ForEachTile(const Add& add) {
    for (;;) {
      barriers_.full[next_.stage].Wait(next_.parity);
      const int tile = barriers_.tile[next_.stage];
      if (tile == kNoTile) return;
      add(tile);
    }
  }

  // Two steps are under way.
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

  // The products of the next step, asynchronously. Sums that do not wait for one another take
  // turns.
  __device__ void BeginStep(int step, Parts& parts) {
    barriers_.full[next_.stage].Wait(next_.parity);
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

  // Block scales of a step: of its chunks and the two tokens that a thread adds sums of.
  using Scales = float[Shape::kChunks][2];

  // Those of the oldest stage that is not free.
  __device__ void ReadScales(int step, Scales& scales) const {
    const float* const of_weights = ScalesOf(free_);
    const int part = threadIdx.x / kWarpSize / kRowWarps;
    const float* const of_tokens =
        of_weights + Shape::kChunks + part * kOwnSums / 4 * 8 + threadIdx.x % 4 * 2;
    const int chunks = ChunksOf(step);
#pragma unroll
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // a chunk that is not there has no scales, and sums of 0
        scales[chunk][i] =
            chunk < chunks
                ? of_tokens[chunk * p_.block_scales.padded_tokens + (kOwnSums == 2 ? part : i)] *
                      of_weights[chunk]
                : 0;
      }
    }
  }

  // Warp w holds the sums of chunk w / kRowWarps of a set, for rows 16 * (w % kRowWarps) and on. It
  // adds kOwnSums of each lane's sums, of all chunks in order. Two sets of the exchanged sums are
  // used in turn: whoever writes one has passed the barrier after its reading.
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
      barriers_.full[next_.stage].Wait(next_.parity);
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
  // Those of the next stage.
  __device__ uint32_t Inputs(int step) const {
    return SwizzledMatrix(inputs_ + (Shape::kMade ? step : next_.stage) * Shape::kInputBytes);
  }

  // The oldest stage that is not free.
  __device__ void Free() {
    Delay::Wait();
    if (threadIdx.x % kWarpSize == 0) barriers_.empty[free_].Arrive();
    if (++free_ == p_.stages) free_ = 0;
  }

  const StreamParams& p_;
  StreamBarriers& barriers_;
  const uint32_t weights_;  // the ring
  uint8_t* const made_;     // behind the weights: inputs
  const uint32_t inputs_;
  float* const exchange_;
  float* const scales_;
  // Of the warps that multiply:
  RingPlace next_;  // the stage to read next
  int free_ = 0;    // and the one to free next
  int turn_ = 0;    // of the exchange
};

template <typename Shape, typename Delay>
__global__ void __launch_bounds__(Shape::kThreads, 2)
    StreamKernel(const __grid_constant__ StreamParams params) {
  extern __shared__ __align__(1024) uint8_t memory[];
  __shared__ StreamBarriers barriers;
  Stream<Shape, Delay> stream(params, barriers, memory);
  if (threadIdx.x < Shape::kMathThreads) {
    WaitReady<Shape::kThreads>();
    stream.Multiply();
    return;
  }
  const bool copies = threadIdx.x == Shape::kMathThreads;
  if (copies) barriers.Init(params.stages, Shape::kMathThreads / kWarpSize);
  ArriveReady<Shape::kThreads>();
  if (copies) stream.Copy();
  // The others wait for the thread that copies first: else the compiler may have it wait with them.
  __syncwarp();
  AwaitPredecessor();
}

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_STREAM_KERNEL_CUH_
