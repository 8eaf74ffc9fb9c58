// Attention over keys and values in float32 (--kv-cache-dtype float32): for comparing, not for
// speed. One implementation in C++ for every machine, which gives the same bits on all.
#ifndef MILLRACE_EXECUTORS_CPU_KERNELS_FLOAT_ATTENTION_H_
#define MILLRACE_EXECUTORS_CPU_KERNELS_FLOAT_ATTENTION_H_

#include "executors/cpu/kernels/kernels.h"

namespace millrace::cpu {

// Computes Kernels::attention on keys and values in f32 instead of f16.
void AttendFloats(const AttentionTile& tile);

// Appends keys and values as Kernels::append does, but in f32.
void AppendFloats(const float* k, const float* v, int head_size, float* keys, float* values);

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_KERNELS_FLOAT_ATTENTION_H_
