#include "executors/weights/shares.h"

#include <string>
#include <vector>

#include "base/strings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;

constexpr int kMaxRanks = 16;

// Models of every family.
struct Shape {
  const char* name;
  int heads;
  int kv_heads;
  int head_size;
  int ffn;
  int vocab;
};
constexpr Shape kShapes[] = {
    {"Llama-3-8B", 32, 8, 128, 14336, 128256},    {"Llama-3-70B", 64, 8, 128, 28672, 128256},
    {"Llama-3.2-1B", 32, 8, 64, 8192, 128256},    {"Llama-3.2-3B", 24, 8, 128, 8192, 128256},
    {"SmolLM2-135M", 9, 3, 64, 1536, 49152},      {"SmolLM2-360M", 15, 5, 64, 2560, 49152},
    {"OpenLLaMA-3B", 32, 32, 100, 8640, 32000},   {"Mistral-7B", 32, 8, 128, 14336, 32768},
    {"Mistral-Small", 32, 8, 128, 32768, 131072}, {"Qwen2.5-0.5B", 14, 2, 64, 4864, 151936},
    {"Qwen2.5-7B", 28, 4, 128, 18944, 152064},    {"Qwen2.5-14B", 40, 8, 128, 13824, 152064},
    {"Qwen3-4B", 32, 8, 128, 9728, 151936},       {"Qwen3-32B", 64, 8, 128, 25600, 151936},
    {"Gemma-2-2B", 8, 4, 256, 9216, 256000},      {"Gemma-2-27B", 32, 16, 128, 36864, 256000},
    {"Gemma-3-1B", 4, 1, 256, 6912, 262144},      {"Gemma-3-4B", 8, 4, 256, 10240, 262208},
    {"Phi-3-mini", 32, 32, 96, 8192, 32064},      {"Phi-4", 40, 10, 128, 17920, 100352},
    {"OLMo-2-7B", 32, 32, 128, 11008, 100352},    {"OLMo-2-13B", 40, 40, 128, 13824, 100352},
    {"Granite-3-2B", 32, 8, 64, 8192, 49155},     {"SmolLM3-3B", 16, 4, 128, 11008, 128256},
    {"all-MiniLM-L6", 12, 12, 32, 1536, 30522},   {"a tiny twin", 4, 2, 32, 96, 128}};

// All elements once, in the order of the ranks, in whole units, and zeros at the end alone.
void ExpectAllOnce(const std::vector<Share>& shares, int64_t total, int64_t unit) {
  int64_t next = 0;
  bool ended = false;
  for (const Share& share : shares) {
    EXPECT_EQ(share.total, total);
    EXPECT_EQ(share.size, shares[0].size);
    EXPECT_GE(share.count, 0);
    EXPECT_LE(share.count, share.size);
    if (share.count == 0) {
      ended = true;
      continue;
    }
    EXPECT_FALSE(ended);
    EXPECT_EQ(share.begin, next);
    EXPECT_EQ(share.begin % unit, 0);
    next += share.count;
    EXPECT_TRUE(share.count % unit == 0 || next == total);
    ended = share.count < share.size;
  }
  EXPECT_EQ(next, total);
}

TEST(SharesTest, UnitsAreDividedOnce) {
  for (const Shape& shape : kShapes) {
    for (const int64_t total : {shape.ffn, shape.vocab, shape.heads * shape.head_size, 1, 17}) {
      for (const int64_t unit : {1, 16, 32, 128, 256}) {
        for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
          SCOPED_TRACE(StrCat(shape.name, ": ", total, " by ", unit, " on ", ranks));
          std::vector<Share> shares;
          for (int rank = 0; rank < ranks; ++rank) {
            shares.push_back(DivideUnits(total, unit, {rank, ranks}));
          }
          ExpectAllOnce(shares, total, unit);
          // None has more than it must: a unit more than an equal part at most.
          EXPECT_LT(shares[0].size, total / ranks + 2 * unit);
          if (ranks == 1) {
            EXPECT_EQ(shares[0].size, total);
          }
        }
      }
    }
  }
}

