// Fork-join on a fixed set of threads, for regions of a few microseconds.
#ifndef MILLRACE_EXECUTORS_HOST_THREAD_POOL_H_
#define MILLRACE_EXECUTORS_HOST_THREAD_POOL_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace {

// A pool whose thread 0 is the caller of ParallelFor; it owns the others. A region is divided into
// chunks. Each thread begins with an equal share of adjacent chunks and then takes those left by
// others. The caller waits for chunks and not for threads: a descheduled thread delays only the
// chunk that it has begun.
//
// Between regions threads spin for some tens of microseconds, so that the regions of a step, and
// consecutive steps, find them awake. Then they sleep.
//
// ParallelFor is called by one thread at a time and never from within a region.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // >= 1, the caller included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(shares_.size()); }

  // Calls body(chunk, thread) once for each chunk in [0, num_chunks), on threads [0, num_threads).
  // Returns when all calls have returned; their writes are then visible. The body must not throw.
  template <typename Body>
  void ParallelFor(int num_chunks, const Body& body) {
    if (num_chunks <= 1 || num_threads() == 1) {
      for (int chunk = 0; chunk < num_chunks; ++chunk) body(chunk, 0);
      return;
    }
    for (int begin = 0; begin < num_chunks; begin += kMostChunks) {
      const auto part = [&body, begin](int chunk, int thread) { body(begin + chunk, thread); };
      Run(std::min(num_chunks - begin, kMostChunks),
          {&part, [](const void* context, int chunk, int thread) {
             (*static_cast<const decltype(part)*>(context))(chunk, thread);
           }});
    }
  }

 private:
  // Bounds a region. A claim word has room for twice as many, so that `next` cannot overflow.
  static constexpr int kMostChunks = 1 << 19;

  struct Task {
    const void* context;
    void (*call)(const void* context, int chunk, int thread);
  };

  // A thread's share of the current region, packed in one word so that a claim is one fetch_add:
  // the region's number, the end and the next chunk (see Claim in the .cc). Each has a cache line
  // of its own.
  struct alignas(64) Share {
    std::atomic<uint64_t> word{0};
  };

  void Run(int num_chunks, Task task);
  void Work(int thread);
  int Drain(int thread);
  bool AwaitRegion(int thread, uint64_t seen);

  std::vector<Share> shares_;
  std::vector<std::thread> threads_;

  // Written by the caller before a region's shares are published, and read by threads with a claim
  // on the region.
  Task task_{};
  uint64_t region_ = 0;  // the caller's own
  alignas(64) std::atomic<int> chunks_left_{0};

  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_HOST_THREAD_POOL_H_
