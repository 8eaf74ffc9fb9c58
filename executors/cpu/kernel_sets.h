// The functions behind the tables of kernels.h, one namespace an instruction set.
#ifndef MILLRACE_EXECUTORS_CPU_KERNEL_SETS_H_
#define MILLRACE_EXECUTORS_CPU_KERNEL_SETS_H_

#include "executors/cpu/kernels.h"

namespace millrace::cpu {

namespace plain {
void GemmF32(const GemmTile& tile);
void GemmF16(const GemmTile& tile);
void GemmQ8(const GemmTile& tile);
void GemmQ4(const GemmTile& tile);
void Attention(const AttentionTile& tile);
void Store(const float* x, int width, Form form, void* out);
void Norm(const float* x, const float* weight, int size, int width, float epsilon, Form form,
          void* out);
void Gate(const float* x, Form form, void* out);
void Rope(float* head, const float* cosines, const float* sines, int pairs, bool interleaved);
void Append(const float* k, const float* v, int head_size, uint16_t* keys, uint16_t* values);
void Maximum(const float* x, int count, float* value, int* index, bool* ok);
double ExpSum(const float* x, int count, float maximum, float factor, float* p);
int Select(const float* x, int count, float threshold, int32_t* indexes, int capacity);
int CountAbove(const float* x, int count, float value);
}  // namespace plain

namespace avx512 {
void GemmF32(const GemmTile& tile);
void GemmF16(const GemmTile& tile);
void GemmQ8(const GemmTile& tile);
void GemmQ4(const GemmTile& tile);
void Attention(const AttentionTile& tile);
void Store(const float* x, int width, Form form, void* out);
void Norm(const float* x, const float* weight, int size, int width, float epsilon, Form form,
          void* out);
void Gate(const float* x, Form form, void* out);
void Rope(float* head, const float* cosines, const float* sines, int pairs, bool interleaved);
void Append(const float* k, const float* v, int head_size, uint16_t* keys, uint16_t* values);
void Maximum(const float* x, int count, float* value, int* index, bool* ok);
double ExpSum(const float* x, int count, float maximum, float factor, float* p);
int Select(const float* x, int count, float threshold, int32_t* indexes, int capacity);
int CountAbove(const float* x, int count, float value);
}  // namespace avx512

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_KERNEL_SETS_H_
