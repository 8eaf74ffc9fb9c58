// Hopper's wgmma with A (64 rows of 16) in a warp group's registers and B in shared memory. The
// instructions are asynchronous: between Begin and Wait the registers involved belong to the tensor
// cores, and Fence makes the compiler respect this.
//
// The results are bit-identical to mma.sync: both sum a step of 16 at once and the steps in
// sequence. This was measured, and the tests compare prefill with decode. The functions are empty
// where wgmma does not exist; kernels that use them are not launched there.
#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_WGMMA_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_WGMMA_CUH_

#include <cstdint>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define MILLRACE_WGMMA(...) asm volatile(__VA_ARGS__)
#else
#define MILLRACE_WGMMA(...)
#endif

namespace millrace::kernels::attention {

// Descriptor of matrices in shared memory with rows of 64 elements (128 bytes) in the "128-byte
// swizzled" layout. The next 64 columns lie `column_bytes` further. At(bytes) describes the matrix
// that begins `bytes` behind the first.
class WgmmaMatrices {
 public:
  __device__ WgmmaMatrices(uint32_t address, uint32_t column_bytes)
      : low_((address & 0x3ffff) >> 4 | column_bytes >> 4 << 16) {}
  __device__ uint64_t At(uint32_t bytes) const {
    constexpr uint32_t kHigh = 1024 >> 4 | 1 << 30;  // eight rows; the permutation
    return uint64_t{kHigh} << 32 | (low_ + (bytes >> 4));
  }

 private:
  const uint32_t low_;
};

__device__ inline void WgmmaBegin() { MILLRACE_WGMMA("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void WgmmaCommit() {
  MILLRACE_WGMMA("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kGroups committed groups are in flight. Waits with different kText are not
// merged by the compiler.
template <int kGroups, int kText = 0>
__device__ inline void WgmmaWait() {
  MILLRACE_WGMMA("wgmma.wait_group.sync.aligned %0; // %1" ::"n"(kGroups), "n"(kText) : "memory");
}

// Tells the compiler that `d` changes, since it does not know that wgmma writes registers until the
// wait.
template <int kBlocks>
__device__ inline void WgmmaFence(float (&d)[kBlocks][4]) {
#pragma unroll
  for (int i = 0; i < 4 * kBlocks; ++i) asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}

// Makes shared-memory writes that this thread has made or seen visible to wgmma.
__device__ inline void WgmmaFenceShared() {
  MILLRACE_WGMMA("fence.proxy.async.shared::cta;" ::: "memory");
}

#define MILLRACE_BLOCK(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define MILLRACE_8_BLOCKS(d, i)                                                     \
  MILLRACE_BLOCK(d, i), MILLRACE_BLOCK(d, i + 1), MILLRACE_BLOCK(d, i + 2),         \
      MILLRACE_BLOCK(d, i + 3), MILLRACE_BLOCK(d, i + 4), MILLRACE_BLOCK(d, i + 5), \
      MILLRACE_BLOCK(d, i + 6), MILLRACE_BLOCK(d, i + 7)

// d (+)= a b: a is 64 x 16, b is 16 x 64 or 16 x 128.
#define MILLRACE_WGMMA_64(types, transposed)                                              \
  MILLRACE_WGMMA(                                                                         \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"                                    \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." types                                 \
      " "                                                                                 \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
      "{%32, %33, %34, %35}, %36, add, 1, 1, " transposed ";\n}\n"                        \
      : MILLRACE_8_BLOCKS(d, 0)                                                           \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)))

// Queries times keys: the columns of b are rows in memory. Both are FP16 or both BF16.
template <bool kHalf>
__device__ inline void WgmmaKeys(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  if constexpr (kHalf) {
    MILLRACE_WGMMA_64("f16.f16", "0");
  } else {
    MILLRACE_WGMMA_64("bf16.bf16", "0");
  }
}

// Probabilities times values, both FP16: the rows of b are rows in memory.
__device__ inline void WgmmaValues(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  MILLRACE_WGMMA_64("f16.f16", "1");
}
__device__ inline void WgmmaValues(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b,
                                   bool add) {
  MILLRACE_WGMMA(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}\n"
      : MILLRACE_8_BLOCKS(d, 0), MILLRACE_8_BLOCKS(d, 8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

#undef MILLRACE_WGMMA_64
#undef MILLRACE_8_BLOCKS
#undef MILLRACE_BLOCK
#undef MILLRACE_WGMMA

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_WGMMA_CUH_
