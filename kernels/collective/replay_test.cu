// Collectives in graphs that are replayed without the host's help: shapes and kinds that change
// from replay to replay, ranks that are late, and programmatic edges.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/collective/all_gather.h"
#include "kernels/collective/all_gather_kernel.cuh"
#include "kernels/collective/all_reduce.h"
#include "kernels/collective/all_reduce_kernel.cuh"
#include "kernels/collective/collective_reference.h"
#include "kernels/collective/collective_test_util.h"
#include "kernels/graph_test_util.h"
#include "kernels/launch.cuh"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr int kMostElements = 64 * 8192;
constexpr int kRecordBytes = 40;

// One rank's memory in a test.
struct RankData {
  RankData()
      : step(std::vector<uint32_t>(1, 0)),
        wrong(std::vector<uint32_t>(1, 0)),
        partial(kMostElements),
        sum(kMostElements),
        residual(kMostElements),
        out(kMostElements),
        weight(std::vector<float>(8192, 1.0f)),
        gathered(kMostElements) {}

  DeviceBuffer<uint32_t> step, wrong;
  DeviceBuffer<Bf16> partial, sum;
  DeviceBuffer<float> residual;
  DeviceBuffer<Bf16> out;
  DeviceBuffer<float> weight;
  DeviceBuffer<uint32_t> gathered;
};

// Writes the partial sums of this step, clears the residual, and poisons the results. Every thread
// of a slow rank may sleep first.
__global__ void BeginStepKernel(const uint32_t* step, int rank, bool slow, uint32_t size,
                                Bf16* partial, Bf16* sum, float* residual, uint32_t* gathered) {
  AwaitPredecessor();
  if (slow) {
    const uint32_t draw = PartialBits(*step, 12345) ^ PartialBits(*step, 54321) >> 4;
    if (draw % 4 == 0) __nanosleep(draw % 32 * 1000);
  }
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
    reinterpret_cast<uint16_t*>(partial)[i] = PartialBits(PartialSeed(rank, *step), i);
    reinterpret_cast<uint16_t*>(sum)[i] = 0xffff;
    residual[i] = 0;
    gathered[i] = 0xffffffff;
  }
}

// Counts in `wrong` what differs from the sum in rank order: the sum, or the residual that it was
// added to.
__global__ void CheckSumKernel(const uint32_t* step, int ranks, uint32_t size, const Bf16* sum,
                               const float* residual, uint32_t* wrong) {
  AwaitPredecessor();
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
    float expected = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const float next = __uint_as_float(uint32_t{PartialBits(PartialSeed(rank, *step), i)} << 16);
      expected = rank == 0 ? next : expected + next;
    }
    const Bf16 rounded = __float2bfloat16(expected);
    const bool right = residual != nullptr
                           ? residual[i] == static_cast<float>(rounded)
                           : __bfloat16_as_ushort(sum[i]) == __bfloat16_as_ushort(rounded);
    if (!right) atomicAdd(wrong, 1);
  }
}

// Records are the partial sums of an all-reduce.
__global__ void CheckGatherKernel(const uint32_t* step, int ranks, int rows,
                                  const uint16_t* gathered, uint32_t* wrong) {
  AwaitPredecessor();
  constexpr uint32_t kHalves = kRecordBytes / 2;
  const uint32_t size = rows * ranks * kHalves;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
    const uint32_t row = i / (ranks * kHalves), rank = i / kHalves % ranks;
    const uint16_t expected = PartialBits(PartialSeed(rank, *step), row * kHalves + i % kHalves);
    if (gathered[i] != expected) atomicAdd(wrong, 1);
  }
}

__global__ void EndStepKernel(uint32_t* step) {
  AwaitPredecessor();
  ++*step;
}

// The work of one graph between BeginStep and EndStep.
struct Work {
  enum Kind { kSum, kNorm, kGather } kind;
  AllReduceMethod method;
  int tokens, width;
};
constexpr Work kWorks[] = {
    {Work::kNorm, AllReduceMethod::kOneShot, 1, 4096},
    {Work::kNorm, AllReduceMethod::kTwoShot, 16, 4096},
    {Work::kSum, AllReduceMethod::kOneShot, 3, 576},
    {Work::kGather, AllReduceMethod::kOneShot, 13, kRecordBytes / 2},
    {Work::kNorm, AllReduceMethod::kOneShot, 7, 8192},
    {Work::kSum, AllReduceMethod::kTwoShot, 64, 2048},
    {Work::kSum, AllReduceMethod::kOneShot, 1, 8},
    {Work::kNorm, AllReduceMethod::kTwoShot, 2, 8192},
};

