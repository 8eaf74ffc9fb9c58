// The kernel behind stream_linear.h.
//
// A CTA has tiles of kRows outputs, each for all tokens and with all of K in sequence: no sum is
// split. One thread copies: weights and inputs come in steps of kChunks times 128 bytes of K into a
// ring in shared memory, by the copy engine, straight from the plain matrices into the order that
// wgmma reads. It fills the ring with weights, which are constant, while the kernel before this one
// still runs, and adds the inputs when that one has ended. Groups of four warps multiply: weights
// are wgmma's 64-row side, so that few tokens waste nothing; a tile of 32 rows lets it read what
// lies behind, and drops those products.
//
// FP8 is summed as cuBLASLt does without fast accumulation: the tensor cores add 128 products,
// which keeps about 14 bits, and those sums are added in fp32.
#ifndef MILLRACE_KERNELS_GEMM_SM90_STREAM_KERNEL_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_STREAM_KERNEL_CUH_

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/sm90/async_copy.cuh"
#include "kernels/gemm/sm90/wgmma.cuh"
#include "kernels/launch.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

inline constexpr int kChunk = 128;  // bytes of K: a row of a swizzled matrix
inline constexpr int kMaxStages = 16;

struct StreamParams {
  CUtensorMap weight;  // boxes of kRows and kChunks chunks of [chunks][rows][kChunk bytes]
  CUtensorMap input;   // the same of kTokens tokens
  void* output;        // [tokens][output_stride], BF16 or fp32
  int64_t output_stride;
  const float* weight_scale;  // one, or null
  const float* input_scale;   // one, or null
  int rows;
  int tokens;  // 1 ... kTokens
  int tiles;   // of kRows rows
  int steps;   // of kChunks chunks
  int stages;  // of the ring: 1 ... kMaxStages
  bool fp32;   // the output's type
};

template <Type kElement, int kTileRows, int kTileTokens, int kStepChunks>
struct StreamShape {
  static constexpr Type kType = kElement;
  static constexpr int kRows = kTileRows;
  static constexpr int kTokens = kTileTokens;
  static constexpr int kChunks = kStepChunks;
  static constexpr int kMathThreads = 128;
  static constexpr int kThreads = kMathThreads + kWarpSize;
  static constexpr int kWeightBytes = kRows * kChunks * kChunk;  // of a stage
  static constexpr int kInputBytes = kTokens * kChunks * kChunk;
  static constexpr int kStageBytes = kWeightBytes + kInputBytes;
  // What wgmma reads behind the last tile's weights lies in the ring, of two stages at least.
  static_assert(kRows >= 64 || 2 * kInputBytes >= (64 - kRows) * kChunk);
};

struct StreamBarriers {
  Barrier full[kMaxStages];   // weights and inputs are there
  Barrier empty[kMaxStages];  // all warps have read them
};

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

// Does nothing; tests put delays in its place.
struct NoDelay {
  __device__ static void Wait() {}
};

// `Delay::Wait` is called before everything that others may wait for.
template <typename Shape, typename Delay>
class Stream {
 public:
  // `memory`: stages * kStageBytes, all the weights' stages before the inputs', so that wgmma finds
  // 64 rows behind the start of the last tile of 32 too.
  __device__ Stream(const StreamParams& params, StreamBarriers& barriers, uint32_t memory)
      : p_(params),
        barriers_(barriers),
        weights_(memory),
        inputs_(memory + params.stages * Shape::kWeightBytes) {}

  // By one thread.
  __device__ void Copy() {
    const int tiles = (p_.tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;
    const int total = tiles * p_.steps;
    const int ahead = min(p_.stages, total);
    for (int i = 0; i < ahead; ++i) CopyWeights(i, i);
    ReleaseDependents();
    WaitForPredecessor();
    for (int i = 0; i < ahead; ++i) CopyInputs(i, i);
    RingPlace place;
    for (int i = ahead; i < total; ++i, place.Advance(p_.stages)) {
      barriers_.empty[place.stage].Wait(place.parity);
      CopyWeights(i, place.stage);
      CopyInputs(i, place.stage);
    }
  }

  // By the warps that multiply.
  __device__ void Multiply() {
    AwaitPredecessor();
    for (int tile = blockIdx.x; tile < p_.tiles; tile += gridDim.x) {
      float sums[kSums] = {};
      if constexpr (Shape::kType == Type::kFp8) {
        AddFp8(sums);
      } else {
        AddBf16(sums);
      }
      Store(tile, sums);
    }
  }

 private:
  static constexpr int kSums = Shape::kTokens / 2;
  static constexpr int kStepsPerChunk = kChunk / 32;  // wgmma takes 32 bytes of K
  static constexpr uint64_t kNextWeights = Shape::kRows * kChunk >> 4;
  static constexpr uint64_t kNextInputs = Shape::kTokens * kChunk >> 4;

  __device__ void CopyWeights(int i, int stage) {
    Delay::Wait();
    const int tile = blockIdx.x + i / p_.steps * gridDim.x;
    barriers_.full[stage].ArriveAndExpect(Shape::kStageBytes);
    CopyBox(weights_ + stage * Shape::kWeightBytes, p_.weight, 0, tile * Shape::kRows,
            i % p_.steps * Shape::kChunks, barriers_.full[stage], EvictFirst());
  }

  __device__ void CopyInputs(int i, int stage) {
    Delay::Wait();
    CopyBox(inputs_ + stage * Shape::kInputBytes, p_.input, 0, 0, i % p_.steps * Shape::kChunks,
            barriers_.full[stage], EvictLast());
  }

  // The tensor cores' sums of one step: FP8 needs one a chunk.
  using Parts = float[Shape::kChunks][kSums];

  __device__ void AddFp8(float (&sums)[kSums]) {
    Parts even, odd;
    Begin(even);
    for (int step = 1; step < p_.steps; step += 2) {
      Begin(odd);
      End<1>(even, sums);
      if (step + 1 == p_.steps) {
        End<0>(odd, sums);
        return;
      }
      Begin(even);
      End<1>(odd, sums);
    }
    End<0>(even, sums);
  }

  // The products of the next step, asynchronously. Sums that do not wait for one another take
  // turns.
  __device__ void Begin(Parts& parts) {
    barriers_.full[next_.stage].Wait(next_.parity);
    const uint64_t a = Weights(next_.stage), b = Inputs(next_.stage);
    next_.Advance(p_.stages);
#pragma unroll
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk) Fence(parts[chunk]);
    BeginMultiply();
#pragma unroll
    for (int k = 0; k < kStepsPerChunk; ++k) {
#pragma unroll
      for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
        MultiplyAsync<Shape::kType, Shape::kTokens>(parts[chunk],
                                                    a + chunk * kNextWeights + k * kNextStep,
                                                    b + chunk * kNextInputs + k * kNextStep, k > 0);
      }
    }
    EndMultiply();
  }

  // Adds a step to the sums, when all but kPending are done, and frees its stage.
  template <int kPending>
  __device__ void End(Parts& parts, float (&sums)[kSums]) {
    WaitForProducts<kPending>();
#pragma unroll
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk) Fence(parts[chunk]);
    Free();
