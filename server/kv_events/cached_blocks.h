// The blocks that the prefix cache has, by its events.
#ifndef MILLRACE_SERVER_KV_EVENTS_CACHED_BLOCKS_H_
#define MILLRACE_SERVER_KV_EVENTS_CACHED_BLOCKS_H_

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "scheduler/block_events.h"
#include "server/kv_events/kv_event_queue.h"

namespace millrace {

// A mirror of the scheduler's pools, kept beside them: whoever asks for all blocks costs the engine
// thread nothing. Used by one thread.
class CachedBlocks {
 public:
  void Apply(std::vector<BlockEvent> events);

  // Returns the event by which each block was stored: of a group, each after that of its parent, if
  // that is there, and along a chain as far as it goes. Valid until Apply.
  std::vector<const BlockEvent*> ParentsFirst() const;

 private:
  absl::flat_hash_map<BlockKey, BlockEvent> blocks_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_KV_EVENTS_CACHED_BLOCKS_H_
