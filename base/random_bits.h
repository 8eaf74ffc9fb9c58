// Random numbers that are no secret, for ids.
#ifndef MILLRACE_BASE_RANDOM_BITS_H_
#define MILLRACE_BASE_RANDOM_BITS_H_

#include <cstdint>

namespace millrace {

// Returns 64 random bits, of a generator that each thread has for itself and seeds once.
uint64_t RandomBits();

}  // namespace millrace

#endif  // MILLRACE_BASE_RANDOM_BITS_H_
