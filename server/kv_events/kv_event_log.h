// What listeners can be sent: the last messages, and all blocks that there are.
#ifndef MILLRACE_SERVER_KV_EVENTS_KV_EVENT_LOG_H_
#define MILLRACE_SERVER_KV_EVENTS_KV_EVENT_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "plan/state_layout.h"
#include "server/kv_events/cached_blocks.h"
#include "server/kv_events/kv_event_encoder.h"
#include "server/kv_events/kv_event_queue.h"

namespace millrace {

struct KvEventMessage {
  uint64_t sequence = 0;
  std::shared_ptr<const std::string> payload;  // KvEventEncoder's
};

// Used by one thread.
class KvEventLog {
 public:
  // Bounds on what is kept for Replay, beside `buffer_steps`, and on the blocks of one message.
  static constexpr size_t kMaxReplayBytes = 256 << 20;
  static constexpr size_t kMessageBlocks = 1024;
  // Of the message that begins a server's life (Begin). Those of Append follow it.
  static constexpr uint64_t kFirstSequence = 0;

  // Keeps the last `buffer_steps` messages.
  KvEventLog(StateLayout state, size_t buffer_steps)
      : encoder_(std::move(state)), buffer_steps_(buffer_steps) {}

  // Returns the first message: what listeners knew of a server that was here before no longer
  // holds.
  KvEventMessage Begin(double time);

  // Returns the messages of a batch, at least one, and gives them the numbers that follow the last
  // message's, without a gap. One that was merged of many may have several.
  std::vector<KvEventMessage> Append(KvEventBatch batch);

  // Returns the messages that are kept from a sequence number on.
  std::vector<KvEventMessage> Replay(uint64_t from) const;

  // Returns messages that say all blocks that there are after the last message, the first one
  // beginning with AllBlocksCleared. The sequence number of each is that of the message that will
  // follow.
  std::vector<KvEventMessage> Snapshot(double time) const;

  uint64_t next_sequence() const { return next_sequence_; }

 private:
  KvEventMessage Keep(std::string payload);
  std::vector<std::string> EncodeParts(std::vector<const BlockEvent*> events, double time,
                                       bool cleared) const;

  const KvEventEncoder encoder_;
  const size_t buffer_steps_;
  uint64_t next_sequence_ = kFirstSequence;
  CachedBlocks blocks_;
  std::deque<KvEventMessage> kept_;
  size_t kept_bytes_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_KV_EVENTS_KV_EVENT_LOG_H_
