#include "kernels/collective/all_reduce.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "kernels/collective/all_reduce_kernel.cuh"
#include "kernels/collective/collective_reference.h"
#include "kernels/collective/collective_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr AllReduceMethod kMethods[] = {AllReduceMethod::kOneShot, AllReduceMethod::kTwoShot};

const char* Name(AllReduceMethod method) {
  return method == AllReduceMethod::kOneShot ? "one-shot" : "two-shot";
}

int64_t MostSlotBytes(int ranks, int tokens, int width) {
  return std::max(AllReduceSlotBytes(kMethods[0], ranks, tokens, width),
                  AllReduceSlotBytes(kMethods[1], ranks, tokens, width));
}

// The inputs of all ranks, in rows with gaps, and poisoned outputs.
struct Case {
  Case(int ranks, int tokens, int width, uint32_t step = 0)
      : tokens(tokens), width(width), stride(width + 8) {
    for (int rank = 0; rank < ranks; ++rank) {
      partials.push_back(TestPartials(rank, static_cast<size_t>(tokens) * stride, step));
    }
    Upload();
  }

  void Upload() {
    inputs.clear();
    outputs.clear();
    for (const std::vector<Bf16>& partial : partials) {
      inputs.emplace_back(partial);
      outputs.emplace_back(partial.size());
    }
  }

  AllReduceArgs Args(const Communicator& c, AllReduceMethod method) const {
    return {.communicator = c,
            .method = method,
            .partial = {inputs[c.rank].get(), stride, nullptr, nullptr},
            .sum = outputs[c.rank].get(),
            .sum_stride = stride,
            .tokens = tokens,
            .width = width};
  }

  // Checks each rank's sums against the reference, and the gaps against the poison.
  void Expect() const {
    std::vector<Bf16> expected = ReferenceAllReduce(partials);
    for (size_t rank = 0; rank < partials.size(); ++rank) {
      const std::vector<Bf16> sums = outputs[rank].Download();
      for (size_t i = 0; i < sums.size(); ++i) {
        const bool gap = i % stride >= static_cast<size_t>(width);
        const uint16_t bits = BitsOf(sums[i]), wanted = gap ? 0xffff : BitsOf(expected[i]);
        if (!gap && std::isnan(static_cast<float>(expected[i]))) {
          ASSERT_TRUE(std::isnan(static_cast<float>(sums[i]))) << "rank " << rank << " at " << i;
          continue;
        }
        ASSERT_EQ(bits, wanted) << "rank " << rank << " at " << i;
        if (gap) continue;
        RankSum sum(static_cast<float>(partials[0][i]));
        for (size_t r = 1; r < partials.size(); ++r) sum.Add(static_cast<float>(partials[r][i]));
        ASSERT_NEAR(static_cast<float>(sums[i]), sum.exact, sum.Tolerance());
      }
      EXPECT_TRUE(outputs[rank].GuardsIntact());
    }
  }

  int tokens, width;
  int64_t stride;
  std::vector<std::vector<Bf16>> partials;
  std::vector<DeviceBuffer<Bf16>> inputs, outputs;
};

TEST(AllReduce, AddsInRankOrderAtAllSizesAndRanks) {
  constexpr int kShapes[][2] = {{1, 8}, {1, 24}, {2, 576}, {3, 4096}, {17, 2048}, {40, 1000}};
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    VirtualRanks group(ranks, MostSlotBytes(ranks, 40, 1024));
    for (const auto& [tokens, width] : kShapes) {
      for (const AllReduceMethod method : kMethods) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(tokens) + " x " +
                     std::to_string(width) + ", " + Name(method));
        const Case test(ranks, tokens, width, width);
        group.Run([&](int rank, cudaStream_t stream) {
          return LaunchAllReduce(test.Args(group[rank], method), stream);
        });
        test.Expect();
        ASSERT_TRUE(group.IsQuiet());
        if (HasFatalFailure()) return;
      }
    }
  }
}

__global__ void FillPartialKernel(Bf16* partial, uint32_t size, uint32_t seed) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
    reinterpret_cast<uint16_t*>(partial)[i] = PartialBits(seed, i);
  }
}

