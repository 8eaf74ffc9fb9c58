// Tenants, what each was served, and the sequences that wait, in the order in which they are
// admitted. Not for others than the scheduler.
#ifndef MILLRACE_SCHEDULER_FAIR_QUEUE_H_
#define MILLRACE_SCHEDULER_FAIR_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "scheduler/sequence.h"

namespace millrace {

// The account of one tenant.
struct TenantAccount {
  uint32_t id = 0;
  int32_t weight = 1;
  int64_t served = 0;   // tokens over weight, in units of 2^-20
  int64_t charged = 0;  // tokens, to be added to `served`
  int32_t alive = 0;    // sequences
  bool is_new = false;  // nothing was charged since it came or came back
  int64_t came = 0;     // how many tenants had come before, when it did

  absl::btree_set<Sequence*, RanksBefore> waiting;  // but for parked ones

  int32_t running = 0;  // sequences with a slot
  BlockCounts blocks;   // that it was the first to hold, and that are still held

  // As of the current plan.
  bool over_share = false;  // holds more than its share of the slots or blocks
  int64_t rank = 0;         // `served`, when the plan began
};

// The order of running sequences in a plan: by priority; then those of tenants within their share;
// then those of the tenant that was served least; then by arrival.
struct RunsBefore {
  bool operator()(const Sequence* a, const Sequence* b) const {
    const TenantAccount& x = *a->tenant;
    const TenantAccount& y = *b->tenant;
    if (a->priority != b->priority) return a->priority < b->priority;
    if (x.over_share != y.over_share) return y.over_share;
    if (x.rank != y.rank) return x.rank < y.rank;
    return a->order < b->order;
  }
};

// Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024),
// weighted: the tenant that was served least goes first, within a priority. A tenant that had no
// work does not save up: it comes back with at least what the least served of the others has, and
// goes before those of them that it then equals. But where the least served one has a slot, it is
// forgiven some tokens more than that: one that sends a short request at a time is not behind a
// flood of sequences that decode, which are many and take few tokens each. A least served one that
// waits for its first slot is not overtaken.
class FairQueue {
 public:
  // `forgiven`: the tokens, over its weight, that a tenant may have been served more than others
  // when it comes back. `num_pools`: of blocks that tenants hold.
  FairQueue(int32_t forgiven, int num_pools) : forgiven_(forgiven), num_pools_(num_pools) {}

  // Counts a sequence as its tenant's from now on, and out.
  void Join(TenantShare share, Sequence& sequence);
  void Leave(Sequence& sequence);

  void Push(Sequence& sequence);
  void Erase(Sequence& sequence);

  bool empty() const { return queue_.empty(); }
  size_t size() const { return size_; }  // of those that wait
  // Returns the sequence to be admitted next. Requires one that waits.
  Sequence& first() const { return **(*queue_.begin())->waiting.begin(); }

  // Calls `visit` with each sequence that waits, tenant by tenant, until it returns false.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (const TenantAccount* tenant : queue_) {
      for (const Sequence* sequence : tenant->waiting) {
        if (!visit(*sequence)) return;
      }
    }
  }

  // Charges the sequence's tenant for its positions up to `end` that were not yet charged. Counts
  // in the order of admission from the next Settle on.
  void Charge(Sequence& sequence, int32_t end);
  void Settle();

  // Returns whether a tenant's sequences are admitted before another's of the same priority.
  static bool GoesBefore(const TenantAccount& a, const TenantAccount& b) {
    return ServedLess()(&a, &b);
  }

  // Returns whether more than one tenant has work.
  bool is_shared() const { return active_.size() > 1; }
  int64_t total_weight() const { return total_weight_; }  // of tenants with work

 private:
  // Tenants with sequences that wait, in the order of their first ones.
  struct AdmittedBefore {
    bool operator()(const TenantAccount* a, const TenantAccount* b) const;
  };
  struct ServedLess {
    bool operator()(const TenantAccount* a, const TenantAccount* b) const;
  };

  const int64_t forgiven_;
  const int num_pools_;

  // Never forgotten: a tenant that leaves and returns at once gains no more than it is forgiven.
  absl::flat_hash_map<uint32_t, std::unique_ptr<TenantAccount>> tenants_;
  absl::btree_set<TenantAccount*, ServedLess> active_;     // alive > 0
  absl::btree_set<TenantAccount*, AdmittedBefore> queue_;  // something waits
  size_t size_ = 0;
  std::vector<TenantAccount*> charged_;  // since the last Settle
  int64_t total_weight_ = 0;
  int64_t floor_ = 0;  // what the last tenant with work was served, when it left
  int64_t num_came_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_FAIR_QUEUE_H_
