#include "executors/host/thread_pool.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace {
namespace {

// A claim word: region number (24 bits), end (20), next (20). `next` may exceed `end` by one for
// each thread that finds no chunk left.
constexpr int kChunkBits = 20;
constexpr uint64_t kChunkMask = (uint64_t{1} << kChunkBits) - 1;
constexpr uint64_t kRegionMask = (uint64_t{1} << 24) - 1;

uint64_t Pack(uint64_t region, int next, int end) {
  return (region & kRegionMask) << (2 * kChunkBits) | static_cast<uint64_t>(end) << kChunkBits |
         static_cast<uint64_t>(next);
}
uint64_t RegionOf(uint64_t word) { return word >> (2 * kChunkBits); }
int NextOf(uint64_t word) { return static_cast<int>(word & kChunkMask); }
int EndOf(uint64_t word) { return static_cast<int>(word >> kChunkBits & kChunkMask); }

// Time to spin: long enough to bridge the gap between two regions, and between two steps if the
// next one is already planned; short enough that a server with little to do sleeps.
constexpr std::chrono::microseconds kSpin{60};
constexpr int kPausesPerLook = 32;  // between reads of the clock

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : shares_(num_threads) {
  for (int thread = 1; thread < num_threads; ++thread) {
    threads_.emplace_back([this, thread] { Work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(int num_chunks, Task task) {
  task_ = task;
  ++region_;
  chunks_left_.store(num_chunks, std::memory_order_relaxed);
  const int threads = num_threads();
  for (int thread = 0; thread < threads; ++thread) {
    const int begin = static_cast<int>(int64_t{num_chunks} * thread / threads);
    const int end = static_cast<int>(int64_t{num_chunks} * (thread + 1) / threads);
    // Sequentially consistent, like the load of sleepers_ below: either this thread sees a sleeper,
    // or the sleeper, which checks its share once more after it has registered, sees the share.
    shares_[thread].word.store(Pack(region_, begin, end));
  }
  if (sleepers_.load() > 0) {
    // The lock ensures that a thread between its last check and its sleep is not missed.
    { std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  const int done = Drain(0);
  if (chunks_left_.fetch_sub(done, std::memory_order_acq_rel) == done) return;
  // Other threads run their last chunks. One may wait for this core, so yield it after a while.
  for (int spins = 0; chunks_left_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < 2000) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
}

// Claims and runs chunks, the thread's own first, until none is left anywhere. Returns how many it
// ran. The task is read after a claim has succeeded: the region cannot end before this thread has
// reported the chunk, so task_ stays valid.
int ThreadPool::Drain(int thread) {
  const int threads = num_threads();
  int ran = 0;
  for (int i = 0; i < threads; ++i) {
    std::atomic<uint64_t>& share = shares_[(thread + i) % threads].word;
    for (;;) {
      // A check before the claim keeps `next` of a drained share from growing with each visit.
      const uint64_t seen = share.load(std::memory_order_relaxed);
      if (NextOf(seen) >= EndOf(seen)) break;
      const uint64_t word = share.fetch_add(1, std::memory_order_acq_rel);
      if (NextOf(word) >= EndOf(word)) break;
      task_.call(task_.context, NextOf(word), thread);
      ++ran;
    }
  }
  return ran;
}

void ThreadPool::Work(int thread) {
  uint64_t seen = 0;
  while (AwaitRegion(thread, seen)) {
    seen = RegionOf(shares_[thread].word.load(std::memory_order_acquire));
    const int ran = Drain(thread);
    // A thread that ran nothing must not touch the count, which may already be the next region's.
    if (ran > 0) chunks_left_.fetch_sub(ran, std::memory_order_acq_rel);
  }
}

// Waits until this thread's share belongs to another region than `seen`. Returns false if the pool
// stops.
bool ThreadPool::AwaitRegion(int thread, uint64_t seen) {
  const std::atomic<uint64_t>& share = shares_[thread].word;
  const auto published = [&] { return RegionOf(share.load()) != seen; };
  const auto begin = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (RegionOf(share.load(std::memory_order_acquire)) != seen) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() - begin < kSpin);

  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  wake_.wait(lock, [&] { return published() || stopping_.load(); });
  sleepers_.fetch_sub(1);
  return !stopping_.load();
}

}  // namespace millrace
