// The rows of a step on the device, for the benchmarks of recurrent layers' kernels, and those of
// kinds of layers.
#ifndef MILLRACE_KERNELS_RECURRENT_RECURRENT_BENCH_H_
#define MILLRACE_KERNELS_RECURRENT_RECURRENT_BENCH_H_

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/bench_util.h"
#include "kernels/recurrent/recurrent_rows.h"
#include "kernels/test_util.h"

namespace millrace::kernels {

// Rows of `tokens` tokens each, from position `start` on.
struct BenchShape {
  int rows;
  int tokens;
  int start;

  int64_t all_tokens() const { return int64_t{rows} * tokens; }
  std::string Name() const { return std::to_string(rows) + " x " + std::to_string(tokens); }
};

inline std::vector<int32_t> BenchSequence(int size) {
  std::vector<int32_t> numbers(size);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// The rows of steps of one shape. Each of `inputs` steps has slots of its own.
class BenchRows {
 public:
  BenchRows(const BenchShape& shape, int inputs)
      : shape_(shape),
        first_(Each(shape.rows + 1, [&](int row) { return row * shape.tokens; })),
        start_(Each(shape.rows, [&](int) { return shape.start; })),
        row_slots_(BenchSequence(inputs * shape.rows)),
        positions_(Each(static_cast<int>(shape.all_tokens()),
                        [&](int token) { return shape.start + token % shape.tokens; })),
        slots_(Each(static_cast<int>(shape.all_tokens()),
                    [&](int token) { return token / shape.tokens; })) {}

  RecurrentRows view(int input) const {
    return {.rows = shape_.rows,
            .max_tokens = static_cast<int>(shape_.all_tokens()),
            .max_row_tokens = shape_.tokens,
            .row_first = first_.get(),
            .row_start = start_.get(),
            .row_slot = row_slots_.get() + int64_t{input} * shape_.rows,
            .positions = positions_.get(),
            .slots = slots_.get()};
  }

 private:
  template <typename Function>
  static std::vector<int32_t> Each(int size, Function&& function) {
    std::vector<int32_t> numbers = BenchSequence(size);
    for (int32_t& number : numbers) number = function(number);
    return numbers;
  }

  BenchShape shape_;
  DeviceBuffer<int32_t> first_, start_, row_slots_, positions_, slots_;
};

// Print the lines of decode rows and of prompts.
void BenchMamba2(Bench& bench, bool decode, bool prompts);
void BenchShortConvolution(Bench& bench, bool decode, bool prompts);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_RECURRENT_BENCH_H_
