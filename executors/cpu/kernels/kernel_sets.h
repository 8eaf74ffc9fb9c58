// The functions behind the tables of kernels.h, one namespace an instruction set.
#ifndef MILLRACE_EXECUTORS_CPU_KERNELS_KERNEL_SETS_H_
#define MILLRACE_EXECUTORS_CPU_KERNELS_KERNEL_SETS_H_

#include "executors/cpu/kernels/kernels.h"

namespace millrace::cpu {

// The same functions in every namespace.
#define MILLRACE_CPU_KERNEL_SET                                                                  \
  void GemmF32(const GemmTile& tile);                                                            \
  void GemmF16(const GemmTile& tile);                                                            \
  void GemmBf16(const GemmTile& tile); /* of floats */                                           \
  void GemmQ4_0(const GemmTile& tile);                                                           \
  void GemmQ4_1(const GemmTile& tile);                                                           \
  void GemmQ5_0(const GemmTile& tile);                                                           \
  void GemmQ5_1(const GemmTile& tile);                                                           \
  void GemmQ8_0(const GemmTile& tile);                                                           \
  void GemmIq4Nl(const GemmTile& tile);                                                          \
  void GemmMxfp4(const GemmTile& tile);                                                          \
  void GemmQ2K(const GemmTile& tile);                                                            \
  void GemmQ3K(const GemmTile& tile);                                                            \
  void GemmQ4K(const GemmTile& tile);                                                            \
  void GemmQ5K(const GemmTile& tile);                                                            \
  void GemmQ6K(const GemmTile& tile);                                                            \
  void GemmInt4x32(const GemmTile& tile);                                                        \
  void GemmInt4x128(const GemmTile& tile);                                                       \
  void GemmIq4Xs(const GemmTile& tile);                                                          \
  void GemmIq3S(const GemmTile& tile);                                                           \
  void GemmIq3Xxs(const GemmTile& tile);                                                         \
  void GemmIq2(const GemmTile& tile);                                                            \
  void GemmIq1(const GemmTile& tile);                                                            \
  void Attention(const AttentionTile& tile);                                                     \
  void Store(const float* x, int width, Form form, void* out);                                   \
  void Norm(const float* x, const float* weight, int size, int width, float epsilon, Form form,  \
            void* out);                                                                          \
  void Gate(const float* x, Form form, void* out);                                               \
  void GeluGate(const float* x, Form form, void* out);                                           \
  void ClampedGate(const float* x, Form form, void* out);                                        \
  void ErfGeluGate(const float* x, Form form, void* out);                                        \
  void SquaredRelu(const float* x, Form form, void* out);                                        \
  void Cap(float* x, int count, float factor, float soft_cap);                                   \
  void Rope(float* head, const float* cosines, const float* sines, int pairs, bool interleaved); \
  void Append(const float* k, const float* v, int head_size, uint16_t* keys, uint16_t* values);  \
  void Convolve(const ConvolutionTile& tile);                                                    \
  void DeltaRule(const DeltaTile& tile);                                                         \
  void StateSpace(const StateSpaceTile& tile);                                                   \
  void SigmoidGate(const float* gate, int count, bool silu, float* x);

namespace plain {
MILLRACE_CPU_KERNEL_SET
}  // namespace plain

namespace avx2 {
MILLRACE_CPU_KERNEL_SET
}  // namespace avx2

namespace avx512 {
MILLRACE_CPU_KERNEL_SET
}  // namespace avx512

namespace avx512_bf16 {
void GemmBf16(const GemmTile& tile);  // of BF16
}  // namespace avx512_bf16

#undef MILLRACE_CPU_KERNEL_SET

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_KERNELS_KERNEL_SETS_H_
