// The nodes that run one model, connected: what executors see as Nodes (executors/nodes.h).
#ifndef MILLRACE_NODES_NODE_GROUP_H_
#define MILLRACE_NODES_NODE_GROUP_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/file_reading.h"
#include "executors/nodes.h"

namespace millrace {

struct NodeOptions {
  int nnodes = 1;
  int node_rank = 0;
  std::string master_addr;  // node 0's, where it listens: a name or an address
  int master_port = 0;      // gRPC; the data connections' is the next one
  std::string key;          // without which no node joins
  // PEM files, all or none: certificate, its key, and the authority that signs all nodes'.
  std::string tls_certificate;
  std::string tls_key;
  std::string tls_authority;
  Duration timeout = std::chrono::minutes(10);  // until all nodes have come
  std::string version;
  // A node from which nothing came for so long is gone.
  Duration silence = std::chrono::seconds(3);

  // Called once, from any thread, when a node has failed: the process should end.
  std::function<void(const absl::Status& why)> on_failure;
  // Called, on node 0, when another node wants all to end in order; on another node, when `stop` of
  // Join has told this one to and it has asked node 0.
  std::function<void()> on_leave;
  // Called when node 0 has ended in order: on another node, and on node 0 where `stop` has ended
  // all of them before BeginServing.
  std::function<void()> on_end;
};

class NodeGroup : public Nodes {
 public:
  // On node 0, waits for all others; on another node, for node 0. Returns Cancelled once `stop`
  // returns true, DeadlineExceeded after the timeout, and other errors where a setting is wrong or
  // node 0 refuses this node. `stop` is asked on: node 0 ends all in order if it returns true
  // before BeginServing, and another node asks node 0 to end. It outlives the group.
  static absl::StatusOr<std::unique_ptr<NodeGroup>> Join(NodeOptions options,
                                                         const std::function<bool()>& stop);

  // Ends in order: node 0 lets the others do so as well. `on_failure` is no longer called.
  ~NodeGroup() override = default;

  // On node 0: all have loaded, and from now on `stop` is the caller's to heed. Cancelled: it has
  // ended all nodes.
  virtual absl::Status BeginServing() = 0;

  // Returns, on node 0 with TLS, the state of the later readings of its files, which ends with the
  // group; else null.
  virtual FileReading* reading() = 0;

  // Ends in order, as the destructor does: node 0 ends all, another node asks it to. Waits, for 2 s
  // at most, until the other end has seen it.
  virtual void End() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_NODES_NODE_GROUP_H_