// Blocks of the output's columns (and of q's rows) and of k's and v's rows.
void ExpectHeads(const Shape& shape, int64_t q_block, int64_t kv_block, int ranks) {
  SCOPED_TRACE(StrCat(shape.name, ": blocks of ", q_block, " and ", kv_block, " on ", ranks));
  const int64_t q_unit = UnitOf(shape.head_size, q_block);
  const int64_t kv_unit = UnitOf(shape.head_size, kv_block);
  const int group = shape.heads / shape.kv_heads;
  std::vector<int> holders(shape.heads), owners(shape.kv_heads);
  for (int rank = 0; rank < ranks; ++rank) {
    const HeadShares shares =
        DivideHeads(shape.heads, shape.kv_heads, q_unit, kv_unit, {rank, ranks});
    const Share& q = shares.q;
    const Share& kv = shares.kv;
    EXPECT_EQ(q.total, shape.heads);
    EXPECT_EQ(kv.total, shape.kv_heads);
    const HeadShares first = DivideHeads(shape.heads, shape.kv_heads, q_unit, kv_unit, {0, ranks});
    EXPECT_EQ(q.size, first.q.size);
    EXPECT_EQ(kv.size, first.kv.size);
    ASSERT_GT(kv.size, 0);
    ASSERT_EQ(q.size % kv.size, 0);
    EXPECT_LE(q.count, q.size);
    EXPECT_LE(kv.count, kv.size);
    EXPECT_LE(q.begin + q.count, q.total) << "also of a rank without heads";
    EXPECT_LE(kv.begin + kv.count, kv.total);
    for (int64_t i = 0; i < q.count; ++i) {
      ++holders[q.begin + i];
      // It reads the kv head that it reads in the whole layer, and the rank has that.
      const int64_t local = i / (q.size / kv.size);
      EXPECT_LT(local, kv.count);
      EXPECT_EQ(kv.begin + local, (q.begin + i) / group);
    }
    for (int64_t i = 0; i < kv.count && shares.owns_kv; ++i) ++owners[kv.begin + i];
    if (q.count > 0) {
      EXPECT_EQ(q.begin * shape.head_size % q_block, 0);
      EXPECT_TRUE(q.count * shape.head_size % q_block == 0 || q.begin + q.count == shape.heads);
    }
    if (kv.count > 0 && kv_block > 1) {
      EXPECT_EQ(kv.begin * shape.head_size % kv_block, 0);
    }
    if (ranks == 1) {
      EXPECT_EQ(q.size, shape.heads);
      EXPECT_EQ(kv.size, shape.kv_heads);
    }
  }
  for (const int count : holders) EXPECT_EQ(count, 1);
  for (const int count : owners) EXPECT_EQ(count, 1);
}

TEST(SharesTest, HeadsAreDividedOnce) {
  for (const Shape& shape : kShapes) {
    for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
      for (const int64_t block : {1, 32, 128, 256}) ExpectHeads(shape, block, 1, ranks);
      ExpectHeads(shape, 128, 128, ranks);  // FP8 in blocks
    }
  }
}

TEST(SharesTest, HeadsLieAsExpected) {
  // SmolLM2-135M on 2 ranks: kv heads 0 and 1, and 2 with one of zeros.
  HeadShares shares = DivideHeads(9, 3, 1, 1, {1, 2});
  EXPECT_EQ(shares.q.begin, 6);
  EXPECT_EQ(shares.q.count, 3);
  EXPECT_EQ(shares.q.size, 6);
  EXPECT_EQ(shares.kv.begin, 2);
  EXPECT_EQ(shares.kv.count, 1);
  EXPECT_EQ(shares.kv.size, 2);
  // On 8: two ranks a kv head, with 2 and 1 of its query heads; the last two have nothing.
  shares = DivideHeads(9, 3, 1, 1, {3, 8});
  EXPECT_EQ(shares.q.begin, 5);
  EXPECT_EQ(shares.q.count, 1);
  EXPECT_EQ(shares.q.size, 2);
  EXPECT_EQ(shares.kv.begin, 1);
  EXPECT_FALSE(shares.owns_kv);
  EXPECT_EQ(DivideHeads(9, 3, 1, 1, {6, 8}).q.count, 0);
  // Heads of 64 whose output linear has blocks of 256: four at a time.
  shares = DivideHeads(14, 2, UnitOf(64, 256), 1, {0, 2});
  EXPECT_EQ(shares.q.size, 14);
}

TEST(SharesTest, CutsValuesAndFillsThemUp) {
  const std::vector<float> values = {0, 1, 2, 3, 4, 5, 6};
  EXPECT_THAT(Cut(values, 0, {.total = 7, .begin = 5, .count = 2, .size = 3}),
              ElementsAre(5, 6, 0));
  const Share first{.total = 4, .begin = 2, .count = 2, .size = 2};
  const Share second{.total = 3, .begin = 2, .count = 1, .size = 2};
  EXPECT_THAT(Cut(values, {first, second}), ElementsAre(2, 3, 6, 0));
}

}  // namespace
}  // namespace millrace
