#include "executors/torch/length_groups.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::aten {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(LengthGroupsTest, WhatIsShortOrAlikeRunsTogether) {
  EXPECT_THAT(CutByLength({}), IsEmpty());
  EXPECT_THAT(CutByLength({1'000'000}), ElementsAre(1));
  EXPECT_THAT(CutByLength({1, 1, 1, 1000}), ElementsAre(4));
  EXPECT_THAT(CutByLength({5000, 6000, 7000, 8000, 9000}), ElementsAre(5));
}

TEST(LengthGroupsTest, OneLongSequenceIsNotWhatAllArePaddedTo) {
  EXPECT_THAT(CutByLength({10, 10, 10, 10, 30'000}), ElementsAre(4, 5));
  std::vector<int64_t> lengths(255, 100);
  lengths.push_back(32'768);
  EXPECT_THAT(CutByLength(lengths), ElementsAre(255, 256));
}

TEST(LengthGroupsTest, PaddingIsBounded) {
  std::mt19937 random(5);
  for (int round = 0; round < 100; ++round) {
    std::vector<int64_t> lengths(1 + random() % 256);
    for (int64_t& length : lengths) length = 1 + random() % (1 << random() % 18);
    std::ranges::sort(lengths);
    size_t begin = 0;
    for (const size_t end : CutByLength(lengths)) {
      ASSERT_LT(begin, end);
      int64_t tokens = 0;
      for (size_t i = begin; i < end; ++i) tokens += lengths[i];
      const int64_t padded = static_cast<int64_t>(end - begin) * lengths[end - 1];
      EXPECT_LE(padded, std::max(2 * tokens, kCheapPaddedLength));
      begin = end;
    }
    EXPECT_EQ(begin, lengths.size());
  }
}

}  // namespace
}  // namespace millrace::aten
