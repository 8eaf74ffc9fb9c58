// A thread of relays, and what they share.
#ifndef MILLRACE_SERVER_GUARD_RELAY_WORKER_H_
#define MILLRACE_SERVER_GUARD_RELAY_WORKER_H_

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <thread>
#include <unordered_set>

#include "base/clock.h"
#include "server/guard/buffer_pool.h"
#include "server/guard/relay.h"

namespace millrace {

// Everything but the thread itself belongs to that thread.
struct RelayWorker {
  static constexpr std::chrono::milliseconds kPeriod{50};

  boost::asio::io_context context{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work =
      boost::asio::make_work_guard(context);
  boost::asio::steady_timer timer{context};
  BufferPool buffers;
  std::unordered_set<std::shared_ptr<Relay>> relays;
  bool ended = false;  // of the worker's thread
  std::thread thread;

  // Looks after its relays from now on.
  void Tick() {
    timer.expires_after(kPeriod);
    timer.async_wait([this](const boost::system::error_code& error) {
      // A timer that has run out can no longer be cancelled.
      if (error || ended) return;
      const SteadyTime now = Clock::Real().Now();
      // A relay that ends leaves the set at once, and no other one does.
      for (auto it = relays.begin(); it != relays.end();) {
        const std::shared_ptr<Relay> relay = *it++;
        relay->Tick(now);
      }
      Tick();
    });
  }
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_RELAY_WORKER_H_
