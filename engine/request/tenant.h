// Whom requests are made for, and what each may use.
#ifndef MILLRACE_ENGINE_REQUEST_TENANT_H_
#define MILLRACE_ENGINE_REQUEST_TENANT_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/clock.h"

namespace millrace {

struct TenantLimits {
  std::string name;
  int32_t share = 100;  // of the steps' tokens, in proportion to the others'
  std::optional<int64_t> requests_per_minute;
  // Counts prompts, answers and texts, as each request ends.
  std::optional<int64_t> tokens_per_minute;
  std::optional<int64_t> max_streams;  // at once; each choice counts, and an unread answer
  int32_t least_priority = 0;          // lower goes first
  int32_t most_priority = std::numeric_limits<int32_t>::max();
  std::string cache_salt;  // tenants with the same one hit each other's prefixes
};

// The usage of a tenant. Outlives changes of its limits. Thread-safe.
class TenantUsage {
 public:
  struct Counts {
    int64_t streams = 0;  // now
    int64_t requests = 0;
    int64_t refused = 0;  // by the tenant's own limits
    int64_t prompt_tokens = 0;
    int64_t generation_tokens = 0;
    int64_t text_tokens = 0;  // of texts that were tokenized, or made of tokens, and no more
  };
  Counts counts() const {
    std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  friend class Tenant;

  // A token bucket of a minute's allowance. It refills evenly, up to the whole.
  struct Bucket {
    double used = 0;
    SteadyTime since;
    void Refill(int64_t per_minute, SteadyTime now);
  };

  mutable std::mutex mutex_;  // guards what follows
  Counts counts_;
  Bucket requests_;
  Bucket tokens_;
};

// A tenant as of one reading of the keys: requests that began before a change keep the limits and
// the usage that they began with. Thread-safe.
class Tenant final {
 public:
  // `id` is not 0, and no other tenant's. `usage` may be shared with the tenant's earlier limits.
  Tenant(uint32_t id, TenantLimits limits, std::shared_ptr<TenantUsage> usage);

  uint32_t id() const { return id_; }
  const TenantLimits& limits() const { return limits_; }
  const std::shared_ptr<TenantUsage>& usage() const { return usage_; }

  // Counts a request of so many streams in. ResourceExhausted, with when to try again: it would
  // exceed a limit, and was not counted.
  absl::Status Enter(int64_t streams, SteadyTime now) const;
  // Returns what Enter would return for one stream, of which nothing is counted but a refusal: for
  // a request that is not worth reading where it will be refused.
  absl::Status CheckEnter(SteadyTime now) const;
  // Counts a stream in that is no request: an answer that waits until it has been read. `always`:
  // beyond max_streams, too. ResourceExhausted otherwise. Leave, without tokens, counts it out.
  absl::Status EnterAnswer(bool always) const;
  // Gives back a request's part of a minute's allowance: it was counted in, and there was no place.
  // Its streams are counted out as ever.
  void GiveBack() const;
  // Counts one stream out, with what it used.
  void Leave(int64_t prompt_tokens, int64_t generation_tokens, SteadyTime now) const;
  // Counts the stream of a call out that was for text alone, with the tokens of that.
  void LeaveText(int64_t text_tokens, SteadyTime now) const;

  // Returns InvalidArgument for a priority outside the tenant's range. Puts 0, which requests have
  // that do not say it, into the range.
  absl::Status CheckPriority(int32_t* priority) const;

 private:
  // With the usage's lock held.
  absl::Status CheckStreams(int64_t streams) const;
  absl::Status CheckLimits(int64_t streams, SteadyTime now) const;
  void Use(int64_t tokens, SteadyTime now) const;

  const uint32_t id_;
  const TenantLimits limits_;
  const std::shared_ptr<TenantUsage> usage_;
};

// Returns the tenant's id; 0 without one.
inline uint32_t TenantId(const std::shared_ptr<const Tenant>& tenant) {
  return tenant == nullptr ? 0 : tenant->id();
}

// Returns the tenant's name; empty without one.
inline std::string TenantName(const std::shared_ptr<const Tenant>& tenant) {
  return tenant == nullptr ? "" : tenant->limits().name;
}

}  // namespace millrace

#endif  // MILLRACE_ENGINE_REQUEST_TENANT_H_
