// A multi-stage pipeline in shared memory between copying (producer) and computing (consumer)
// warps, synchronized by mbarriers.
#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_PIPELINE_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_PIPELINE_CUH_

#include <cstdint>

#include "kernels/attention/attention_tile.cuh"
#include "kernels/device_util.cuh"

namespace millrace::kernels::attention {

inline constexpr int kMaxStages = 8;

// The mbarrier functions take shared-memory addresses.
__device__ inline void MbarrierInit(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ inline void MbarrierArrive(uint32_t barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(barrier)
               : "memory");
}

__device__ inline void MbarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait:\n"
#if __CUDA_ARCH__ >= 900
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
#else
      "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
#endif
      "@!done bra wait;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Returns the address of the CTA's dynamic shared memory as a value that the compiler keeps in a
// register instead of recomputing it at each use.
__device__ inline uint32_t SharedBase(const void* memory) {
  uint32_t base;
  asm volatile("mov.u32 %0, %1;" : "=r"(base) : "r"(SharedAddress(memory)));
  return base;
}

// Bytes of a pipeline's barriers in shared memory. Each stage has a full barrier (the copies have
// arrived) and an empty barrier (the consumer warps have read it).
inline constexpr int kBarrierBytes = 2 * kMaxStages * 8;
__device__ inline uint32_t FullBarrier(uint32_t barriers, int stage) {
  return barriers + 8 * stage;
}
__device__ inline uint32_t EmptyBarrier(uint32_t barriers, int stage) {
  return barriers + 8 * (kMaxStages + stage);
}

// Initializes a pipeline's barriers. Called by one thread before any other thread waits on them.
__device__ inline void InitPipeline(uint32_t barriers, int stages, int copying_warps,
                                    int computing_warps) {
  for (int i = 0; i < stages; ++i) {
    MbarrierInit(FullBarrier(barriers, i), copying_warps * kWarpSize);
    MbarrierInit(EmptyBarrier(barriers, i), computing_warps);
  }
}

// Pipeline state (stage, phase) of one warp. Each warp advances its own.
class PipelineState {
 public:
  __device__ PipelineState(uint32_t barriers, int stages) : barriers_(barriers), stages_(stages) {}

  __device__ int stage() const { return stage_; }

  __device__ void Advance() {
    if (++stage_ == stages_) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }

  // For a copying warp: waits until the stage may be overwritten.
  __device__ void WaitEmpty() { MbarrierWait(EmptyBarrier(barriers_, stage_), phase_ ^ 1); }
  // Signals the full barrier once this thread's cp.async copies have arrived, and advances.
  __device__ void ArriveWithCopies() {
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(FullBarrier(barriers_, stage_))
        : "memory");
    Advance();
  }

  // Signals the full barrier after ordinary stores, and advances.
  __device__ void Arrive() {
    MbarrierArrive(FullBarrier(barriers_, stage_));
    Advance();
  }

  // For a computing warp: waits until the stage may be read.
  __device__ void WaitFull() { MbarrierWait(FullBarrier(barriers_, stage_), phase_); }
  // Signals the empty barrier when all lanes have read the stage, and advances.
  __device__ void Release() {
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) MbarrierArrive(EmptyBarrier(barriers_, stage_));
    Advance();
  }

 private:
  const uint32_t barriers_;
  const int stages_;
  int stage_ = 0;
  uint32_t phase_ = 0;
};

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_PIPELINE_CUH_
