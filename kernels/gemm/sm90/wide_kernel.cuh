// The kernel behind wide_linear.h: stream_kernel.cuh's way of copying, for more tokens.
//
// A CTA has tiles of kRows outputs, each for kTokens tokens and with all of K in sequence: no sum
// is split. One thread copies stages of kChunks times 128 bytes of K into a ring in shared memory.
// It fills the ring with weights, which are constant, while the kernel before this one still runs,
// and adds the inputs when that one has ended. Groups of four warps multiply: each has at most 64
// rows, wgmma's larger side, and some of the tokens. Where outputs fill half of the SMs, CTAs of a
// cluster have the same outputs for different tokens, and each copies a part of the weights for all
// of them. Tiles are drawn as stream_kernel.cuh's, but for those of clusters, which are all fixed.
//
// FP8 is summed as cuBLASLt does without fast accumulation: the tensor cores add 128 products,
// which keeps about 14 bits, and those sums are added in fp32.
#ifndef MILLRACE_KERNELS_GEMM_SM90_WIDE_KERNEL_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_WIDE_KERNEL_CUH_

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/sm90/async_copy.cuh"
#include "kernels/gemm/sm90/stream_kernel.cuh"
#include "kernels/gemm/sm90/wgmma.cuh"
#include "kernels/gemm/sm90/wide_output.cuh"
#include "kernels/launch.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

struct WideParams {
  CUtensorMap weight;  // boxes of kBoxRows rows and kBoxChunks chunks
  CUtensorMap input;   // of part_tokens tokens and kChunks chunks
  WideOutput output;
  const float* weight_scale;  // one, or null
  const float* input_scale;   // one, or null
  unsigned* ticket;           // the next tile to be drawn; 0 between launches
  int rows;
  int part_tokens;  // of a cluster's CTA: a multiple of 8, at most kTokens
  int tiles;        // of kRows rows
  int fixed;        // tiles that each cluster has without drawing: enough to fill the ring
  int pairs;        // of chunks; FP8's sums of two take turns
  int stages;       // of the ring: 2 ... kMaxStages
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
  // What a CTA of a cluster copies: some of a stage's chunks, or some rows of its only one.
  static constexpr int kBoxChunks = std::max(kChunks / kCluster, 1);
  static constexpr int kBoxRows = kRows * kChunks / kCluster / kBoxChunks;
  static_assert(kBoxChunks * kBoxRows * kCluster == kChunks * kRows && kBoxRows % 8 == 0);
  static constexpr int kRowGroups = CeilDiv(kRows, 64);
  static constexpr int kMathWarps = 4 * kRowGroups * (kTokens / kGroupTokens);
  static constexpr int kMathThreads = kMathWarps * kWarpSize;
  // So many sums need registers of the group that copies.
  static constexpr bool kManySums = kType == Type::kFp8 && kGroupTokens == 128 && kMathWarps == 8;
  static constexpr int kThreads = kMathThreads + (kManySums ? 4 : 1) * kWarpSize;
  static constexpr int kWeightBytes = kRows * kChunks * kChunk;  // of a stage
  static constexpr int kInputBytes = kTokens * kChunks * kChunk;
  static constexpr int kStageBytes = kWeightBytes + kInputBytes;
  // What wgmma reads behind the last tile's weights lies in the ring, of two stages at least.
  static_assert(kRows % 64 == 0 || 2 * kInputBytes >= (64 - kRows % 64) * kChunk);
};

// `Delay::Wait` is called before everything that others may wait for.
template <typename Shape, typename Delay>
class Wide {
 public:
  using Writer = OutputWriter<Shape::kGroupTokens>;

  // `memory`: stages * kStageBytes, all the weights' stages before the inputs', so that wgmma finds
  // 64 rows behind the start of fewer too. `staging`: kBytes of a writer for a warp.
  __device__ Wide(const WideParams& params, StreamBarriers& barriers, uint32_t memory,
                  uint32_t staging)
      : p_(params),
        barriers_(barriers),
        weights_(memory),
        inputs_(memory + params.stages * Shape::kWeightBytes),
        staging_(staging) {}

  // By one thread.
  __device__ void Copy() {
    StreamSource weights{.tile = FirstTile(), .step = 0, .left = p_.fixed}, inputs = weights;
    int ahead = 0;
    for (; ahead < p_.stages && IsThere(weights); ++ahead) CopyWeights(weights, ahead);
    ReleaseDependents();
    PrefetchMap(p_.input);
    WaitForPredecessor();
    RingPlace place = {.stage = 0, .parity = 1};  // in their first turn stages are empty
    for (int i = 0; i < ahead; ++i, place.Advance(p_.stages)) CopyInputs(inputs, i);
    while (IsThere(weights)) CopyStage(weights, place);
    const int drawn = p_.tiles - p_.fixed * Clusters();
    if (drawn > 0) CopyDrawn(drawn, place);
    barriers_.empty[place.stage].Wait(place.parity);
    barriers_.tile[place.stage] = kNoTile;
    barriers_.full[place.stage].Arrive();
  }

  // By the warps that multiply.
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
      barriers_.full[next_.stage].Wait(next_.parity);
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

  // Which of the cluster's CTAs this is.
  __device__ static int Part() { return blockIdx.x % Shape::kCluster; }
  __device__ static int FirstTile() { return blockIdx.x / Shape::kCluster; }
  __device__ static int Clusters() { return gridDim.x / Shape::kCluster; }

