#include "engine/request/tenant.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "base/strings.h"
#include "engine/request/request.h"

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

absl::Status Tenant::CheckStreams(int64_t streams) const {
  const int64_t running = usage_->counts_.streams;
  if (const auto most = limits_.max_streams; most && running + streams > *most) {
    return WithRetryAfter(absl::ResourceExhaustedError(StrCat(
                              "the key has ", running, " streams at once, and this request has ",
                              streams, "; allowed: ", *most, " together")),
                          absl::Seconds(1));
  }
  return absl::OkStatus();
}

absl::Status Tenant::EnterAnswer(bool always) const {
  std::lock_guard lock(usage_->mutex_);
  absl::Status status = always ? absl::OkStatus() : CheckStreams(1);
  if (status.ok()) {
    ++usage_->counts_.streams;
  } else {
    ++usage_->counts_.refused;
  }
  return status;
}

absl::Status Tenant::CheckLimits(int64_t streams, SteadyTime now) const {
  absl::Status status = CheckStreams(streams);
  if (const auto most = limits_.tokens_per_minute; most && status.ok()) {
    usage_->tokens_.Refill(*most, now);
    const double excess = usage_->tokens_.used - static_cast<double>(*most);
    if (excess >= 0) status = TooMuch("tokens", *most, excess);
  }
  if (const auto most = limits_.requests_per_minute; most && status.ok()) {
    usage_->requests_.Refill(*most, now);
    const double excess = usage_->requests_.used + 1 - static_cast<double>(*most);
    if (excess > 1e-6) status = TooMuch("requests", *most, excess);
  }
  if (!status.ok()) ++usage_->counts_.refused;
  return status;
}

absl::Status Tenant::Enter(int64_t streams, SteadyTime now) const {
  std::lock_guard lock(usage_->mutex_);
  absl::Status status = CheckLimits(streams, now);
  if (!status.ok()) return status;
  if (limits_.requests_per_minute.has_value()) usage_->requests_.used += 1;
  usage_->counts_.streams += streams;
  ++usage_->counts_.requests;
  return status;
}

absl::Status Tenant::CheckEnter(SteadyTime now) const {
  std::lock_guard lock(usage_->mutex_);
  return CheckLimits(1, now);
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
  Use(prompt_tokens + generation_tokens, now);
}

void Tenant::LeaveText(int64_t text_tokens, SteadyTime now) const {
  std::lock_guard lock(usage_->mutex_);
  --usage_->counts_.streams;
  usage_->counts_.text_tokens += text_tokens;
  Use(text_tokens, now);
}

// With the usage's lock held.
void Tenant::Use(int64_t tokens, SteadyTime now) const {
  if (const auto most = limits_.tokens_per_minute) {
    usage_->tokens_.Refill(*most, now);
    usage_->tokens_.used += static_cast<double>(tokens);
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
