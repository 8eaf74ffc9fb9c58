// Who may touch which KV block: the fake executor's check on the scheduler's bookkeeping.
#ifndef MILLRACE_EXECUTORS_FAKE_BLOCK_LEDGER_H_
#define MILLRACE_EXECUTORS_FAKE_BLOCK_LEDGER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/step_plan.h"

namespace millrace {

// Follows the contents of every block, as far as plans tell: how many of its tokens were written,
// by which sequence, and how often it began anew. A plan breaks the contract when a row
//   - appends a block that its table holds already,
//   - reads a position that was not written, or that was overwritten since the row's slot took the
//   block,
//   - writes into a block that another sequence writes, or that others read as a full one.
// Costs a look at every block of every row.
class BlockLedger {
 public:
  explicit BlockLedger(const StepLimits& limits);

  // For a plan that a PlanChecker took. InvalidArgument, naming the row and the block; the ledger
  // is then of no further use.
  absl::Status Apply(const StepPlan& plan);

 private:
  struct Block {
    uint64_t life = 0;    // counts the times that its first token was written
    int32_t written = 0;  // tokens, from the first
    uint64_t writer =
        0;  // the sequence that writes it; 0: it was copied, the next to write takes it
  };
  struct Held {
    BlockId block;
    uint64_t life;  // when the slot took it, or began it
  };
  struct Slot {
    uint64_t sequence = 0;  // counts all that were started
    std::vector<Held> table;
  };

  absl::Status CheckReads(size_t row, int32_t start, const Slot& slot) const;
  absl::Status Write(size_t row, int32_t start, int32_t end, Slot& slot);

  const int32_t block_size_;
  std::vector<Block> blocks_;
  std::vector<Slot> slots_;
  uint64_t sequences_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_FAKE_BLOCK_LEDGER_H_
