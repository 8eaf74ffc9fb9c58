// The processes, mostly one a host, that the ranks of a model are spread over. Each has the same
// number of ranks: the first ones are node 0's. Node 0 plans the steps, and all nodes run them.
#ifndef MILLRACE_EXECUTORS_NODES_H_
#define MILLRACE_EXECUTORS_NODES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "executors/executor.h"
#include "plan/step_plan.h"

namespace millrace {

// The connection to the other nodes, as executors see it. Once one of the nodes has failed, all
// functions return that node's error, and none of them blocks. Safe to use from any thread, but for
// what is said of AllGather.
class Nodes {
 public:
  virtual ~Nodes() = default;

  virtual int size() const = 0;
  virtual int node() const = 0;  // this one, [0, size)

  // Gives every node's bytes to every node: (*all)[n] are node n's. All nodes call it in the same
  // order, one thread of each at a time, and it waits for all of them. `all` keeps its memory.
  virtual absl::Status AllGather(absl::Span<const char> mine,
                                 std::vector<std::vector<char>>* all) = 0;

  // On node 0: hands a plan to all other nodes. Does not wait for them.
  virtual absl::Status SendPlan(const StepPlan& plan) = 0;
  // On another node: waits for node 0's next plan. Nothing: node 0 has ended in order.
  virtual absl::StatusOr<std::optional<StepPlan>> NextPlan() = 0;

  // Tells all nodes that this one has failed. The first failure of any node stays.
  virtual void Fail(const absl::Status& why) = 0;

  // Registers a function that is called, from any thread, when a node has failed; at once if one
  // has. It must not call back. Null: none from now on, and none is running any more.
  virtual void OnFailure(std::function<void(const absl::Status& why)> on_failure) = 0;
};

// A node's facts about itself: names and values.
using NodeFacts = std::vector<std::pair<std::string, std::string>>;

// Compares the facts of all nodes. Returns a disagreement, on every node alike, if a node's differ
// from node 0's. All nodes call it, as they do AllGather.
absl::Status Agree(Nodes& nodes, const NodeFacts& facts);
// Returns whether this is Agree's error, which all nodes have.
bool IsDisagreement(const absl::Status& status);

// Widens `info` from the ranks of this node to all ranks, and requires that all nodes have the same
// model with the same limits. `facts`: further ones that nodes must agree on. All nodes call it, as
// they do AllGather.
absl::Status JoinInfos(Nodes& nodes, const NodeFacts& facts, ModelInfo& info);

// Returns the least of all nodes' numbers, one by one. Those that a node lacks count as this one's:
// JoinInfos says in what the nodes differ. All nodes call it, as they do AllGather.
absl::StatusOr<std::vector<int32_t>> LeastOfNodes(Nodes& nodes, std::vector<int32_t> numbers);

// Returns node 0's executor: what is submitted to it is handed to the other nodes, too.
std::unique_ptr<Executor> MakeNodesExecutor(std::unique_ptr<Executor> executor, Nodes& nodes);

// Runs what node 0 plans on another node's executor. Returns OK when node 0 has ended in order, or
// the error that a node has failed with.
absl::Status FollowPlans(Executor& executor, Nodes& nodes);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_NODES_H_
