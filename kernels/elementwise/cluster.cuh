// Maxima of rows that the CTAs of a cluster share (sm_90 and later; elsewhere these compile to
// nothing).
#ifndef MILLRACE_KERNELS_ELEMENTWISE_CLUSTER_CUH_
#define MILLRACE_KERNELS_ELEMENTWISE_CLUSTER_CUH_

#include <cstdint>

#include "kernels/device_util.cuh"

namespace millrace::kernels {

__device__ inline void ClusterArrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

__device__ inline void ClusterWait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// Stores to the shared memory of CTA `rank` of the cluster, at the offset that `address` has here.
__device__ inline void StoreToCta(float* address, int rank, float value) {
#if __CUDA_ARCH__ >= 900
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(remote)
      : "r"(SharedAddress(address)), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(value) : "memory");
#endif
}

// A barrier in shared memory (PTX ISA, "mbarrier") whose phases complete when one thread has
// arrived and all bytes that it announced are there. Phases are told apart by their parity: 0, 1,
// 0, ...
class ByteBarrier {
 public:
  __device__ void Init() {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(SharedAddress(&state_)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  __device__ void ArriveAndExpect(uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(SharedAddress(&state_)),
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
        "@done bra DONE_%=;\nbra WAIT_%=;\nDONE_%=:\n}\n" ::"r"(SharedAddress(&state_)),
        "r"(parity)
        : "memory");
#endif
  }
  // Stores to the shared memory of CTA `rank` as StoreToCta does. The bytes count at that CTA's
  // barrier at the place of this one.
  __device__ void Send(float* address, int rank, float value) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .b32 to, arrived;\n"
        "mapa.shared::cluster.u32 to, %0, %3;\n"
        "mapa.shared::cluster.u32 arrived, %1, %3;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %2, "
        "[arrived];\n}\n" ::"r"(SharedAddress(address)),
        "r"(SharedAddress(&state_)), "r"(__float_as_uint(value)), "r"(rank)
        : "memory");
#endif
  }

 private:
  uint64_t state_;
};

// The maxima of one row after the other. kWarps warps of each of kParts CTAs have a part of a row,
// and send its maximum to all of these CTAs. Two sets of maxima suffice: a warp that sends one of
// row n + 2 has those of row n + 1 of all warps, each of which had read row n's before.
template <int kParts, int kWarps>
class ClusterMaxima {
 public:
  // Called by one thread, before the cluster's CTAs synchronize.
  __device__ void Init() {
    for (ByteBarrier& barrier : barriers_) barrier.Init();
  }

  // Returns the maximum of row n to all threads. `warp`: of this CTA's kWarps, numbered from 0.
  __device__ float Exchange(unsigned n, int warp, int part, float value) {
    const int lane = threadIdx.x % kWarpSize;
    ByteBarrier& barrier = barriers_[n % 2];
    float* const maxima = maxima_[n % 2];
    value = WarpReduce<Max>(value);
    if (warp == 0 && lane == 0) barrier.ArriveAndExpect(kCount * sizeof(float));
    if (lane < kParts) barrier.Send(&maxima[part * kWarps + warp], lane, value);
    barrier.Wait(n / 2 % 2);
    return WarpReduce<Max>(lane < kCount ? maxima[lane] : Max::kIdentity);
  }

 private:
  static constexpr int kCount = kParts * kWarps;
  static_assert(kCount <= kWarpSize);

  float maxima_[2][kCount];
  ByteBarrier barriers_[2];
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ELEMENTWISE_CLUSTER_CUH_
