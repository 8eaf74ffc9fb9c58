// Hopper's wgmma (PTX ISA, "Asynchronous warpgroup-level matrix instructions"): d (+)= a . b^T of
// four warps, both operands in shared memory, a 64 rows and b kN rows of 32 bytes of K.
//
// Compiled for all architectures, but run on sm_90a alone: elsewhere nothing is multiplied.
#ifndef MILLRACE_KERNELS_GEMM_SM90_WGMMA_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_WGMMA_CUH_

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

// Returns the lower half of wgmma's descriptor of a matrix in shared memory:
// rows of 128 bytes one behind the other, the 16-byte words of eight rows permuted (128-byte
// swizzled), at a multiple of 1024 bytes. The next 32 bytes of K are kNextStep further. The
// compiler is told that all lanes have the same address: else it computes each descriptor in vector
// registers, and moving them to wgmma's takes longer than the products of few tokens.
__device__ inline uint32_t SwizzledMatrix(uint32_t address) {
  return __shfl_sync(kFullWarp, (address & 0x3ffff) >> 4, 0);
}
inline constexpr uint32_t kNextStep = 32 >> 4;

__device__ inline void BeginMultiply() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ inline void EndMultiply() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until at most kPending of the groups that EndMultiply closed are under way.
template <int kPending>
__device__ void WaitForProducts() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}