#pragma unroll
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i] += parts[chunk][i];
    }
  }

  __device__ void AddBf16(float (&sums)[kSums]) {
    for (int step = 0; step < p_.steps; ++step) {
      barriers_.full[next_.stage].Wait(next_.parity);
      const uint64_t a = Weights(next_.stage), b = Inputs(next_.stage);
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

  __device__ uint64_t Weights(int stage) const {
    return SwizzledMatrix(weights_ + stage * Shape::kWeightBytes);
  }
  __device__ uint64_t Inputs(int stage) const {
    return SwizzledMatrix(inputs_ + stage * Shape::kInputBytes);
  }

  // The oldest stage that is not free.
  __device__ void Free() {
    Delay::Wait();
    if (threadIdx.x % kWarpSize == 0) barriers_.empty[free_].Arrive();
    if (++free_ == p_.stages) free_ = 0;
  }

  __device__ void Store(int tile, const float (&sums)[kSums]) {
    const int row = threadIdx.x / kWarpSize * 16;  // the warp's first of the tile
    const int first_row = tile * Shape::kRows + row;
    if (row >= Shape::kRows || first_row >= p_.rows) return;  // rows are a multiple of 16
    float scale = 1;
    if (p_.weight_scale != nullptr) scale *= *p_.weight_scale;
    if (p_.input_scale != nullptr) scale *= *p_.input_scale;
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
      const int token = 2 * i;  // of eight
      if (token >= p_.tokens) break;
      const float values[4] = {sums[i] * scale, sums[i + 1] * scale, sums[i + 2] * scale,
                               sums[i + 3] * scale};
      if (p_.fp32) {
        StoreFp32(first_row, token, values);
      } else {
        StoreBf16(first_row, token, values);
      }
    }
  }

  __device__ void StoreFp32(int first_row, int first_token, const float (&values)[4]) {
    const int lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = first_token + lane % 4 * 2 + i % 2;
      const int row = first_row + lane / 4 + i / 2 * 8;
      if (token < p_.tokens) {
        static_cast<float*>(p_.output)[token * p_.output_stride + row] = values[i];
      }
    }
  }

  // Turned round within the warp, so that a thread has two rows of one token.
  __device__ void StoreBf16(int first_row, int first_token, const float (&values)[4]) {
    const int lane = threadIdx.x % kWarpSize;
    const int token = first_token + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * half], values[2 * half + 1]);
      uint32_t rows;
      asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
          : "=r"(rows)
          : "r"(*reinterpret_cast<const uint32_t*>(&pair)));
      if (token < p_.tokens) {
        Bf16* const to = static_cast<Bf16*>(p_.output) + token * p_.output_stride + first_row;
        *reinterpret_cast<uint32_t*>(to + 8 * half + lane % 4 * 2) = rows;
      }
    }
  }

  const StreamParams& p_;
  StreamBarriers& barriers_;
  const uint32_t weights_, inputs_;  // the ring
  RingPlace next_;                   // of the warps that multiply: the stage to read next
  int free_ = 0;                     // and the one to free next
};

template <typename Shape, typename Delay>
__global__ void __launch_bounds__(Shape::kThreads, 2)
    StreamKernel(const __grid_constant__ StreamParams params) {
  extern __shared__ __align__(1024) uint8_t memory[];
  __shared__ StreamBarriers barriers;
  if (threadIdx.x == 0) {
    for (int i = 0; i < params.stages; ++i) {
      barriers.full[i].Init(1);
      barriers.empty[i].Init(Shape::kMathThreads / kWarpSize);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  Stream<Shape, Delay> stream(params, barriers, SharedAddress(memory));
  if (threadIdx.x < Shape::kMathThreads) {
    stream.Multiply();
  } else if (threadIdx.x == Shape::kMathThreads) {
    stream.Copy();
  } else {
    AwaitPredecessor();
  }
}

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_STREAM_KERNEL_CUH_
