#include "executors/models/memory_plan.h"

#include <algorithm>
#include <variant>

namespace millrace {

std::vector<int32_t> MemoryPlan::Divide(int64_t bytes) const {
  std::vector<int32_t> blocks = DivideState(state, bytes - SpareBytes(), use);
  if (most_blocks.has_value()) {
    for (int32_t& of_group : blocks) of_group = std::min(of_group, *most_blocks);
  }
  return blocks;
}

int64_t MemoryPlan::GroupBytes(int group) const {
  const PagedState* const pages = state.Paged(group);
  return pages != nullptr ? pages->block_bytes * (int64_t{num_blocks[group]} + spare_blocks)
                          : std::get<SlotState>(state.groups[group]).bytes *
                                    (int64_t{use.max_num_seqs} + spare_blocks) +
                                CheckpointBytes(group);
}

int64_t MemoryPlan::CheckpointBytes(int group) const {
  const auto* const slots = std::get_if<SlotState>(&state.groups[group]);
  return slots == nullptr ? 0 : slots->bytes * num_blocks[group];
}

int64_t MemoryPlan::StateBytes() const {
  int64_t bytes = 0;
  for (int group = 0; group < state.num_groups(); ++group) bytes += GroupBytes(group);
  return bytes;
}

int64_t MemoryPlan::MostStateBytes() const {
  return SpareBytes() + (most_blocks.has_value() ? *most_blocks * BytesOfABlockEach(state)
                                                 : millrace::MostStateBytes(state, use));
}

int64_t MemoryPlan::LeastStateBytes() const {
  return SpareBytes() + BytesOfABlockEach(state) + state.SlotBytes() * use.max_num_seqs;
}

int64_t MemoryPlan::SpareBytes() const {
  return spare_blocks * (BytesOfABlockEach(state) + state.SlotBytes());
}

}  // namespace millrace