// The compiler does not know that wgmma changes registers until the wait.
template <int kSize>
__device__ void Fence(float (&d)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// The operands of an instruction with so many accumulators.
#define MILLRACE_REGISTERS_4 "%0, %1, %2, %3"
#define MILLRACE_REGISTERS_8 MILLRACE_REGISTERS_4 ", %4, %5, %6, %7"
#define MILLRACE_REGISTERS_16 MILLRACE_REGISTERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define MILLRACE_REGISTERS_32 \
  MILLRACE_REGISTERS_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MILLRACE_REGISTERS_64                                                               \
  MILLRACE_REGISTERS_32                                                                     \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
  "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MILLRACE_REGISTERS_96                                                               \
  MILLRACE_REGISTERS_64                                                                     \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
  "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define MILLRACE_SUMS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MILLRACE_SUMS_8(d, i) MILLRACE_SUMS_4(d, i), MILLRACE_SUMS_4(d, i + 4)
#define MILLRACE_SUMS_16(d, i) MILLRACE_SUMS_8(d, i), MILLRACE_SUMS_8(d, i + 8)
#define MILLRACE_SUMS_32(d, i) MILLRACE_SUMS_16(d, i), MILLRACE_SUMS_16(d, i + 16)
#define MILLRACE_SUMS_64(d, i) MILLRACE_SUMS_32(d, i), MILLRACE_SUMS_32(d, i + 32)
#define MILLRACE_SUMS_96(d, i) MILLRACE_SUMS_64(d, i), MILLRACE_SUMS_32(d, i + 64)

// `a`, `b` and `add` are the three operands behind the sums. The upper half of both descriptors:
// 1024 bytes from eight rows to the next eight, 128-byte swizzle.
#define MILLRACE_WGMMA(shape, tail, sums, operand_a, operand_b, operand_add)             \
  asm volatile("{\n.reg .pred add;\n.reg .b64 a, b;\nsetp.ne.b32 add, %" operand_add     \
               ", 0;\nmov.b64 a, {%" operand_a ", 0x40000040};\nmov.b64 b, {%" operand_b \
               ", 0x40000040};\nwgmma.mma_async.sync.aligned." shape                     \
               " {" MILLRACE_REGISTERS_##sums "}, a, b, add, 1, 1" tail ";\n}\n"         \
               : MILLRACE_SUMS_##sums(d, 0)                                              \
               : "r"(a), "r"(b), "r"(static_cast<int>(add)))
#define MILLRACE_WGMMA_FP8(n, sums, operand_a, operand_b, operand_add) \
  MILLRACE_WGMMA("m64n" #n "k32.f32.e4m3.e4m3", "", sums, operand_a, operand_b, operand_add)
#define MILLRACE_WGMMA_BF16(n, sums, operand_a, operand_b, operand_add) \
  MILLRACE_WGMMA("m64n" #n "k16.f32.bf16.bf16", ", 0, 0", sums, operand_a, operand_b, operand_add)

#define MILLRACE_WGMMA_A(n, sums, a0, a1, a2, a3, operand_b)                                       \
  asm volatile("{\n.reg .pred add;\n.reg .b64 b;\nsetp.eq.b32 add, 0, 0;\nmov.b64 b, {%" operand_b \
               ", 0x40000040};\nwgmma.mma_async.sync.aligned.m64n" #n                              \
               "k16.f32.bf16.bf16 {" MILLRACE_REGISTERS_##sums "}, {%" a0 ", %" a1 ", %" a2        \
                                                               ", %" a3 "}, b, add, 1, 1, 0;\n}\n" \
               : MILLRACE_SUMS_##sums(d, 0)                                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b))

// d[...] (+)= a . b^T; `add` is false for the first step of a sum. Thread t of the group holds, in
// d[4 * i ...], rows t / 32 * 16 + t % 32 / 4 (+ 8 in the last two) and columns 8 * i + t % 4 * 2
// (+ 1).
template <Type kType, int kN>
__device__ void MultiplyAsync(float (&d)[kN / 2], uint32_t a, uint32_t b, bool add) {
  static_assert(kType == Type::kFp8 || kType == Type::kBf16);
  static_assert(kN == 8 || kN == 16 || kN == 32 || kN == 64 || kN == 128 ||
                (kType == Type::kBf16 && kN == 192));
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kType == Type::kFp8) {
    if constexpr (kN == 8) MILLRACE_WGMMA_FP8(8, 4, "4", "5", "6");
    if constexpr (kN == 16) MILLRACE_WGMMA_FP8(16, 8, "8", "9", "10");
    if constexpr (kN == 32) MILLRACE_WGMMA_FP8(32, 16, "16", "17", "18");
    if constexpr (kN == 64) MILLRACE_WGMMA_FP8(64, 32, "32", "33", "34");
    if constexpr (kN == 128) MILLRACE_WGMMA_FP8(128, 64, "64", "65", "66");
  } else {
    if constexpr (kN == 8) MILLRACE_WGMMA_BF16(8, 4, "4", "5", "6");
    if constexpr (kN == 16) MILLRACE_WGMMA_BF16(16, 8, "8", "9", "10");
    if constexpr (kN == 32) MILLRACE_WGMMA_BF16(32, 16, "16", "17", "18");
    if constexpr (kN == 64) MILLRACE_WGMMA_BF16(64, 32, "32", "33", "34");
    if constexpr (kN == 128) MILLRACE_WGMMA_BF16(128, 64, "64", "65", "66");
    if constexpr (kN == 192) MILLRACE_WGMMA_BF16(192, 96, "96", "97", "98");
  }
#endif
}

// d[...] += a . b^T.
template <int kN>
__device__ void MultiplyRegistersAsync(float (&d)[kN / 2], const uint32_t (&a)[4], uint32_t b) {
  static_assert(kN == 8 || kN == 16 || kN == 32 || kN == 64 || kN == 128);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kN == 8) MILLRACE_WGMMA_A(8, 4, "4", "5", "6", "7", "8");
  if constexpr (kN == 16) MILLRACE_WGMMA_A(16, 8, "8", "9", "10", "11", "12");
  if constexpr (kN == 32) MILLRACE_WGMMA_A(32, 16, "16", "17", "18", "19", "20");
  if constexpr (kN == 64) MILLRACE_WGMMA_A(64, 32, "32", "33", "34", "35", "36");
  if constexpr (kN == 128) MILLRACE_WGMMA_A(128, 64, "64", "65", "66", "67", "68");
#endif
}

// The compiler does not know that wgmma reads registers until the wait.
template <int kSize>
__device__ void Fence(uint32_t (&a)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

#undef MILLRACE_WGMMA_A
#undef MILLRACE_WGMMA_BF16
#undef MILLRACE_WGMMA_FP8
#undef MILLRACE_WGMMA
#undef MILLRACE_SUMS_96
#undef MILLRACE_SUMS_64
#undef MILLRACE_SUMS_32
#undef MILLRACE_SUMS_16
#undef MILLRACE_SUMS_8
#undef MILLRACE_SUMS_4
#undef MILLRACE_REGISTERS_96
#undef MILLRACE_REGISTERS_64
#undef MILLRACE_REGISTERS_32
#undef MILLRACE_REGISTERS_16
#undef MILLRACE_REGISTERS_8
#undef MILLRACE_REGISTERS_4

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_WGMMA_CUH_
