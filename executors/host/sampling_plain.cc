#include <algorithm>
#include <cmath>

#include "executors/host/sampling_kernels.h"

namespace millrace::cpu::plain {
namespace {

void Maximum(const float* x, int count, float* value, int* index, bool* ok) {
  *index = static_cast<int>(std::max_element(x, x + count) - x);
  *value = x[*index];
  *ok = std::all_of(x, x + count, [](float v) { return std::isfinite(v); });
}

double ExpSum(const float* x, int count, float maximum, float factor, float* p) {
  constexpr int kRun = 64;  // added up in floats before doubles take over
  double total = 0;
  for (int begin = 0; begin < count; begin += kRun) {
    float sum = 0;
    for (int i = begin; i < std::min(begin + kRun, count); ++i) {
      p[i] = std::exp((x[i] - maximum) * factor);
      sum += p[i];
    }
    total += static_cast<double>(sum);
  }
  return total;
}

int Select(const float* x, int count, float threshold, int32_t* indexes, int capacity) {
  int found = 0;
  for (int i = 0; i < count; ++i) {
    if (!(x[i] >= threshold)) continue;
    if (found < capacity) indexes[found] = i;
    ++found;
  }
  return found;
}

int CountAbove(const float* x, int count, float value) {
  return static_cast<int>(std::count_if(x, x + count, [value](float v) { return v > value; }));
}

}  // namespace

const SamplingKernels kSampling = {
    .maximum = Maximum, .exp_sum = ExpSum, .select = Select, .count_above = CountAbove};

}  // namespace millrace::cpu::plain
