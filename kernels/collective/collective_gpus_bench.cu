// Benchmark of the collectives over real GPUs, one rank each, beside NCCL's all-reduce in the same
// run. Each rank replays a graph of many launches; a launch reduces what the launch before it left
// in the L2 cache. NCCL sums and nothing else, while the fused kernel also adds the residual,
// norms and stores. NVLink multicast stays off (NCCL_NVLS_ENABLE=0).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/bench_util.h"
#include "kernels/collective/all_gather.h"
#include "kernels/collective/all_reduce.h"
#include "kernels/collective/deal_rows.h"
#include "kernels/collective/nccl_api.h"
#include "kernels/device_util.cuh"
#include "kernels/graph_test_util.h"
#include "kernels/norm/rms_norm.h"

namespace millrace::kernels {
namespace {

constexpr int kLaunches = 200;
constexpr int kSamples = 15;
constexpr int64_t kMostElements = int64_t{2} << 20;  // 4 MiB of BF16
constexpr int64_t kSlotBytes = 2 * kMostElements;

// Joins all ranks by NCCL. Empty, with a line printed, where there is no NCCL.
std::vector<std::unique_ptr<Nccl>> JoinByNccl(int ranks) {
  std::string error;
  NcclId id;
  std::vector<std::unique_ptr<Nccl>> joined(ranks);
  if (Nccl::MakeId(&id, &error)) {
    std::vector<std::thread> threads;
    std::vector<std::string> errors(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        CheckCuda(cudaSetDevice(rank), "GPU");
        joined[rank] = Nccl::Join(id, ranks, rank, &errors[rank]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& of_rank : errors) error += of_rank;
  }
  if (error.empty()) return joined;
  std::printf("NCCL is not measured: %s\n", error.c_str());
  return {};
}

// The buffers of one GPU.
struct Rank {
  explicit Rank(int ranks)
      : mailbox(CommunicatorBytes(ranks, kSlotBytes)),
        partial(kMostElements),
        sum(kMostElements),
        residual(kMostElements),
        weight(16384),
        out(kMostElements),
        scales(kMostElements / 128) {
    FillUniform(partial.get(), partial.size(), 1);
    FillUniform(residual.get(), residual.size(), 2);
    FillUniform(weight.get(), weight.size(), 3);
    CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  }

  DeviceBuffer<uint8_t> mailbox;
  DeviceBuffer<Bf16> partial, sum;
  DeviceBuffer<float> residual, weight;
  DeviceBuffer<Bf16> out;
  DeviceBuffer<float> scales;
  cudaStream_t stream = nullptr;
  Communicator communicator{};
};

using Launch = std::function<cudaError_t(int rank, cudaStream_t stream)>;

class Gpus {
 public:
  explicit Gpus(int ranks) {
    Communicator all = {};
    all.ranks = ranks;
    all.slot_bytes = kSlotBytes;
    all.timeout_ns = 2'000'000'000;
    CheckCuda(cudaDeviceGetAttribute(&all.max_ctas, cudaDevAttrMultiProcessorCount, 0), "SMs");
    for (int rank = 0; rank < ranks; ++rank) {
      CheckCuda(cudaSetDevice(rank), "GPU");
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer == rank) continue;
        const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
        if (error != cudaErrorPeerAccessAlreadyEnabled) CheckCuda(error, "peer access");
        (void)cudaGetLastError();
      }
      ranks_.push_back(std::make_unique<Rank>(ranks));
      all.memory[rank] = ranks_[rank]->mailbox.get();
    }
    for (int rank = 0; rank < ranks; ++rank) {
      Rank& r = *ranks_[rank];
      CheckCuda(cudaSetDevice(rank), "GPU");
      r.communicator = all;
      r.communicator.rank = rank;
      CheckCuda(cudaDeviceSynchronize(), "inputs");
      CheckCuda(InitializeCommunicator(r.communicator, r.stream), "initialize");
      CheckCuda(cudaDeviceSynchronize(), "initialize");
    }
  }

  Rank& operator[](int rank) { return *ranks_[rank]; }
  int size() const { return static_cast<int>(ranks_.size()); }

