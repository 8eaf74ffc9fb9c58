#include "server/tls/hello_budget.h"

#include <algorithm>
#include <bit>

namespace millrace {
namespace {

// Few sizes of memory: a message that comes byte by byte is moved seldom, and what one connection
// has given back fits the next.
constexpr size_t kLeastKept = 512;

}  // namespace

HelloBudget::Hello::~Hello() {
  const std::lock_guard lock(budget_.mutex_);
  budget_.Remove(*this);
}

bool HelloBudget::Hello::Keep(std::span<const uint8_t> bytes) {
  const std::lock_guard lock(budget_.mutex_);
  const size_t memory =
      std::max(kept_.capacity(), std::bit_ceil(std::max(bytes.size(), kLeastKept)));
  if (!budget_.SetCharge(*this, memory)) return false;
  kept_.reserve(memory);
  kept_.insert(kept_.end(), bytes.begin() + static_cast<ptrdiff_t>(kept_.size()), bytes.end());
  return true;
}

size_t HelloBudget::Hello::CopyTo(std::span<uint8_t> to) const {
  const std::lock_guard lock(budget_.mutex_);
  std::copy(kept_.begin(), kept_.end(), to.begin());
  return kept_.size();
}

size_t HelloBudget::Hello::memory() const {
  const std::lock_guard lock(budget_.mutex_);
  return kept_.capacity();
}

bool HelloBudget::Hello::Charge(size_t size) {
  const std::lock_guard lock(budget_.mutex_);
  return budget_.SetCharge(*this, size);
}

size_t HelloBudget::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

bool HelloBudget::SetCharge(Hello& hello, size_t size) {
  if (hello.gave_way_) return false;
  if (hello.charged_ == 0) hello.place_ = charged_.insert(charged_.end(), &hello);
  used_ += size - hello.charged_;
  hello.charged_ = size;
  while (used_ > limit_) {
    Hello& oldest = *charged_.front();
    oldest.gave_way_ = true;
    Remove(oldest);
  }
  return !hello.gave_way_;
}

void HelloBudget::Remove(Hello& hello) {
  if (hello.charged_ == 0) return;
  charged_.erase(hello.place_);
  used_ -= hello.charged_;
  hello.charged_ = 0;
  hello.kept_ = std::vector<uint8_t>();
}

}  // namespace millrace
