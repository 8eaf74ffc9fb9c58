#include "base/clock.h"

namespace millrace {
namespace {

class RealClock : public Clock {
 public:
  SteadyTime Now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace

const Clock& Clock::Real() {
  static const RealClock* const clock = new RealClock;
  return *clock;
}

}  // namespace millrace
