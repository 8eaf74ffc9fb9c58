// Tracks which sequence may access which block of its groups. The fake executor uses it to check
// the scheduler's bookkeeping.
#ifndef MILLRACE_EXECUTORS_FAKE_BLOCK_LEDGER_H_
#define MILLRACE_EXECUTORS_FAKE_BLOCK_LEDGER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "plan/step_plan.h"

namespace millrace {

// Follows the contents of every block as described by plans: the number of tokens written, the
// sequence that wrote them, and how often the block was reused. A plan violates the contract if a
// row
//   - appends a block that its table already holds,
//   - reads a position that was not written, or that was overwritten since the row's slot took the
//   block, or whose block is missing,
//   - writes into a block that is missing, that another sequence writes, or that others read as a
//   full one.
// In groups with a window, a row reads the windows of its positions only: whatever became of blocks
// before them does not matter.
// The cost is proportional to the blocks that all rows read, but of a row that reads more than
// kMostReads blocks a step looks at as many in turn, and at the last one, so that a step beside a
// prompt of millions of tokens takes no longer than others.
class BlockLedger {
 public:
  static constexpr int32_t kMostReads = 1024;

  explicit BlockLedger(const StepLimits& limits);

  // Applies a plan that has passed a PlanChecker. Returns InvalidArgument, naming the row and the
  // block, on a violation; the ledger is then unusable.
  absl::Status Apply(const StepPlan& plan);

 private:
  struct Block {
    uint64_t life = 0;    // counts the times that its first token was written
    int32_t written = 0;  // tokens, from the first
    // The sequence that writes it; 0 if it was copied and belongs to the next writer.
    uint64_t writer = 0;
  };
  struct Held {
    BlockId block;
    uint64_t life;  // when the slot acquired or began it
  };
  struct Table {
    std::vector<Held> blocks;
    size_t behind = 0;                       // blocks that no later row reads
    int32_t next_read = 0;                   // of the blocks that a row reads, to look at first
    absl::flat_hash_set<BlockId> live = {};  // the others
  };
  struct Slot {
    uint64_t sequence = 0;      // numbered in the order of their starts
    std::vector<Table> tables;  // by group
  };

  absl::Status Append(const StepPlan& plan, size_t row, Slot& slot) const;
  absl::Status CheckReads(size_t row, int group, int32_t start, Slot& slot) const;
  absl::Status CheckRead(size_t row, int group, int32_t index, int32_t start,
                         const Held& held) const;
  absl::Status Write(size_t row, int group, int32_t start, int32_t end, Slot& slot);

  const StateLayout state_;
  std::vector<int> paged_;                  // the groups that have blocks
  std::vector<std::vector<Block>> blocks_;  // by group
  std::vector<Slot> slots_;
  uint64_t sequences_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_FAKE_BLOCK_LEDGER_H_
