// Benchmark of the collectives with virtual ranks on one GPU: what they cost over the kernel that
// only adds and norms, and how long sums of 8 KiB to 1 MiB take. Inputs stay in the L2 cache, where
// the linear before a collective leaves them. Each stream replays a graph of many launches, and all
// streams start together.
//
// Virtual ranks share one memory, so this measures the kernels and their waits, but no link.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/bench_util.h"
#include "kernels/collective/all_gather.h"
#include "kernels/collective/all_reduce.h"
#include "kernels/collective/collective_test_util.h"
#include "kernels/collective/deal_rows.h"
#include "kernels/graph_test_util.h"
#include "kernels/norm/rms_norm.h"

namespace millrace::kernels {
namespace {

constexpr int kLaunches = 200;
constexpr int kSamples = 15;
constexpr int kMostElements = 1 << 20;

using Launch = std::function<cudaError_t(int rank, cudaStream_t stream)>;

// Returns the median over some replays, in µs per launch, of all ranks together.
double Microseconds(VirtualRanks& group, const Launch& launch) {
  group.Run(launch);  // loads the kernel
  const int ranks = group.size();
  std::vector<std::unique_ptr<CapturedGraph>> graphs;
  std::vector<cudaEvent_t> ends(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    graphs.push_back(std::make_unique<CapturedGraph>(group.stream(rank), [&](cudaStream_t stream) {
      for (int i = 0; i < kLaunches; ++i) CheckCuda(launch(rank, stream), "launch");
    }));
    CheckCuda(cudaEventCreateWithFlags(&ends[rank], cudaEventDisableTiming), "event");
  }
  cudaEvent_t begin, end;
  CheckCuda(cudaEventCreate(&begin), "event");
  CheckCuda(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int sample = 0; sample <= kSamples; ++sample) {
    group.CloseGate();
    CheckCuda(cudaEventRecord(begin, group.stream(0)), "event");
    for (int rank = 0; rank < ranks; ++rank) {
      graphs[rank]->Replay(group.stream(rank));
      CheckCuda(cudaEventRecord(ends[rank], group.stream(rank)), "event");
      CheckCuda(cudaStreamWaitEvent(group.stream(0), ends[rank], 0), "event");
    }
    CheckCuda(cudaEventRecord(end, group.stream(0)), "event");
    group.OpenGate();
    group.Wait();
    for (int rank = 0; rank < ranks; ++rank) {
      if (group.Failure(rank) == 0) continue;
      std::fprintf(stderr, "rank %d waited in vain\n", rank);
      std::exit(1);
    }
    float milliseconds = 0;
    CheckCuda(cudaEventElapsedTime(&milliseconds, begin, end), "event");
    if (sample > 0) times.push_back(milliseconds);  // the first one uploads the graphs
  }
  for (cudaEvent_t event : ends) cudaEventDestroy(event);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(times.begin(), times.begin() + kSamples / 2, times.end());
  return times[kSamples / 2] * 1e3 / kLaunches;
}

struct RankData {
  RankData()
      : partial(kMostElements),
        sum(kMostElements),
        residual(kMostElements),
        weight(16384),
        out(kMostElements),
        scales(kMostElements / 128) {
    FillUniform(partial.get(), partial.size(), 1);
    FillUniform(residual.get(), residual.size(), 2);
    FillUniform(weight.get(), weight.size(), 3);
  }
  DeviceBuffer<Bf16> partial, sum;
  DeviceBuffer<float> residual, weight;
  DeviceBuffer<Bf16> out;
  DeviceBuffer<float> scales;
};

RmsNormArgs NormArgs(const RankData& data, int tokens, int width, Scaling scaling) {
  const bool fp8 = scaling != Scaling::kNone;
  return {.residual = data.residual.get(),
          .delta = {data.partial.get(), width, nullptr, nullptr},
          .weight = data.weight.get(),
          .epsilon = 1e-5f,
          .tokens = tokens,
          .width = width,
          .out = {data.out.get(), fp8 ? Type::kFp8 : Type::kBf16, scaling, width,
                  fp8 ? data.scales.get() : nullptr}};
}

struct Difference {
  std::string shape;
  double plain, fused, two_shot, plain_alone, looped, bar;
};

void BenchNorms(Bench& bench, std::vector<Difference>& differences) {
  constexpr int kRanks = 2;
  VirtualRanks group(kRanks, 2 * kMostElements, 64);
  VirtualRanks alone(1, 2 * kRanks * kMostElements, 132);
  Communicator half = alone[0];
  half.slot_bytes /= kRanks;
  Communicator looped = LoopBack(half, 0, kRanks);
  looped.release_early = true;
  const std::vector<RankData> data(kRanks);
  for (const int width : {4096, 8192}) {
    for (const Scaling scaling : {Scaling::kNone, Scaling::kToken}) {
      for (const int tokens : {1, 16, 64}) {
        const std::string shape = std::to_string(tokens) + " x " + std::to_string(width) +
                                  (scaling == Scaling::kNone ? " bf16" : " fp8 token");
        const double bytes = static_cast<double>(tokens) * width * (2 + 8 + 2);
        const auto fused = [&](AllReduceMethod method) {
          return Microseconds(group, [&](int rank, cudaStream_t stream) {
            return LaunchAllReduceNorm(
                {group[rank], method, NormArgs(data[rank], tokens, width, scaling)}, stream);
          });
        };
        const auto plain = [&](VirtualRanks& ranks) {
          return Microseconds(ranks, [&](int rank, cudaStream_t stream) {
            return LaunchRmsNorm(NormArgs(data[rank], tokens, width, scaling), stream);
          });
        };
        Difference d = {};
        d.shape = shape;
        d.bar = tokens == 1 ? 3 : tokens == 16 ? 3.5 : 6;
        d.plain = plain(group);
        d.fused = fused(AllReduceMethod::kOneShot);
        d.two_shot = fused(AllReduceMethod::kTwoShot);
        // One rank whose peer is itself may start its next kernels early.
        d.plain_alone = plain(alone);
        d.looped = Microseconds(alone, [&](int, cudaStream_t stream) {
          return LaunchAllReduceNorm(
              {looped, AllReduceMethod::kOneShot, NormArgs(data[0], tokens, width, scaling)},
              stream);
        });
        bench.Row("all_reduce + rms_norm, 2 ranks", shape, d.fused, kRanks * bytes, d.plain);
        differences.push_back(d);
      }
    }
  }
}

void BenchSums(Bench& bench) {
  for (const int ranks : {2, 4}) {
    VirtualRanks group(ranks, 2 * kMostElements);
    const std::vector<RankData> data(ranks);
    for (const AllReduceMethod method : {AllReduceMethod::kOneShot, AllReduceMethod::kTwoShot}) {
      for (int bytes = 8 << 10; bytes <= 1 << 20; bytes *= 2) {
        const int width = 4096, tokens = bytes / 2 / width;
        const double us = Microseconds(group, [&](int rank, cudaStream_t stream) {
          return LaunchAllReduce({group[rank],
                                  method,
                                  {data[rank].partial.get(), width, nullptr, nullptr},
                                  data[rank].sum.get(),
                                  width,
                                  tokens,
                                  width},
                                 stream);
        });
        bench.Row(std::string("all_reduce, ") +
                      (method == AllReduceMethod::kOneShot ? "one-shot" : "two-shot"),
                  std::to_string(ranks) + " ranks, " + std::to_string(bytes >> 10) + " KiB", us,
                  2.0 * ranks * bytes);
      }
    }
    for (const int rows : {1, 64}) {
      constexpr int kRecordBytes = 512;
      const double us = Microseconds(group, [&](int rank, cudaStream_t stream) {
        return LaunchAllGather(
            {group[rank], data[rank].partial.get(), data[rank].sum.get(), rows, kRecordBytes},
            stream);
      });
      bench.Row("all_gather",
                std::to_string(ranks) + " ranks, " + std::to_string(rows) + " x " +
                    std::to_string(kRecordBytes) + " bytes",
                us, 2.0 * ranks * rows * kRecordBytes);
    }
    for (const int share : {64 / ranks, 64}) {
      constexpr int kRows = 64;
      const int width = kMostElements / 2 / kRows / (share == kRows ? ranks : 1);
      const double us = Microseconds(group, [&](int rank, cudaStream_t stream) {
        return LaunchDealRows({.communicator = group[rank],
                               .columns = reinterpret_cast<float*>(data[rank].partial.get()),
                               .whole = reinterpret_cast<float*>(data[rank].sum.get()),
                               .rows = kRows,
                               .share = share,
                               .width = width,
                               .first = 0,
                               .count = share},
                              stream);
      });
      bench.Row("deal_rows",
                std::to_string(ranks) + " ranks, " + std::to_string(share) + " of 64 x " +
                    std::to_string(4 * width) + " bytes",
                us, 2.0 * ranks * share * ranks * width * sizeof(float));
    }
  }
}

void Run() {
  std::vector<Difference> differences;
  {
    Bench bench("collectives over virtual ranks (peer: rms_norm on as many streams)");
    BenchNorms(bench, differences);
    BenchSums(bench);
  }
  std::printf(
      "\n| 2 ranks, us | rms_norm | one-shot | over it | bar | two-shot over it | "
      "rms_norm, one stream | looped back, over it |\n|---|---|---|---|---|---|---|---|\n");
  for (const Difference& d : differences) {
    std::printf("| %s | %.2f | %.2f | %+.2f | %+.1f | %+.2f | %.2f | %+.2f |\n", d.shape.c_str(),
                d.plain, d.fused, d.fused - d.plain, d.bar, d.two_shot - d.plain, d.plain_alone,
                d.looped - d.plain_alone);
  }
}

}  // namespace
}  // namespace millrace::kernels

int main() {
  millrace::kernels::Run();
  return 0;
}
