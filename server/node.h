// The server as one of several nodes that share a model (--nnodes).
#ifndef MILLRACE_SERVER_NODE_H_
#define MILLRACE_SERVER_NODE_H_

#include <atomic>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/settings.h"
#include "nodes/node_group.h"

namespace millrace {

// Called from any thread.
struct NodeEvents {
  std::function<void()> on_failure;  // a node has failed: end the process
  std::function<void()> on_leave;    // a node wants all to end in order
  std::function<void()> on_end;      // node 0 has ended all in order: set `stop`
};

// Waits for all nodes and requires that they have the same settings. `stop`, once true, ends all
// nodes in order until NodeGroup::BeginServing (NodeGroup::Join), and the wait with Cancelled.
absl::StatusOr<std::unique_ptr<NodeGroup>> JoinNodes(const Settings& settings, NodeEvents events,
                                                     const std::atomic<bool>& stop);

// Tells the other nodes that this one could not start, before the process ends; or, where it was
// told to `stop`, ends in order with them. Returns the error to end with.
absl::Status EndStart(NodeGroup& nodes, const absl::Status& why, const std::atomic<bool>& stop);

// Runs as another node than node 0, until node 0 ends. Once `stop` is true it asks node 0 to end,
// and calls events.on_leave. Unavailable: a node has failed.
absl::Status FollowNode0(const Settings& settings, NodeEvents events,
                         const std::atomic<bool>& stop);

}  // namespace millrace

#endif  // MILLRACE_SERVER_NODE_H_
