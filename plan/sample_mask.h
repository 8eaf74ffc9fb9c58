// The tokens that may be sampled at a position.
#ifndef MILLRACE_PLAN_SAMPLE_MASK_H_
#define MILLRACE_PLAN_SAMPLE_MASK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/token.h"

namespace millrace {

// One bit a token, token 0 the lowest bit of the first word: set, the token may be sampled. Has
// MaskWords(vocab_size) words.
using SampleMask = std::vector<uint32_t>;

inline size_t MaskWords(int32_t vocab_size) { return (static_cast<size_t>(vocab_size) + 31) / 32; }

// Returns the mask that allows this token alone.
inline std::shared_ptr<const SampleMask> OnlyToken(Token token, int32_t vocab_size) {
  SampleMask mask(MaskWords(vocab_size));
  mask[static_cast<size_t>(token) / 32] = 1U << (token % 32);
  return std::make_shared<const SampleMask>(std::move(mask));
}

}  // namespace millrace

#endif  // MILLRACE_PLAN_SAMPLE_MASK_H_
