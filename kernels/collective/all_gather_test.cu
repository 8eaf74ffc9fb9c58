#include "kernels/collective/all_gather.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/collective/all_gather_kernel.cuh"
#include "kernels/collective/collective_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

// Records of any bits: every third word is all ones.
struct Case {
  Case(int ranks, int rows, int record_bytes, uint32_t seed)
      : ranks(ranks), rows(rows), record_bytes(record_bytes) {
    const size_t words = static_cast<size_t>(rows) * record_bytes / 4;
    for (int rank = 0; rank < ranks; ++rank) {
      std::mt19937 random(seed * 8 + rank);
      records.emplace_back(words);
      for (size_t i = 0; i < words; ++i) {
        records[rank][i] = i % 3 == 0 ? 0xffffffff : static_cast<uint32_t>(random());
      }
      inputs.emplace_back(records[rank]);
      outputs.emplace_back(words * ranks);
    }
  }

  AllGatherArgs Args(const Communicator& c) const {
    return {c, inputs[c.rank].get(), outputs[c.rank].get(), rows, record_bytes};
  }

  void Expect() const {
    std::vector<uint32_t> expected;
    const int words = record_bytes / 4;
    for (int row = 0; row < rows; ++row) {
      for (int rank = 0; rank < ranks; ++rank) {
        const auto begin = records[rank].begin() + row * words;
        expected.insert(expected.end(), begin, begin + words);
      }
    }
    for (int rank = 0; rank < ranks; ++rank) {
      ASSERT_TRUE(outputs[rank].Download() == expected) << "rank " << rank;
      EXPECT_TRUE(outputs[rank].GuardsIntact());
    }
  }

  int ranks, rows, record_bytes;
  std::vector<std::vector<uint32_t>> records;
  std::vector<DeviceBuffer<uint32_t>> inputs, outputs;
};

constexpr int kShapes[][2] = {{1, 8}, {3, 40}, {64, 520}, {257, 16}};

TEST(AllGather, KeepsAllBits) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    VirtualRanks group(ranks, 2 * 64 * 520);
    for (const auto& [rows, bytes] : kShapes) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(rows) + " x " +
                   std::to_string(bytes));
      const Case test(ranks, rows, bytes, bytes);
      group.Run([&](int rank, cudaStream_t stream) {
        return LaunchAllGather(test.Args(group[rank]), stream);
      });
      test.Expect();
      ASSERT_TRUE(group.IsQuiet());
      if (HasFatalFailure()) return;
    }
  }
}

__global__ void __launch_bounds__(kAllGatherThreads)
    AllRanksKernel(const __grid_constant__ OfAllRanks<AllGatherArgs> args) {
  AllGatherRecords<4, RandomDelay>(args.rank[blockIdx.y], blockIdx.x, gridDim.x);
}

TEST(AllGather, OneGridPlaysAllRanks) {
  for (const int ranks : {2, 4}) {
    VirtualRanks group(ranks, 2 * 64 * 520);
    for (const auto& [rows, bytes] : kShapes) {
      const Case test(ranks, rows, bytes, bytes);
      OfAllRanks<AllGatherArgs> args = {};
      for (int rank = 0; rank < ranks; ++rank) args.rank[rank] = test.Args(group[rank]);
      CheckCuda(LaunchAllRanks(AllRanksKernel, args, ranks, 2, kAllGatherThreads, group.stream(0)),
                "launch");
      group.Wait();
      test.Expect();
      ASSERT_TRUE(group.IsQuiet());
      if (HasFatalFailure()) return;
    }
  }
}

TEST(AllGather, RefusesWhatItCannotDo) {
  VirtualRanks group(2, 1024);
  const Case test(2, 4, 64, 1);
  const auto refused = [&](auto change) {
    AllGatherArgs args = test.Args(group[0]);
    change(args);
    return LaunchAllGather(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](AllGatherArgs& a) { a.record_bytes = 12; }));
  EXPECT_TRUE(refused([](AllGatherArgs& a) { a.rows = -1; }));
  EXPECT_TRUE(refused([](AllGatherArgs& a) { a.rows = 9; }));  // exceeds the slot
  EXPECT_TRUE(refused([](AllGatherArgs& a) { a.records = nullptr; }));
  EXPECT_TRUE(refused([](AllGatherArgs& a) { a.gathered = static_cast<char*>(a.gathered) + 4; }));
  EXPECT_TRUE(refused([](AllGatherArgs& a) { a.communicator.rank = -1; }));
}

}  // namespace
}  // namespace millrace::kernels
