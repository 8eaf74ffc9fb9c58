#include "server/kv_events/kv_event_queue.h"

#include <iterator>

namespace millrace {

void KvEventQueue::Push(std::vector<BlockEvent> events, double time) {
  std::lock_guard lock(mutex_);
  if (batches_.size() == capacity_) MergeOldest();
  batches_.push_back({next_sequence_++, time, std::move(events)});
}

std::vector<KvEventBatch> KvEventQueue::TakeAll() {
  std::lock_guard lock(mutex_);
  std::vector<KvEventBatch> taken;
  if (has_merged_) taken.push_back(TakeMerged());
  std::move(batches_.begin(), batches_.end(), std::back_inserter(taken));
  batches_.clear();
  return taken;
}

int64_t KvEventQueue::num_merged() const {
  std::lock_guard lock(mutex_);
  return num_merged_;
}

// The events of a block take turns: one that follows another takes back what that one said.
void KvEventQueue::MergeOldest() {
  KvEventBatch& oldest = batches_.front();
  for (BlockEvent& event : oldest.events) {
    const auto [it, is_new] = net_by_key_.try_emplace({event.group, event.hash});
    if (is_new) {
      net_.push_back(std::move(event));
      it->second = std::prev(net_.end());
    } else {
      net_.erase(it->second);
      net_by_key_.erase(it);
    }
  }
  if (has_merged_) ++num_merged_;
  has_merged_ = true;
  merged_ = {oldest.sequence, oldest.time, {}};
  batches_.pop_front();
}

// A parent that went and came again stands behind its children by now: it is put before them.
KvEventBatch KvEventQueue::TakeMerged() {
  net_.sort([](const BlockEvent& a, const BlockEvent& b) { return a.place < b.place; });
  KvEventBatch merged = std::exchange(merged_, {});
  std::move(net_.begin(), net_.end(), std::back_inserter(merged.events));
  net_.clear();
  net_by_key_.clear();
  has_merged_ = false;
  return merged;
}

}  // namespace millrace
