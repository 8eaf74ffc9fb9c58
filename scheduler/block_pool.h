// The KV blocks: who holds them, and which are known by their content.
#ifndef MILLRACE_SCHEDULER_BLOCK_POOL_H_
#define MILLRACE_SCHEDULER_BLOCK_POOL_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/block_hash.h"
#include "scheduler/step_plan.h"

namespace millrace {

// A block is held (by as many sequences as its count says) or available. Independently of that it
// is published, once it is full and its content known, and can then be found by its hash and
// shared. An available block that is published keeps its content until it is allocated anew: the
// prefix cache is nothing but those. Blocks without content are allocated first, then the published
// one that was released longest ago (LRU).
//
// A block is available the moment its last holder lets go, even while submitted steps still read or
// write it: only a step submitted later can be given it, and steps run in the order of submission
// (step_plan.h). Who lets go does not name it in a later step. That order is the stamp.
//
// All memory is taken at construction, and no operation depends on the number of blocks.
class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  int32_t num_available() const { return num_available_; }
  int32_t num_held() const { return static_cast<int32_t>(blocks_.size()) - 1 - num_available_; }
  int32_t num_cached() const { return num_cached_; }  // available and published

  // A block with one holder, the caller, and no content. Requires num_available() > 0.
  BlockId Allocate();

  // The published block of this content.
  std::optional<BlockId> Find(const BlockHash& hash) const;

  // One more holder for a block that is held or published.
  void Hold(BlockId block);

  // One holder less for each, from the last to the first: of one sequence, the tail is evicted
  // before the blocks without which it cannot be found.
  void Release(absl::Span<const BlockId> blocks);

  // The held block is full and its content is `hash`. Where another block is already known by that
  // hash, nothing happens.
  void Publish(BlockId block, const BlockHash& hash);

  // The block, whoever holds it, is not found any more.
  void Unpublish(BlockId block);

  int32_t num_holders(BlockId block) const { return blocks_[block].holders; }

 private:
  // A cache line each.
  struct alignas(64) Block {
    BlockHash hash;
    int32_t holders = 0;
    bool published = false;
    // The neighbours in the list of available blocks; the list's ends are entry num_blocks.
    BlockId previous = 0;
    BlockId next = 0;
    // For published blocks: the next one in the bucket.
    std::optional<BlockId> next_in_bucket;
  };

  std::optional<BlockId>& Bucket(const BlockHash& hash);
  const std::optional<BlockId>& Bucket(const BlockHash& hash) const;
  void LinkBefore(BlockId next, BlockId block);
  void Unlink(BlockId block);

  std::vector<Block> blocks_;  // and one more: the head of the circular list of available blocks
  // A chained hash table over `blocks_`: unlike an open-addressed one, it has no tombstones to be
  // cleared away in one long step after many evictions.
  std::vector<std::optional<BlockId>> buckets_;
  int32_t num_available_;
  int32_t num_cached_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_BLOCK_POOL_H_
