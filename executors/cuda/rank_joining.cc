#include "executors/cuda/rank_joining.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/cuda/device/peer_memory.h"
#include "kernels/collective/communicator.h"
#include "kernels/collective/nccl_api.h"

namespace millrace::cuda {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

using Ranks = absl::Span<const std::unique_ptr<CudaModel>>;

// CTAs of all virtual ranks that may wait for one another on a GPU.
constexpr int kVirtualCtas = 32;

// Joins the ranks of all nodes in a communicator of NCCL, by an id that node 0 makes. NCCL waits
// without an end for ranks that do not come: what may fail before is done before the id is known.
absl::Status JoinByNccl(const RankJoining& joining, Ranks ranks) {
  const int64_t slot = joining.slot_bytes;
  const int num_ranks = joining.device.tensor_parallel_size;
  MILLRACE_RETURN_IF_ERROR(
      OnAllRanks(static_cast<int>(ranks.size()), [&](int rank) -> absl::Status {
        CudaModel& m = *ranks[rank];
        MILLRACE_RETURN_IF_ERROR(UseDevice(m.device.index));
        MILLRACE_ASSIGN_OR_RETURN(
            m.exchanged, DeviceMemory::Allocate(slot * (1 + num_ranks), "what ranks exchange"));
        // Rows of an embedding that other ranks have are sent as they are, and never read.
        return ToStatus(cudaMemset(m.exchanged.data(), 0, m.exchanged.bytes()), "setting memory");
      }));
  kernels::NcclId id{};
  std::string error;
  if (joining.first_rank == 0 && !kernels::Nccl::MakeId(&id, &error)) {
    return absl::UnavailableError(StrCat("device: cuda: ", error));
  }
  if (joining.nodes != nullptr) {
    std::vector<std::vector<char>> ids;
    MILLRACE_RETURN_IF_ERROR(joining.nodes->AllGather(id, &ids));
    if (ids[0].size() != id.size()) return absl::InternalError("node 0 sent no id of NCCL");
    std::copy(ids[0].begin(), ids[0].end(), id.begin());
  }
  return OnAllRanks(static_cast<int>(ranks.size()), [&](int rank) -> absl::Status {
    CudaModel& m = *ranks[rank];
    MILLRACE_RETURN_IF_ERROR(UseDevice(m.device.index));
    std::string why;
    auto nccl = kernels::Nccl::Join(id, num_ranks, joining.first_rank + rank, &why);
    if (nccl == nullptr) return absl::UnavailableError(StrCat("device: cuda: ", why));
    m.peers = std::make_unique<RankPeers>(RankPeers{.communicator = {}, .weights = {}});
    m.peers->first_rank = joining.first_rank;
    m.peers->by_nccl = NcclPeers{.nccl = std::move(nccl),
                                 .sent = m.exchanged.data(),
                                 .gathered = m.exchanged.data() + slot,
                                 .slot_bytes = slot,
                                 .all_reduce = joining.device.nccl_all_reduce};
    return ToStatus(cudaDeviceSynchronize(), "joining the ranks");
  });
}

// Takes the memory that the ranks write into one another's, and tells each of all others.
absl::Status JoinByPeerMemory(const RankJoining& joining, absl::Span<const int> devices,
                              Ranks ranks) {
  const int size = joining.device.tensor_parallel_size;
  const int64_t slot = joining.slot_bytes;
  int sms = 0;
  MILLRACE_RETURN_IF_ERROR(
      ToStatus(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, devices[0]),
               "counting multiprocessors"));
  kernels::Communicator all{};
  all.ranks = size;
  all.slot_bytes = slot;
  // Virtual ranks wait for one another on SMs that they share, and leave most of them to others.
  all.max_ctas = joining.device.virtual_ranks ? std::max(1, kVirtualCtas / size) : sms;
  all.timeout_ns = static_cast<uint64_t>(ToSeconds(joining.device.step_timeout) * 1e9);
  all.release_early = !joining.device.virtual_ranks;
  const bool lone = joining.device.lone_rank;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    CudaModel& m = *ranks[rank];
    MILLRACE_RETURN_IF_ERROR(UseDevice(m.device.index));
    MILLRACE_ASSIGN_OR_RETURN(
        m.mailbox, PeerMemory::Allocate(kernels::CommunicatorBytes(size, slot), m.device.index,
                                        devices, "what ranks exchange"));
    MILLRACE_ASSIGN_OR_RETURN(m.failure, PinnedMemory::Allocate(sizeof(uint32_t), "failures"));
    *m.failure.As<uint32_t>() = 0;
    all.memory[rank] = m.mailbox.data();
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    CudaModel& m = *ranks[rank];
    m.peers = std::make_unique<RankPeers>(RankPeers{.communicator = all, .weights = {}});
    m.peers->communicator.rank = static_cast<int>(rank);
    m.peers->communicator.failure_report = m.failure.As<uint32_t>();
    for (int peer = 0; peer < size; ++peer) {
      m.peers->weights.push_back(&ranks[lone ? 0 : peer]->weights);
    }
    if (lone) PlayPeers(*m.peers);
    MILLRACE_RETURN_IF_ERROR(UseDevice(m.device.index));
    MILLRACE_RETURN_IF_ERROR(
        ToStatus(kernels::InitializeCommunicator(m.peers->communicator, m.stream.get()),
                 "joining the ranks"));
    MILLRACE_RETURN_IF_ERROR(ToStatus(cudaStreamSynchronize(m.stream.get()), "joining the ranks"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status OnAllRanks(int size, const std::function<absl::Status(int)>& body) {
  std::vector<absl::Status> statuses(size);
  std::vector<std::thread> threads;
  for (int rank = 1; rank < size; ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = body(rank); });
  }
  statuses[0] = body(0);
  for (std::thread& thread : threads) thread.join();
  for (absl::Status& status : statuses) MILLRACE_RETURN_IF_ERROR(std::move(status));
  return absl::OkStatus();
}

void PlayPeers(RankPeers& peers) {
  peers.alone = true;
  if (peers.by_nccl.has_value()) return;
  kernels::Communicator& c = peers.communicator;
  uint8_t* const own = static_cast<uint8_t*>(c.memory[c.rank]);
  for (int peer = 0; peer < c.ranks; ++peer) {
    c.memory[peer] = own + (peer - c.rank) * c.slot_bytes;
  }
}

absl::StatusOr<bool> NeedsNccl(const CudaSpec& device, absl::Span<const int> devices,
                               const Nodes* nodes) {
  if (device.lone_rank) return false;
  if (nodes != nullptr || device.nccl_all_reduce) return true;
  const absl::Status access = CheckPeerAccess(devices);
  if (!absl::IsUnimplemented(access)) {
    MILLRACE_RETURN_IF_ERROR(access);
    return false;
  }
  kLog.Warning(std::string(access.message()), "; ranks exchange by NCCL instead, which is slower");
  return true;
}

absl::Status JoinRanks(const RankJoining& joining, absl::Span<const int> devices, Ranks ranks) {
  if (joining.device.tensor_parallel_size == 1) return absl::OkStatus();
  return joining.by_nccl ? JoinByNccl(joining, ranks) : JoinByPeerMemory(joining, devices, ranks);
}

}  // namespace millrace::cuda
