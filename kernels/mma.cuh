// The tensor cores' instruction for one warp, mma.sync m16n8k16, and the loads of its operands from
// shared memory (PTX ISA, "Matrix Fragments for mma.m16n8k16").
//
// With g = lane / 4 and t = lane % 4, a lane holds of a, 16 x 16, columns 2t and 2t + 1 of row g
// (a[0]) and of row g + 8 (a[1]), and 8 columns further the same (a[2], a[3]); of b, 16 x 8, rows
// 2t and 2t + 1 of column g (b0), and 8 rows further the same (b1); of c, 16 x 8, columns 2t and
// 2t + 1 of row g (c[0], c[1]) and of row g + 8 (c[2], c[3]).
//
// BF16: the sum of a step's 16 products and c is rounded as wgmma rounds it, so a chain of steps
// has the bits of wgmma's (compared on an H100 at 256 to 14,336 columns, weights on either side).
#ifndef MILLRACE_KERNELS_MMA_CUH_
#define MILLRACE_KERNELS_MMA_CUH_

#include <cstdint>

namespace millrace::kernels {

// c += a . b. The compiler may move it, since it changes nothing but c.
__device__ inline void MultiplyBf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four 8 x 8 matrices of 16-bit elements. Lane i gives the address of row i % 8 of matrix i /
// 8.
__device__ inline void LoadMatrices(uint32_t address, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_MMA_CUH_
