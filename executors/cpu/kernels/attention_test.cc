#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "executors/cpu/kernels/kernels_test_util.h"
#include "formats/tensors/float16.h"
#include "gtest/gtest.h"

namespace millrace::cpu {
namespace {

// A sequence's pages for one kv head, in blocks that lie in another order, with NaN where nothing
// was written.
class Sequence {
 public:
  Sequence(const Kernels& kernels, int length, int block_size, int head_size, uint32_t seed)
      : block_size_(block_size), head_size_(head_size) {
    const int blocks = (length + block_size - 1) / block_size;
    pages_.assign(static_cast<size_t>(blocks + 1) * PageHalves(), 0x7e00);  // a NaN
    for (int i = 0; i < blocks; ++i) table_.push_back(blocks - i);
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> draw(-1, 1);
    for (int t = 0; t < length; ++t) {
      std::vector<float> k(head_size), v(head_size);
      for (float& x : k) x = draw(random);
      for (float& x : v) x = draw(random);
      uint16_t* page = &pages_[table_[t / block_size] * PageHalves()];
      const int at = t % block_size;
      kernels.append(k.data(), v.data(), head_size,
                     page + at / kTileRows * kTileRows * head_size + at % kTileRows,
                     page + (block_size + at) * head_size);
      for (float& x : k) x = HalfToFloat(FloatToHalf(x));
      for (float& x : v) x = HalfToFloat(FloatToHalf(x));
      keys_.push_back(k);
      values_.push_back(v);
    }
  }

  size_t PageHalves() const { return size_t{2} * block_size_ * head_size_; }

  // [queries][head_size]; query i sees lengths[i] keys.
  std::vector<float> Attend(const Kernels& kernels, const std::vector<std::vector<float>>& queries,
                            const std::vector<int>& lengths, int window = 0, float soft_cap = 0,
                            const std::vector<float>& sinks = {},
                            const std::vector<std::vector<float>>& biases = {}) const {
    const HeadPages cache{reinterpret_cast<const uint8_t*>(pages_.data()), table_.data(),
                          static_cast<int32_t>(keys_.size())};
    const float* rows[kMaxQueries] = {};
    for (size_t i = 0; i < biases.size(); ++i) rows[i] = biases[i].data();
    AttentionTile tile{.cache = cache,
                       .next = cache,
                       .block_bytes = PageHalves() * sizeof(uint16_t),
                       .block_size = block_size_,
                       .head_size = head_size_,
                       .num_queries = static_cast<int>(queries.size()),
                       .scale = 0.25f,
                       .soft_cap = soft_cap,
                       .biases = biases.empty() ? nullptr : rows,
                       .sinks = sinks.empty() ? nullptr : sinks.data(),
                       .score_stride = 1024};
    std::vector<float> scores(queries.size() * tile.score_stride,
                              std::numeric_limits<float>::quiet_NaN());
    std::vector<float> out(queries.size() * head_size_, std::numeric_limits<float>::quiet_NaN());
    for (size_t i = 0; i < queries.size(); ++i) {
      tile.queries[i] = queries[i].data();
      tile.begins[i] = window > 0 ? std::max(0, lengths[i] - window) : 0;
      tile.lengths[i] = lengths[i];
    }
    tile.scores = scores.data();
    tile.out = out.data();
    kernels.attention(tile);
    return out;
  }

  std::vector<double> Reference(const std::vector<float>& query, int length, int window = 0,
                                double soft_cap = 0, double sink = -INFINITY,
                                const std::vector<float>& biases = {}) const {
    std::vector<double> scores, out(head_size_);
    double largest = std::max(-1e300, sink), sum = 0;
    const int first = window > 0 ? std::max(0, length - window) : 0;
    for (int t = first; t < length; ++t) {
      double dot = 0;
      for (int d = 0; d < head_size_; ++d) dot += double{query[d]} * keys_[t][d];
      scores.push_back(dot * 0.25);
      if (soft_cap != 0) scores.back() = soft_cap * std::tanh(scores.back() / soft_cap);
      if (!biases.empty()) scores.back() += biases[t];
      largest = std::max(largest, scores.back());
    }
    for (double& score : scores) sum += score = std::exp(score - largest);
    sum += std::exp(sink - largest);
    for (int t = first; t < length; ++t) {
      for (int d = 0; d < head_size_; ++d) out[d] += scores[t - first] / sum * values_[t][d];
    }
    return out;
  }

