// The metrics of guarded connections.
#ifndef MILLRACE_SERVER_GUARD_GUARD_METRICS_H_
#define MILLRACE_SERVER_GUARD_GUARD_METRICS_H_

#include <array>

#include "server/guard/limits.h"

namespace prometheus {
class Counter;
class Gauge;
class Registry;
}  // namespace prometheus

namespace millrace {

// Thread-safe.
class GuardMetrics {
 public:
  // `registry` outlives it.
  explicit GuardMetrics(prometheus::Registry& registry);

  void OnOpened();
  void OnClosed(GuardReason reason);
  void OnStreamReset(GuardReason reason);

 private:
  prometheus::Gauge* connections_;
  prometheus::Counter* opened_;
  std::array<prometheus::Counter*, kGuardReasons> closed_;  // by GuardReason
  std::array<prometheus::Counter*, kGuardReasons> resets_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_GUARD_METRICS_H_
