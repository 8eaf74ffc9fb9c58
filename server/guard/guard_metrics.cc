#include "server/guard/guard_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <initializer_list>
#include <string>

namespace millrace {
namespace {

std::array<prometheus::Counter*, kGuardReasons> ByReason(
    prometheus::Family<prometheus::Counter>& family, std::initializer_list<GuardReason> only) {
  std::array<prometheus::Counter*, kGuardReasons> counters{};
  for (size_t i = 0; i < kGuardReasons; ++i) {
    const auto reason = static_cast<GuardReason>(i);
    if (only.size() > 0 && std::find(only.begin(), only.end(), reason) == only.end()) continue;
    counters[i] = &family.Add({{"reason", std::string(GuardReasonName(reason))}});
  }
  return counters;
}

}  // namespace

GuardMetrics::GuardMetrics(prometheus::Registry& registry)
    : connections_(&prometheus::BuildGauge()
                        .Name("millrace_grpc_connections")
                        .Help("gRPC connections now open.")
                        .Register(registry)
                        .Add({})),
      opened_(&prometheus::BuildCounter()
                   .Name("millrace_grpc_connections_opened_total")
                   .Help("gRPC connections accepted.")
                   .Register(registry)
                   .Add({})),
      closed_(ByReason(prometheus::BuildCounter()
                           .Name("millrace_grpc_connections_closed_total")
                           .Help("gRPC connections closed or refused, by reason.")
                           .Register(registry),
                       {})),
      resets_(ByReason(
          prometheus::BuildCounter()
              .Name("millrace_grpc_streams_reset_total")
              .Help("Streams that the gRPC endpoint ended before the server behind it did.")
              .Register(registry),
          {GuardReason::kMessageRate, GuardReason::kMessageBytes, GuardReason::kWriteTimeout})) {}

void GuardMetrics::OnOpened() {
  connections_->Increment();
  opened_->Increment();
}

void GuardMetrics::OnClosed(GuardReason reason) {
  connections_->Decrement();
  closed_[static_cast<size_t>(reason)]->Increment();
}

void GuardMetrics::OnStreamReset(GuardReason reason) {
  resets_[static_cast<size_t>(reason)]->Increment();
}

}  // namespace millrace
