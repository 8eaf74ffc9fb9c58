// The state that all connections of a server share.
#ifndef MILLRACE_SERVER_HTTP_TRANSPORT_SERVER_STATE_H_
#define MILLRACE_SERVER_HTTP_TRANSPORT_SERVER_STATE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/clock.h"
#include "base/tenant_budget.h"
#include "engine/request/tenant.h"
#include "engine/text/text_pool.h"
#include "server/guard/body_budget.h"
#include "server/guard/output_budget.h"
#include "server/http/api/api.h"
#include "server/http/transport/http_limits.h"
#include "server/http/transport/http_metrics.h"
#include "server/http/transport/place_queue.h"
#include "server/tls/transport.h"

namespace millrace {

struct ServerState {
  static constexpr int kSpareParsers = 2;
  static constexpr uint32_t kAddressLanes = 4096;

  // Large bodies have `workers` threads, and others have twice as many.
  ServerState(const Api& api, const HttpLimits& limits, HttpMetrics& metrics, OutputBudget& outputs,
              const Clock& clock, int workers, const TransportRules& transport_rules);

  bool full() const { return connections - closed > limits.connections; }

  // Returns the share in whose turns the work for a request runs: its tenant's, or without a tenant
  // its address's, which shares a lane with a few others. `address`: as AddressKey returns it.
  TenantShare TurnOf(const std::shared_ptr<const Tenant>& tenant, std::string_view address) const;
  // Not for RequestCost::kSmall.
  TextPool& PoolFor(RequestCost cost) {
    return cost == RequestCost::kRendering ? renderer : parsers;
  }

  const Api& api;
  const HttpLimits& limits;
  HttpMetrics& metrics;
  OutputBudget& outputs;  // of answers that wait to be written
  const Clock& clock;     // for how long they have waited
  const TransportRules& transport_rules;
  std::atomic<size_t> connections{0};
  std::atomic<size_t> closed{0};  // of them, those that wait for their last handlers
  BodyBudget bodies;              // of requests being read
  PlaceQueue waiting_bodies;      // those that wait for large_bodies
  TenantBudget large_bodies;      // from their first byte until they have been parsed
  std::atomic<bool> stopping{false};
  const uint64_t lane_seed;  // random, so that clients cannot find out who shares a lane
  // A large body does not hold up those that are less so, and none holds up the metrics.
  TextPool parsers;
  TextPool renderer;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_TRANSPORT_SERVER_STATE_H_