  // Returns the median over some replays, in µs per launch.
  double Microseconds(const Launch& launch) {
    std::vector<std::unique_ptr<CapturedGraph>> graphs(size());
    cudaEvent_t begin, end;
    CheckCuda(cudaSetDevice(0), "GPU");
    CheckCuda(cudaEventCreate(&begin), "event");
    CheckCuda(cudaEventCreate(&end), "event");
    // The ranks launch side by side, since NCCL's first launch of a kind waits for all of them.
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([&, rank] {
        cudaStream_t const stream = ranks_[rank]->stream;
        CheckCuda(cudaSetDevice(rank), "GPU");
        CheckCuda(launch(rank, stream), "launch");
        CheckCuda(cudaStreamSynchronize(stream), "launch");
        graphs[rank] = std::make_unique<CapturedGraph>(stream, [&](cudaStream_t captured) {
          for (int i = 0; i < kLaunches; ++i) CheckCuda(launch(rank, captured), "launch");
        });
        graphs[rank]->Upload(stream);
        CheckCuda(cudaDeviceSynchronize(), "upload");
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<float> times;
    for (int sample = 0; sample <= kSamples; ++sample) {
      for (int rank = size() - 1; rank >= 0; --rank) {  // rank 0 last, so that it waits for no host
        CheckCuda(cudaSetDevice(rank), "GPU");
        if (rank == 0) CheckCuda(cudaEventRecord(begin, ranks_[0]->stream), "event");
        graphs[rank]->Replay(ranks_[rank]->stream);
      }
      CheckCuda(cudaEventRecord(end, ranks_[0]->stream), "event");
      for (int rank = 0; rank < size(); ++rank) {
        CheckCuda(cudaSetDevice(rank), "GPU");
        CheckCuda(cudaDeviceSynchronize(), "replay");
        CheckNoFailure(rank);
      }
      float milliseconds = 0;
      CheckCuda(cudaEventElapsedTime(&milliseconds, begin, end), "time");
      if (sample > 0) times.push_back(milliseconds);
    }
    CheckCuda(cudaSetDevice(0), "GPU");
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::nth_element(times.begin(), times.begin() + kSamples / 2, times.end());
    return times[kSamples / 2] * 1e3 / kLaunches;
  }

 private:
  void CheckNoFailure(int rank) const {
    uint32_t failure = 0;
    CheckCuda(cudaMemcpy(&failure, FailureWord(ranks_[rank]->communicator), sizeof(failure),
                         cudaMemcpyDeviceToHost),
              "failure");
    if (failure == 0) return;
    std::fprintf(stderr, "rank %d waited in vain for rank %u\n", rank, failure - 1);
    std::exit(1);
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
};

RmsNormArgs NormArgs(const Rank& data, int tokens, int width) {
  return {.residual = data.residual.get(),
          .delta = {data.partial.get(), width, nullptr, nullptr},
          .weight = data.weight.get(),
          .epsilon = 1e-5f,
          .tokens = tokens,
          .width = width,
          .out = {data.out.get(), Type::kFp8, Scaling::kToken, width, data.scales.get()}};
}

void BenchShape(Gpus& gpus, const std::vector<std::unique_ptr<Nccl>>& nccl, int64_t bytes,
                int width) {
  const int tokens = static_cast<int>(bytes / 2 / width);
  if (tokens == 0) return;
  const auto fused = [&](AllReduceMethod method) {
    if (AllReduceSlotBytes(method, gpus.size(), tokens, width) > kSlotBytes) return 0.0;
    return gpus.Microseconds([&](int rank, cudaStream_t stream) {
      return LaunchAllReduceNorm(
          {gpus[rank].communicator, method, NormArgs(gpus[rank], tokens, width)}, stream);
    });
  };
  const double one = fused(AllReduceMethod::kOneShot);
  const double two = fused(AllReduceMethod::kTwoShot);
  const double norm = gpus.Microseconds([&](int rank, cudaStream_t stream) {
    return LaunchRmsNorm(NormArgs(gpus[rank], tokens, width), stream);
  });
  double library = 0;
  if (!nccl.empty()) {
    library = gpus.Microseconds([&](int rank, cudaStream_t stream) {
      return nccl[rank]->AllReduce(gpus[rank].partial.get(), gpus[rank].sum.get(), bytes / 2,
                                   stream);
    });
  }
  const bool picks_two = BestAllReduce(gpus.size(), bytes) == AllReduceMethod::kTwoShot;
  const double ours = picks_two ? two : one;
  std::printf("| %d | %6ld KiB | %5d x %d | %8.2f | %8.2f | %s | %8.2f | %8.2f | %5.2f |\n",
              gpus.size(), static_cast<long>(bytes >> 10), tokens, width, one, two,
              picks_two ? "two" : "one", norm, library, library > 0 ? ours / library : 0.0);
  std::fflush(stdout);
}

// The logits of `rows` sequences of Llama 3, of which each rank has a part of the vocabulary:
// shares of the rows dealt out, and all rows to all ranks, by a deal and by the all-gather of any
// bits.
void BenchLogits(Gpus& gpus, int rows) {
  constexpr int kVocabulary = 128256;
  const int ranks = gpus.size();
  const int width = 16 * CeilDiv(kVocabulary, 16 * ranks);
  const int row_bytes = static_cast<int>(sizeof(float)) * width;
  std::vector<DeviceBuffer<float>> columns, whole;
  for (int rank = 0; rank < ranks; ++rank) {
    CheckCuda(cudaSetDevice(rank), "GPU");
    columns.emplace_back(static_cast<size_t>(rows) * width);
    whole.emplace_back(static_cast<size_t>(rows) * ranks * width);
  }
  const auto in_pieces = [](int all, int most, const auto& launch) {
    for (int first = 0; first < all; first += most) {
      const cudaError_t error = launch(first, std::min(most, all - first));
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  };
  const auto dealt = [&](int share) {
    return gpus.Microseconds([&](int rank, cudaStream_t stream) {
      const int most = std::max<int>(1, kSlotBytes / row_bytes);
      return in_pieces(share, most, [&](int first, int count) {
        return LaunchDealRows({.communicator = gpus[rank].communicator,
                               .columns = columns[rank].get(),
                               .whole = whole[rank].get(),
                               .rows = rows,
                               .share = share,
                               .width = width,
                               .first = first,
                               .count = count},
                              stream);
      });
    });
  };
  const double gathered = gpus.Microseconds([&](int rank, cudaStream_t stream) {
    const int most = std::max<int>(1, kSlotBytes / row_bytes / 2);
    return in_pieces(rows, most, [&](int first, int count) {
      return LaunchAllGather({gpus[rank].communicator, columns[rank].get() + first * width,
                              whole[rank].get() + first * ranks * width, count, row_bytes},
                             stream);
    });
  });
  std::printf("| %d | %d | %8.2f | %8.2f | %8.2f |\n", ranks, rows, dealt(CeilDiv(rows, ranks)),
              dealt(rows), gathered);
  std::fflush(stdout);
}

void Run() {
  int count = 0;
  CheckCuda(cudaGetDeviceCount(&count), "GPUs");
  if (count < 2) {
    std::printf("needs at least two GPUs, there is %d\n", count);
    return;
  }
  std::printf(
      "all-reduce + residual + RMS norm + FP8 per token, us a launch in a graph (0: exceeds the "
      "slot)\n| GPUs | bytes | tokens x width | one-shot | two-shot | chosen | rms_norm alone | "
      "NCCL's sum alone | chosen / NCCL |\n|---|---|---|---|---|---|---|---|---|\n");
  std::fflush(stdout);
  for (int ranks = 2; ranks <= std::min(count, kMaxRanks); ranks *= 2) {
    Gpus gpus(ranks);
    const auto nccl = JoinByNccl(ranks);
    for (const int width : {4096, 8192}) {
      for (const int64_t kib : {8, 16, 32, 128, 512, 1024, 4096}) {
        BenchShape(gpus, nccl, kib << 10, width);
      }
    }
  }
  std::printf(
      "\nlogits of Llama 3, us\n| GPUs | rows | shares dealt out | all rows to all ranks | by "
      "all-gather |\n|---|---|---|---|---|\n");
  for (int ranks = 2; ranks <= std::min(count, kMaxRanks); ranks *= 2) {
    Gpus gpus(ranks);
    for (const int rows : {1, 8, 16, 64, 256}) BenchLogits(gpus, rows);
  }
}

}  // namespace
}  // namespace millrace::kernels

int main() {
  millrace::kernels::Run();
  return 0;
}
