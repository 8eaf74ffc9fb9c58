#include "server/http/transport/server_state.h"

#include <cstring>

#include "base/random_bits.h"
#include "base/sha256.h"
#include "base/strings.h"
#include "engine/prepare.h"

namespace millrace {
namespace {

// The ids of tenants, which are counted from 1, are below.
constexpr uint32_t kFirstAddressLane = uint32_t{1} << 31;

// Twice as many as there are connections: then one client alone may have one of each connection.
size_t Capacity(const HttpLimits& limits) {
  return 2 * (limits.connections + limits.probe_connections);
}

}  // namespace

ServerState::ServerState(const Api& api, const HttpLimits& limits, HttpMetrics& metrics,
                         OutputBudget& outputs, const Clock& clock, int workers,
                         const TransportRules& transport_rules)
    : api(api),
      limits(limits),
      metrics(metrics),
      outputs(outputs),
      clock(clock),
      transport_rules(transport_rules),
      bodies(limits.all_bodies_bytes),
      large_bodies("the large bodies", limits.large_bodies_bytes),
      lane_seed(RandomBits()),
      parsers({.threads = 2 * workers,
               .spare_threads = kSpareParsers,
               .long_threads = workers,
               .long_bytes = limits.large_body_bytes + 1,
               .capacity = Capacity(limits),
               .waiting_bytes = limits.all_bodies_bytes}),
      renderer({.threads = 1, .spare_threads = 0, .capacity = Capacity(limits)}) {}

TenantShare ServerState::TurnOf(const std::shared_ptr<const Tenant>& tenant,
                                std::string_view address) const {
  TenantShare share = ShareOf(tenant.get());
  if (tenant != nullptr) return share;
  const Sha256Digest digest = Sha256Of(StrCat(lane_seed, " ", address));
  uint32_t lane = 0;
  std::memcpy(&lane, digest.data(), sizeof(lane));
  share.id = kFirstAddressLane + lane % kAddressLanes;
  return share;
}

}  // namespace millrace
