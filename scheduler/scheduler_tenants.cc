// The part of Scheduler that is fair between tenants.
#include <algorithm>

#include "scheduler/scheduler.h"
#include "scheduler/scheduler_draft.h"

namespace millrace {

// Orders the running sequences for this plan. A tenant's share of the slots and the blocks is its
// weight's part of the weights of all tenants with work. A tenant's only sequence may be larger
// than that: it is not over, or it would never end beside others that always have work.
void Scheduler::RankTenants() {
  if (!waiting_.is_shared()) return;
  for (const Sequence* sequence : running_) {
    TenantAccount& tenant = *sequence->tenant;
    tenant.rank = tenant.served;
    tenant.over_share =
        tenant.running > 1 &&
        (IsOver(tenant, tenant.running, options_.limits.max_num_seqs) || HoldsTooMuch(tenant, {}));
  }
  std::sort(running_.begin(), running_.end(), RunsBefore());
}

// Returns whether `held` is more than the tenant's share of `total`.
bool Scheduler::IsOver(const TenantAccount& tenant, int64_t held, int64_t total) const {
  return held * waiting_.total_weight() > total * tenant.weight;
}

// Returns whether the tenant would hold more than its share of a pool with `more` blocks of each;
// none if that is empty.
bool Scheduler::HoldsTooMuch(const TenantAccount& tenant, const BlockCounts& more) const {
  for (int i = 0; i < pools_.size(); ++i) {
    const int64_t held = tenant.blocks[i] + (more.empty() ? 0 : more[i]);
    if (IsOver(tenant, held, pools_.total(i))) return true;
  }
  return false;
}

// The next in the queue, of tenants that stay within their shares with them, take part in this plan
// as the running ones do: by rank, before the prompts of those that were served more.
void Scheduler::AdmitWithinShares(Draft& draft) {
  // A whole text needs a step with room for it: Admit sees to that.
  if (!waiting_.is_shared() || waiting_.empty() || options_.limits.whole_sequences()) return;
  BlockCounts reserved(pools_.size());  // for all that run
  for (const Sequence* other : running_) Reserve(*other, 1, reserved);
  int32_t tokens = 0;
  CachedPrefix prefix;
  while (Sequence* const sequence = MakeRoom(draft, reserved, prefix)) {
    // A sequence that shares another's last block needs a row in the plan that copies it: Admit
    // sees to that.
    if (FindDonor(*sequence) != nullptr) return;
    TakeSlot(*sequence, prefix, /*shared=*/false, draft.plan);
    Reserve(*sequence, 1, reserved);
    tokens += sequence->num_ready();
    if (tokens >= draft.budget) return;
  }
}

// For the next to be admitted, preempts sequences of tenants over their share of what it lacks, as
// long as its own tenant stays within its share with it: so none can take it back. They go behind
// it in the queue, or they would be admitted in its place. Before rows are planned, since who has a
// row in a step cannot be preempted in it. Returns it, and the prefix that it begins with, if there
// is room for it within that share, else null.
Sequence* Scheduler::MakeRoom(Draft& draft, BlockCounts& reserved, CachedPrefix& prefix) {
  while (!waiting_.empty()) {
    if (!WaitsForAnother(waiting_.first())) break;
  }
  if (waiting_.empty()) return nullptr;
  Sequence& sequence = waiting_.first();
  const TenantAccount& tenant = *sequence.tenant;
  if (!sequence.can_start() || IsOver(tenant, tenant.running + 1, options_.limits.max_num_seqs)) {
    return nullptr;
  }
  const Sequence* const donor = FindDonor(sequence);

  while (true) {
    std::optional<CachedPrefix> found = FitBlocks(sequence, donor, reserved);
    if (HoldsTooMuch(tenant, sequence.blocks_missing)) return nullptr;
    if (!free_slots_.empty() && found.has_value()) {
      prefix = *std::move(found);
      return &sequence;
    }
    Sequence* const victim = FindVictim(sequence, reserved);
    if (victim == nullptr) return nullptr;
    Reserve(*victim, -1, reserved);
    Preempt(*victim, draft);
  }
}

// Returns the last running sequence that goes behind this one in the queue and whose tenant is over
// its share of what this one lacks, or null.
Sequence* Scheduler::FindVictim(const Sequence& sequence, const BlockCounts& reserved) const {
  const bool lacks_slot = free_slots_.empty();
  const auto is_over = [&](const TenantAccount& its) {
    if (lacks_slot && IsOver(its, its.running, options_.limits.max_num_seqs)) return true;
    for (int i = 0; i < pools_.size(); ++i) {
      if (Lacks(sequence, i, reserved) && IsOver(its, its.blocks[i], pools_.total(i))) return true;
    }
    return false;
  };
  const auto victim = std::find_if(running_.rbegin(), running_.rend(), [&](const Sequence* other) {
    const TenantAccount& its = *other->tenant;
    const bool goes_behind =
        other->priority > sequence.priority ||
        (other->priority == sequence.priority && FairQueue::GoesBefore(*sequence.tenant, its));
    return goes_behind && is_over(its);
  });
  return victim == running_.rend() ? nullptr : *victim;
}

}  // namespace millrace
