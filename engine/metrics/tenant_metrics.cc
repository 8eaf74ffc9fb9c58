#include "engine/metrics/tenant_metrics.h"

#include <utility>

namespace millrace {

void AppendTenants(const std::vector<std::shared_ptr<const Tenant>>& tenants,
                   std::vector<prometheus::MetricFamily>& families) {
  if (tenants.empty()) return;
  struct Shown {
    const char* name;
    const char* help;
    int64_t TenantUsage::Counts::*count;
    prometheus::MetricType type;
  };
  using Type = prometheus::MetricType;
  constexpr Shown kShown[] = {
      {"millrace_tenant_streams", "Requests of the tenant now, each choice by itself",
       &TenantUsage::Counts::streams, Type::Gauge},
      {"millrace_tenant_requests_total", "Requests of the tenant that its limits let pass",
       &TenantUsage::Counts::requests, Type::Counter},
      {"millrace_tenant_refused_total", "Requests of the tenant beyond its own limits",
       &TenantUsage::Counts::refused, Type::Counter},
      {"millrace_tenant_prompt_tokens_total", "Prompt tokens of the tenant's ended requests",
       &TenantUsage::Counts::prompt_tokens, Type::Counter},
      {"millrace_tenant_generation_tokens_total",
       "Tokens generated for the tenant's ended requests", &TenantUsage::Counts::generation_tokens,
       Type::Counter},
      {"millrace_tenant_text_tokens_total",
       "Tokens of the tenant's texts that were tokenized, counted or made of tokens, and no more",
       &TenantUsage::Counts::text_tokens, Type::Counter},
  };
  for (const Shown& shown : kShown) {
    prometheus::MetricFamily& family = families.emplace_back();
    family.name = shown.name;
    family.help = shown.help;
    family.type = shown.type;
    for (const auto& tenant : tenants) {
      const auto value = static_cast<double>(tenant->usage()->counts().*shown.count);
      prometheus::ClientMetric& metric = family.metric.emplace_back();
      metric.label.push_back({"tenant", tenant->limits().name});
      if (shown.type == Type::Gauge) {
        metric.gauge.value = value;
      } else {
        metric.counter.value = value;
      }
    }
  }
}

}  // namespace millrace
