// The way of events from the engine thread to the thread that publishes them.
#ifndef MILLRACE_SERVER_KV_EVENTS_KV_EVENT_QUEUE_H_
#define MILLRACE_SERVER_KV_EVENTS_KV_EVENT_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "scheduler/block_events.h"
#include "scheduler/block_hash.h"

namespace millrace {

// A block as events name it: its group and its content.
using BlockKey = std::pair<int, BlockHash>;

struct KvEventBatch {
  double time = 0;  // of the events, in seconds since 1970
  std::vector<BlockEvent> events;
};

// A bounded queue whose push never fails and never waits for the other side's work. A full queue
// merges the oldest batches into one, from which what came and went again is left out, so that it
// has at most one event for each block. Batches have no numbers here: their messages get them when
// they are taken (KvEventLog), so that a merge leaves no gap, which no replay would ever fill.
class KvEventQueue {
 public:
  // `capacity` is at least 1.
  explicit KvEventQueue(size_t capacity) : capacity_(capacity) {}

  void Push(std::vector<BlockEvent> events, double time);

  // Takes all batches, the oldest first.
  std::vector<KvEventBatch> TakeAll();

  // Returns how many batches were merged into others.
  int64_t num_merged() const;

 private:
  // A batch of others: the last event of each block, unless the one before it was of the other
  // kind.
  struct Merged {
    double time = 0;  // of the last of them
    std::list<BlockEvent> net;
    absl::flat_hash_map<BlockKey, std::list<BlockEvent>::iterator> net_by_key;
  };

  void MergeOldest();
  static KvEventBatch ToBatch(Merged merged);

  const size_t capacity_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::deque<KvEventBatch> batches_;
  std::optional<Merged> merged_;  // precedes batches_
  int64_t num_merged_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_KV_EVENTS_KV_EVENT_QUEUE_H_
