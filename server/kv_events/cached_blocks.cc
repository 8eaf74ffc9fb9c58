#include "server/kv_events/cached_blocks.h"

#include <utility>

namespace millrace {

void CachedBlocks::Apply(std::vector<BlockEvent> events) {
  for (BlockEvent& event : events) {
    const BlockKey key = {event.group, event.hash};
    if (event.stored) {
      blocks_.insert_or_assign(key, std::move(event));
    } else {
      blocks_.erase(key);
    }
  }
}

std::vector<const BlockEvent*> CachedBlocks::ParentsFirst() const {
  absl::flat_hash_map<BlockKey, std::vector<const BlockEvent*>> children;
  std::vector<const BlockEvent*> next;  // those that begin a chain, then a stack
  for (const auto& [key, block] : blocks_) {
    const BlockKey parent = {block.group, block.parent};
    if (block.place > 0 && blocks_.contains(parent)) {
      children[parent].push_back(&block);
    } else {
      next.push_back(&block);
    }
  }
  std::vector<const BlockEvent*> ordered;
  ordered.reserve(blocks_.size());
  while (!next.empty()) {
    const BlockEvent* const block = next.back();
    next.pop_back();
    ordered.push_back(block);
    const auto found = children.find({block->group, block->hash});
    if (found == children.end()) continue;
    next.insert(next.end(), found->second.begin(), found->second.end());
  }
  return ordered;
}

}  // namespace millrace
