#include "executors/cpu/node_collective.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "base/strings.h"

namespace millrace::cpu {

NodeCollectives::NodeCollectives(RankGroup& group, Nodes& nodes)
    : group_(group), nodes_(nodes), sent_(group.size()) {
  for (int rank = 0; rank < group.size(); ++rank) ranks_.emplace_back(*this, rank);
}

float* NodeCollectives::Send(int local_rank, size_t count) {
  sent_[local_rank].resize(count);
  return sent_[local_rank].data();
}

bool NodeCollectives::Exchange(int local_rank, size_t count) {
  if (!MeetRanks(group_, local_rank)) return false;
  if (local_rank == 0) {
    const size_t bytes = count * sizeof(float);
    to_send_.resize(bytes * sent_.size());
    for (size_t i = 0; i < sent_.size(); ++i) {
      std::memcpy(to_send_.data() + i * bytes, sent_[i].data(), bytes);
    }
    waits_.store(true, std::memory_order_relaxed);
    absl::Status status = nodes_.AllGather(to_send_, &received_);
    for (const std::vector<char>& of_node : received_) {
      if (!status.ok() || of_node.size() == to_send_.size()) continue;
      status = absl::InternalError(StrCat("a node sent ", of_node.size(),
                                          " bytes to be summed; expected ", to_send_.size()));
    }
    waits_.store(false, std::memory_order_relaxed);
    if (!status.ok()) group_.Abort(absl::UnavailableError(StrCat(status.message())));
  }
  return group_.Barrier(local_rank);
}

const float* NodeCollectives::Received(int rank, size_t count) const {
  const std::vector<char>& of_node = received_[rank / group_.size()];
  return reinterpret_cast<const float*>(of_node.data()) + rank % group_.size() * count;
}

void NodeCollectives::Communicator::AllReduce(absl::Span<float> values) {
  std::copy(values.begin(), values.end(), all_.Send(local_, values.size()));
  if (!all_.Exchange(local_, values.size())) return;
  std::copy_n(all_.Received(0, values.size()), values.size(), values.begin());
  for (int rank = 1; rank < all_.size(); ++rank) {
    const float* const sent = all_.Received(rank, values.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] += sent[i];
  }
}

void NodeCollectives::Communicator::GatherRows(const Rows& rows, const float* part,
                                               size_t part_stride, float* whole, size_t stride) {
  const Share& columns = rows.columns;
  const size_t count = columns.size * rows.count;
  float* const to = all_.Send(local_, count);
  for (int row = 0; row < rows.count; ++row) {
    std::copy_n(part + row * part_stride, columns.count, to + row * columns.size);
  }
  if (!all_.Exchange(local_, count)) return;
  const int own_rank = all_.nodes_.node() * all_.group_.size() + local_;
  for (int row = 0; row < rows.count; ++row) {
    if ((rows.first + row) % all_.size() != own_rank) continue;
    for (int rank = 0; rank < all_.size(); ++rank) {
      const int64_t begin = std::min<int64_t>(rank * columns.size, columns.total);
      const int64_t own = std::min(columns.size, columns.total - begin);
      std::copy_n(all_.Received(rank, count) + row * columns.size, own,
                  whole + row * stride + begin);
    }
  }
}

}  // namespace millrace::cpu
