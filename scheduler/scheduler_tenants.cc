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
        tenant.running > 1 && (IsOver(tenant, tenant.running, options_.limits.max_num_seqs) ||
                               IsOver(tenant, tenant.blocks, options_.limits.num_blocks));
  }
  std::sort(running_.begin(), running_.end(), RunsBefore());
}

// Returns whether `held` is more than the tenant's share of `total`.
bool Scheduler::IsOver(const TenantAccount& tenant, int64_t held, int64_t total) const {
  return held * waiting_.total_weight() > total * tenant.weight;
}

// The next in the queue, of tenants that stay within their shares with them, take part in this plan
// as the running ones do: by rank, before the prompts of those that were served more.
void Scheduler::AdmitWithinShares(Draft& draft) {
  // A whole text needs a step with room for it: Admit sees to that.
  if (!waiting_.is_shared() || waiting_.empty() || options_.limits.whole_sequences()) return;
  int32_t promised = 0;  // blocks, to all that run
  for (const Sequence* other : running_) promised += BlocksToGrow(*other);
  int32_t tokens = 0;
  while (Sequence* const sequence = MakeRoom(draft, promised)) {
    // A sequence that shares another's last block needs a row in the plan that copies it: Admit
    // sees to that.
    if (FindDonor(*sequence) != nullptr) return;
    TakeSlot(*sequence, /*shared=*/false, draft.plan);
    promised += BlocksToGrow(*sequence);
    tokens += sequence->num_ready();
    if (tokens >= draft.budget) return;
  }
}

// For the next to be admitted, preempts sequences of tenants over their share of what it lacks, as
// long as its own tenant stays within its share with it: so none can take it back. They go behind
// it in the queue, or they would be admitted in its place. Before rows are planned, since who has a
// row in a step cannot be preempted in it. Returns it if there is room for it within that share,
// else null.
Sequence* Scheduler::MakeRoom(Draft& draft, int32_t& promised) {
  while (!waiting_.empty() && WaitsForGroup(waiting_.first(), FindDonor(waiting_.first()))) {
    Park(waiting_.first());
  }
  if (waiting_.empty()) return nullptr;
  Sequence& sequence = waiting_.first();
  const TenantAccount& tenant = *sequence.tenant;
  const int32_t slots = options_.limits.max_num_seqs;
  const int32_t blocks = options_.limits.num_blocks;
  if (!sequence.can_start() || IsOver(tenant, tenant.running + 1, slots)) return nullptr;
  const Sequence* const donor = FindDonor(sequence);

  while (true) {
    const bool lacks_slot = free_slots_.empty();
    const bool lacks_blocks = !FitsBlocks(sequence, donor, promised);
    if (IsOver(tenant, tenant.blocks + sequence.blocks_missing, blocks)) return nullptr;
    if (!lacks_slot && !lacks_blocks) return &sequence;
    const auto victim =
        std::find_if(running_.rbegin(), running_.rend(), [&](const Sequence* other) {
          const TenantAccount& its = *other->tenant;
          const bool goes_behind =
              other->priority > sequence.priority ||
              (other->priority == sequence.priority && FairQueue::GoesBefore(tenant, its));
          return goes_behind && ((lacks_slot && IsOver(its, its.running, slots)) ||
                                 (lacks_blocks && IsOver(its, its.blocks, blocks)));
        });
    if (victim == running_.rend()) return nullptr;
    promised -= BlocksToGrow(**victim);
    Preempt(**victim, draft);
  }
}

}  // namespace millrace