// Launches a collective whose threads are delayed. Only for up to two ranks and one vector a
// thread.
cudaError_t LaunchDelayed(const AllReduceArgs& args, cudaStream_t stream) {
  int vectors = 0;
  cudaError_t error = cudaSuccess;
  const AllReduceParams p = PlanAllReduce(args, vectors, error);
  return error != cudaSuccess ? error
                              : LaunchInstance<2, 1, false, RandomDelay>(p, args.method, stream);
}
cudaError_t LaunchDelayed(const AllReduceNormArgs& args, cudaStream_t stream) {
  int vectors = 0;
  cudaError_t error = cudaSuccess;
  const AllReduceParams p = PlanAllReduceNorm(args, vectors, error);
  if (error != cudaSuccess) return error;
  return vectors == 1 ? LaunchInstance<2, 1, true, RandomDelay>(p, args.method, stream)
                      : LaunchInstance<2, 2, true, RandomDelay>(p, args.method, stream);
}

struct Lateness {
  bool before_collectives, inside;
};

void LaunchWork(const Work& work, const Communicator& c, const RankData& data, Lateness late,
                cudaStream_t stream) {
  const uint32_t size = work.tokens * work.width;
  const auto launch = [&](auto kernel, int ctas, int threads, const auto&... arguments) {
    CheckCuda(LaunchDependent(kernel, ctas, threads, 0, stream, arguments...), "launch");
  };
  launch(BeginStepKernel, 4, 256, data.step.get(), c.rank, late.before_collectives, size,
         data.partial.get(), data.sum.get(), data.residual.get(), data.gathered.get());
  const Product partial = {data.partial.get(), work.width, nullptr, nullptr};
  if (work.kind == Work::kGather) {
    CheckCuda(LaunchAllGather(
                  {c, data.partial.get(), data.gathered.get(), work.tokens, kRecordBytes}, stream),
              "gather");
    launch(CheckGatherKernel, 4, 256, data.step.get(), c.ranks, work.tokens,
           reinterpret_cast<const uint16_t*>(data.gathered.get()), data.wrong.get());
  } else if (work.kind == Work::kSum) {
    const AllReduceArgs args = {c,          work.method, partial,   data.sum.get(),
                                work.width, work.tokens, work.width};
    CheckCuda(late.inside ? LaunchDelayed(args, stream) : LaunchAllReduce(args, stream), "sum");
    launch(CheckSumKernel, 4, 256, data.step.get(), c.ranks, size, data.sum.get(),
           static_cast<float*>(nullptr), data.wrong.get());
  } else {
    const AllReduceNormArgs args = {c,
                                    work.method,
                                    {.residual = data.residual.get(),
                                     .delta = partial,
                                     .weight = data.weight.get(),
                                     .epsilon = 1e-5f,
                                     .tokens = work.tokens,
                                     .width = work.width,
                                     .out = Bf16Rows(data.out.get(), work.width)}};
    CheckCuda(late.inside ? LaunchDelayed(args, stream) : LaunchAllReduceNorm(args, stream),
              "norm");
    launch(CheckSumKernel, 4, 256, data.step.get(), c.ranks, size, data.sum.get(),
           data.residual.get(), data.wrong.get());
  }
  launch(EndStepKernel, 1, 1, data.step.get());
}

void Replay(int ranks, int replays, Lateness late) {
  VirtualRanks group(ranks, kMostElements * 2);
  std::vector<RankData> data(ranks);
  std::vector<std::vector<std::unique_ptr<CapturedGraph>>> graphs(ranks);
  const auto lateness = [&](int rank) { return rank == 1 ? late : Lateness{}; };
  for (const Work& work : kWorks) {  // loads every kernel
    group.Run([&](int rank, cudaStream_t stream) {
      LaunchWork(work, group[rank], data[rank], lateness(rank), stream);
      return cudaSuccess;
    });
  }
  for (int rank = 0; rank < ranks; ++rank) {
    for (const Work& work : kWorks) {
      graphs[rank].push_back(
          std::make_unique<CapturedGraph>(group.stream(rank), [&](cudaStream_t stream) {
            LaunchWork(work, group[rank], data[rank], lateness(rank), stream);
          }));
    }
  }
  // All graphs are in place before the first one waits for a peer: instantiating and uploading may
  // wait for the device.
  for (int rank = 0; rank < ranks; ++rank) {
    for (const auto& graph : graphs[rank]) graph->Upload(group.stream(rank));
  }
  group.Wait();
  for (size_t work = 0; work < std::size(kWorks); ++work) {
    for (int rank = 0; rank < ranks; ++rank) graphs[rank][work]->Replay(group.stream(rank));
    group.Wait();
  }
  uint32_t random = 1;
  for (int replay = 0; replay < replays; ++replay) {
    random = random * 1664525 + 1013904223;
    const size_t work = (random >> 16) % std::size(kWorks);
    for (int rank = 0; rank < ranks; ++rank) graphs[rank][work]->Replay(group.stream(rank));
    if (replay % 64 == 63) group.Wait();  // bounds the queue
  }
  group.Wait();
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(group.Failure(rank), 0u) << "rank " << rank;
    EXPECT_EQ(data[rank].wrong.Download()[0], 0u) << "rank " << rank;
    EXPECT_EQ(data[rank].step.Download()[0], replays + 2 * std::size(kWorks));
  }
  EXPECT_TRUE(group.IsQuiet());
}

