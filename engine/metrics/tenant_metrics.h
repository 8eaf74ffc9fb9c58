// The series of tenants in /metrics.
#ifndef MILLRACE_ENGINE_METRICS_TENANT_METRICS_H_
#define MILLRACE_ENGINE_METRICS_TENANT_METRICS_H_

#include <prometheus/metric_family.h>

#include <functional>
#include <memory>
#include <vector>

#include "engine/request/tenant.h"

namespace millrace {

// Returns the tenants of now. Thread-safe.
using TenantLister = std::function<std::vector<std::shared_ptr<const Tenant>>()>;

// Appends each tenant's use to the families that are shown.
void AppendTenants(const std::vector<std::shared_ptr<const Tenant>>& tenants,
                   std::vector<prometheus::MetricFamily>& families);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_METRICS_TENANT_METRICS_H_
