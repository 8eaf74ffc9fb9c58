#include "server/guard/worker_loop.h"

#include <chrono>
#include <thread>

namespace millrace {
namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

constexpr int kBusyWakes = 8;
constexpr microseconds kBusyTime(1000);
constexpr microseconds kPause(500);
// Fewer handlers than these after a pause were not worth it.
constexpr size_t kWorthwhile = 4;

}  // namespace

void RunInBatches(boost::asio::io_context& context) {
  int wakes = 0;
  steady_clock::time_point counted_since;
  while (context.run_one() > 0) {
    context.poll();
    if (++wakes < kBusyWakes) continue;
    const auto now = steady_clock::now();
    if (now - counted_since < kBusyTime) {
      do {
        std::this_thread::sleep_for(kPause);
      } while (context.poll() >= kWorthwhile);
    }
    counted_since = now;
    wakes = 0;
  }
}

}  // namespace millrace
