// The pipeline in shared memory between the thread of a CTA that copies (the producer) and the
// warps that multiply (the consumers), and the producer's loop. skinny_kernel.cuh, wide_kernel.cuh
// and block_kernel.cuh share both.
//
// A tile is what a CTA computes at a time, with all of K in sequence: no sum is split. A step is
// the piece of K that one stage holds. Which CTA takes which tile changes no bit of the result. The
// first tiles are fixed, since their weights are copied before the predecessor has ended and the
// tile counter may be touched. The other tiles are drawn from the counter one after the other: the
// memory serves some SMs 15 % faster than others (measured on an H200), and those take more.
#ifndef MILLRACE_KERNELS_GEMM_SM90_PIPELINE_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_PIPELINE_CUH_

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/sm90/async_copy.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels::sm90 {

inline constexpr int kMaxStages = 16;
inline constexpr int kNoTile = -1;

struct PipelineBarriers {
  Barrier full[kMaxStages];   // completes when a stage's weights and inputs have arrived
  Barrier empty[kMaxStages];  // completes when all consumer warps have read a stage
  int tile[kMaxStages];       // the tile that a stage belongs to; kNoTile ends the consumers' loop

  // Runs on one thread. `consumers`: the warps that read a stage.
  __device__ void Init(int stages, int consumers) {
    for (int i = 0; i < stages; ++i) {
      full[i].Init(1);
      empty[i].Init(consumers);
    }
    FenceBarrierInit();
  }
};

// The producer's warp initializes the barriers and begins to copy at once: it arrives, the others
// wait.
template <int kThreads>
__device__ void ArriveReady() {
  __syncwarp();
  asm volatile("bar.arrive 2, %0;" ::"n"(kThreads) : "memory");
}
template <int kThreads>
__device__ void WaitReady() {
  asm volatile("bar.sync 2, %0;" ::"n"(kThreads) : "memory");
}

// A stage, and the parity of its barriers' phase.
struct PipelineState {
  int stage = 0;
  uint32_t phase = 0;

  __device__ void Advance(int stages) {
    if (++stage < stages) return;
    stage = 0;
    phase ^= 1;
  }
};

// The tiles of one CTA, or of one cluster, whose CTAs take the same ones.
struct TileSchedule {
  int first;               // its first fixed tile
  int next;                // CTAs (clusters): the distance between its fixed tiles
  int fixed;               // tiles that each has without drawing; enough to fill the pipeline
  int tiles;               // of the product
  int steps;               // of a tile
  int stages;              // of the pipeline
  unsigned* tile_counter;  // where there are more than fixed * next tiles
};

// A step of a fixed tile.
struct TileCursor {
  int tile, step;
  int left;  // fixed tiles, this one included

  __device__ bool IsValid(int tiles) const { return left > 0 && tile < tiles; }
  __device__ void Advance(int steps, int next) {
    if (++step < steps) return;
    step = 0;
    tile += next;
    --left;
  }
};

// Runs the producer's loop on one thread: prefetches weights into the whole pipeline before
// griddepcontrol.wait, adds their inputs after it, and goes on stage by stage as consumers free
// them. `Gemm` has
//   PaceWeights(i)                   called before the prefetch of stage i
//   CopyWeights(tile, step, stage)   announces all of the stage's bytes, and copies the weights
//   PrefetchInputMap()
//   CopyInputs(tile, step, stage)
template <typename Gemm>
__device__ void Produce(const Gemm& gemm, const TileSchedule& schedule,
                        PipelineBarriers& barriers) {
  TileCursor weights{.tile = schedule.first, .step = 0, .left = schedule.fixed}, inputs = weights;
  int ahead = 0;
  for (; ahead < schedule.stages && weights.IsValid(schedule.tiles); ++ahead) {
    gemm.PaceWeights(ahead);
    gemm.CopyWeights(weights.tile, weights.step, ahead);
    weights.Advance(schedule.steps, schedule.next);
  }
  ReleaseDependents();
  gemm.PrefetchInputMap();
  WaitForPredecessor();
  PipelineState state = {.stage = 0, .phase = 1};  // in their first phase stages are empty
  for (int i = 0; i < ahead; ++i, state.Advance(schedule.stages)) {
    gemm.CopyInputs(inputs.tile, inputs.step, i);
    inputs.Advance(schedule.steps, schedule.next);
  }
  const auto copy = [&](int tile, int step) {
    barriers.empty[state.stage].Wait(state.phase);
    gemm.CopyWeights(tile, step, state.stage);
    gemm.CopyInputs(tile, step, state.stage);
    state.Advance(schedule.stages);
  };
  while (weights.IsValid(schedule.tiles)) {
    copy(weights.tile, weights.step);
    weights.Advance(schedule.steps, schedule.next);
  }
  // Every CTA draws until nothing is left, once too often, so the number of draws is known: the
  // last one sets the counter to 0 again. The next tile is drawn shortly before it is needed.
  const int fixed = schedule.fixed * schedule.next;
  if (const int drawn = schedule.tiles - fixed; drawn > 0) {
    const auto draw = [&] {
      return static_cast<int>(atomicInc(schedule.tile_counter, drawn + schedule.next - 1));
    };
    for (int next = draw(); next < drawn;) {
      const int tile = fixed + next;
      for (int step = 0; step < schedule.steps; ++step) {
        if (step == max(schedule.steps - 2, 0)) next = draw();
        copy(tile, step);
      }
    }
  }
  barriers.empty[state.stage].Wait(state.phase);
  barriers.tile[state.stage] = kNoTile;
  barriers.full[state.stage].Arrive();
}

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_PIPELINE_CUH_
