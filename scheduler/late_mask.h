// A mask that is made while the step that wants it runs.
#ifndef MILLRACE_SCHEDULER_LATE_MASK_H_
#define MILLRACE_SCHEDULER_LATE_MASK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/token.h"

namespace millrace {

// One bit a token, token 0 the lowest bit of the first word: set, the token may be sampled. Has
// (vocab_size + 31) / 32 words.
using SampleMask = std::vector<uint32_t>;

// Returns the mask that allows this token alone.
inline std::shared_ptr<const SampleMask> OnlyToken(Token token, int32_t vocab_size) {
  SampleMask mask((static_cast<size_t>(vocab_size) + 31) / 32);
  mask[static_cast<size_t>(token) / 32] = 1U << (token % 32);
  return std::make_shared<const SampleMask>(std::move(mask));
}

// The scheduler sets it once, on the engine's thread; executors read it on theirs.
class LateMask {
 public:
  // Null: the sequence has ended, and whatever is sampled for it is dropped.
  void Set(std::shared_ptr<const SampleMask> mask) {
    mask_ = std::move(mask);
    set_.store(true, std::memory_order_release);
    set_.notify_all();
  }

  bool is_set() const { return set_.load(std::memory_order_acquire); }

  // Waits until it is set and returns the mask, or null.
  const SampleMask* Wait() const {
    set_.wait(false, std::memory_order_acquire);
    return mask_.get();
  }

 private:
  std::shared_ptr<const SampleMask> mask_;  // written before set_
  std::atomic<bool> set_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_LATE_MASK_H_
