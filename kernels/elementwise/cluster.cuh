// Maxima of rows that the CTAs of a cluster share (sm_90 and later; elsewhere these compile to
// nothing).
#ifndef MILLRACE_KERNELS_ELEMENTWISE_CLUSTER_CUH_
#define MILLRACE_KERNELS_ELEMENTWISE_CLUSTER_CUH_

#include <cstdint>

#include "kernels/barrier.cuh"
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

// Stores to the shared memory of CTA `rank` as StoreToCta does. The bytes count at that CTA's
// barrier at the place of `barrier`.
__device__ inline void SendToCta(float* address, Barrier& barrier, int rank, float value) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .b32 to, arrived;\n"
      "mapa.shared::cluster.u32 to, %0, %3;\n"
      "mapa.shared::cluster.u32 arrived, %1, %3;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %2, "
      "[arrived];\n}\n" ::"r"(SharedAddress(address)),
      "r"(SharedAddress(&barrier)), "r"(__float_as_uint(value)), "r"(rank)
      : "memory");
#endif
}

// The maxima of one row after the other. kWarps warps of each of kParts CTAs have a part of a row,
// and send its maximum to all of these CTAs. Two sets of maxima suffice: a warp that sends one of
// row n + 2 has those of row n + 1 of all warps, each of which had read row n's before.
template <int kParts, int kWarps>
class ClusterMaxima {
 public:
  // Called by one thread, before the cluster's CTAs synchronize.
  __device__ void Init() {
    for (Barrier& barrier : barriers_) {
      barrier.Init(1);
      FenceBarrierInit();
    }
  }

  // Returns the maximum of row n to all threads. `warp`: of this CTA's kWarps, numbered from 0.
  __device__ float Exchange(unsigned n, int warp, int part, float value) {
    const int lane = threadIdx.x % kWarpSize;
    Barrier& barrier = barriers_[n % 2];
    float* const maxima = maxima_[n % 2];
    value = WarpReduce<Max>(value);
    if (warp == 0 && lane == 0) barrier.ArriveAndExpect(kCount * sizeof(float));
    if (lane < kParts) SendToCta(&maxima[part * kWarps + warp], barrier, lane, value);
    barrier.Wait(n / 2 % 2);
    return WarpReduce<Max>(lane < kCount ? maxima[lane] : Max::kIdentity);
  }

 private:
  static constexpr int kCount = kParts * kWarps;
  static_assert(kCount <= kWarpSize);

  float maxima_[2][kCount];
  Barrier barriers_[2];
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ELEMENTWISE_CLUSTER_CUH_
