// A step's rows and the slots of their sequences, for the tests of recurrent layers' kernels.
#ifndef MILLRACE_KERNELS_RECURRENT_ROWS_TEST_UTIL_H_
#define MILLRACE_KERNELS_RECURRENT_ROWS_TEST_UTIL_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/recurrent/recurrent_rows.h"
#include "kernels/test_util.h"

namespace millrace::kernels {

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
  // The step's arrays have memory for `spare` more tokens.
  explicit TestRows(const std::vector<TestRow>& rows, int spare = kSpareTokens)
      : TestRows(Host(rows, spare)) {}

  int tokens() const { return host_.first.back(); }
  int first(int row) const { return host_.first[row]; }
  // The numbers are upper bounds.
  RecurrentRows view() const {
    return {.rows = static_cast<int>(host_.start.size()),
            .max_tokens = static_cast<int>(positions_.size()),
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
    Host(const std::vector<TestRow>& rows, int spare) {
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
      positions.resize(positions.size() + spare, -1);
      slots.resize(slots.size() + spare, -1);
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

// Memory for a layer's states of `floats` at `slots` slots, with a gap behind each.
struct TestSlots {
  TestSlots(int64_t floats, int slots)
      : stride((floats + 3) / 4 * 4 + 12), memory(slots * stride) {}

  void FillRandom(uint32_t seed) { memory.Upload(RandomNormal(memory.size(), seed, 0.3f)); }
  RecurrentState view() const { return {memory.get(), stride}; }

  int64_t stride;
  DeviceBuffer<float> memory;
};

// Returns the bits of floats, so that comparisons tell NaNs and zeros apart.
inline std::vector<uint32_t> Bits(const std::vector<float>& values, int64_t first, int64_t size) {
  std::vector<uint32_t> bits(size);
  std::memcpy(bits.data(), values.data() + first, size * sizeof(float));
  return bits;
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_ROWS_TEST_UTIL_H_
