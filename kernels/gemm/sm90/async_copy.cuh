// Wraps Hopper's copies into shared memory and the barriers that they complete on (PTX ISA,
// "mbarrier" and "cp.async.bulk.tensor").
//
// Compiled for all architectures, but run on sm_90a alone.
#ifndef MILLRACE_KERNELS_GEMM_SM90_ASYNC_COPY_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_ASYNC_COPY_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/device_util.cuh"

namespace millrace::kernels::sm90 {

// A barrier in shared memory whose phases complete when all arrivals and all announced bytes are
// there. Phases are told apart by their parity: 0, 1, 0, ...
class Barrier {
 public:
  __device__ void Init(int arrivals) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(SharedAddress(this)), "r"(arrivals));
#endif
  }
  __device__ void Arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(SharedAddress(this)) : "memory");
#endif
  }
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
  __device__ void Wait(uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred done;\nWAIT_%=:\n"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@done bra DONE_%=;\nbra WAIT_%=;\nDONE_%=:\n}\n" ::"r"(SharedAddress(this)),
        "r"(parity)
        : "memory");
#endif
  }

 private:
  uint64_t state_;
};

// Makes barriers that this thread initialized known to the copy engine.
__device__ inline void FenceBarrierInit() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Cache policies: data with EvictFirst leaves the L2 cache first, with EvictLast last.
__device__ inline uint64_t EvictFirst() {
  uint64_t policy = 0;
#if __CUDA_ARCH__ >= 900
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}
__device__ inline uint64_t EvictLast() {
  uint64_t policy = 0;
#if __CUDA_ARCH__ >= 900
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

// Fetches a map before the first copy that needs it.
__device__ inline void PrefetchMap(const CUtensorMap& map) {
#if __CUDA_ARCH__ >= 900
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

// Copies a box of a tensor at (x, y, z). Called by one thread; elements outside the tensor arrive
// as zeros.
__device__ inline void CopyBox(uint32_t to, const CUtensorMap& from, int x, int y, int z,
                               Barrier& barrier, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(&from), "r"(x), "r"(y), "r"(z), "r"(SharedAddress(&barrier)), "l"(policy)
      : "memory");
#endif
}

// Copies plain memory. Called by one thread; addresses and `bytes` are multiples of 16.
__device__ inline void CopyBytes(uint32_t to, const void* from, uint32_t bytes, Barrier& barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(SharedAddress(&barrier))
      : "memory");
#endif
}

// The same with a cache policy.
__device__ inline void CopyBytes(uint32_t to, const void* from, uint32_t bytes, Barrier& barrier,
                                 uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], "
      "%2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(SharedAddress(&barrier)), "l"(policy)
      : "memory");
#endif
}

// Copies a box to the same place in the shared memory of each CTA of the cluster in `mask`. The
// bytes complete on each CTA's own barrier.
__device__ inline void CopyBoxToCluster(uint32_t to, const CUtensorMap& from, int x, int y, int z,
                                        Barrier& barrier, uint64_t policy, uint16_t mask) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(to),
      "l"(&from), "r"(x), "r"(y), "r"(z), "r"(SharedAddress(&barrier)), "h"(mask), "l"(policy)
      : "memory");
#endif
}

// A barrier of all threads of all CTAs of the cluster, in two halves.
__device__ inline void ArriveAtCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ inline void WaitForCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
__device__ inline void SyncCluster() {
  ArriveAtCluster();
  WaitForCluster();
}

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_ASYNC_COPY_CUH_