 private:
  int block_size_;
  int head_size_;
  std::vector<uint16_t> pages_;
  std::vector<int32_t> table_;
  std::vector<std::vector<float>> keys_, values_;
};

std::vector<std::vector<float>> Queries(int count, int head_size) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> draw(-2, 2);
  std::vector<std::vector<float>> queries(count, std::vector<float>(head_size));
  for (auto& query : queries) {
    for (float& x : query) x = draw(random);
  }
  return queries;
}

class AttentionTest : public TableTest {};
INSTANTIATE_TEST_SUITE_P(All, AttentionTest, ::testing::ValuesIn(Tables()), TableName);

TEST_P(AttentionTest, AgreesWithDoubles) {
  for (const int head_size : {16, 48, 64, 80, 128}) {
    for (const int length : {1, 15, 16, 17, 63, 64, 65, 200}) {
      const Sequence sequence(*GetParam(), length, 16, head_size, length);
      for (int count = 1; count <= kMaxQueries; ++count) {
        const auto queries = Queries(count, head_size);
        std::vector<int> lengths;
        for (int i = 0; i < count; ++i)
          lengths.push_back(std::max(1, length - (count - 1 - i) / 3));
        const std::vector<float> out = sequence.Attend(*GetParam(), queries, lengths);
        for (int i = 0; i < count; ++i) {
          const std::vector<double> expected = sequence.Reference(queries[i], lengths[i]);
          for (int d = 0; d < head_size; ++d) {
            ASSERT_NEAR(out[i * head_size + d], expected[d], 2e-6)
                << "head " << head_size << ", length " << length << ", query " << i << " of "
                << count;
          }
        }
      }
    }
  }
}

TEST_P(AttentionTest, SeesTheWindowAloneAndCapsScores) {
  constexpr int kHead = 48;
  for (const int length : {1, 9, 40, 150}) {
    const Sequence sequence(*GetParam(), length, 16, kHead, length);
    for (const int window : {0, 1, 9, 16, 33, 1000}) {
      for (const float soft_cap : {0.0f, 0.5f, 20.0f}) {
        const auto queries = Queries(kMaxQueries, kHead);
        std::vector<int> lengths;
        for (int i = 0; i < kMaxQueries; ++i) {
          lengths.push_back(std::max(1, length - (kMaxQueries - 1 - i) / 3));
        }
        const auto out = sequence.Attend(*GetParam(), queries, lengths, window, soft_cap);
        for (int i = 0; i < kMaxQueries; ++i) {
          const std::vector<double> expected =
              sequence.Reference(queries[i], lengths[i], window, soft_cap);
          for (int d = 0; d < kHead; ++d) {
            ASSERT_NEAR(out[i * kHead + d], expected[d], 5e-6)
                << "length " << length << ", window " << window << ", cap " << soft_cap;
          }
          // Alone, whatever the others saw.
          EXPECT_EQ(sequence.Attend(*GetParam(), {queries[i]}, {lengths[i]}, window, soft_cap),
                    std::vector<float>(&out[i * kHead], &out[i * kHead] + kHead));
        }
      }
    }
  }
}

// Below all scores, among them and above them, and one that leaves nothing to the keys.
TEST_P(AttentionTest, SinksJoinTheSum) {
  constexpr int kHead = 64;
  for (const int length : {1, 17, 150}) {
    const Sequence sequence(*GetParam(), length, 16, kHead, length);
    const auto queries = Queries(4, kHead);
    const std::vector<float> sinks = {-30, 0.5f, 6, 90};
    const std::vector<int> lengths(4, length);
    for (const int window : {0, 9}) {
      const auto out = sequence.Attend(*GetParam(), queries, lengths, window, 0, sinks);
      for (int i = 0; i < 4; ++i) {
        const auto expected = sequence.Reference(queries[i], length, window, 0, sinks[i]);
        for (int d = 0; d < kHead; ++d) {
          ASSERT_NEAR(out[i * kHead + d], expected[d], 2e-6) << length << ", sink " << sinks[i];
        }
        EXPECT_EQ(sequence.Attend(*GetParam(), {queries[i]}, {length}, window, 0, {sinks[i]}),
                  std::vector<float>(&out[i * kHead], &out[i * kHead] + kHead));
      }
    }
  }
}

// An encoder's queries: keys on both sides within a window, and a number of its own for each score.
TEST_P(AttentionTest, BiasesAreAddedToScoresOfKeysOnBothSides) {
  constexpr int kHead = 32;
  for (const int length : {1, 16, 17, 150}) {
    const Sequence sequence(*GetParam(), length, 16, kHead, length);
    const auto queries = Queries(kMaxQueries, kHead);
    std::vector<std::vector<float>> biases;
    for (int i = 0; i < kMaxQueries; ++i) {
      biases.push_back(Queries(1, (length + 15) / 16 * 16)[0]);
      for (float& bias : biases.back()) bias *= 4;
    }
    for (const int window : {0, 9}) {
      std::vector<int> lengths(kMaxQueries, length);
      for (int i = 0; i < kMaxQueries; ++i) lengths[i] = std::max(1, length - i * 3);
      const auto out = sequence.Attend(*GetParam(), queries, lengths, window, 0, {}, biases);
      for (int i = 0; i < kMaxQueries; ++i) {
        const auto expected =
            sequence.Reference(queries[i], lengths[i], window, 0, -INFINITY, biases[i]);
        for (int d = 0; d < kHead; ++d) ASSERT_NEAR(out[i * kHead + d], expected[d], 5e-6);
        EXPECT_EQ(
            sequence.Attend(*GetParam(), {queries[i]}, {lengths[i]}, window, 0, {}, {biases[i]}),
            std::vector<float>(&out[i * kHead], &out[i * kHead] + kHead));
      }
    }
  }
}

TEST_P(AttentionTest, AQuerysResultDependsOnItsKeysAlone) {
  constexpr int kHead = 64;
  constexpr int kLength = 150;
  const Sequence sequence(*GetParam(), kLength, 16, kHead, 1);
  const Sequence other_blocks(*GetParam(), kLength, 48, kHead, 1);
  const auto queries = Queries(kMaxQueries, kHead);
  std::vector<int> lengths;
  for (int i = 0; i < kMaxQueries; ++i) lengths.push_back(kLength - 11 + i);
  const std::vector<float> together = sequence.Attend(*GetParam(), queries, lengths);
  EXPECT_EQ(together, other_blocks.Attend(*GetParam(), queries, lengths))
      << "the block size changed a result";
  for (int i = 0; i < kMaxQueries; ++i) {
    // Alone, in a sequence that ends there: what comes later was never written.
    const Sequence shorter(*GetParam(), lengths[i], 16, kHead, 1);
    const std::vector<float> alone = shorter.Attend(*GetParam(), {queries[i]}, {lengths[i]});
    EXPECT_EQ(alone, std::vector<float>(&together[i * kHead], &together[i * kHead] + kHead)) << i;
  }
}

TEST(AttentionTablesTest, InstructionSetsGiveTheSameBits) {
  const std::vector<const Kernels*> tables = VectorTables();
  if (tables.size() < 2) GTEST_SKIP() << "fewer than two vector instruction sets here";
  constexpr int kHead = 80;
  const auto queries = Queries(kMaxQueries, kHead);
  for (const int count : {1, 4, 7, kMaxQueries}) {
    std::vector<int> lengths;
    for (int i = 0; i < count; ++i) lengths.push_back(150 - i);
    std::vector<float> first;
    for (size_t i = 0; i < tables.size(); ++i) {
      const Sequence sequence(*tables[i], 150, 16, kHead, 1);
      const std::vector<float> out =
          sequence.Attend(*tables[i], {queries.begin(), queries.begin() + count}, lengths);
      if (i == 0) {
        first = out;
      } else {
        EXPECT_EQ(out, first) << tables[i]->name << ", " << count << " queries";
      }
    }
  }
}

TEST_P(AttentionTest, AppendKeepsHalvesFinite) {
  std::vector<float> k(16, 1e6f), v(16, -1e6f);
  std::vector<uint16_t> keys(16 * kTileRows), values(16);
  GetParam()->append(k.data(), v.data(), 16, keys.data(), values.data());
  EXPECT_EQ(HalfToFloat(keys[5 * kTileRows]), 65504);
  EXPECT_EQ(HalfToFloat(values[5]), -65504);
  k[3] = v[3] = std::numeric_limits<float>::quiet_NaN();
  GetParam()->append(k.data(), v.data(), 16, keys.data(), values.data());
  EXPECT_TRUE(std::isnan(HalfToFloat(keys[3 * kTileRows])));
  EXPECT_TRUE(std::isnan(HalfToFloat(values[3])));
}

}  // namespace
}  // namespace millrace::cpu