// Counts in `wrong` the sums that differ from those in rank order, or are too far from those in
// double.
__global__ void CheckSumsKernel(const Bf16* sums, uint32_t size, int ranks, uint32_t step,
                                uint32_t* wrong) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
    float in_order = 0;
    double exact = 0, magnitudes = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const float next = __uint_as_float(uint32_t{PartialBits(PartialSeed(rank, step), i)} << 16);
      in_order = rank == 0 ? next : in_order + next;
      exact += next;
      magnitudes += fabsf(next);
    }
    const float sum = static_cast<float>(sums[i]);
    const float wanted = static_cast<float>(__float2bfloat16(in_order));
    const double tolerance = fabs(exact) * 0x1.01p-8 + magnitudes * 8 * 0x1p-24 + 0x1p-133;
    if (__float_as_uint(sum) != __float_as_uint(wanted) || !(fabs(sum - exact) <= tolerance)) {
      atomicAdd(wrong, 1);
    }
  }
}

TEST(AllReduce, AddsFrom16BytesTo64Mebibytes) {
  constexpr int64_t kMost = 64 << 20;
  for (const int ranks : {2, 4}) {
    const int64_t most = ranks == 2 ? kMost : kMost / 8;
    VirtualRanks group(ranks, most);
    std::vector<DeviceBuffer<Bf16>> inputs, outputs;
    for (int rank = 0; rank < ranks; ++rank) {
      inputs.emplace_back(most / 2);
      outputs.emplace_back(most / 2);
    }
    DeviceBuffer<uint32_t> wrong(std::vector<uint32_t>(1, 0));
    for (int64_t bytes = 16; bytes <= most; bytes *= 4) {
      for (const AllReduceMethod method : kMethods) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(bytes) + " bytes, " +
                     Name(method));
        const int width = static_cast<int>(std::min<int64_t>(bytes / 2, 8192));
        const int tokens = static_cast<int>(bytes / 2 / width);
        for (int rank = 0; rank < ranks; ++rank) {
          FillPartialKernel<<<256, 256>>>(inputs[rank].get(), bytes / 2, PartialSeed(rank, bytes));
          outputs[rank].Poison();
        }
        group.Run([&](int rank, cudaStream_t stream) {
          return LaunchAllReduce({.communicator = group[rank],
                                  .method = method,
                                  .partial = {inputs[rank].get(), width, nullptr, nullptr},
                                  .sum = outputs[rank].get(),
                                  .sum_stride = width,
                                  .tokens = tokens,
                                  .width = width},
                                 stream);
        });
        for (int rank = 0; rank < ranks; ++rank) {
          CheckSumsKernel<<<256, 256>>>(outputs[rank].get(), bytes / 2, ranks, bytes, wrong.get());
          ASSERT_EQ(group.Failure(rank), 0u);
          ASSERT_TRUE(outputs[rank].GuardsIntact());
        }
        ASSERT_EQ(wrong.Download()[0], 0u);
      }
    }
    EXPECT_TRUE(group.IsQuiet());
  }
}

TEST(AllReduce, NansOfAnyBitsStayWhereTheyAre) {
  constexpr int kTokens = 5, kWidth = 576;
  for (const int ranks : {2, 4}) {
    VirtualRanks group(ranks, MostSlotBytes(ranks, kTokens, kWidth));
    for (const AllReduceMethod method : kMethods) {
      SCOPED_TRACE(Name(method));
      Case test(ranks, kTokens, kWidth);
      for (int64_t i = 0; i < test.stride; ++i) {  // also the word that means "nothing"
        test.partials[1][test.stride + i] = Bf16OfBits(0xffff);
        test.partials[0][3 * test.stride + i] = Bf16OfBits(i % 3 == 0 ? 0xffff : 0x7fc1);
      }
      test.Upload();
      group.Run([&](int rank, cudaStream_t stream) {
        return LaunchAllReduce(test.Args(group[rank], method), stream);
      });
      test.Expect();
      EXPECT_TRUE(group.IsQuiet());
    }
  }
}

