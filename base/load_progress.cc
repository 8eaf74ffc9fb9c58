#include "base/load_progress.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace millrace {

void LoadProgress::Begin(std::string stage) {
  const std::lock_guard lock(mutex_);
  stage_ = std::move(stage);
  total_ = 0;
  done_ = 0;
}

void LoadProgress::SetTotal(int64_t done, int64_t total) {
  const std::lock_guard lock(mutex_);
  total_ = total;
  done_ = done;
}

std::string LoadProgress::Describe() const {
  const std::lock_guard lock(mutex_);
  if (total_ <= 0) return stage_;
  const int64_t done = std::clamp(done_.load(), int64_t{0}, total_);
  const auto percent =
      static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total_));
  return StrCat(stage_, ": ", percent, " % of ", total_ >> 20, " MiB");
}

}  // namespace millrace
