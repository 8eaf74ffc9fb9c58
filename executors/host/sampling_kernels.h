// The inner loops of sampling, as a table of functions: one table an instruction set, chosen at run
// time. Plain data and raw pointers only, no inline code: this header is also compiled with AVX-512
// switched on, and whatever it defined could end up in functions that other machines run.
#ifndef MILLRACE_EXECUTORS_HOST_SAMPLING_KERNELS_H_
#define MILLRACE_EXECUTORS_HOST_SAMPLING_KERNELS_H_

#include <cstdint>

namespace millrace {

// All read x[0..count).
struct SamplingKernels {
  // The largest value, the lowest of the indexes that have it, and whether all values are finite.
  // If not, value and index mean nothing, but where the value is -inf.
  void (*maximum)(const float* x, int count, float* value, int* index, bool* ok);

  // Stores p[i] = exp((x[i] - maximum) * factor) and returns their sum. p may be x.
  double (*exp_sum)(const float* x, int count, float maximum, float factor, float* p);

  // Stores the indexes with x >= threshold, ascending, at most `capacity` of them, and returns how
  // many there are.
  int (*select)(const float* x, int count, float threshold, int32_t* indexes, int capacity);

  // Returns how many x are > value.
  int (*count_above)(const float* x, int count, float value);
};

// Returns the table of the largest instruction set that this machine runs.
const SamplingKernels& BestSamplingKernels();

// One table an instruction set. AVX2's and AVX-512's give the same bits.
namespace cpu::plain {
extern const SamplingKernels kSampling;
}  // namespace cpu::plain
namespace cpu::avx2 {
extern const SamplingKernels kSampling;
}  // namespace cpu::avx2
namespace cpu::avx512 {
extern const SamplingKernels kSampling;
}  // namespace cpu::avx512

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_HOST_SAMPLING_KERNELS_H_
