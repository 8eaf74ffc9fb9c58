#include "engine/tenant.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "base/strings.h"
#include "engine/request.h"

namespace millrace {
namespace {

constexpr double kMinute = 60;

// `excess`: by how much the allowance of a minute is exceeded.
absl::Status TooMuch(std::string_view what, int64_t per_minute, double excess) {
  const double seconds = std::max(excess * kMinute / static_cast<double>(per_minute), 0.001);
  return WithRetryAfter(absl::ResourceExhaustedError(StrCat(
                            "the key's ", what, " a minute are used up; allowed: ", per_minute)),
                        absl::Seconds(seconds));
}

}  // namespace

void TenantUsage::Bucket::Refill(int64_t per_minute, SteadyTime now) {
  const double refilled = ToSeconds(now - since) * static_cast<double>(per_minute) / kMinute;
  used = std::max(used - std::max(refilled, 0.0), 0.0);
  since = now;
}

Tenant::Tenant(uint32_t id, TenantLimits limits, std::shared_ptr<TenantUsage> usage)
    : id_(id), limits_(std::move(limits)), usage_(std::move(usage)) {}

absl::Status Tenant::Enter(int64_t streams, SteadyTime now) const {
  std::lock_guard lock(usage_->mutex_);
  TenantUsage::Counts& counts = usage_->counts_;
  absl::Status status;
  if (const auto most = limits_.max_streams; most && counts.streams + streams > *most) {
    status = WithRetryAfter(
        absl::ResourceExhaustedError(StrCat("the key has ", counts.streams,
                                            " streams at once, and this request has ", streams,
                                            "; allowed: ", *most, " together")),
        absl::Seconds(1));
  }
  if (const auto most = limits_.tokens_per_minute; most && status.ok()) {
    usage_->tokens_.Refill(*most, now);
    const double excess = usage_->tokens_.used - static_cast<double>(*most);
    if (excess >= 0) status = TooMuch("tokens", *most, excess);
  }
  if (const auto most = limits_.requests_per_minute; most && status.ok()) {
    usage_->requests_.Refill(*most, now);
    const double excess = usage_->requests_.used + 1 - static_cast<double>(*most);
    if (excess > 1e-6) {
      status = TooMuch("requests", *most, excess);
    } else {
      usage_->requests_.used += 1;
    }
  }
  if (status.ok()) {
    counts.streams += streams;
    ++counts.requests;
  } else {
    ++counts.refused;
  }
  return status;
}

void Tenant::GiveBack() const {
  std::lock_guard lock(usage_->mutex_);
  --usage_->counts_.requests;
  if (limits_.requests_per_minute.has_value()) {
    usage_->requests_.used = std::max(usage_->requests_.used - 1, 0.0);
  }
}

void Tenant::Leave(int64_t prompt_tokens, int64_t generation_tokens, SteadyTime now) const {
  std::lock_guard lock(usage_->mutex_);
  TenantUsage::Counts& counts = usage_->counts_;
  --counts.streams;
  counts.prompt_tokens += prompt_tokens;
  counts.generation_tokens += generation_tokens;
  if (const auto most = limits_.tokens_per_minute) {
    usage_->tokens_.Refill(*most, now);
    usage_->tokens_.used += static_cast<double>(prompt_tokens + generation_tokens);
  }
}

absl::Status Tenant::CheckPriority(int32_t* priority) const {
  const int32_t least = limits_.least_priority;
  const int32_t most = limits_.most_priority;
  if (*priority == 0) *priority = std::clamp(0, least, most);
  if (*priority >= least && *priority <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("priority is ", *priority, "; allowed with this key: ", least, " to ", most));
}

}  // namespace millrace
