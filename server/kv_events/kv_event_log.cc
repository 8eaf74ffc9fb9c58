#include "server/kv_events/kv_event_log.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"

namespace millrace {

KvEventMessage KvEventLog::Begin(double time) {
  return Keep(encoder_.Encode({}, time, /*cleared=*/true));
}

std::vector<KvEventMessage> KvEventLog::Append(KvEventBatch batch) {
  std::vector<const BlockEvent*> events;
  events.reserve(batch.events.size());
  for (const BlockEvent& event : batch.events) events.push_back(&event);
  std::vector<KvEventMessage> messages;
  for (std::string& part : EncodeParts(std::move(events), batch.time, /*cleared=*/false)) {
    messages.push_back(Keep(std::move(part)));
  }
  blocks_.Apply(std::move(batch.events));
  return messages;
}

// Returns one payload at least, of at most kMessageBlocks each.
std::vector<std::string> KvEventLog::EncodeParts(std::vector<const BlockEvent*> events, double time,
                                                 bool cleared) const {
  encoder_.SortByGroup(events);
  std::vector<std::string> parts;
  for (size_t begin = 0; begin == 0 || begin < events.size(); begin += kMessageBlocks) {
    const auto part = absl::MakeConstSpan(events).subspan(begin, kMessageBlocks);
    parts.push_back(encoder_.Encode(part, time, cleared && begin == 0));
  }
  return parts;
}

KvEventMessage KvEventLog::Keep(std::string payload) {
  KvEventMessage message = {next_sequence_++,
                            std::make_shared<const std::string>(std::move(payload))};
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
  std::vector<KvEventMessage> messages;
  for (std::string& part : EncodeParts(blocks_.ParentsFirst(), time, /*cleared=*/true)) {
    messages.push_back({next_sequence_, std::make_shared<const std::string>(std::move(part))});
  }
  return messages;
}

}  // namespace millrace
