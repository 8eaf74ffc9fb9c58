// Fork-join on a fixed set of threads, for regions of a few microseconds.
#ifndef MILLRACE_EXECUTORS_CPU_THREAD_POOL_H_
#define MILLRACE_EXECUTORS_CPU_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace::cpu {

// The thread that calls ParallelFor is thread 0; the pool owns the others. A region is cut into
// chunks, each thread begins with an equal share of neighbouring ones and then takes what others
// have left. The caller waits for chunks, not for threads: one that the kernel keeps off its core
// holds nothing up but the chunk it has begun.
//
// Between regions threads spin for some tens of microseconds, so that the regions of a step, and
// steps in a row, find them awake; then they sleep.
//
// One thread at a time calls ParallelFor, never from within a region.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // >= 1, the caller included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(shares_.size()); }

  // body(chunk, thread) once for each chunk in [0, num_chunks), num_chunks < 2^20, on thread [0,
  // num_threads). Returns when all have returned; what they wrote is visible then. The body must
  // not throw.
  template <typename Body>
  void ParallelFor(int num_chunks, const Body& body) {
    if (num_chunks <= 1 || num_threads() == 1) {
      for (int chunk = 0; chunk < num_chunks; ++chunk) body(chunk, 0);
      return;
    }
    Run(num_chunks, {&body, [](const void* context, int chunk, int thread) {
                       (*static_cast<const Body*>(context))(chunk, thread);
                     }});
  }

 private:
  struct Task {
    const void* context;
    void (*call)(const void* context, int chunk, int thread);
  };

  // A thread's share of the current region, in one word, so that a claim is one fetch_add: the
  // region's number, the end and the next chunk (Claim in the .cc). One cache line each.
  struct alignas(64) Share {
    std::atomic<uint64_t> word{0};
  };

  void Run(int num_chunks, Task task);
  void Work(int thread);
  int Drain(int thread);
  bool AwaitRegion(int thread, uint64_t seen);

  std::vector<Share> shares_;
  std::vector<std::thread> threads_;

  // Written by the caller before a region's shares are published, read by whoever holds a claim of
  // it.
  Task task_{};
  uint64_t region_ = 0;  // the caller's own
  alignas(64) std::atomic<int> chunks_left_{0};

  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_THREAD_POOL_H_
