#include "scheduler/scheduler_status.h"

#include <algorithm>

#include "scheduler/scheduler.h"

namespace millrace {
namespace {

SequenceStatus StatusOf(const Sequence& sequence) {
  const auto size = static_cast<int32_t>(sequence.tokens.size());
  return {.id = sequence.id,
          .running = sequence.slot.has_value(),
          .priority = sequence.priority,
          .prompt_tokens = sequence.prompt_size,
          .cached_tokens = sequence.cached_tokens.value_or(0),
          .computed_tokens = sequence.slot ? sequence.least_computed() : 0,
          .generated_tokens = size - sequence.prompt_size,
          .max_tokens = sequence.max_size - sequence.prompt_size,
          .blocks = sequence.tables.length(),
          .arrival = sequence.arrival};
}

}  // namespace

SchedulerStatus Scheduler::Status(size_t most_sequences, int32_t most_cells) const {
  SchedulerStatus status;
  for (const Sequence* sequence : running_) {
    if (status.sequences.size() == most_sequences) break;
    status.sequences.push_back(StatusOf(*sequence));
  }
  waiting_.ForEach([&](const Sequence& sequence) {
    if (status.sequences.size() == most_sequences) return false;
    status.sequences.push_back(StatusOf(sequence));
    return true;
  });
  for (const Sequence* sequence : prefix_waiters_) {
    if (status.sequences.size() == most_sequences) break;
    status.sequences.push_back(StatusOf(*sequence));
  }
  const BlockPool& pool = pools_.main();
  const int32_t blocks = pool.num_held() + pool.num_available();
  status.cells.resize(std::min(blocks, most_cells));
  const auto cells = static_cast<int64_t>(status.cells.size());
  for (BlockId block = 0; block < blocks; ++block) {
    KvCell& cell = status.cells[block * cells / blocks];
    ++cell.blocks;
    if (pool.num_holders(block) > 0) {
      ++cell.held;
    } else if (pool.is_published(block)) {
      ++cell.cached;
    }
  }
  return status;
}

}  // namespace millrace
