#include "server/kv_events/kv_event_log.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"

namespace millrace {

KvEventMessage KvEventLog::Begin(double time) {
  return Keep(kFirstSequence, encoder_.Encode({}, time, /*cleared=*/true));
}

KvEventMessage KvEventLog::Append(KvEventBatch batch) {
  std::vector<const BlockEvent*> events;
  events.reserve(batch.events.size());
  for (const BlockEvent& event : batch.events) events.push_back(&event);
  encoder_.SortByGroup(events);
  std::string payload = encoder_.Encode(events, batch.time, /*cleared=*/false);
  blocks_.Apply(std::move(batch.events));
  return Keep(batch.sequence, std::move(payload));
}

KvEventMessage KvEventLog::Keep(uint64_t sequence, std::string payload) {
  next_sequence_ = sequence + 1;
  KvEventMessage message = {sequence, std::make_shared<const std::string>(std::move(payload))};
  kept_.push_back(message);
  kept_bytes_ += message.payload->size();
  while (kept_.size() > buffer_steps_ || kept_bytes_ > kMaxReplayBytes) {
    kept_bytes_ -= kept_.front().payload->size();
    kept_.pop_front();
  }
  return message;
}

std::vector<KvEventMessage> KvEventLog::Replay(uint64_t from) const {
  const auto first = std::lower_bound(
      kept_.begin(), kept_.end(), from,
      [](const KvEventMessage& message, uint64_t sequence) { return message.sequence < sequence; });
  return {first, kept_.end()};
}

std::vector<KvEventMessage> KvEventLog::Snapshot(double time) const {
  std::vector<const BlockEvent*> blocks = blocks_.ParentsFirst();
  encoder_.SortByGroup(blocks);
  std::vector<KvEventMessage> messages;
  for (size_t begin = 0; begin == 0 || begin < blocks.size(); begin += kSnapshotBlocks) {
    const auto part = absl::MakeConstSpan(blocks).subspan(begin, kSnapshotBlocks);
    std::string payload = encoder_.Encode(part, time, /*cleared=*/begin == 0);
    messages.push_back({next_sequence_, std::make_shared<const std::string>(std::move(payload))});
  }
  return messages;
}

}  // namespace millrace
