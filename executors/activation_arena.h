// Where a step's activations lie.
#ifndef MILLRACE_EXECUTORS_ACTIVATION_ARENA_H_
#define MILLRACE_EXECUTORS_ACTIVATION_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace {

// Hands out parts of one piece of memory, which it never touches (it may be a device's); the same
// sequence of calls gets the same addresses.
class ActivationArena {
 public:
  // The memory outlives this and is aligned to kAlignment.
  ActivationArena(uint8_t* memory, size_t bytes) : memory_(memory), bytes_(bytes) {}

  static constexpr size_t kAlignment = 256;

  // First fit. Ends the process when nothing fits: the arena is made for what a step takes.
  uint8_t* Take(size_t bytes);
  void Return(uint8_t* data);

  // The most bytes that were ever in use, gaps included.
  size_t peak() const { return peak_; }

 private:
  struct Extent {
    size_t begin;
    size_t end;
  };
  uint8_t* memory_;
  size_t bytes_;
  size_t peak_ = 0;
  std::vector<Extent> taken_;  // ascending
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_ACTIVATION_ARENA_H_
