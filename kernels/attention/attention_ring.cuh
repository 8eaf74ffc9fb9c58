// A ring of stages in shared memory between warps that copy and warps that compute, by mbarriers.
#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_RING_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_RING_CUH_

#include <cstdint>

#include "kernels/attention/attention_tile.cuh"
#include "kernels/device_util.cuh"

namespace millrace::kernels::attention {

inline constexpr int kMaxStages = 8;

struct RingBarriers {
  uint64_t full[kMaxStages];   // the lanes' copies have arrived
  uint64_t empty[kMaxStages];  // the warps have read

  // By one thread, before the others wait.
  __device__ void Init(int stages, int copying_warps, int computing_warps) {
    for (int i = 0; i < stages; ++i) {
      Init(&full[i], copying_warps * kWarpSize);
      Init(&empty[i], computing_warps);
    }
  }

 private:
  __device__ static void Init(uint64_t* barrier, int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(count)
                 : "memory");
  }
};

// One warp's place in the ring: each goes round on its own.
class RingCursor {
 public:
  __device__ RingCursor(RingBarriers& barriers, int stages)
      : barriers_(barriers), stages_(stages) {}

  __device__ int stage() const { return stage_; }

  // A copying warp: until the stage may be written; then, when its copies have been started.
  __device__ void WaitEmpty() { Wait(&barriers_.empty[stage_], parity_ ^ 1); }
  __device__ void ArriveWithCopies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(
                     SharedAddress(&barriers_.full[stage_]))
                 : "memory");
    Advance();
  }

  // A computing warp: until the stage may be read; then, when all lanes have read it.
  __device__ void WaitFull() { Wait(&barriers_.full[stage_], parity_); }
  __device__ void Release() {
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) {
      asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(
                       SharedAddress(&barriers_.empty[stage_]))
                   : "memory");
    }
    Advance();
  }

 private:
  __device__ static void Wait(uint64_t* barrier, uint32_t parity) {
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
        "}\n" ::"r"(SharedAddress(barrier)),
        "r"(parity)
        : "memory");
  }

  __device__ void Advance() {
    if (++stage_ == stages_) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

  RingBarriers& barriers_;
  const int stages_;
  int stage_ = 0;
  uint32_t parity_ = 0;
};

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_RING_CUH_
