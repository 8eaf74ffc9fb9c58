#include "server/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

#include "base/log.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kServer);

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
  thread_ =
      std::thread([this, set, on_first = std::move(on_first), on_reload = std::move(on_reload)] {
        for (bool first = true;;) {
          int number = 0;
          sigwait(&set, &number);
          if (number == kEndWatcher) {
            if (ending_) return;
            kLog.Info("SIGUSR1 came, which means nothing here");
            continue;
          }
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
  ending_ = true;
  pthread_kill(thread_.native_handle(), kEndWatcher);
  thread_.join();
}

}  // namespace millrace