TEST(CollectiveReplay, TenThousandReplaysOfChangingSizes) { Replay(2, 10000, {}); }
TEST(CollectiveReplay, FourAndEightRanks) {
  Replay(4, 2000, {});
  Replay(8, 500, {});
}
TEST(CollectiveReplay, ALateRankDelaysTheOthersAndNothingElse) { Replay(2, 2000, {true, false}); }
TEST(CollectiveReplay, NoThreadReliesOnAnothersSpeed) { Replay(2, 2000, {true, true}); }

// ---- One rank whose peers are itself, with programmatic edges ----

// Expects the sums of a two-shot all-reduce over looped-back ranks: every part of a row is the sum
// of this row's parts, since what rank p should get of part p comes from here.
__global__ void CheckLoopBackKernel(const uint32_t* step, int rank, int ranks, int tokens,
                                    int width, bool two_shot, const float* residual,
                                    uint32_t* wrong) {
  AwaitPredecessor();
  const uint32_t size = tokens * width, part = width / ranks;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
    float expected = 0;
    for (int p = 0; p < ranks; ++p) {
      const uint32_t from = two_shot ? i / width * width + p * part + i % width % part : i;
      const float next =
          __uint_as_float(uint32_t{PartialBits(PartialSeed(rank, *step), from)} << 16);
      expected = p == 0 ? next : expected + next;
    }
    if (residual[i] != static_cast<float>(__float2bfloat16(expected))) atomicAdd(wrong, 1);
  }
}

TEST(CollectiveReplay, ProgrammaticEdgesKeepTheOrder) {
  constexpr int kRanks = 4, kRank = 2, kTokens = 5, kWidth = 4096, kRounds = 4, kReplays = 500;
  VirtualRanks group(1, kMostElements * 2);
  Communicator own = group[0];
  // A group of one has one slot a buffer, so this communicator divides that into four.
  own.slot_bytes /= kRanks;
  Communicator c = LoopBack(own, kRank, kRanks);
  c.release_early = true;
  const RankData data;
  const auto launch_round = [&](cudaStream_t stream, AllReduceMethod method) {
    const bool two_shot = method == AllReduceMethod::kTwoShot;
    const uint32_t size = kTokens * kWidth;
    CheckCuda(LaunchDependent(BeginStepKernel, 4, 256, 0, stream, data.step.get(), kRank, true,
                              size, data.partial.get(), data.sum.get(), data.residual.get(),
                              data.gathered.get()),
              "begin");
    CheckCuda(LaunchAllReduceNorm({c,
                                   method,
                                   {.residual = data.residual.get(),
                                    .delta = {data.partial.get(), kWidth, nullptr, nullptr},
                                    .weight = data.weight.get(),
                                    .epsilon = 1e-5f,
                                    .tokens = kTokens,
                                    .width = kWidth,
                                    .out = Bf16Rows(data.out.get(), kWidth)}},
                                  stream),
              "norm");
    CheckCuda(
        LaunchDependent(CheckLoopBackKernel, 4, 256, 0, stream, data.step.get(), kRank, kRanks,
                        kTokens, kWidth, two_shot, data.residual.get(), data.wrong.get()),
        "check");
    // Right behind one another: each must find its buffer empty again.
    for (int i = 0; i < 4; ++i) {
      CheckCuda(
          LaunchAllGather({c, data.partial.get(), data.gathered.get(), 13, kRecordBytes}, stream),
          "gather");
    }
    CheckCuda(LaunchDependent(EndStepKernel, 1, 1, 0, stream, data.step.get()), "end");
  };
  CheckCuda(cudaDeviceSynchronize(), "inputs");
  for (const AllReduceMethod method : {AllReduceMethod::kOneShot, AllReduceMethod::kTwoShot}) {
    launch_round(group.stream(0), method);  // loads the kernels, which a capture cannot
    group.Wait();
  }
  constexpr size_t kLaunches = 8;
  CapturedGraph graph(group.stream(0), [&](cudaStream_t stream) {
    for (int round = 0; round < kRounds; ++round) {
      launch_round(stream, round % 2 == 0 ? AllReduceMethod::kOneShot : AllReduceMethod::kTwoShot);
    }
  });
  EXPECT_EQ(graph.CountEdges().all, kRounds * kLaunches - 1);
  if (KernelsAwait()) EXPECT_EQ(graph.CountEdges().programmatic, graph.CountEdges().all);
  for (int replay = 0; replay < kReplays; ++replay) {
    graph.Replay(group.stream(0));
    if (replay % 64 == 63) group.Wait();
  }
  group.Wait();
  EXPECT_EQ(data.step.Download()[0], 2 + kReplays * kRounds);
  EXPECT_EQ(data.wrong.Download()[0], 0u);
  EXPECT_EQ(group.Failure(0), 0u);
  EXPECT_TRUE(group.IsQuiet());
}

}  // namespace
}  // namespace millrace::kernels
