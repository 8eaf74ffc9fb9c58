#include "hub/progress.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kHub);
constexpr Duration kDrawEvery = std::chrono::milliseconds(200);
constexpr Duration kLogEvery = std::chrono::seconds(10);

std::string Fixed(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

}  // namespace

std::string ShortSize(int64_t bytes) {
  constexpr std::array<std::string_view, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return StrCat(bytes, " B");
  auto value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1023.95 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return StrCat(Fixed(value), " ", kUnits[unit]);
}

std::string ProgressBar(double share) {
  constexpr size_t kWidth = 24;
  const auto full = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * kWidth);
  return StrCat("[", std::string(full, '#'), std::string(kWidth - full, '-'), "]");
}

Progress::Progress(std::string what, int64_t done, int64_t total, LoadProgress* also)
    : what_(std::move(what)), before_(done), total_(total), also_(also), done_(done) {
  if (also_ != nullptr) {
    also_->Begin(StrCat("fetching ", what_));
    also_->SetTotal(done, total);
  }
  thread_ = std::thread([this] { Run(); });
}

Progress::~Progress() {
  {
    std::lock_guard lock(mutex_);
    end_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::string Progress::Line(int64_t done, double share, double seconds) const {
  const double rate = seconds <= 0 ? 0 : static_cast<double>(done - before_) / seconds;
  return StrCat("fetching ", what_, ": ", Fixed(100 * share), " % of ", ShortSize(total_), ", ",
                ShortSize(static_cast<int64_t>(rate)), "/s");
}

void Progress::Run() {
  const bool terminal = isatty(STDERR_FILENO) == 1;
  const SteadyTime begin = Clock::Real().Now();
  std::unique_lock lock(mutex_);
  bool drawn = false;
  while (!changed_.wait_for(lock, terminal ? kDrawEvery : kLogEvery, [this] { return end_; })) {
    const int64_t done = done_;
    const double share = total_ == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total_);
    const std::string line = Line(done, share, ToSeconds(Clock::Real().Now() - begin));
    if (terminal) {
      std::fprintf(stderr, "\r\x1b[K%s %s", ProgressBar(share).c_str(), line.c_str());
      drawn = true;
    } else {
      kLog.Info(line);
    }
  }
  if (drawn) std::fputs("\r\x1b[K", stderr);
}

}  // namespace millrace
