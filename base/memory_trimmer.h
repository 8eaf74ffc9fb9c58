// Gives memory that the C library keeps back to the system.
#ifndef MILLRACE_BASE_MEMORY_TRIMMER_H_
#define MILLRACE_BASE_MEMORY_TRIMMER_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>

namespace millrace {

// The C library keeps what was freed below memory that is still used, in each thread's arena. A
// process that was large for a moment stays so until somebody asks. This asks when the process has
// grown or shrunk by `step` bytes since it last did, and then once a period until that gave back
// less several times in a row, since what is freed meanwhile cannot be seen from outside. So a
// steady load is not disturbed.
class MemoryTrimmer {
 public:
  static constexpr size_t kStep = size_t{12} << 20;
  static constexpr std::chrono::milliseconds kPeriod{1500};
  static constexpr int kLastTrims = 5;

  // Starts a thread, which looks once a period. `resident` returns the bytes of the process's own
  // memory that lie in RAM, and `trim` gives back.
  explicit MemoryTrimmer(std::function<size_t()> resident = ResidentBytes,
                         std::function<void()> trim = Trim, size_t step = kStep,
                         std::chrono::milliseconds period = kPeriod);
  MemoryTrimmer(const MemoryTrimmer&) = delete;
  MemoryTrimmer& operator=(const MemoryTrimmer&) = delete;
  ~MemoryTrimmer();

  // Returns the resident bytes of this process but for those of files, or 0 where the system does
  // not say.
  static size_t ResidentBytes();

 private:
  static void Trim();
  void Run();

  const std::function<size_t()> resident_;
  const std::function<void()> trim_;
  const size_t step_;
  const std::chrono::milliseconds period_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_BASE_MEMORY_TRIMMER_H_
