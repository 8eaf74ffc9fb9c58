// The pools of blocks, one for each paged group of a model's state. Not for others than the
// scheduler.
#ifndef MILLRACE_SCHEDULER_STATE_POOLS_H_
#define MILLRACE_SCHEDULER_STATE_POOLS_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "plan/step_plan.h"
#include "scheduler/block_events.h"
#include "scheduler/block_hash.h"
#include "scheduler/block_pool.h"
#include "scheduler/block_tables.h"
#include "scheduler/fair_queue.h"
#include "scheduler/sequence.h"

namespace millrace {

// Gives sequences a block of every pool for each block_size of their positions, and takes those
// back that lie behind a group's window. A cached prefix is what every group can serve: whole
// pages, and of a group with a window the last of them that its window reaches.
class StatePools {
 public:
  // `limits` outlives it. With `reports_events` it keeps an event for each block that is published
  // or evicted until TakeEvents.
  StatePools(const StepLimits& limits, bool reports_events);

  int size() const { return static_cast<int>(pools_.size()); }
  // The pool of StateLayout::ContextGroup: its blocks are as many as the tokens that sequences
  // have.
  const BlockPool& main() const { return pools_[main_].blocks; }

  bool has_window(int pool) const { return pools_[pool].has_window; }
  int32_t available(int pool) const { return pools_[pool].blocks.num_available(); }
  // Returns how many blocks every pool has, and every pool of a group with a window.
  int32_t available() const { return LeastAvailable(/*with_window=*/false); }
  int32_t available_with_window() const { return LeastAvailable(/*with_window=*/true); }
  // Returns how many blocks a pool has in all.
  int32_t total(int pool) const { return limits_.num_blocks[pools_[pool].group]; }

  // Returns how many blocks of the pool a sequence of so many positions needs at once.
  int32_t BlocksAtOnce(int pool, int32_t positions) const {
    return limits_.state.BlocksAtOnce(pools_[pool].group, positions);
  }

  // Returns the longest beginning of the sequence, of at most `most` whole blocks, that every pool
  // has. Linear in `most`.
  CachedPrefix FindPrefix(const Sequence& sequence, size_t most) const;

  // Returns whether every pool has block `place` of the sequence. A prefix ends where one lacks it.
  bool HasBlock(const Sequence& sequence, size_t place) const;

  // Returns the first `positions` positions of a running sequence, which has computed them. It must
  // not have given back what the next position reads: CanShare.
  CachedPrefix Share(const Sequence& donor, int32_t positions) const;
  bool CanShare(const Sequence& donor, int32_t positions) const;

  // Returns how many of the pool's blocks in the prefix some sequence holds.
  int32_t CountHeld(int pool, const CachedPrefix& prefix) const;

  // Gives a sequence without blocks the prefix. The moves that copy a partial block go to `moves`.
  void Take(const CachedPrefix& prefix, Sequence& sequence, std::vector<StateMove>& moves);

  // Adds a block of each pool. Requires one available in each.
  void Extend(Sequence& sequence);

  // Appends the sequence's blocks from place `from` on, as StepRow::blocks has them.
  void AddBlocks(const Sequence& sequence, int32_t from, std::vector<BlockId>& out) const;

  // Releases the sequence's blocks that no position from least_computed() on reads, of the first
  // `most` places. Of rows in flight they may be used by steps that are submitted later
  // (BlockPool).
  void ReleaseBehindWindows(Sequence& sequence, int32_t most);

  void ReleaseAll(Sequence& sequence);

  // Publishes the block at `place`, which is full, in each pool where the sequence still has it.
  void Publish(const Sequence& sequence, int32_t place, const BlockHash& hash);
  void Unpublish(const BlockHash& hash);

  // Returns the events since the last call, in their order.
  std::vector<BlockEvent> TakeEvents() { return std::exchange(events_, {}); }

 private:
  friend class SchedulerAuditor;

  struct Pool {
    int group;
    bool has_window;
    BlockPool blocks;
    std::vector<TenantAccount*> payers;  // by block: the tenant that a held one counts for
  };

  int32_t LeastAvailable(bool with_window) const;  // `with_window`: of these alone
  void Count(int pool, TenantAccount& tenant, BlockId block);
  void Release(int pool, absl::Span<const BlockId> blocks);
  void ReportStored(int pool, const Sequence& sequence, int32_t place, const BlockHash& hash);
  void ReportRemoved(int pool, const BlockHash& hash);

  const StepLimits& limits_;
  const bool reports_events_;
  std::vector<Pool> pools_;
  std::vector<BlockEvent> events_;
  int main_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_STATE_POOLS_H_
