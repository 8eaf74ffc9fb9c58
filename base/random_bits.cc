#include "base/random_bits.h"

#include <random>

namespace millrace {

uint64_t RandomBits() {
  thread_local std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return random();
}

}  // namespace millrace
