// The communication between ranks that are spread over several nodes.
#ifndef MILLRACE_EXECUTORS_CPU_NODE_COLLECTIVE_H_
#define MILLRACE_EXECUTORS_CPU_NODE_COLLECTIVE_H_

#include <atomic>
#include <deque>
#include <vector>

#include "executors/cpu/collective.h"
#include "executors/nodes.h"
#include "executors/rank_group.h"

namespace millrace::cpu {

// The communicators of the ranks that are threads of this node, and of those of other nodes. What
// the ranks of a node send is gathered in its memory, and one of them exchanges it with the other
// nodes. The results have the same bits as those of as many ranks of one process.
class NodeCollectives {
 public:
  NodeCollectives(RankGroup& group, Nodes& nodes);  // which outlive this
  NodeCollectives(const NodeCollectives&) = delete;
  NodeCollectives& operator=(const NodeCollectives&) = delete;

  Collective& ForRank(int local_rank) { return ranks_[local_rank]; }

  // Returns whether a rank waits for other nodes.
  bool waits() const { return waits_.load(std::memory_order_relaxed); }

 private:
  class Communicator : public Collective {
   public:
    Communicator(NodeCollectives& all, int local_rank) : all_(all), local_(local_rank) {}

    void AllReduce(absl::Span<float> values) override;
    void GatherRows(const Rows& rows, const float* part, size_t part_stride, float* whole,
                    size_t stride) override;

   private:
    NodeCollectives& all_;
    const int local_;
  };

  int size() const { return group_.size() * nodes_.size(); }
  // Returns where a rank of this node writes its `count` values before Exchange. Others may read
  // until then what they last received.
  float* Send(int local_rank, size_t count);
  // Waits for all ranks of all nodes, each of which has written `count` values. Returns false if
  // the group was aborted.
  [[nodiscard]] bool Exchange(int local_rank, size_t count);
  // Returns what a rank of any node wrote.
  const float* Received(int rank, size_t count) const;

  RankGroup& group_;
  Nodes& nodes_;
  std::vector<std::vector<float>> sent_;     // by rank of this node
  std::vector<char> to_send_;                // all of them
  std::vector<std::vector<char>> received_;  // by node
  std::atomic<bool> waits_{false};
  std::deque<Communicator> ranks_;
};

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_NODE_COLLECTIVE_H_
