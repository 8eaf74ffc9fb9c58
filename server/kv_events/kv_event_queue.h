// The way of events from the engine thread to the thread that publishes them.
#ifndef MILLRACE_SERVER_KV_EVENTS_KV_EVENT_QUEUE_H_
#define MILLRACE_SERVER_KV_EVENTS_KV_EVENT_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "scheduler/block_events.h"
#include "scheduler/block_hash.h"

namespace millrace {

// A block as events name it: its group and its content.
using BlockKey = std::pair<int, BlockHash>;

struct KvEventBatch {
  uint64_t sequence = 0;
  double time = 0;  // of the events, in seconds since 1970
  std::vector<BlockEvent> events;
};

// A bounded queue whose push never fails and never waits for the other side. Batches are numbered
// as they come. A full queue merges the oldest into one, which has the number of the last of them:
// the numbers before it never come, by which a listener knows, and what came and went again among
// its events is left out, so that it has at most two for each block of the pool. Nothing that
// follows the cache by all batches goes wrong over it.
class KvEventQueue {
 public:
  // `capacity` is at least 1. `first_sequence` is the number of the first batch.
  KvEventQueue(size_t capacity, uint64_t first_sequence)
      : capacity_(capacity), next_sequence_(first_sequence) {}

  void Push(std::vector<BlockEvent> events, double time);

  // Takes all batches, the oldest first.
  std::vector<KvEventBatch> TakeAll();

  // Returns how many batches were merged into others, so that their numbers never came.
  int64_t num_merged() const;

 private:
  void MergeOldest();
  KvEventBatch TakeMerged();

  const size_t capacity_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  uint64_t next_sequence_;
  std::deque<KvEventBatch> batches_;
  int64_t num_merged_ = 0;
  // The merged batch, which precedes batches_, without its events. These stand in net_: the last
  // one of each block, unless the one before it was of the other kind.
  bool has_merged_ = false;
  KvEventBatch merged_;
  std::list<BlockEvent> net_;
  absl::flat_hash_map<BlockKey, std::list<BlockEvent>::iterator> net_by_key_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_KV_EVENTS_KV_EVENT_QUEUE_H_
