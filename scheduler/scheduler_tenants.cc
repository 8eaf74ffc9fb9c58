// What Scheduler does for fairness between tenants.
#include <algorithm>

#include "scheduler/scheduler.h"
#include "scheduler/scheduler_draft.h"

namespace millrace {

// Orders the running sequences for this plan. A tenant's share of the slots and the blocks is its
// weight's part of the weights of all tenants with work.
void Scheduler::RankTenants() {
  if (!waiting_.is_shared()) return;
  if (!waiting_.empty()) waiting_.first().tenant->running = waiting_.first().tenant->blocks = 0;
  for (const Sequence* sequence : running_)
    sequence->tenant->running = sequence->tenant->blocks = 0;
  for (const Sequence* sequence : running_) {
    ++sequence->tenant->running;
    sequence->tenant->blocks += static_cast<int32_t>(sequence->blocks.size());
  }
  for (const Sequence* sequence : running_) {
    TenantAccount& tenant = *sequence->tenant;
    tenant.rank = tenant.served;
    tenant.over_share = IsOver(tenant, tenant.running, options_.limits.max_num_seqs) ||
                        IsOver(tenant, tenant.blocks, options_.limits.num_blocks);
  }
  std::sort(running_.begin(), running_.end(), RunsBefore());
}

// Returns whether `held` is more than the tenant's share of `total`.
bool Scheduler::IsOver(const TenantAccount& tenant, int64_t held, int64_t total) const {
  return held * waiting_.total_weight() > total * tenant.weight;
}

// For the next to be admitted, preempts sequences of tenants over their share of what it lacks, as
// long as its own tenant stays within its share with it: so none can take it back. Before rows are
// planned, since who has a row in a step cannot be preempted in it.
void Scheduler::MakeRoom(Draft& draft) {
  if (!waiting_.is_shared() || waiting_.empty()) return;
  Sequence& sequence = waiting_.first();
  if (sequence.rows_in_flight > 0) return;
  if (sequence.masked && sequence.mask == nullptr) return;
  const Sequence* const donor = FindDonor(sequence);
  if (WaitsForGroup(sequence, donor)) return;
  const TenantAccount& tenant = *sequence.tenant;
  const int32_t slots = options_.limits.max_num_seqs;
  const int32_t blocks = options_.limits.num_blocks;

  Draft wanted{.step = draft.step};
  for (const Sequence* other : running_) wanted.blocks_promised += BlocksToGrow(*other);
  while (true) {
    const bool lacks_slot = free_slots_.empty();
    if (lacks_slot && IsOver(tenant, tenant.running + 1, slots)) return;
    const bool lacks_blocks = !FitsBlocks(sequence, donor, wanted);
    if (lacks_blocks && IsOver(tenant, tenant.blocks + sequence.blocks_missing, blocks)) return;
    if (!lacks_slot && !lacks_blocks) return;
    const auto victim =
        std::find_if(running_.rbegin(), running_.rend(), [&](const Sequence* other) {
          const TenantAccount& its = *other->tenant;
          return other->priority >= sequence.priority && &its != &tenant &&
                 ((lacks_slot && IsOver(its, its.running, slots)) ||
                  (lacks_blocks && IsOver(its, its.blocks, blocks)));
        });
    if (victim == running_.rend()) return;
    Sequence& other = **victim;
    --other.tenant->running;
    other.tenant->blocks -= static_cast<int32_t>(other.blocks.size());
    wanted.blocks_promised -= BlocksToGrow(other);
    Preempt(other, draft);
  }
}

}  // namespace millrace