TEST(AllReduce, RoundsPartialSumsWithScalesOnce) {
  constexpr int kRanks = 3, kTokens = 3, kWidth = 4096;
  VirtualRanks group(kRanks, MostSlotBytes(kRanks, kTokens, kWidth));
  const Case test(kRanks, kTokens, kWidth);
  std::vector<DeviceBuffer<float>> token_scales, channel_scales;
  std::vector<std::vector<Bf16>> scaled = test.partials;
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::vector<float> tokens = RandomNormal(kTokens, 10 + rank),
                             channels = RandomNormal(kWidth, 20 + rank);
    token_scales.emplace_back(tokens);
    channel_scales.emplace_back(channels);
    for (int t = 0; t < kTokens; ++t) {
      for (int i = 0; i < kWidth; ++i) {
        Bf16& value = scaled[rank][t * test.stride + i];
        const volatile float by_token = static_cast<float>(value) * tokens[t];
        value = __float2bfloat16(by_token * channels[i]);
      }
    }
  }
  const std::vector<Bf16> expected = ReferenceAllReduce(scaled);
  for (const AllReduceMethod method : kMethods) {
    SCOPED_TRACE(Name(method));
    group.Run([&](int rank, cudaStream_t stream) {
      AllReduceArgs args = test.Args(group[rank], method);
      args.partial.token_scales = token_scales[rank].get();
      args.partial.channel_scales = channel_scales[rank].get();
      return LaunchAllReduce(args, stream);
    });
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::vector<Bf16> sums = test.outputs[rank].Download();
      for (int t = 0; t < kTokens; ++t) {
        for (int i = 0; i < kWidth; ++i) {
          ASSERT_EQ(BitsOf(sums[t * test.stride + i]), BitsOf(expected[t * test.stride + i])) << i;
        }
      }
    }
  }
}

template <int kRanks, bool kTwoShot, typename Delay>
__global__ void __launch_bounds__(kAllReduceThreads)
    AllRanksKernel(const __grid_constant__ OfAllRanks<AllReduceParams> params) {
  AllReduceRows<kRanks, 1, false, kTwoShot, Delay>(params.rank[blockIdx.y], blockIdx.x, gridDim.x);
}

