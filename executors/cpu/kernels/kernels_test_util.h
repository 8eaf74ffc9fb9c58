// For tests of every kernel table that this machine has.
#ifndef MILLRACE_EXECUTORS_CPU_KERNELS_KERNELS_TEST_UTIL_H_
#define MILLRACE_EXECUTORS_CPU_KERNELS_KERNELS_TEST_UTIL_H_

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "executors/cpu/kernels/kernels.h"
#include "gtest/gtest.h"

namespace millrace::cpu {

// The first is plain C++.
inline std::vector<const Kernels*> Tables() {
  const KernelList list = SupportedKernels();
  return {list.tables, list.tables + list.count};
}

// Those that give the same bits: plain C++ rounds otherwise.
inline std::vector<const Kernels*> VectorTables() {
  const KernelList list = SupportedKernels();
  return {list.tables + 1, list.tables + list.count};
}

inline std::string TableName(const ::testing::TestParamInfo<const Kernels*>& info) {
  std::string name = info.param->name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class TableTest : public ::testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& kernels_ = *GetParam();
  std::mt19937 random_{7};

  std::vector<float> Floats(size_t count, float spread = 1) {
    std::uniform_real_distribution<float> draw(-spread, spread);
    std::vector<float> floats(count);
    for (float& x : floats) x = draw(random_);
    return floats;
  }
};

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_KERNELS_KERNELS_TEST_UTIL_H_
