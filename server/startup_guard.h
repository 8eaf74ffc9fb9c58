// Ends a start that the system gives no thread or memory with one line and status 1, wherever in
// our code or a library's it happens.
#ifndef MILLRACE_SERVER_STARTUP_GUARD_H_
#define MILLRACE_SERVER_STARTUP_GUARD_H_

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "base/clock.h"
#include "config/settings.h"

namespace millrace {

// Until it is destroyed, an uncaught exception (std::thread and operator new throw them) and
// abort(), which gRPC calls where it gets no thread, end the process with one line. At most one
// exists at a time.
class StartupGuard {
 public:
  StartupGuard();
  StartupGuard(const StartupGuard&) = delete;
  StartupGuard& operator=(const StartupGuard&) = delete;
  ~StartupGuard();

 private:
  std::terminate_handler before_;
};

// Ends the process with one line and status 1 if it lives for longer than `most`: where memory is
// short, gRPC can wait for ever for a thread that it did not get.
class StartupWatch {
 public:
  StartupWatch(std::string what, Duration most);
  ~StartupWatch();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;  // guarded by mutex_
  std::thread thread_;
};

// Makes as many threads as the server is about to have, all at once, and lets them go.
// ResourceExhausted: the system does not give so many.
absl::Status CheckThreads(const Settings& settings);

// Returns the most memory that this process may have, in bytes: the machine's, its control group's
// or its address space's, whichever is least. `whose` is set to words for it.
int64_t MemoryLimit(std::string& whose);

// InvalidArgument: settings.kv_cache_memory or state_cache_memory is more than MemoryLimit, on a
// device that takes it from the host's memory.
absl::Status CheckKvCacheMemory(const Settings& settings);

}  // namespace millrace

#endif  // MILLRACE_SERVER_STARTUP_GUARD_H_
