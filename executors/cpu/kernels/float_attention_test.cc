#include "executors/cpu/kernels/float_attention.h"

#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace millrace::cpu {
namespace {

constexpr int kHead = 48;
constexpr int kBlockSize = 32;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint16_t kNanHalf = 0x7e00;

// Uses keys and values that float16 holds exactly, so that float16's kernel, which is compared with
// doubles, is the reference. Pages that were never written hold NaN.
TEST(FloatAttentionTest, AgreesWithHalvesWhereTheyAreExact) {
  constexpr int kLength = 150;
  constexpr size_t kPage = size_t{2} * kBlockSize * kHead;
  const std::vector<int32_t> table = {5, 1, 4, 2, 3};
  std::vector<float> floats(6 * kPage, kNan);
  std::vector<uint16_t> halves(6 * kPage, kNanHalf);
  std::mt19937 random(1);
  std::uniform_int_distribution<int> draw(-1024, 1024);
  for (int t = 0; t < kLength; ++t) {
    std::vector<float> k(kHead), v(kHead);
    for (float& x : k) x = static_cast<float>(draw(random)) / 1024;
    for (float& x : v) x = static_cast<float>(draw(random)) / 1024;
    const int at = t % kBlockSize;
    const size_t page = table[t / kBlockSize] * kPage;
    const size_t key = page + at / kTileRows * kTileRows * kHead + at % kTileRows;
    const size_t value = page + static_cast<size_t>(kBlockSize + at) * kHead;
    AppendFloats(k.data(), v.data(), kHead, &floats[key], &floats[value]);
    PlainKernels().append(k.data(), v.data(), kHead, &halves[key], &halves[value]);
  }
  std::vector<std::vector<float>> queries(kMaxQueries, std::vector<float>(kHead));
  for (std::vector<float>& query : queries) {
    for (float& x : query) x = static_cast<float>(draw(random)) / 512;
  }
  std::vector<float> numbers(256);
  for (float& x : numbers) x = static_cast<float>(draw(random)) / 256;
  const float* biases[kMaxQueries];
  for (int i = 0; i < kMaxQueries; ++i) biases[i] = numbers.data() + i;
  const auto attend = [&](const void* pages, size_t element, auto kernel, int32_t window,
                          float soft_cap) {
    const HeadPages cache{static_cast<const uint8_t*>(pages), table.data(), kLength};
    std::vector<float> scores(size_t{kMaxQueries} * 192, kNan);
    std::vector<float> out(size_t{kMaxQueries} * kHead, kNan);
    AttentionTile tile{.cache = cache,
                       .next = cache,
                       .block_bytes = kPage * element,
                       .block_size = kBlockSize,
                       .head_size = kHead,
                       .num_queries = kMaxQueries,
                       .queries = {},
                       .begins = {},
                       .lengths = {},
                       .scale = 0.25f,
                       .soft_cap = soft_cap,
                       .biases = window == 9 ? biases : nullptr,
                       .sinks = nullptr,
                       .scores = scores.data(),
                       .score_stride = 192,
                       .out = out.data()};
    for (int i = 0; i < kMaxQueries; ++i) {
      tile.queries[i] = queries[i].data();
      tile.lengths[i] = i == 0 ? 1 : kLength - kMaxQueries + 1 + i;
      tile.begins[i] = window > 0 ? std::max(0, tile.lengths[i] - window) : 0;
    }
    kernel(tile);
    return out;
  };
  for (const int32_t window : {0, 1, 9, 33, 1000}) {
    for (const float soft_cap : {0.0f, 0.5f}) {
      const auto out = attend(floats.data(), sizeof(float), AttendFloats, window, soft_cap);
      const auto expected =
          attend(halves.data(), sizeof(uint16_t), PlainKernels().attention, window, soft_cap);
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_NEAR(out[i], expected[i], 2e-6) << "window " << window << ", cap " << soft_cap;
      }
    }
  }
}

// A third has no exact float16, and 1e6 is beyond its range.
TEST(FloatAttentionTest, AppendsWhatItIsGiven) {
  const std::vector<float> k = {1.0f / 3, 1e6f}, v = {-1e6f, -1.0f / 3};
  std::vector<float> keys(2 * kTileRows, 0), values(2, 0);
  AppendFloats(k.data(), v.data(), 2, keys.data(), values.data());
  EXPECT_EQ(keys[0], k[0]);
  EXPECT_EQ(keys[kTileRows], k[1]);
  EXPECT_EQ(values, v);
}

}  // namespace
}  // namespace millrace::cpu
