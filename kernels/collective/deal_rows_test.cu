#include "kernels/collective/deal_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/collective/collective_test_util.h"
#include "kernels/collective/deal_rows_kernel.cuh"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr uint32_t kAllOnes = 0xffffffff;  // becomes another NaN on the wire

// Columns of any bits: every fifth word is all ones.
struct Case {
  Case(int ranks, int rows, int share, int width)
      : ranks(ranks), rows(rows), share(share), width(width) {
    for (int rank = 0; rank < ranks; ++rank) {
      std::mt19937 random(rows * 8 + rank);
      columns.emplace_back(static_cast<size_t>(rows) * width);
      for (size_t i = 0; i < columns[rank].size(); ++i) {
        columns[rank][i] = i % 5 == 0 ? kAllOnes : static_cast<uint32_t>(random());
      }
      inputs.emplace_back(columns[rank]);
      outputs.emplace_back(static_cast<size_t>(share) * ranks * width);
    }
  }

  DealRowsArgs Args(const Communicator& c, int first, int count) const {
    return {.communicator = c,
            .columns = reinterpret_cast<const float*>(inputs[c.rank].get()),
            .whole = reinterpret_cast<float*>(outputs[c.rank].get()),
            .rows = rows,
            .share = share,
            .width = width,
            .first = first,
            .count = count};
  }

  void Expect() const {
    for (int rank = 0; rank < ranks; ++rank) {
      const int first = std::min(rank * share, rows - share);
      std::vector<uint32_t> expected;
      for (int row = first; row < first + share; ++row) {
        for (int from = 0; from < ranks; ++from) {
          for (int i = 0; i < width; ++i) {
            const uint32_t word = columns[from][static_cast<size_t>(row) * width + i];
            expected.push_back(from != rank && word == kAllOnes ? 0x7fff7fff : word);
          }
        }
      }
      ASSERT_TRUE(outputs[rank].Download() == expected) << "rank " << rank;
      EXPECT_TRUE(outputs[rank].GuardsIntact());
    }
  }

  int ranks, rows, share, width;
  std::vector<std::vector<uint32_t>> columns;
  std::vector<DeviceBuffer<uint32_t>> inputs, outputs;
};

constexpr int kShapes[][2] = {{1, 4}, {3, 16}, {8, 1008}, {19, 400}, {64, 2064}};  // rows, width

// Shares that divide the rows, that overlap, and that are all rows.
TEST(DealRows, GivesEachRankItsRows) {
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    VirtualRanks group(ranks, 64 * 2064 * 4);
    for (const auto& [rows, width] : kShapes) {
      for (const int share : {(rows - 1) / ranks + 1, rows}) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(share) + " of " +
                     std::to_string(rows) + " x " + std::to_string(width));
        const Case test(ranks, rows, share, width);
        group.Run([&](int rank, cudaStream_t stream) {
          const int half = (share + 1) / 2;  // two launches, of which the second may be empty
          const cudaError_t error = LaunchDealRows(test.Args(group[rank], 0, half), stream);
          if (error != cudaSuccess || half == share) return error;
          return LaunchDealRows(test.Args(group[rank], half, share - half), stream);
        });
        test.Expect();
        ASSERT_TRUE(group.IsQuiet());
        if (HasFatalFailure()) return;
      }
    }
  }
}

// One rank that plays its peers gets its own columns as theirs.
TEST(DealRows, LoopsBack) {
  VirtualRanks alone(1, 4 * 64 * 2064 * 4);
  Communicator own = alone[0];
  own.slot_bytes /= 4;
  const Case test(1, 12, 12, 400);
  DeviceBuffer<uint32_t> whole(3 * 4 * 400);
  DealRowsArgs args = test.Args(LoopBack(own, 0, 4), 0, 3);
  args.share = 3;
  args.whole = reinterpret_cast<float*>(whole.get());
  CheckCuda(LaunchDealRows(args, alone.stream(0)), "launch");
  alone.Wait();
  const std::vector<uint32_t> got = whole.Download();
  for (int row = 0; row < 3; ++row) {
    // Each peer's rows are those that the rank sent to it.
    for (int from = 0; from < 4; ++from) {
      for (int i = 1; i < 5; ++i) {  // no word is all ones
        if (test.columns[0][(from * 3 + row) * 400 + i] == kAllOnes) continue;
        EXPECT_EQ(got[(row * 4 + from) * 400 + i], test.columns[0][(from * 3 + row) * 400 + i]);
      }
    }
  }
  EXPECT_TRUE(alone.IsQuiet());
}

__global__ void __launch_bounds__(kDealRowsThreads)
    AllRanksKernel(const __grid_constant__ OfAllRanks<DealRowsArgs> args) {
  DealRows<4, RandomDelay>(args.rank[blockIdx.y], blockIdx.x, gridDim.x);
}

TEST(DealRows, OneGridPlaysAllRanks) {
  for (const int ranks : {2, 4}) {
    VirtualRanks group(ranks, 64 * 2064 * 4);
    for (const auto& [rows, width] : kShapes) {
      const int share = (rows - 1) / ranks + 1;
      const Case test(ranks, rows, share, width);
      OfAllRanks<DealRowsArgs> args = {};
      for (int rank = 0; rank < ranks; ++rank) args.rank[rank] = test.Args(group[rank], 0, share);
      CheckCuda(LaunchAllRanks(AllRanksKernel, args, ranks, 2, kDealRowsThreads, group.stream(0)),
                "launch");
      group.Wait();
      test.Expect();
      ASSERT_TRUE(group.IsQuiet());
      if (HasFatalFailure()) return;
    }
  }
}

TEST(DealRows, RefusesWhatItCannotDo) {
  VirtualRanks group(2, 1024);
  const Case test(2, 4, 2, 128);
  const auto refused = [&](auto change) {
    DealRowsArgs args = test.Args(group[0], 0, 2);
    change(args);
    return LaunchDealRows(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](DealRowsArgs& a) { a.width = 6; }));
  EXPECT_TRUE(refused([](DealRowsArgs& a) { a.width = 132; }));  // exceeds the slot
  EXPECT_TRUE(refused([](DealRowsArgs& a) { a.share = 1; }));    // leaves rows out
  EXPECT_TRUE(refused([](DealRowsArgs& a) { a.share = 5; }));
  EXPECT_TRUE(refused([](DealRowsArgs& a) { a.first = 1; }));
  EXPECT_TRUE(refused([](DealRowsArgs& a) { a.count = 0; }));
  EXPECT_TRUE(refused([](DealRowsArgs& a) { ++a.columns; }));
  EXPECT_TRUE(refused([](DealRowsArgs& a) { a.whole = nullptr; }));
  EXPECT_TRUE(refused([](DealRowsArgs& a) { a.communicator.rank = -1; }));
}

}  // namespace
}  // namespace millrace::kernels
