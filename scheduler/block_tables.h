// The blocks that a sequence holds, and those that it may begin with. Not for others than the
// scheduler.
#ifndef MILLRACE_SCHEDULER_BLOCK_TABLES_H_
#define MILLRACE_SCHEDULER_BLOCK_TABLES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "plan/step_plan.h"
#include "scheduler/checkpoint_pool.h"

namespace millrace {

// A number of blocks of each pool (state_pools.h).
using BlockCounts = absl::InlinedVector<int32_t, 2>;

// A sequence's blocks of one pool, in the order of the positions.
struct BlockTable {
  std::vector<BlockId> blocks;
  int32_t released = 0;  // leading ones that lie behind the window, and are held no more

  int32_t num_held() const { return static_cast<int32_t>(blocks.size()) - released; }
  absl::Span<const BlockId> held() const { return absl::MakeConstSpan(blocks).subspan(released); }
};

// A table for each pool, all of the same length: a position lies at the same place of each.
class BlockTables {
 public:
  explicit BlockTables(int num_pools = 0) : tables_(num_pools) {}

  int32_t length() const {
    return tables_.empty() ? 0 : static_cast<int32_t>(tables_[0].blocks.size());
  }
  BlockTable& operator[](int pool) { return tables_[pool]; }
  const BlockTable& operator[](int pool) const { return tables_[pool]; }

 private:
  absl::InlinedVector<BlockTable, 1> tables_;
};

// The beginning of a sequence that the prefix cache, or another sequence of the same prompt, has:
// whole blocks, and positions of one more, which is to be copied. Of models with state at slots it
// ends at a checkpoint.
struct CachedPrefix {
  BlockTables tables;  // of the whole blocks
  int32_t partial_positions = 0;
  std::vector<BlockId> partial;  // of each pool, if there are partial_positions
  // The state after the whole blocks, and how many blocks there would be with one after the last.
  std::optional<CheckpointId> checkpoint;
  int32_t matched = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_BLOCK_TABLES_H_
