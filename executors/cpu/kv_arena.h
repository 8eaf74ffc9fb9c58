// The state of all sequences: keys and values in blocks, and recurrent layers' at slots.
#ifndef MILLRACE_EXECUTORS_CPU_KV_ARENA_H_
#define MILLRACE_EXECUTORS_CPU_KV_ARENA_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "executors/cpu/memory.h"
#include "executors/host/thread_pool.h"
#include "executors/models/model_state.h"

namespace millrace::cpu {

// A group of layers has pages [block][layer of the group][kv head] of f16 or f32. A page is keys
// [block_size / 16][head_size][16 tokens], then values [block_size][head_size]. A block is one
// piece, so that a copy is one, and blocks that were never used take no memory. The group of
// recurrent layers has [slot, or place of a checkpoint][layer of the group], each as
// HeadStates or ShortConvolutionBytes has it, with the states of heads as DeltaTile and
// StateSpaceTile have them; those that were never used take no memory, either.
struct KvArena {
  struct Group {
    Memory memory;
    size_t block_bytes = 0;  // of a block, or of a slot
  };
  struct Layer {
    int group = 0;
    size_t offset = 0;      // in a block or a slot
    size_t page_bytes = 0;  // of a head; 0 of a recurrent layer
    int head_size = 0;      // the model's, rounded up to a multiple of 16 with zeros; likewise
  };

  int block_size = 0;
  bool float32 = false;  // else f16
  std::vector<Group> groups;
  std::vector<Layer> layers;

  // Reserves the memory of a model's state: of so many blocks of each paged group, and of so many
  // slots and that group's checkpoints.
  static absl::StatusOr<KvArena> Make(const ModelConfig& config, const ModelState& state,
                                      absl::Span<const int32_t> num_blocks, int32_t num_slots,
                                      bool float32) {
    KvArena kv{
        .block_size = state.layout.block_size, .float32 = float32, .groups = {}, .layers = {}};
    const PageSpec pages = CpuPages(kv.block_size, float32, /*max_model_len=*/0);
    for (size_t i = 0; i < config.layers.size(); ++i) {
      const SoftmaxAttention* const softmax = config.layers[i].FindSoftmax();
      const int head_size = softmax == nullptr ? 0 : softmax->head_size;
      const LayerPlacement& placement = state.placements[i];
      kv.layers.push_back({.group = placement.group,
                           .offset = static_cast<size_t>(placement.offset),
                           .page_bytes = static_cast<size_t>(pages.HeadBytes(head_size)),
                           .head_size = pages.FilledHead(head_size)});
    }
    for (int group = 0; group < state.layout.num_groups(); ++group) {
      Group& added = kv.groups.emplace_back();
      const PagedState* const paged = state.layout.Paged(group);
      if (paged == nullptr) {
        added.block_bytes = std::get<SlotState>(state.layout.groups[group]).bytes;
        MILLRACE_ASSIGN_OR_RETURN(
            added.memory, Memory::Reserve((num_slots + num_blocks[group]) * added.block_bytes,
                                          "the states of recurrent layers"));
        continue;
      }
      added.block_bytes = static_cast<size_t>(paged->block_bytes);
      MILLRACE_ASSIGN_OR_RETURN(
          added.memory, Memory::Reserve(num_blocks[group] * added.block_bytes, "the KV cache"));
    }
    return kv;
  }

  uint8_t* Page(int32_t block, int layer, int kv_head) const {
    const Layer& at = layers[layer];
    const Group& group = groups[at.group];
    return group.memory.data() + block * group.block_bytes + at.offset + kv_head * at.page_bytes;
  }
  // Returns a recurrent layer's state at a slot.
  float* State(int32_t slot, int layer) const {
    const Layer& at = layers[layer];
    const Group& group = groups[at.group];
    return reinterpret_cast<float*>(group.memory.data() + slot * group.block_bytes + at.offset);
  }
  size_t BlockBytes(int layer) const { return groups[layers[layer].group].block_bytes; }

  int largest_head_size() const {
    int largest = 0;
    for (const Layer& layer : layers) largest = std::max(largest, layer.head_size);
    return largest;
  }

  // Copies blocks and states, each with all threads of the pool.
  void Move(absl::Span<const StateMove> moves, ThreadPool& pool) const {
    constexpr size_t kPiece = size_t{256} << 10;  // a state has many, most blocks are one
    for (const StateMove& move : moves) {
      const Group& group = groups[move.group];
      const uint8_t* const from = group.memory.data() + move.from.block * group.block_bytes;
      uint8_t* const to = group.memory.data() + move.to.block * group.block_bytes;
      const size_t pieces = (group.block_bytes + kPiece - 1) / kPiece;
      pool.ParallelFor(static_cast<int>(pieces), [&](int piece, int) {
        const size_t begin = piece * kPiece;
        std::memcpy(to + begin, from + begin, std::min(kPiece, group.block_bytes - begin));
      });
    }
  }
};

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_KV_ARENA_H_
