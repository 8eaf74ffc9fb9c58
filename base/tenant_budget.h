// Memory that tenants share, of which none can leave the others nothing.
#ifndef MILLRACE_BASE_TENANT_BUDGET_H_
#define MILLRACE_BASE_TENANT_BUDGET_H_

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"

namespace millrace {

// Thread-safe. A tenant may hold half of what the others leave. Its first share alone may hold all
// of that, so that one of any size up to the limit is taken while no other tenant holds any.
// Whatever has no tenant may hold all that tenants leave: where no key tells clients apart, there
// is no tenant to leave the other half to. Small shares are taken beyond a tenant's part, too,
// while an eighth of the limit stays free for others.
class TenantBudget {
 public:
  // The memory of one message or one answer. It goes back when the share ends. Used by one thread
  // at a time.
  class Share {
   public:
    // `tenant` is the name of the tenant to charge. Whatever has none is charged to the empty name.
    Share(TenantBudget& budget, std::string tenant) : budget_(budget), tenant_(std::move(tenant)) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() { GiveAll(); }

    // Takes so many bytes more. ResourceExhausted: they are beyond the limit, and none was taken.
    absl::Status Take(size_t bytes);
    // Gives back some of what was taken.
    void Give(size_t bytes);
    void GiveAll() { Give(bytes_); }

    size_t bytes() const { return bytes_; }
    TenantBudget& budget() const { return budget_; }
    const std::string& tenant() const { return tenant_; }

   private:
    friend class TenantBudget;
    TenantBudget& budget_;
    const std::string tenant_;
    size_t bytes_ = 0;
  };

  // `what` begins the error of Take: "the messages". A share of at most `small_bytes` is small.
  TenantBudget(std::string_view what, size_t limit, size_t small_bytes = 0)
      : what_(what), limit_(limit), small_bytes_(small_bytes) {}
  TenantBudget(const TenantBudget&) = delete;
  TenantBudget& operator=(const TenantBudget&) = delete;

  size_t used() const;

 private:
  // Sets what the tenant holds, and what it may hold. Returns false if it may not have so much
  // more.
  bool Take(Share& share, size_t bytes, size_t& held, size_t& most);
  // Called with mutex_ held.
  bool TakesAsSmall(const Share& share, size_t bytes) const;

  const std::string what_;
  const size_t limit_;
  const size_t small_bytes_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  size_t used_ = 0;
  std::map<std::string, size_t, std::less<>> tenants_;  // bytes of those that hold any
};

}  // namespace millrace

#endif  // MILLRACE_BASE_TENANT_BUDGET_H_
