// A gated delta layer's inputs on the device, and a step's rows, for the tests of its kernels.
#ifndef MILLRACE_KERNELS_RECURRENT_DELTA_TEST_UTIL_H_
#define MILLRACE_KERNELS_RECURRENT_DELTA_TEST_UTIL_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/recurrent/delta_reference_test_util.h"
#include "kernels/recurrent/delta_types.h"
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

// A row of a step: tokens [start, start + tokens) of a sequence.
struct TestRow {
  int tokens;
  int start;
  int slot;
};

// The arrays of a step's rows on the device, with memory for more tokens than the rows have, as a
// graph's arrays have it.
class TestRows {
 public:
  explicit TestRows(const std::vector<TestRow>& rows) : TestRows(Host(rows)) {}

  int tokens() const { return host_.first.back(); }
  int first(int row) const { return host_.first[row]; }
  // The numbers are upper bounds.
  RecurrentRows view() const {
    return {.rows = static_cast<int>(host_.start.size()),
            .max_tokens = tokens() + kSpareTokens,
            .max_row_tokens = host_.longest,
            .row_first = first_.get(),
            .row_start = start_.get(),
            .row_slot = slot_.get(),
            .positions = positions_.get(),
            .slots = slots_.get()};
  }

  static constexpr int kSpareTokens = 5;

 private:
  struct Host {
    explicit Host(const std::vector<TestRow>& rows) {
      for (const TestRow& row : rows) {
        first.push_back(first.back() + row.tokens);
        start.push_back(row.start);
        slot.push_back(row.slot);
        longest = std::max(longest, row.tokens);
        for (int t = 0; t < row.tokens; ++t) {
          positions.push_back(row.start + t);
          slots.push_back(row.slot);
        }
      }
      positions.resize(positions.size() + kSpareTokens, -1);
      slots.resize(slots.size() + kSpareTokens, -1);
    }
    std::vector<int32_t> first = {0}, start, slot, positions, slots;
    int longest = 0;
  };
  explicit TestRows(const Host& host)
      : host_(host),
        first_(host.first),
        start_(host.start),
        slot_(host.slot),
        positions_(host.positions),
        slots_(host.slots) {}

  Host host_;
  DeviceBuffer<int32_t> first_, start_, slot_, positions_, slots_;
};

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

// Returns the bits of floats, so that comparisons tell NaNs and zeros apart.
inline std::vector<uint32_t> Bits(const std::vector<float>& values, int64_t first, int64_t size) {
  std::vector<uint32_t> bits;
  AppendBits(values.data() + first, size, bits);
  return bits;
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_DELTA_TEST_UTIL_H_
