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
  for (const int number : {SIGTERM, SIGINT, kEndWatcher}) sigaddset(&set, number);
  return set;
}

}  // namespace

SignalWatcher::SignalWatcher(std::function<void()> on_first) {
  const sigset_t set = Watched();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // Who writes to a connection that is gone gets an error, and not the end of the process.
  signal(SIGPIPE, SIG_IGN);
  thread_ = std::thread([set, on_first = std::move(on_first)] {
    for (bool first = true;; first = false) {
      int number = 0;
      sigwait(&set, &number);
      if (number == kEndWatcher) return;
      if (!first) _exit(128 + number);
      on_first();
    }
  });
}

SignalWatcher::~SignalWatcher() {
  pthread_kill(thread_.native_handle(), kEndWatcher);
  thread_.join();
}

}  // namespace millrace
