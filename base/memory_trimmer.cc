#include "base/memory_trimmer.h"

#include <malloc.h>
#include <unistd.h>

#include <fstream>
#include <utility>

namespace millrace {
namespace {

size_t Distance(size_t a, size_t b) { return a > b ? a - b : b - a; }

}  // namespace

MemoryTrimmer::MemoryTrimmer(std::function<size_t()> resident, std::function<void()> trim,
                             size_t step, std::chrono::milliseconds period)
    : resident_(std::move(resident)),
      trim_(std::move(trim)),
      step_(step),
      period_(period),
      thread_([this] { Run(); }) {}

MemoryTrimmer::~MemoryTrimmer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

size_t MemoryTrimmer::ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  size_t all = 0, resident = 0, of_files = 0;  // pages
  if (!(statm >> all >> resident >> of_files)) return 0;
  return (resident - of_files) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

void MemoryTrimmer::Trim() { malloc_trim(0); }

void MemoryTrimmer::Run() {
  size_t last = resident_();
  int trims = 0;  // to come
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, period_, [this] { return stopping_; })) {
    lock.unlock();
    const size_t now = resident_();
    if (Distance(now, last) >= step_) trims = kLastTrims;
    if (trims > 0) {
      trim_();
      last = resident_();
      trims = now >= last + step_ ? kLastTrims : trims - 1;
    }
    lock.lock();
  }
}

}  // namespace millrace
