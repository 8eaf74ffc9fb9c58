// Events of the prefix cache as vLLM's listeners read them.
#ifndef MILLRACE_SERVER_KV_EVENTS_KV_EVENT_ENCODER_H_
#define MILLRACE_SERVER_KV_EVENTS_KV_EVENT_ENCODER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "plan/state_layout.h"
#include "scheduler/block_events.h"
#include "scheduler/block_hash.h"

namespace millrace {

// Returns the 64 bits by which listeners know a block: the last of its hash, as vLLM shortens its
// own. A listener makes nothing of them but comparisons.
uint64_t ShortHash(const BlockHash& hash);

// Writes MessagePack in the schema of vllm/distributed/kv_events.py since vLLM 0.23: a batch is an
// array [time, events, data-parallel rank], an event a map whose `type` is BlockStored,
// BlockRemoved or AllBlocksCleared.
class KvEventEncoder {
 public:
  explicit KvEventEncoder(StateLayout state) : state_(std::move(state)) {}

  // Brings the events of each group together, in the order that they have. Groups without a window
  // come first, since the parents of blocks in the others are, perhaps, only there.
  void SortByGroup(std::vector<const BlockEvent*>& events) const;

  // Returns a batch of events that are sorted by group. Neighbours become one event: blocks that
  // are stored along a chain, and blocks that are removed. `time`: seconds since 1970. `cleared`:
  // the batch begins with AllBlocksCleared.
  std::string Encode(absl::Span<const BlockEvent* const> events, double time, bool cleared) const;

 private:
  const StateLayout state_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_KV_EVENTS_KV_EVENT_ENCODER_H_
