// The interface through which the engine thread hands out the news of its prefix cache.
#ifndef MILLRACE_ENGINE_BLOCK_EVENT_SINK_H_
#define MILLRACE_ENGINE_BLOCK_EVENT_SINK_H_

#include <vector>

#include "scheduler/block_events.h"

namespace millrace {

class BlockEventSink {
 public:
  virtual ~BlockEventSink() = default;

  // Takes the events since the last call, of which there is at least one. Called from the engine
  // thread, between steps; must not wait.
  virtual void OnBlocks(std::vector<BlockEvent> events) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_BLOCK_EVENT_SINK_H_
