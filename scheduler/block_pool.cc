#include "scheduler/block_pool.h"

#include <bit>
#include <cassert>
#include <cstring>

namespace millrace {

BlockPool::BlockPool(int32_t num_blocks)
    : blocks_(num_blocks + 1),
      buckets_(std::bit_ceil(static_cast<size_t>(num_blocks) + 1)),
      num_available_(num_blocks) {
  for (BlockId block = 0; block <= num_blocks; ++block) {
    blocks_[block].previous = block == 0 ? num_blocks : block - 1;
    blocks_[block].next = block == num_blocks ? 0 : block + 1;
  }
}

BlockId BlockPool::Allocate() {
  assert(num_available_ > 0);
  const BlockId block = blocks_.back().next;
  if (blocks_[block].published) Unpublish(block);
  Hold(block);
  return block;
}

const BlockHash* BlockPool::NextEvicted() const {
  const Block& next = blocks_[blocks_.back().next];
  return next.published ? &next.hash : nullptr;  // of an empty list it is the head
}

std::optional<BlockId> BlockPool::Find(const BlockHash& hash) const {
  std::optional<BlockId> block = Bucket(hash);
  while (block && blocks_[*block].hash != hash) block = blocks_[*block].next_in_bucket;
  return block;
}

void BlockPool::Hold(BlockId block) {
  Block& held = blocks_[block];
  if (held.holders++ > 0) return;
  Unlink(block);
  --num_available_;
  num_cached_ -= held.published;
}

void BlockPool::Release(absl::Span<const BlockId> blocks) {
  const BlockId head = static_cast<BlockId>(blocks_.size()) - 1;
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    Block& released = blocks_[*it];
    assert(released.holders > 0);
    if (--released.holders > 0) continue;
    LinkBefore(released.published ? head : blocks_[head].next, *it);
    ++num_available_;
    num_cached_ += released.published;
  }
}

bool BlockPool::Publish(BlockId block, const BlockHash& hash) {
  assert(blocks_[block].holders > 0 && !blocks_[block].published);
  if (Find(hash)) return false;
  Block& published = blocks_[block];
  published.hash = hash;
  published.published = true;
  published.next_in_bucket = Bucket(hash);
  Bucket(hash) = block;
  return true;
}

void BlockPool::Unpublish(BlockId block) {
  Block& forgotten = blocks_[block];
  assert(forgotten.published);
  std::optional<BlockId>* link = &Bucket(forgotten.hash);
  while (**link != block) link = &blocks_[**link].next_in_bucket;
  *link = forgotten.next_in_bucket;
  forgotten.published = false;
  if (forgotten.holders > 0) return;
  --num_cached_;
  Unlink(block);
  LinkBefore(blocks_.back().next, block);
}

std::optional<BlockId>& BlockPool::Bucket(const BlockHash& hash) {
  uint64_t word;  // any part of a SHA-256 is as good as another
  std::memcpy(&word, hash.data(), sizeof(word));
  return buckets_[word & (buckets_.size() - 1)];
}

const std::optional<BlockId>& BlockPool::Bucket(const BlockHash& hash) const {
  return const_cast<BlockPool*>(this)->Bucket(hash);
}

void BlockPool::LinkBefore(BlockId next, BlockId block) {
  blocks_[block].previous = blocks_[next].previous;
  blocks_[block].next = next;
  blocks_[blocks_[block].previous].next = block;
  blocks_[next].previous = block;
}

void BlockPool::Unlink(BlockId block) {
  blocks_[blocks_[block].previous].next = blocks_[block].next;
  blocks_[blocks_[block].next].previous = blocks_[block].previous;
}

}  // namespace millrace
