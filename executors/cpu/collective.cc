#include "executors/cpu/collective.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "base/fault_points.h"

namespace millrace::cpu {
namespace {

// Faults of the last rank, before it meets the others.
FaultPoint rank_error("cpu.rank_error");  // it fails
FaultPoint rank_hang("cpu.rank_hang");    // it comes 10 ms later, each time that this fires

constexpr std::chrono::milliseconds kHang{10};

}  // namespace

bool MeetRanks(RankGroup& group, int rank) {
  if (rank + 1 == group.size()) {
    while (rank_hang.Fires()) std::this_thread::sleep_for(kHang);
    if (rank_error.Fires()) {
      group.Abort(absl::UnavailableError("a rank failed (fault point cpu.rank_error)"));
    }
  }
  return group.Barrier(rank);
}

SharedMemoryCollectives::SharedMemoryCollectives(RankGroup& group)
    : group_(group), parts_(group.size()) {
  for (int rank = 0; rank < group.size(); ++rank) ranks_.emplace_back(*this, rank);
}

void SharedMemoryCollectives::Communicator::AllReduce(absl::Span<float> values) {
  const int turn = std::exchange(turn_, 1 - turn_);
  sent_[turn].assign(values.begin(), values.end());
  if (!Meet()) return;
  std::copy_n(all_.ranks_[0].sent_[turn].begin(), values.size(), values.begin());
  for (size_t rank = 1; rank < all_.ranks_.size(); ++rank) {
    const std::vector<float>& sent = all_.ranks_[rank].sent_[turn];
    for (size_t i = 0; i < values.size(); ++i) values[i] += sent[i];
  }
}

void SharedMemoryCollectives::Communicator::GatherRows(const Rows& rows, const float* part,
                                                       size_t part_stride, float* whole,
                                                       size_t stride) {
  const int ranks = all_.group_.size();
  all_.parts_[rank_] = part;
  if (!Meet()) return;
  const Share& columns = rows.columns;
  for (int row = 0; row < rows.count; ++row) {
    if ((rows.first + row) % ranks != rank_) continue;
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t begin = std::min<int64_t>(rank * columns.size, columns.total);
      const int64_t count = std::min(columns.size, columns.total - begin);
      std::copy_n(all_.parts_[rank] + row * part_stride, count, whole + row * stride + begin);
    }
  }
  (void)Meet();  // The others may read this rank's part until they are here, too.
}

}  // namespace millrace::cpu
