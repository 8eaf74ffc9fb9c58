// Wraps Hopper's copies into shared memory (PTX ISA, "cp.async.bulk.tensor"), which complete on the
// barriers of barrier.cuh.
//
// Compiled for all architectures, but run on sm_90a alone.
#ifndef MILLRACE_KERNELS_GEMM_SM90_ASYNC_COPY_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_ASYNC_COPY_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/barrier.cuh"
#include "kernels/device_util.cuh"

namespace millrace::kernels::sm90 {

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
