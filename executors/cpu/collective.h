// The communication between the ranks of a model whose weights are divided (RankSpec).
#ifndef MILLRACE_EXECUTORS_CPU_COLLECTIVE_H_
#define MILLRACE_EXECUTORS_CPU_COLLECTIVE_H_

#include <cstddef>
#include <deque>
#include <vector>

#include "absl/types/span.h"
#include "executors/ops.h"
#include "executors/rank_group.h"

namespace millrace::cpu {

// One rank's communicator. All ranks call the same functions in the same order with the same sizes,
// each on a thread of its own. Where the group was aborted they return at once, and what they were
// to write is left as it was: the step is lost, and its result is not read.
class Collective {
 public:
  virtual ~Collective() = default;

  // Replaces the values by the sums of all ranks' values, in float32, added in the order of the
  // ranks: the same bits on every rank and in every run.
  virtual void AllReduce(absl::Span<float> values) = 0;

  // Some of the rows of a matrix whose columns are divided.
  struct Rows {
    int first;      // the number of the first of these rows
    int count;      // rows that every rank has its columns of
    Share columns;  // this rank's
  };
  // Puts the ranks' columns of each row side by side, on one rank: row number n, on rank n modulo
  // the number of ranks. `part` is [rows.count][part_stride], of which columns.count values count;
  // `whole` is [rows.count][stride], and this rank's rows of it become columns.total values each.
  virtual void GatherRows(const Rows& rows, const float* part, size_t part_stride, float* whole,
                          size_t stride) = 0;
};

// Waits at the group's barrier, where fault points may delay or fail the last rank.
[[nodiscard]] bool MeetRanks(RankGroup& group, int rank);

// The communicators of ranks that are threads of one process: each reads the memory of the others.
class SharedMemoryCollectives {
 public:
  explicit SharedMemoryCollectives(RankGroup& group);  // which outlives this
  SharedMemoryCollectives(const SharedMemoryCollectives&) = delete;
  SharedMemoryCollectives& operator=(const SharedMemoryCollectives&) = delete;

  Collective& ForRank(int rank) { return ranks_[rank]; }

 private:
  class Communicator : public Collective {
   public:
    Communicator(SharedMemoryCollectives& all, int rank) : all_(all), rank_(rank) {}

    void AllReduce(absl::Span<float> values) override;
    void GatherRows(const Rows& rows, const float* part, size_t part_stride, float* whole,
                    size_t stride) override;

   private:
    [[nodiscard]] bool Meet() { return MeetRanks(all_.group_, rank_); }

    SharedMemoryCollectives& all_;
    const int rank_;
    // This rank's addends, in turns: others may read one until they meet this rank for the next
    // sum, and only behind that one is it written again. So a sum takes one barrier.
    std::vector<float> sent_[2];
    int turn_ = 0;
  };

  RankGroup& group_;
  std::vector<const float*> parts_;  // of the rows that are gathered, by rank
  std::deque<Communicator> ranks_;
};

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_COLLECTIVE_H_
