#include "executors/cpu/collective.h"

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "executors/rank_threads.h"
#include "executors/weights/shares.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::cpu {
namespace {

constexpr auto kTimeout = std::chrono::seconds(60);
constexpr int kSizes[] = {1, 2, 3, 8};  // of groups

std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

// Values of many magnitudes, so that another order of a sum gives other bits.
std::vector<float> Values(int count, int seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> mantissa(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) {
    value = std::ldexp(mantissa(random), static_cast<int>(random() % 24) - 12);
  }
  return values;
}

class Ranks {
 public:
  explicit Ranks(int size) : threads_(size, kTimeout), collectives_(threads_.group()) {}

  template <typename Body>  // void(int rank, Collective&)
  void Run(const Body& body) {
    EXPECT_TRUE(threads_
                    .Run([&](int rank) {
                      body(rank, collectives_.ForRank(rank));
                      return absl::OkStatus();
                    })
                    .ok());
  }

 private:
  RankThreads threads_;
  SharedMemoryCollectives collectives_;
};

TEST(CollectiveTest, SumsAreThoseInTheOrderOfTheRanksOnEveryRank) {
  for (const int size : kSizes) {
    Ranks ranks(size);
    for (const int count : {0, 1, 2, 7, 16, 1000, 4097}) {
      std::vector<std::vector<float>> values;
      for (int rank = 0; rank < size; ++rank) values.push_back(Values(count, rank));
      std::vector<float> expected = values[0];
      for (int rank = 1; rank < size; ++rank) {
        for (int i = 0; i < count; ++i) expected[i] += values[rank][i];
      }
      ranks.Run([&](int rank, Collective& collective) {
        collective.AllReduce(absl::MakeSpan(values[rank]));
      });
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_EQ(Bits(values[rank]), Bits(expected)) << size << " ranks, " << count;
      }
    }
  }
}

TEST(CollectiveTest, SumsKeepZerosSignsAndSubnormalsAndANanIsItsOwn) {
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  std::vector<std::vector<float>> values = {{-0.0f, kTiny, NAN, 1}, {-0.0f, kTiny, 1, 2}};
  Ranks(2).Run([&](int rank, Collective& collective) {
    collective.AllReduce(absl::MakeSpan(values[rank]));
  });
  for (const std::vector<float>& of_rank : values) {
    EXPECT_TRUE(std::signbit(of_rank[0]));
    EXPECT_EQ(of_rank[1], 2 * kTiny);
    EXPECT_TRUE(std::isnan(of_rank[2]));
    EXPECT_EQ(of_rank[3], 3);
  }
}

TEST(CollectiveTest, EachRankGetsItsRowsWholeAndNoOthers) {
  constexpr int kStride = 112;
  for (const int size : kSizes) {
    Ranks ranks(size);
    for (const int vocab : {5, 16, 100}) {
      for (const int first : {0, 64}) {
        for (const int rows : {1, 7}) {
          std::vector<std::vector<float>> whole(size, std::vector<float>(rows * kStride, -1));
          ranks.Run([&](int rank, Collective& collective) {
            const Share share = DivideUnits(vocab, 16, {rank, size});
            const int64_t part_stride = share.size + 3;
            std::vector<float> part(rows * part_stride, NAN);
            for (int row = 0; row < rows; ++row) {
              for (int64_t i = 0; i < share.count; ++i) {
                part[row * part_stride + i] = static_cast<float>(row * 1000 + share.begin + i);
              }
            }
            collective.GatherRows({first, rows, share}, part.data(), part_stride,
                                  whole[rank].data(), kStride);
            std::fill(part.begin(), part.end(), NAN);  // nobody reads it any more
          });
          for (int rank = 0; rank < size; ++rank) {
            for (int i = 0; i < rows * kStride; ++i) {
              const int row = i / kStride, column = i % kStride;
              const bool own = (first + row) % size == rank && column < vocab;
              ASSERT_EQ(whole[rank][i], own ? static_cast<float>(row * 1000 + column) : -1.0f);
            }
          }
        }
      }
    }
  }
}

// However late ranks are, one collective after the other has the same bits.
TEST(CollectiveTest, DelaysOfARankChangeNothing) {
  constexpr int kSize = 3, kRounds = 50;
  Ranks ranks(kSize);
  std::vector<std::vector<float>> runs;
  for (const int delayed : {-1, 0, 2}) {
    std::vector<float> result;
    ranks.Run([&](int rank, Collective& collective) {
      std::mt19937 random(rank);
      std::vector<float> values = Values(33, rank);
      for (int round = 0; round < kRounds; ++round) {
        if (rank == delayed) {
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
        }
        collective.AllReduce(absl::MakeSpan(values));
        for (float& value : values) value *= 0.3f + 0.1f * static_cast<float>(rank);
      }
      collective.AllReduce(absl::MakeSpan(values));
      if (rank == 1) result = values;
    });
    runs.push_back(result);
  }
  EXPECT_EQ(Bits(runs[1]), Bits(runs[0]));
  EXPECT_EQ(Bits(runs[2]), Bits(runs[0]));
}

TEST(CollectiveTest, AnAbortedGroupLeavesValuesAsTheyAre) {
  RankGroup group(2);
  SharedMemoryCollectives collectives(group);
  group.Abort(absl::UnavailableError("gone"));
  std::vector<float> values = {1, 2, 3};
  std::vector<float> whole = {7, 7, 7};
  collectives.ForRank(0).AllReduce(absl::MakeSpan(values));
  collectives.ForRank(0).GatherRows({0, 1, DivideUnits(3, 1, {0, 2})}, values.data(), 3,
                                    whole.data(), 3);
  EXPECT_THAT(values, ::testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(whole, ::testing::ElementsAre(7, 7, 7));
}

}  // namespace
}  // namespace millrace::cpu
