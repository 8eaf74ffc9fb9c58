#include "scheduler/fair_queue.h"

#include <algorithm>
#include <utility>

namespace millrace {
namespace {

constexpr int64_t kUnitsPerToken = int64_t{1} << 20;

}  // namespace

bool FairQueue::AdmittedBefore::operator()(const TenantAccount* a, const TenantAccount* b) const {
  const int32_t x = (*a->waiting.begin())->priority;
  const int32_t y = (*b->waiting.begin())->priority;
  return x != y ? x < y : ServedLess()(a, b);
}

bool FairQueue::ServedLess::operator()(const TenantAccount* a, const TenantAccount* b) const {
  if (a->served != b->served) return a->served < b->served;
  return a->is_new != b->is_new ? a->is_new : a->came < b->came;
}

void FairQueue::Join(TenantShare share, Sequence& sequence) {
  std::unique_ptr<TenantAccount>& tenant = tenants_[share.id];
  if (tenant == nullptr) {
    tenant = std::make_unique<TenantAccount>(
        TenantAccount{.id = share.id, .blocks = BlockCounts(num_pools_)});
  }
  sequence.tenant = tenant.get();
  if (tenant->alive++ == 0) {
    const TenantAccount* const least = active_.empty() ? nullptr : *active_.begin();
    if (least == nullptr || least->running > 0) {
      tenant->served -= forgiven_ * kUnitsPerToken / share.weight;
    }
    tenant->served = std::max(tenant->served, least == nullptr ? floor_ : least->served);
    tenant->is_new = true;
    tenant->came = num_came_++;
    active_.insert(tenant.get());
  } else {
    total_weight_ -= tenant->weight;
  }
  tenant->weight = share.weight;
  total_weight_ += tenant->weight;
}

void FairQueue::Leave(Sequence& sequence) {
  TenantAccount* const tenant = std::exchange(sequence.tenant, nullptr);
  if (--tenant->alive > 0) return;
  active_.erase(tenant);
  total_weight_ -= tenant->weight;
  if (active_.empty()) floor_ = tenant->served;
}

void FairQueue::Push(Sequence& sequence) {
  TenantAccount& tenant = *sequence.tenant;
  if (!tenant.waiting.empty()) queue_.erase(&tenant);
  tenant.waiting.insert(&sequence);
  queue_.insert(&tenant);
  ++size_;
}

void FairQueue::Erase(Sequence& sequence) {
  TenantAccount& tenant = *sequence.tenant;
  queue_.erase(&tenant);
  tenant.waiting.erase(&sequence);
  if (!tenant.waiting.empty()) queue_.insert(&tenant);
  --size_;
}

void FairQueue::Charge(Sequence& sequence, int32_t end) {
  if (end <= sequence.charged) return;
  TenantAccount& tenant = *sequence.tenant;
  if (tenant.charged == 0) charged_.push_back(&tenant);
  tenant.charged += end - std::exchange(sequence.charged, end);
}

void FairQueue::Settle() {
  for (TenantAccount* tenant : charged_) {
    const bool active = tenant->alive > 0;
    const bool waits = !tenant->waiting.empty();
    if (active) active_.erase(tenant);
    if (waits) queue_.erase(tenant);
    tenant->served += std::exchange(tenant->charged, 0) * kUnitsPerToken / tenant->weight;
    tenant->is_new = false;
    if (active) active_.insert(tenant);
    if (waits) queue_.insert(tenant);
  }
  charged_.clear();
}

}  // namespace millrace
