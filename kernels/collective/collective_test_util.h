// Virtual ranks on one GPU, for tests and benchmarks: each has memory and a stream of its own. No
// wait here is endless, neither the host's nor a kernel's. Include it in .cu files only.
#ifndef MILLRACE_KERNELS_COLLECTIVE_COLLECTIVE_TEST_UTIL_H_
#define MILLRACE_KERNELS_COLLECTIVE_COLLECTIVE_TEST_UTIL_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/collective/communicator.h"
#include "kernels/collective/wire.cuh"
#include "kernels/test_util.h"

namespace millrace::kernels {

// Read when the CUDA context is made. Streams that wait for one another need hardware queues of
// their own, and loading a kernel must not wait for one that waits for a peer.
inline const bool kEnvironmentSet = [] {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  return true;
}();

inline constexpr uint64_t kTestTimeout = 2'000'000'000;  // ns
inline constexpr std::chrono::seconds kHostTimeout(30);

// Holds a stream back until the host opens the gate, or for half a second.
template <typename = void>
__global__ void GateKernel(const uint32_t* gate, uint32_t value) {
  const uint64_t begin = Nanoseconds();
  while (LoadRelaxed(gate) != value && Nanoseconds() - begin < 500'000'000) __nanosleep(200);
}

class VirtualRanks {
 public:
  VirtualRanks(int ranks, int64_t slot_bytes, int max_ctas = 0, uint64_t timeout = kTestTimeout)
      : ranks_(ranks),
        slot_bytes_((slot_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment) {
    CheckCuda(cudaHostAlloc(&gate_, sizeof(*gate_), cudaHostAllocMapped), "gate");
    *gate_ = 0;
    Communicator shared = {};
    shared.ranks = ranks;
    shared.slot_bytes = slot_bytes_;
    shared.max_ctas = max_ctas > 0 ? max_ctas : std::max(1, 128 / ranks);
    shared.timeout_ns = timeout;
    shared.release_early = false;
    for (int rank = 0; rank < ranks; ++rank) {
      memory_.emplace_back(CommunicatorBytes(ranks, slot_bytes_) + kSlotAlignment);
      const uintptr_t begin = reinterpret_cast<uintptr_t>(memory_[rank].get());
      shared.memory[rank] =
          reinterpret_cast<void*>((begin + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment);
      streams_.emplace_back();
      CheckCuda(cudaStreamCreateWithFlags(&streams_[rank], cudaStreamNonBlocking), "stream");
    }
    communicators_.assign(ranks, shared);
    for (int rank = 0; rank < ranks; ++rank) communicators_[rank].rank = rank;
    Initialize();
  }
  ~VirtualRanks() {
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    cudaFreeHost(gate_);
  }
  VirtualRanks(const VirtualRanks&) = delete;
  VirtualRanks& operator=(const VirtualRanks&) = delete;

  int size() const { return ranks_; }
  const Communicator& operator[](int rank) const { return communicators_[rank]; }
  cudaStream_t stream(int rank) const { return streams_[rank]; }

  void Initialize() {
    CheckCuda(cudaDeviceSynchronize(), "poison");
    for (int rank = 0; rank < ranks_; ++rank) {
      CheckCuda(InitializeCommunicator(communicators_[rank], streams_[rank]), "initialize");
    }
    CheckCuda(cudaDeviceSynchronize(), "initialize");
  }

  // Holds all streams back until OpenGate.
  void CloseGate() {
    ++closed_;
    for (cudaStream_t stream : streams_) {
      GateKernel<><<<1, 1, 0, stream>>>(gate_, closed_);
      CheckCuda(cudaGetLastError(), "gate");
    }
  }
  void OpenGate() { *const_cast<volatile uint32_t*>(gate_) = closed_; }

  // Calls `launch` for each rank, with all streams held back meanwhile, and waits for the results.
  void Run(const std::function<cudaError_t(int, cudaStream_t)>& launch) {
    CheckCuda(cudaDeviceSynchronize(), "inputs");
    CloseGate();
    for (int rank = 0; rank < ranks_; ++rank) CheckCuda(launch(rank, streams_[rank]), "launch");
    OpenGate();
    Wait();
  }

  // Waits for all streams. If that takes too long it ends the program, which ends the kernels.
  void Wait() const {
    const auto begin = std::chrono::steady_clock::now();
    for (cudaStream_t stream : streams_) {
      cudaError_t state;
      while ((state = cudaStreamQuery(stream)) == cudaErrorNotReady) {
        if (std::chrono::steady_clock::now() - begin > kHostTimeout) {
          std::fprintf(stderr, "virtual ranks: a stream did not finish in time\n");
          std::_Exit(3);
        }
        std::this_thread::yield();
      }
      CheckCuda(state, "virtual ranks");
    }
  }

  // Returns the rank's failure, 0 if there is none.
  uint32_t Failure(int rank) const {
    uint32_t failure = 0;
    CheckCuda(cudaMemcpy(&failure, FailureWord(communicators_[rank]), sizeof(failure),
                         cudaMemcpyDeviceToHost),
              "failure");
    return failure;
  }

  // Returns whether nothing failed, all slots are empty, no CTA is counted, and the memory around
  // is untouched.
  bool IsQuiet() const {
    for (int rank = 0; rank < ranks_; ++rank) {
      const std::vector<uint8_t> all = memory_[rank].Download();
      const size_t begin =
          static_cast<uint8_t*>(communicators_[rank].memory[rank]) - memory_[rank].get();
      Control control;
      std::memcpy(&control, all.data() + begin, sizeof(control));
      if (control.failure != 0 || control.arrived != 0 || !memory_[rank].GuardsIntact()) {
        return false;
      }
      const bool empty = std::all_of(all.begin() + begin + kControlBytes, all.end(),
                                     [](uint8_t byte) { return byte == 0xff; });
      if (!empty) return false;
    }
    return true;
  }

 private:
  int ranks_;
  int64_t slot_bytes_;
  uint32_t* gate_ = nullptr;
  uint32_t closed_ = 0;
  std::vector<DeviceBuffer<uint8_t>> memory_;
  std::vector<cudaStream_t> streams_;
  std::vector<Communicator> communicators_;
};

// Returns the view of rank `rank` of `ranks` whose peers are itself: what it sends to a peer
// arrives in its own memory as if the peer had sent it.
inline Communicator LoopBack(const Communicator& own, int rank, int ranks) {
  Communicator c = own;
  c.rank = rank;
  c.ranks = ranks;
  for (int peer = 0; peer < ranks; ++peer) {
    c.memory[peer] = static_cast<char*>(own.memory[own.rank]) + (peer - rank) * own.slot_bytes;
  }
  return c;
}

// The arguments of all ranks, for one grid that plays them all.
template <typename Args>
struct OfAllRanks {
  Args rank[kMaxRanks];
};

// Launches a cooperative grid of `ctas` CTAs a rank: all are resident, or the launch fails.
template <typename Args>
cudaError_t LaunchAllRanks(void (*kernel)(OfAllRanks<Args>), OfAllRanks<Args> args, int ranks,
                           int ctas, int threads, cudaStream_t stream) {
  CheckCuda(cudaDeviceSynchronize(), "inputs");
  void* arguments[] = {&args};
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel), dim3(ctas, ranks),
                                     dim3(threads), arguments, 0, stream);
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_COLLECTIVE_COLLECTIVE_TEST_UTIL_H_
