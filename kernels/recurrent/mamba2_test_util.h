// The operands of a Mamba-2 layer's scan on the device, for the tests of its kernels.
#ifndef MILLRACE_KERNELS_RECURRENT_MAMBA2_TEST_UTIL_H_
#define MILLRACE_KERNELS_RECURRENT_MAMBA2_TEST_UTIL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/recurrent/mamba2_types.h"
#include "kernels/test_util.h"

namespace millrace::kernels {

inline std::string Name(const Mamba2Heads& heads) {
  return std::to_string(heads.heads) + " x " + std::to_string(heads.head_size) + ", " +
         std::to_string(heads.groups) + " groups of " + std::to_string(heads.state_size);
}

// Both sizes of states; heads of one block of values and of several.
inline const std::vector<Mamba2Heads> kTestMamba2Heads = {
    {4, 64, 2, 128}, {6, 64, 1, 256}, {3, 32, 3, 128}, {2, 96, 1, 256}, {2, 128, 2, 128}};

struct TestMamba2Operands {
  TestMamba2Operands(const Mamba2Heads& heads, int tokens)
      : heads(heads),
        x(int64_t{tokens} * heads.inner()),
        bc(int64_t{tokens} * 2 * heads.state_width()),
        gates(int64_t{tokens} * heads.heads) {}

  // The operands from a token on. `first` times the number of heads is even, for alignment.
  Mamba2Operands view(int first = 0) const {
    return {x.get() + int64_t{first} * heads.inner(),
            bc.get() + int64_t{first} * 2 * heads.state_width(),
            gates.get() + int64_t{first} * heads.heads};
  }
  bool GuardsIntact() const {
    return x.GuardsIntact() && bc.GuardsIntact() && gates.GuardsIntact();
  }

  Mamba2Heads heads;
  DeviceBuffer<float> x, bc;
  DeviceBuffer<Mamba2Gates> gates;
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_MAMBA2_TEST_UTIL_H_
