// The type that text, scheduler and executors share.
#ifndef MILLRACE_BASE_TOKEN_H_
#define MILLRACE_BASE_TOKEN_H_

#include <cstdint>

namespace millrace {

// An index into the model's vocabulary, in [0, vocab_size).
using Token = int32_t;

}  // namespace millrace

#endif  // MILLRACE_BASE_TOKEN_H_
