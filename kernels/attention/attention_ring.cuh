// A ring of stages in shared memory between warps that copy and warps that compute, by mbarriers.
#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_RING_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_RING_CUH_

#include <cstdint>

#include "kernels/attention/attention_tile.cuh"
#include "kernels/device_util.cuh"

namespace millrace::kernels::attention {

inline constexpr int kMaxStages = 8;

// By address in shared memory.
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

// The address of the CTA's dynamic shared memory, as a number that the compiler keeps instead of
// computing it again at each use.
__device__ inline uint32_t SharedBase(const void* memory) {
  uint32_t base;
  asm volatile("mov.u32 %0, %1;" : "=r"(base) : "r"(SharedAddress(memory)));
  return base;
}

// The barriers of a ring, in shared memory: of each stage, whether the lanes' copies have arrived
// and whether the warps have read them.
inline constexpr int kRingBytes = 2 * kMaxStages * 8;
__device__ inline uint32_t FullBarrier(uint32_t ring, int stage) { return ring + 8 * stage; }
__device__ inline uint32_t EmptyBarrier(uint32_t ring, int stage) {
  return ring + 8 * (kMaxStages + stage);
}

// By one thread, before the others wait.
__device__ inline void InitRing(uint32_t ring, int stages, int copying_warps, int computing_warps) {
  for (int i = 0; i < stages; ++i) {
    MbarrierInit(FullBarrier(ring, i), copying_warps * kWarpSize);
    MbarrierInit(EmptyBarrier(ring, i), computing_warps);
  }
}

// One warp's place in the ring: each goes round on its own.
class RingCursor {
 public:
  __device__ RingCursor(uint32_t ring, int stages) : ring_(ring), stages_(stages) {}

  __device__ int stage() const { return stage_; }

  __device__ void Advance() {
    if (++stage_ == stages_) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

  // A copying warp: until the stage may be written; then, when its copies have been started, or
  // when it has been written.
  __device__ void WaitEmpty() { MbarrierWait(EmptyBarrier(ring_, stage_), parity_ ^ 1); }
  __device__ void ArriveWithCopies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(FullBarrier(ring_, stage_))
                 : "memory");
    Advance();
  }

  __device__ void Arrive() {
    MbarrierArrive(FullBarrier(ring_, stage_));
    Advance();
  }

  // A computing warp: until the stage may be read; then, when all lanes have read it.
  __device__ void WaitFull() { MbarrierWait(FullBarrier(ring_, stage_), parity_); }
  __device__ void Release() {
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) MbarrierArrive(EmptyBarrier(ring_, stage_));
    Advance();
  }

 private:
  const uint32_t ring_;
  const int stages_;
  int stage_ = 0;
  uint32_t parity_ = 0;
};

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_RING_CUH_
