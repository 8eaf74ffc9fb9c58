// SIGTERM, SIGINT and SIGHUP, taken by a thread of their own.
#ifndef MILLRACE_SERVER_SIGNALS_H_
#define MILLRACE_SERVER_SIGNALS_H_

#include <atomic>
#include <functional>
#include <thread>

namespace millrace {

// Made before any other thread, so that all of them inherit the mask. The first signal calls
// `on_first`, from the watcher's thread; a second one ends the process at once with 128 + its
// number. SIGHUP calls `on_reload`, likewise. SIGUSR1 is ignored.
class SignalWatcher {
 public:
  SignalWatcher(std::function<void()> on_first, std::function<void()> on_reload);
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;
  ~SignalWatcher();

 private:
  // Set before the destructor sends its signal, so that the thread knows it from other processes'.
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_SIGNALS_H_
