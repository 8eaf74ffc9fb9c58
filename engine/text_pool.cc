#include "engine/text_pool.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "engine/request.h"

namespace millrace {

TextPool::TextPool(int threads, size_t capacity)
    : capacity_(capacity), max_long_(static_cast<size_t>(threads) - 1) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

TextPool::~TextPool() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status TextPool::Submit(uint32_t tenant, size_t bytes, std::function<void()> work,
                              IsOver is_over) {
  {
    std::lock_guard lock(mutex_);
    if (num_waiting_ >= capacity_) {
      return QueueFull(StrCat(num_waiting_, " texts wait; allowed: ", capacity_));
    }
    if (num_waiting_ > 0 && waiting_bytes_ + bytes > kMaxWaitingBytes) {
      return QueueFull(StrCat("texts of ", waiting_bytes_, " bytes wait, and this one has ", bytes,
                              "; allowed: ", kMaxWaitingBytes));
    }
    const bool is_long = bytes >= kLongBytes;
    std::deque<Job>& lane = is_long ? long_[tenant] : short_;
    if (is_long && lane.empty()) turns_.push_back(tenant);
    lane.push_back({next_number_++, bytes, std::move(work), std::move(is_over)});
    ++num_waiting_;
    waiting_bytes_ += bytes;
  }
  changed_.notify_one();
  return absl::OkStatus();
}

std::vector<std::function<void()>> TextPool::Withdraw(SteadyTime now) {
  std::vector<std::function<void()>> withdrawn;
  std::lock_guard lock(mutex_);
  const auto withdraw = [&](std::deque<Job>& lane) {
    const auto kept = std::stable_partition(lane.begin(), lane.end(), [&](const Job& job) {
      return job.is_over == nullptr || !job.is_over(now);
    });
    for (auto job = kept; job != lane.end(); ++job) {
      --num_waiting_;
      waiting_bytes_ -= job->bytes;
      withdrawn.push_back(std::move(job->work));
    }
    lane.erase(kept, lane.end());
  };
  withdraw(short_);
  for (auto& [tenant, lane] : long_) withdraw(lane);
  std::erase_if(turns_, [this](uint32_t tenant) { return long_.at(tenant).empty(); });
  std::erase_if(long_, [](const auto& lane) { return lane.second.empty(); });
  return withdrawn;
}

bool TextPool::MayTakeLong() const { return !long_.empty() && long_running_ < max_long_; }

// With mutex_ held.
TextPool::Job TextPool::Take(bool is_long) {
  std::deque<Job>& lane = is_long ? NextLong() : short_;
  Job job = std::move(lane.front());
  lane.pop_front();
  --num_waiting_;
  waiting_bytes_ -= job.bytes;
  if (!is_long) return job;
  const uint32_t tenant = turns_.front();
  turns_.pop_front();
  if (lane.empty()) {
    long_.erase(tenant);
  } else {
    turns_.push_back(tenant);
  }
  ++long_running_;
  return job;
}

void TextPool::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(
        lock, [this] { return !short_.empty() || MayTakeLong() || (closed_ && long_.empty()); });
    if (short_.empty() && !MayTakeLong()) return;
    const bool take_long =
        MayTakeLong() && (short_.empty() || NextLong().front().number < short_.front().number);
    Job job = Take(take_long);
    lock.unlock();
    job.work();
    job = {};  // let go of what it holds before the lock is taken
    lock.lock();
    if (take_long) {
      --long_running_;
      changed_.notify_all();
    }
  }
}

}  // namespace millrace
