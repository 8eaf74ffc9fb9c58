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
          .computed_tokens = sequence.computed,
          .generated_tokens = size - sequence.prompt_size,
          .max_tokens = sequence.max_size - sequence.prompt_size,
          .blocks = static_cast<int32_t>(sequence.blocks.size()),
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
  const int32_t blocks = options_.limits.num_blocks;
  status.cells.resize(std::min(blocks, most_cells));
  const auto cells = static_cast<int64_t>(status.cells.size());
  for (BlockId block = 0; block < blocks; ++block) {
    KvCell& cell = status.cells[block * cells / blocks];
    ++cell.blocks;
    if (pool_.num_holders(block) > 0) {
      ++cell.held;
    } else if (pool_.is_published(block)) {
      ++cell.cached;
    }
  }
  return status;
}

}  // namespace millrace
