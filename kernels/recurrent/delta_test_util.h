// A gated delta layer's inputs on the device, for the tests of its kernels.
#ifndef MILLRACE_KERNELS_RECURRENT_DELTA_TEST_UTIL_H_
#define MILLRACE_KERNELS_RECURRENT_DELTA_TEST_UTIL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/recurrent/delta_reference_test_util.h"
#include "kernels/recurrent/delta_types.h"
#include "kernels/recurrent/rows_test_util.h"
#include "kernels/test_util.h"
#include "kernels/types.h"

namespace millrace::kernels {

inline std::string Name(const DeltaHeads& heads) {
  return std::to_string(heads.key_heads) + "/" + std::to_string(heads.value_heads) +
         (heads.interleaved ? " interleaved" : "");
}

// Groups of 1, 2, 3 and 4 value heads, in both orders.
inline const std::vector<DeltaHeads> kTestHeads = {{3, 3},       {2, 4}, {1, 3},
                                                   {2, 6, true}, {1, 4}, {3, 12, true}};

// Memory for the states of a layer at `slots` slots, with a gap behind each.
struct TestState {
  TestState(const DeltaHeads& heads, int slots)
      : heads(heads), stride(StateFloats(heads) + 12), memory(slots * stride) {}

  void FillRandom(uint32_t seed) { memory.Upload(RandomNormal(memory.size(), seed, 0.3f)); }
  RecurrentState view() const { return {memory.get(), stride}; }

  DeltaHeads heads;
  int64_t stride;
  DeviceBuffer<float> memory;
};

struct TestOperands {
  TestOperands(const DeltaHeads& heads, int tokens)
      : keys_queries(int64_t{tokens} * heads.key_heads * 2 * kDeltaHeadSize),
        values(tokens * heads.value_width()),
        gates(int64_t{tokens} * heads.key_heads) {}
  DeltaOperands view() const { return {keys_queries.get(), values.get(), gates.get()}; }
  bool GuardsIntact() const {
    return keys_queries.GuardsIntact() && values.GuardsIntact() && gates.GuardsIntact();
  }

  DeviceBuffer<float> keys_queries, values;
  DeviceBuffer<DeltaGates> gates;
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_DELTA_TEST_UTIL_H_
