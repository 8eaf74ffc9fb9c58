#include "base/tenant_budget.h"

#include "base/strings.h"

namespace millrace {

absl::Status TenantBudget::Share::Take(size_t bytes) {
  size_t held = 0;
  size_t most = 0;
  if (budget_.Take(*this, bytes, held, most)) return absl::OkStatus();
  return absl::ResourceExhaustedError(StrCat(budget_.what_, " of this client take ", held,
                                             " bytes of memory, and this one takes ", bytes,
                                             " more; allowed beside those of others: ", most));
}

bool TenantBudget::Take(Share& share, size_t bytes, size_t& held, size_t& most) {
  const std::lock_guard lock(mutex_);
  const auto found = tenants_.find(share.tenant_);
  held = found == tenants_.end() ? 0 : found->second;
  const size_t left = limit_ - (used_ - held);
  most = held == share.bytes_ || share.tenant_.empty() ? left : left / 2;
  const bool fits = held <= most && bytes <= most - held;
  if (!fits && !TakesAsSmall(share, bytes)) return false;
  if (bytes == 0) return true;
  tenants_[share.tenant_] += bytes;
  used_ += bytes;
  share.bytes_ += bytes;
  return true;
}

bool TenantBudget::TakesAsSmall(const Share& share, size_t bytes) const {
  const size_t most = limit_ - limit_ / 8;
  return share.bytes_ <= small_bytes_ && bytes <= small_bytes_ - share.bytes_ && used_ <= most &&
         bytes <= most - used_;
}

void TenantBudget::Share::Give(size_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard lock(budget_.mutex_);
  const auto found = budget_.tenants_.find(tenant_);
  found->second -= bytes;
  if (found->second == 0) budget_.tenants_.erase(found);
  budget_.used_ -= bytes;
  bytes_ -= bytes;
}

size_t TenantBudget::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

}  // namespace millrace