  // Stages of a tile.
  __device__ int Steps() const { return p_.pairs * (2 / Shape::kChunks); }

  __device__ bool IsThere(const StreamSource& source) const {
    return source.left > 0 && source.tile < p_.tiles;
  }

  __device__ void CopyWeights(StreamSource& from, int stage) {
    Delay::Wait();
    Barrier& full = barriers_.full[stage];
    int row = from.tile * Shape::kRows, chunk = from.step * Shape::kChunks;
    (Shape::kChunks == 1 ? row : chunk) +=
        Part() * (Shape::kChunks == 1 ? Shape::kBoxRows : Shape::kBoxChunks);
    const uint32_t to = weights_ + stage * Shape::kWeightBytes +
                        Part() * Shape::kBoxRows * Shape::kBoxChunks * kChunk;
    barriers_.tile[stage] = from.tile;
    full.ArriveAndExpect(Shape::kWeightBytes + Shape::kChunks * p_.part_tokens * kChunk);
    if constexpr (Shape::kCluster == 1) {
      CopyBox(to, p_.weight, 0, row, chunk, full, EvictFirst());
    } else {
      CopyBoxToCluster(to, p_.weight, 0, row, chunk, full, EvictFirst(),
                       (1 << Shape::kCluster) - 1);
    }
    from.Advance(Steps(), Clusters());
  }

  __device__ void CopyInputs(StreamSource& from, int stage) {
    Delay::Wait();
    CopyBox(inputs_ + stage * Shape::kInputBytes, p_.input, 0, Part() * p_.part_tokens,
            from.step * Shape::kChunks, barriers_.full[stage], EvictLast());
    from.Advance(Steps(), Clusters());
  }

  __device__ void CopyStage(StreamSource& from, RingPlace& place) {
    barriers_.empty[place.stage].Wait(place.parity);
    StreamSource inputs = from;
    CopyWeights(from, place.stage);
    CopyInputs(inputs, place.stage);
    place.Advance(p_.stages);
  }

  // As stream_kernel.cuh's.
  __device__ void CopyDrawn(int drawn, RingPlace& place) {
    const auto draw = [&] { return static_cast<int>(atomicInc(p_.ticket, drawn + gridDim.x - 1)); };
    for (int ticket = draw(); ticket < drawn;) {
      const int first = p_.fixed * Clusters() + ticket;
      for (StreamSource from{.tile = first, .step = 0, .left = 1}; from.left > 0;) {
        if (from.step == max(Steps() - 2, 0)) ticket = draw();
        CopyStage(from, place);
      }
    }
  }

  // Sums of a chunk and of the one before take turns in the tensor cores.
  __device__ void AddFp8(float (&sums)[kSums]) {
    constexpr int kOdd = Shape::kChunks - 1;  // the odd chunk's place in its stage
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
    // Nobody comes here, but ptxas multiplies asynchronously only where every way out waits.
    End<0>(even, sums);
  }

  // The sum of a chunk's products, asynchronously.
  __device__ void Begin(int chunk, float (&part)[kSums]) {
    Fence(part);
    BeginMultiply();
    MultiplyChunk(chunk, part, false);
    EndMultiply();
  }

  // Adds it, when all but kPending are done.
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
    barriers_.full[next_.stage].Wait(next_.parity);
    next_.Advance(p_.stages);
  }

  // The oldest stage that is not free.
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
  StreamBarriers& barriers_;
  const uint32_t weights_, inputs_;  // the ring
  const uint32_t staging_;
  uint32_t a_, b_;              // where this group's matrices lie in the ring's first stage
  uint32_t stage_a_, stage_b_;  // and those that are being multiplied, as wgmma is told
  RingPlace next_;              // of the warps that multiply: the stage to read next
  int free_ = 0;                // and the one to free next
};

// Something in shared memory, whose address the compiler does not work out again for each use.
template <typename T>
__device__ T& KnownOnce(T& value) {
  const uint32_t address = __shfl_sync(kFullWarp, SharedAddress(&value), 0);
  return *static_cast<T*>(__cvta_shared_to_generic(address));
}

// A group's share of registers; by all of its warps.
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

// All CTAs of a cluster: none sends to one that is not ready, nor to one that has left.
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
  __shared__ StreamBarriers shared_barriers;
  __shared__ __align__(16) uint8_t staging[Shape::kMathWarps * Wide<Shape, Delay>::Writer::kBytes];
  StreamBarriers& barriers = KnownOnce(shared_barriers);
  Wide<Shape, Delay> stream(params, barriers, SharedAddress(&KnownOnce(memory[0])),
                            SharedAddress(staging));
  constexpr int kReadyThreads = Shape::kMathThreads + kWarpSize;
  if (threadIdx.x < Shape::kMathThreads) {
    WaitReady<kReadyThreads>();
    Gather<Shape>();
    if constexpr (Shape::kManySums) TakeRegisters<232>();
    stream.Multiply();
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
    if (threadIdx.x == Shape::kMathThreads) stream.Copy();
    // The others wait for the thread that copies first: else the compiler may have it wait with
    // them.
    __syncwarp();
    AwaitPredecessor();
  }
  Gather<Shape>();
}

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_WIDE_KERNEL_CUH_
