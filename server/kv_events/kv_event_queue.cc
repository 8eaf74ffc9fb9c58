#include "server/kv_events/kv_event_queue.h"

#include <iterator>

namespace millrace {

void KvEventQueue::Push(std::vector<BlockEvent> events, double time) {
  std::lock_guard lock(mutex_);
  if (batches_.size() == capacity_) MergeOldest();
  batches_.push_back({time, std::move(events)});
}

// Under the lock things only change their owner, so that Push never waits for a sort.
std::vector<KvEventBatch> KvEventQueue::TakeAll() {
  std::deque<KvEventBatch> batches;
  std::optional<Merged> merged;
  {
    std::lock_guard lock(mutex_);
    batches.swap(batches_);
    merged.swap(merged_);
  }
  std::vector<KvEventBatch> taken;
  if (merged.has_value()) taken.push_back(ToBatch(*std::move(merged)));
  std::move(batches.begin(), batches.end(), std::back_inserter(taken));
  return taken;
}

int64_t KvEventQueue::num_merged() const {
  std::lock_guard lock(mutex_);
  return num_merged_;
}

// The events of a block take turns: one that follows another takes back what that one said.
void KvEventQueue::MergeOldest() {
  if (merged_.has_value()) {
    ++num_merged_;
  } else {
    merged_ = Merged();
  }
  KvEventBatch& oldest = batches_.front();
  merged_->time = oldest.time;
  for (BlockEvent& event : oldest.events) {
    const auto [it, is_new] = merged_->net_by_key.try_emplace({event.group, event.hash});
    if (is_new) {
      merged_->net.push_back(std::move(event));
      it->second = std::prev(merged_->net.end());
    } else {
      merged_->net.erase(it->second);
      merged_->net_by_key.erase(it);
    }
  }
  batches_.pop_front();
}

// A parent that went and came again stands behind its children by now: it is put before them.
KvEventBatch KvEventQueue::ToBatch(Merged merged) {
  merged.net.sort([](const BlockEvent& a, const BlockEvent& b) { return a.place < b.place; });
  KvEventBatch batch = {merged.time, {}};
  std::move(merged.net.begin(), merged.net.end(), std::back_inserter(batch.events));
  return batch;
}

}  // namespace millrace
