// The keys and values of all sequences, in blocks.
#ifndef MILLRACE_EXECUTORS_CPU_KV_ARENA_H_
#define MILLRACE_EXECUTORS_CPU_KV_ARENA_H_

#include <cstddef>
#include <cstdint>

#include "executors/cpu/memory.h"

namespace millrace::cpu {

// [block][layer][kv head] pages of f16 or f32, each keys [block_size / 16][head_size][16 tokens],
// then values [block_size][head_size]. A block is one piece, so that a copy is one, and blocks that
// were never used take no memory.
struct KvArena {
  Memory memory;
  int block_size = 0;
  int head_size = 0;       // the model's, rounded up to a multiple of 16 with zeros
  bool float32 = false;    // else f16
  size_t page_bytes = 0;   // of a head
  size_t layer_bytes = 0;  // of a block
  size_t block_bytes = 0;

  static size_t PageBytes(int block_size, int head_size, bool float32) {
    return size_t{2} * block_size * head_size * (float32 ? sizeof(float) : sizeof(uint16_t));
  }
  uint8_t* Page(int32_t block, int layer, int kv_head) const {
    return memory.data() + block * block_bytes + layer * layer_bytes + kv_head * page_bytes;
  }
};

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_KV_ARENA_H_
