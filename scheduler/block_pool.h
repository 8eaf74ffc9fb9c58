// The pool of KV blocks: their reference counts, and the published blocks that the prefix cache
// finds by content.
#ifndef MILLRACE_SCHEDULER_BLOCK_POOL_H_
#define MILLRACE_SCHEDULER_BLOCK_POOL_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "plan/step_plan.h"
#include "scheduler/block_hash.h"

namespace millrace {

// A block is held (its reference count is the number of sequences that use it) or available.
// Independently of that it may be published: once it is full and its content is known, it can be
// found by its hash and shared. An available block that is published keeps its content until it is
// allocated anew; these blocks are the prefix cache. Blocks without content are allocated first,
// then the published block that was released longest ago (LRU).
//
// A block is available as soon as its reference count is 0, even while submitted steps still read
// or write it. Only a step submitted later can use it anew. A sequence that freed a block must not
// use it in a later step; steps run in the order of submission (step_plan.h), which replaces a
// fence.
//
// All memory is taken at construction, and no operation's time depends on the number of blocks.
class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  int32_t num_available() const { return num_available_; }
  int32_t num_held() const { return static_cast<int32_t>(blocks_.size()) - 1 - num_available_; }
  int32_t num_cached() const { return num_cached_; }  // available and published

  // Returns a block without content whose reference count is 1. Requires num_available() > 0.
  BlockId Allocate();
  // Returns the hash of the published block that Allocate would evict; null: it would evict none.
  const BlockHash* NextEvicted() const;

  // Returns the published block of this content, if there is one.
  std::optional<BlockId> Find(const BlockHash& hash) const;

  // Increments the reference count of a block that is held or published.
  void Hold(BlockId block);

  // Decrements each reference count and frees blocks that reach 0, last block first: a sequence's
  // tail is then evicted before the blocks without which it cannot be found.
  void Release(absl::Span<const BlockId> blocks);

  // Publishes a held block that is full and whose content is `hash`. False, and no effect, if
  // another block is published under that hash.
  bool Publish(BlockId block, const BlockHash& hash);

  // Removes the block from the prefix cache, whatever its reference count.
  void Unpublish(BlockId block);

  bool is_published(BlockId block) const { return blocks_[block].published; }
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
