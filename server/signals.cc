#include "server/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

namespace millrace {
namespace {

constexpr int kEndWatcher = SIGUSR1;

sigset_t Watched() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, kEndWatcher}) sigaddset(&set, number);
  return set;
}

}  // namespace

SignalWatcher::SignalWatcher(std::function<void()> on_first, std::function<void()> on_reload) {
  const sigset_t set = Watched();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // Who writes to a connection that is gone gets an error, and not the end of the process.
  signal(SIGPIPE, SIG_IGN);
  // So does who writes beyond the largest size of a file (ulimit -f), as the log may.
  signal(SIGXFSZ, SIG_IGN);
  thread_ = std::thread([set, on_first = std::move(on_first), on_reload = std::move(on_reload)] {
    for (bool first = true;;) {
      int number = 0;
      sigwait(&set, &number);
      if (number == kEndWatcher) return;
      if (number == SIGHUP) {
        on_reload();
        continue;
      }
      if (!std::exchange(first, false)) _exit(128 + number);
      on_first();
    }
  });
}

SignalWatcher::~SignalWatcher() {
  pthread_kill(thread_.native_handle(), kEndWatcher);
  thread_.join();
}

}  // namespace millrace
