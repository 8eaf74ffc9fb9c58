// The allocator of a step's activations.
#ifndef MILLRACE_EXECUTORS_ACTIVATION_ARENA_H_
#define MILLRACE_EXECUTORS_ACTIVATION_ARENA_H_

#include <cstddef>
#include <optional>
#include <vector>

namespace millrace {

// Allocates ranges of [0, capacity). The same sequence of calls yields the same ranges.
class ActivationArena {
 public:
  // Ranges begin at multiples of `alignment`. An arena without a capacity measures what is taken.
  explicit ActivationArena(size_t alignment, size_t capacity = kEndless)
      : alignment_(alignment), capacity_(capacity) {}

  // Allocates by first fit and returns the range's beginning, or nothing if none fits. The capacity
  // is what a dry run measured, so that this is not expected: the step that finds it fails.
  std::optional<size_t> Take(size_t size);
  void Return(size_t begin);

  // Sets the capacity of ranges that are taken from now on.
  void SetCapacity(size_t capacity) { capacity_ = capacity; }

  // Returns the largest end that any range has had.
  size_t peak() const { return peak_; }

 private:
  static constexpr size_t kEndless = static_cast<size_t>(-1) / 2;

  struct Range {
    size_t begin;
    size_t end;
  };
  size_t alignment_;
  size_t capacity_;
  size_t peak_ = 0;
  std::vector<Range> taken_;  // ascending
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_ACTIVATION_ARENA_H_
