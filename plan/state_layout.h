// The state that a sequence owns on a device from step to step, as one value.
//
// A model states it once, from its config and its rank. Executors' arenas, the scheduler's pools
// and all that tells of memory read it; none computes a size of its own.
#ifndef MILLRACE_PLAN_STATE_LAYOUT_H_
#define MILLRACE_PLAN_STATE_LAYOUT_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

namespace millrace {

// State that grows with the sequence, a block for every block_size positions: keys and values of
// the group's layers.
struct PagedState {
  int64_t block_bytes = 0;  // of one block, in all layers of the group
  // Set: a position is read by the `window` positions from its own on, and by none after these, so
  // that a block which lies wholly before the window of the next position may go. Unset: every
  // later position reads it.
  std::optional<int32_t> window = std::nullopt;
};

// State of a fixed size a sequence, as recurrent layers have it. It lies at the sequence's slot,
// and a copy of it, made where a step ended, is a checkpoint from which another sequence can begin.
struct SlotState {
  int64_t bytes = 0;  // of one sequence, in all layers of the group
};

using StateGroup = std::variant<PagedState, SlotState>;

// The groups of layers whose state is kept together: those of a paged group have their blocks by
// one block table.
struct StateLayout {
  int32_t block_size = 0;  // positions in a block, the same in every paged group
  std::vector<StateGroup> groups;

  // Returns the group whose blocks hold the context, of groups with so many blocks each: the first
  // without a window, or the one with the fewest blocks if all have one.
  int ContextGroup(const std::vector<int32_t>& num_blocks) const {
    std::optional<int> fewest;
    for (int group = 0; group < num_groups(); ++group) {
      if (Paged(group) == nullptr) continue;
      if (!Paged(group)->window.has_value()) return group;
      if (!fewest.has_value() || num_blocks[group] < num_blocks[*fewest]) fewest = group;
    }
    return fewest.value_or(0);
  }

  // Returns a layout of one paged group without a window.
  static StateLayout OnePool(int32_t block_size, int64_t block_bytes = 0) {
    return {.block_size = block_size, .groups = {PagedState{.block_bytes = block_bytes}}};
  }

  // Returns the bytes of one block of a group, or of one sequence's state.
  int64_t MoveBytes(int group) const {
    const PagedState* const paged = Paged(group);
    return paged != nullptr ? paged->block_bytes : std::get<SlotState>(groups[group]).bytes;
  }

  int num_groups() const { return static_cast<int>(groups.size()); }
  const PagedState* Paged(int group) const { return std::get_if<PagedState>(&groups[group]); }
  int num_paged_groups() const { return PagedGroupsBefore(num_groups()); }
  int PagedGroupsBefore(int group) const {
    int count = 0;
    for (int i = 0; i < group; ++i) count += Paged(i) != nullptr ? 1 : 0;
    return count;
  }

  // Returns whether layers have state of a fixed size a sequence, beside that in blocks.
  bool has_slots() const { return num_paged_groups() < num_groups(); }
  // Returns the bytes of a sequence's state at its slot, in all groups of slots: 0 without one.
  int64_t SlotBytes() const {
    int64_t bytes = 0;
    for (const StateGroup& group : groups) {
      if (const auto* const slots = std::get_if<SlotState>(&group)) bytes += slots->bytes;
    }
    return bytes;
  }

  // Returns how many blocks `positions` positions fill, the last one perhaps in part.
  int32_t BlocksFor(int32_t positions) const { return (positions + block_size - 1) / block_size; }

  // Returns how many leading blocks of a paged group no position from `next` on reads.
  int32_t BlocksBehindWindow(int group, int32_t next) const {
    const std::optional<int32_t>& window = Paged(group)->window;
    const int32_t first_read = window.has_value() ? next - *window + 1 : 0;
    return first_read <= 0 ? 0 : first_read / block_size;
  }

  // Returns how many blocks of a paged group a sequence of `positions` positions needs at once, if
  // it computes them one by one.
  int32_t BlocksAtOnce(int group, int32_t positions) const {
    const int32_t all = BlocksFor(positions);
    const std::optional<int32_t>& window = Paged(group)->window;
    return window.has_value() ? std::min(all, BlocksFor(*window - 1) + 1) : all;
  }
};

// Where a layer's part of the state lies.
struct LayerPlacement {
  int32_t group = 0;
  int32_t index = 0;   // of the layer among the group's
  int64_t offset = 0;  // bytes, from the beginning of the group's block or slot
};

}  // namespace millrace

#endif  // MILLRACE_PLAN_STATE_LAYOUT_H_
