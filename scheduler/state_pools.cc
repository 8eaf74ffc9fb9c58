#include "scheduler/state_pools.h"

#include <algorithm>
#include <limits>

namespace millrace {

StatePools::StatePools(const StepLimits& limits, bool reports_events)
    : limits_(limits), reports_events_(reports_events) {
  const int context = limits.state.ContextGroup(limits.num_blocks);
  for (int group = 0; group < limits.state.num_groups(); ++group) {
    const PagedState* const paged = limits.state.Paged(group);
    if (paged == nullptr) continue;
    if (group == context) main_ = size();
    const int32_t blocks = limits.num_blocks[group];
    pools_.push_back({.group = group,
                      .has_window = paged->window.has_value(),
                      .blocks = BlockPool(blocks),
                      .payers = std::vector<TenantAccount*>(blocks)});
  }
}

int32_t StatePools::LeastAvailable(bool with_window) const {
  int32_t least = std::numeric_limits<int32_t>::max();
  for (const Pool& pool : pools_) {
    if (pool.has_window || !with_window) least = std::min(least, pool.blocks.num_available());
  }
  return least;
}

// From the longest prefix that pools without windows have it goes down: where a block is missing
// that the window of the next position reaches, the prefix ends before it. No block is looked up
// twice.
CachedPrefix StatePools::FindPrefix(const Sequence& sequence, size_t most) const {
  const std::vector<BlockHash>& hashes = sequence.hashes.blocks;
  CachedPrefix prefix{.tables = BlockTables(size())};
  auto length = static_cast<int32_t>(most);
  for (int i = 0; i < size(); ++i) {
    if (pools_[i].has_window) continue;
    std::vector<BlockId>& blocks = prefix.tables[i].blocks;
    while (static_cast<int32_t>(blocks.size()) < length) {
      const std::optional<BlockId> block = pools_[i].blocks.Find(hashes[blocks.size()]);
      if (!block) break;
      blocks.push_back(*block);
    }
    length = static_cast<int32_t>(blocks.size());
  }

  // The table of a pool with a window has the places from `found` on, up to `length`.
  BlockCounts found(size(), length);
  for (int i = 0; i < size(); ++i) {
    if (pools_[i].has_window) prefix.tables[i].blocks.assign(length, kNoBlock);
  }
  const auto is_complete = [&](int i) {
    const int32_t first =
        limits_.state.BlocksBehindWindow(pools_[i].group, length * limits_.block_size());
    while (found[i] > first) {
      const std::optional<BlockId> block = pools_[i].blocks.Find(hashes[found[i] - 1]);
      if (!block) {
        length = --found[i];
        return false;
      }
      prefix.tables[i].blocks[--found[i]] = *block;
    }
    return true;
  };
  for (int i = 0; i < size();) {
    if (!pools_[i].has_window || is_complete(i)) {
      ++i;
      continue;
    }
    for (int32_t& place : found) place = std::min(place, length);
    i = 0;
  }

  for (int i = 0; i < size(); ++i) {
    BlockTable& table = prefix.tables[i];
    table.blocks.resize(length);
    table.released =
        limits_.state.BlocksBehindWindow(pools_[i].group, length * limits_.block_size());
    std::fill_n(table.blocks.begin(), table.released, kNoBlock);
  }
  return prefix;
}

bool StatePools::HasBlock(const Sequence& sequence, size_t place) const {
  const BlockHash& hash = sequence.hashes.blocks[place];
  return std::all_of(pools_.begin(), pools_.end(),
                     [&](const Pool& pool) { return pool.blocks.Find(hash).has_value(); });
}

bool StatePools::CanShare(const Sequence& donor, int32_t positions) const {
  for (int i = 0; i < size(); ++i) {
    const int32_t unread = limits_.state.BlocksBehindWindow(pools_[i].group, positions);
    if (donor.tables[i].released > unread) return false;
  }
  return true;
}

CachedPrefix StatePools::Share(const Sequence& donor, int32_t positions) const {
  const int32_t full = positions / limits_.block_size();
  CachedPrefix prefix{.tables = BlockTables(size()),
                      .partial_positions = positions % limits_.block_size()};
  for (int i = 0; i < size(); ++i) {
    const BlockTable& from = donor.tables[i];
    BlockTable& table = prefix.tables[i];
    table.released = limits_.state.BlocksBehindWindow(pools_[i].group, positions);
    table.blocks.assign(from.blocks.begin(), from.blocks.begin() + full);
    std::fill_n(table.blocks.begin(), table.released, kNoBlock);
    if (prefix.partial_positions > 0) prefix.partial.push_back(from.blocks[full]);
  }
  return prefix;
}

int32_t StatePools::CountHeld(int pool, const CachedPrefix& prefix) const {
  const absl::Span<const BlockId> held = prefix.tables[pool].held();
  return static_cast<int32_t>(std::count_if(held.begin(), held.end(), [&](BlockId block) {
    return pools_[pool].blocks.num_holders(block) > 0;
  }));
}

void StatePools::Take(const CachedPrefix& prefix, Sequence& sequence,
                      std::vector<StateMove>& moves) {
  sequence.tables = prefix.tables;
  for (int i = 0; i < size(); ++i) {
    for (const BlockId block : prefix.tables[i].held()) {
      if (pools_[i].blocks.num_holders(block) == 0) Count(i, *sequence.tenant, block);
      pools_[i].blocks.Hold(block);
    }
  }
  if (prefix.partial_positions == 0) return;
  Extend(sequence);
  for (int i = 0; i < size(); ++i) {
    moves.push_back({.group = pools_[i].group,
                     .from = {.block = prefix.partial[i]},
                     .to = {.block = sequence.tables[i].blocks.back()}});
  }
}

// A block counts for the tenant that was the first to hold it, until none does.
void StatePools::Count(int pool, TenantAccount& tenant, BlockId block) {
  pools_[pool].payers[block] = &tenant;
  ++tenant.blocks[pool];
}

void StatePools::Extend(Sequence& sequence) {
  for (int i = 0; i < size(); ++i) {
    if (reports_events_) {
      if (const BlockHash* const evicted = pools_[i].blocks.NextEvicted()) {
        ReportRemoved(i, *evicted);
      }
    }
    const BlockId block = pools_[i].blocks.Allocate();
    sequence.tables[i].blocks.push_back(block);
    Count(i, *sequence.tenant, block);
  }
}

void StatePools::AddBlocks(const Sequence& sequence, int32_t from,
                           std::vector<BlockId>& out) const {
  for (int i = 0; i < size(); ++i) {
    const std::vector<BlockId>& blocks = sequence.tables[i].blocks;
    out.insert(out.end(), blocks.begin() + from, blocks.end());
  }
}

void StatePools::ReleaseBehindWindows(Sequence& sequence, int32_t most) {
  for (int i = 0; i < size(); ++i) {
    if (!pools_[i].has_window) continue;
    BlockTable& table = sequence.tables[i];
    const int32_t end = std::min(
        most, limits_.state.BlocksBehindWindow(pools_[i].group, sequence.least_computed()));
    if (end <= table.released) continue;
    Release(i, absl::MakeConstSpan(table.blocks).subspan(table.released, end - table.released));
    std::fill(table.blocks.begin() + table.released, table.blocks.begin() + end, kNoBlock);
    table.released = end;
  }
}

void StatePools::ReleaseAll(Sequence& sequence) {
  for (int i = 0; i < size(); ++i) Release(i, sequence.tables[i].held());
  sequence.tables = BlockTables(size());
}

void StatePools::Release(int pool, absl::Span<const BlockId> blocks) {
  Pool& from = pools_[pool];
  for (const BlockId block : blocks) {
    if (from.blocks.num_holders(block) == 1) --from.payers[block]->blocks[pool];
  }
  from.blocks.Release(blocks);
}

void StatePools::Publish(const Sequence& sequence, int32_t place, const BlockHash& hash) {
  for (int i = 0; i < size(); ++i) {
    const BlockTable& table = sequence.tables[i];
    if (place < table.released || !pools_[i].blocks.Publish(table.blocks[place], hash)) continue;
    if (reports_events_) ReportStored(i, sequence, place, hash);
  }
}

void StatePools::Unpublish(const BlockHash& hash) {
  for (int i = 0; i < size(); ++i) {
    const std::optional<BlockId> block = pools_[i].blocks.Find(hash);
    if (!block) continue;
    pools_[i].blocks.Unpublish(*block);
    if (reports_events_) ReportRemoved(i, hash);
  }
}

void StatePools::ReportStored(int pool, const Sequence& sequence, int32_t place,
                              const BlockHash& hash) {
  const BlockHashes& hashes = sequence.hashes;
  const int32_t size = limits_.block_size();
  const auto first = sequence.tokens.begin() + int64_t{place} * size;
  events_.push_back({.group = pools_[pool].group,
                     .stored = true,
                     .hash = hash,
                     .place = place,
                     .parent = place == 0 ? hashes.root : hashes.blocks[place - 1],
                     .tokens = {first, first + size},
                     .salt = place == 0 ? hashes.salt : ""});
}

void StatePools::ReportRemoved(int pool, const BlockHash& hash) {
  events_.push_back({.group = pools_[pool].group, .stored = false, .hash = hash});
}

}  // namespace millrace