// The whole exchange in one grid, for tools that run one kernel at a time.
TEST(AllReduce, OneGridPlaysAllRanks) {
  for (const int ranks : {2, 4}) {
    VirtualRanks group(ranks, MostSlotBytes(ranks, 5, 4096), 4);
    for (const AllReduceMethod method : kMethods) {
      for (int call = 0; call < 7; ++call) {  // more than twice around the buffers
        const Case test(ranks, 1 + call % 5, 8 << call, call);
        OfAllRanks<AllReduceParams> params = {};
        for (int rank = 0; rank < ranks; ++rank) {
          int vectors = 0;
          cudaError_t error = cudaSuccess;
          params.rank[rank] = PlanAllReduce(test.Args(group[rank], method), vectors, error);
          ASSERT_EQ(error, cudaSuccess);
        }
        const bool two_shot = method == AllReduceMethod::kTwoShot;
        auto* kernel = ranks == 2 ? two_shot ? AllRanksKernel<2, true, RandomDelay>
                                             : AllRanksKernel<2, false, RandomDelay>
                       : two_shot ? AllRanksKernel<4, true, RandomDelay>
                                  : AllRanksKernel<4, false, RandomDelay>;
        CheckCuda(LaunchAllRanks(kernel, params, ranks, params.rank[0].ctas, params.rank[0].threads,
                                 group.stream(0)),
                  "launch");
        group.Wait();
        test.Expect();
        ASSERT_TRUE(group.IsQuiet()) << Name(method) << " " << call;
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(AllReduce, AMissingRankEndsTheWait) {
  constexpr int kTokens = 3, kWidth = 4096;
  for (const AllReduceMethod method : kMethods) {
    SCOPED_TRACE(Name(method));
    VirtualRanks group(2, MostSlotBytes(2, kTokens, kWidth), 2, 50'000'000);
    const Case test(2, kTokens, kWidth);
    uint32_t* report = nullptr;
    CheckCuda(cudaHostAlloc(&report, sizeof(*report), cudaHostAllocMapped), "report");
    *report = 0;
    AllReduceArgs args = test.Args(group[0], method);
    args.communicator.failure_report = report;
    CheckCuda(cudaDeviceSynchronize(), "inputs");
    const auto begin = std::chrono::steady_clock::now();
    for (int call = 0; call < 20; ++call) {  // only the first one waits
      ASSERT_EQ(LaunchAllReduce(args, group.stream(0)), cudaSuccess);
    }
    group.Wait();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500));
    EXPECT_EQ(group.Failure(0), 2u);  // it waited for rank 1
    EXPECT_EQ(*report, 2u);
    EXPECT_EQ(group.Failure(1), 0u);
    const std::vector<Bf16> sums = test.outputs[0].Download();
    EXPECT_TRUE(std::isnan(static_cast<float>(sums[kWidth - 1])));
    CheckCuda(cudaFreeHost(report), "report");

    group.Initialize();
    group.Run([&](int rank, cudaStream_t stream) {
      return LaunchAllReduce(test.Args(group[rank], method), stream);
    });
    test.Expect();
    EXPECT_TRUE(group.IsQuiet());
  }
}

TEST(AllReduce, TheHostEndsAWait) {
  VirtualRanks group(2, 8192, 2, 10'000'000'000);
  const Case test(2, 1, 4096);
  CheckCuda(cudaDeviceSynchronize(), "inputs");
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(LaunchAllReduce(test.Args(group[0], AllReduceMethod::kOneShot), group.stream(0)),
            cudaSuccess);
  const uint32_t reason = 77;
  CheckCuda(cudaMemcpyAsync(FailureWord(group[0]), &reason, sizeof(reason), cudaMemcpyHostToDevice,
                            group.stream(1)),
            "end");
  group.Wait();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_EQ(group.Failure(0), reason);
}

TEST(AllReduce, RefusesWhatItCannotDo) {
  constexpr int kTokens = 2, kWidth = 64;
  VirtualRanks group(2, 512);
  const Case test(2, kTokens, kWidth);
  const auto refused = [&](auto change) {
    AllReduceArgs args = test.Args(group[0], AllReduceMethod::kOneShot);
    change(args);
    return LaunchAllReduce(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](AllReduceArgs& a) { a.width = 60; }));
  EXPECT_TRUE(refused([](AllReduceArgs& a) { a.tokens = -1; }));
  EXPECT_TRUE(refused([](AllReduceArgs& a) { a.tokens = 5; }));  // exceeds the slot
  EXPECT_TRUE(refused([](AllReduceArgs& a) { a.sum += 1; }));
  EXPECT_TRUE(refused([](AllReduceArgs& a) { a.sum_stride = 32; }));
  EXPECT_TRUE(refused([](AllReduceArgs& a) { a.partial.data = nullptr; }));
  EXPECT_TRUE(refused([](AllReduceArgs& a) { a.communicator.ranks = 9; }));
  EXPECT_TRUE(refused([](AllReduceArgs& a) { a.communicator.rank = 2; }));
  EXPECT_TRUE(refused([](AllReduceArgs& a) { a.communicator.memory[1] = nullptr; }));
  EXPECT_TRUE(refused([](AllReduceArgs& a) { a.communicator.slot_bytes = 100; }));
  EXPECT_TRUE(refused([](AllReduceArgs& a) { a.communicator.max_ctas = 0; }));
  EXPECT_TRUE(refused([](AllReduceArgs& a) { a.communicator.timeout_ns = 0; }));
  AllReduceArgs none = test.Args(group[0], AllReduceMethod::kOneShot);
  none.tokens = 0;
  EXPECT_EQ(LaunchAllReduce(none, nullptr), cudaSuccess);
  CheckCuda(cudaDeviceSynchronize(), "nothing");
  EXPECT_TRUE(group.IsQuiet());
}

}  // namespace
}  // namespace millrace::kernels
