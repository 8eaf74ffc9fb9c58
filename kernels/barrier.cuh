// Barriers in shared memory (PTX ISA, "mbarrier"), for sm_90 and later; elsewhere they compile to
// nothing.
#ifndef MILLRACE_KERNELS_BARRIER_CUH_
#define MILLRACE_KERNELS_BARRIER_CUH_

#include <cstdint>

#include "kernels/device_util.cuh"

namespace millrace::kernels {

// A barrier in shared memory whose phases complete when all arrivals and all announced bytes are
// there. Phases are told apart by their parity: 0, 1, 0, ...
class Barrier {
 public:
  // Arrives at, and waits for, the barrier at an address in shared memory: a loop keeps that in a
  // register, where the compiler would compute it again each time.
  __device__ static void ArriveAtAddress(uint32_t address) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(address) : "memory");
#endif
  }
  __device__ static void WaitAtAddress(uint32_t address, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred done;\nWAIT_%=:\n"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@done bra DONE_%=;\nbra WAIT_%=;\nDONE_%=:\n}\n" ::"r"(address),
        "r"(parity)
        : "memory");
#endif
  }

  __device__ void Init(int arrivals) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(SharedAddress(this)), "r"(arrivals));
#endif
  }
  __device__ void Arrive() { ArriveAtAddress(SharedAddress(this)); }
  // Arrives when all copies that this thread has begun with cp.async have ended.
  __device__ void ArriveWhenCopied() {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(SharedAddress(this))
                 : "memory");
#endif
  }
  // Arrives at the barrier at the same place in the shared memory of another CTA of the cluster.
  __device__ void ArriveAt(int cta) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(SharedAddress(this)),
        "r"(cta)
        : "memory");
#endif
  }
  // Arrives, and announces the bytes that copies will bring.
  __device__ void ArriveAndExpect(uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(SharedAddress(this)),
                 "r"(bytes)
                 : "memory");
#endif
  }
  // Waits until the phase of this parity is complete.
  __device__ void Wait(uint32_t parity) { WaitAtAddress(SharedAddress(this), parity); }

 private:
  uint64_t state_;
};

// Makes barriers that this thread initialized known to the copy engine.
__device__ inline void FenceBarrierInit() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_BARRIER_CUH_
