// Tests of attention sinks (AttentionArgs::sinks): in decode and prompts, with the portable and the
// sm_90a kernels, in rows that one CTA or several process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/attention/attention_cases.h"
#include "kernels/attention/attention_test_util.h"
#include "kernels/attention/paged_attention.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

// Returns logits like those of scores.
std::vector<float> RandomSinks(int heads) {
  std::vector<float> sinks(heads);
  for (int i = 0; i < heads; ++i) sinks[i] = 1 + RandomValue((uint64_t{1} << 50) + i);
  return sinks;
}

// A model's 64 heads for 8 kv heads, or fewer.
AttentionCase GptOss(Type type, int window, int kv_heads = 8) {
  return {.heads = 8 * kv_heads,
          .kv_heads = kv_heads,
          .head_size = 64,
          .type = type,
          .window = window,
          .lengths = kLengths,
          .sinks = RandomSinks(8 * kv_heads)};
}

// Runs a step with the chosen kernels, or with the portable ones.
std::vector<Bf16> RunWith(const AttentionWorld& world, const std::vector<StepRow>& rows,
                          bool portable) {
  AttentionRunner runner(world, rows.size(), Tokens(rows), LongestRow(rows));
  runner.Upload(rows);
  EXPECT_EQ(runner.Launch(nullptr, portable), cudaSuccess);
  std::vector<Bf16> out = runner.Result();
  EXPECT_TRUE(runner.Intact());
  return out;
}

TEST(AttentionSinksTest, AreRightForEveryShape) {
  double worst = 0;
  for (const Type type : {Type::kBf16, Type::kFp8}) {
    for (const int head_size : {64, 96, 128, 256}) {
      for (const int group : {2, 3, 8, 16}) {
        const AttentionCase c = {.heads = 2 * group,
                                 .kv_heads = 2,
                                 .head_size = head_size,
                                 .type = type,
                                 .window = group == 3 ? 128 : 0,
                                 .lengths = kLengths,
                                 .sinks = RandomSinks(2 * group)};
        const AttentionWorld world(c);
        worst =
            std::max({worst, ExpectRight(world, MixedRows(c)), ExpectRight(world, DecodeRows(c))});
      }
    }
  }
  std::printf("worst row error %.3g\n", worst);
}

TEST(AttentionSinksTest, AreRightForGptOss) {
  for (const Type type : {Type::kBf16, Type::kFp8}) {
    for (const int window : {0, 128}) {
      const AttentionCase c = GptOss(type, window);
      const AttentionWorld world(c);
      std::printf("worst row error %.3g, of decode %.3g\n", ExpectRight(world, MixedRows(c)),
                  ExpectRight(world, DecodeRows(c)));
    }
  }
}

// Sinks are neither scaled nor capped.
TEST(AttentionSinksTest, AreRightWithSoftCapsAndSharpScores) {
  for (const float cap : {0.0f, 5.0f}) {
    const AttentionCase c = {.soft_cap = cap,
                             .lengths = kLengths,
                             .sharpness = 8,
                             .sinks = {-9, -3, 0, 4, 6, 9, 20, -30}};
    ExpectRight(AttentionWorld(c), MixedRows(c));
  }
}

// A prompt gives the same bits with every kernel, in chunks of any size, and token by token.
TEST(AttentionSinksTest, ChunkingChangesNoBit) {
  for (const Type type : {Type::kBf16, Type::kFp8}) {
    for (const int window : {0, 128}) {
      for (const int head_size : {64, 128}) {
        const int length = 700;
        AttentionCase c = GptOss(type, window, 2);
        c.head_size = head_size;
        c.lengths = {length};
        const AttentionWorld world(c);
        const std::vector<Bf16> whole = RunStep(world, {{0, 0, length}});
        const std::vector<Bf16> portable = RunWith(world, {{0, 0, length}}, true);
        EXPECT_EQ(std::memcmp(whole.data(), portable.data(), whole.size() * sizeof(Bf16)), 0)
            << c.Name() << ", portable kernels";
        for (const int chunk : {1, 2, 100, 512}) {
          AttentionRunner runner(world, 1, chunk, chunk);
          int different = 0;
          for (int start = 0; start < length; start += chunk) {
            const int tokens = std::min(chunk, length - start);
            const std::vector<Bf16> part = RunStep(runner, {{0, start, tokens}});
            for (int i = 0; i < tokens; ++i) {
              different += Bits(world, part, i) != Bits(world, whole, start + i);
            }
          }
          EXPECT_EQ(different, 0) << c.Name() << " in steps of " << chunk;
        }
      }
    }
  }
}

// A row alone is divided among CTAs. With more chunks than kPartials, the last rows are not.
TEST(AttentionSinksTest, DividingARowChangesNoBit) {
  const int rows = 300;
  const int length = 10000;
  AttentionCase c = GptOss(Type::kBf16, 0, 2);
  c.lengths = {length};
  const AttentionWorld world(c);
  ExpectRight(world, {{0, length - 1, 1}});
  const std::vector<Bf16> one = RunStep(world, {{0, length - 1, 1}});
  const std::vector<Bf16> many = RunStep(world, std::vector<StepRow>(rows, {0, length - 1, 1}));
  for (int r = 0; r < rows; ++r) {
    ASSERT_EQ(Bits(world, many, r), Bits(world, one, 0)) << "row " << r;
  }
}

// Heads alternate between a sink of -infinity, which has no effect, and one that takes everything.
TEST(AttentionSinksTest, ExtremeSinksConcernTheirHeadsAlone) {
  for (const Type type : {Type::kBf16, Type::kFp8}) {
    for (const int window : {0, 128}) {
      for (const int head_size : {64, 96, 128}) {
        AttentionCase c = GptOss(type, window);
        c.head_size = head_size;
        for (int head = 0; head < c.heads; ++head) c.sinks[head] = head % 2 == 0 ? -INFINITY : 1e6f;
        const AttentionWorld world(c);
        c.sinks.clear();
        const AttentionWorld without(c);
        for (const auto& rows : {MixedRows(c), DecodeRows(c)}) {
          for (const bool portable : {false, true}) {
            const std::vector<Bf16> out = RunWith(world, rows, portable);
            std::vector<Bf16> expected = RunWith(without, rows, portable);
            for (size_t i = 0; i < expected.size(); ++i) {
              const int head = static_cast<int>(i % c.Stride()) / head_size;
              if (head % 2 == 1) expected[i] = __float2bfloat16(0);
            }
            EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(Bf16)), 0)
                << c.Name() << ", portable " << portable;
          }
        }
      }
    }
  }
}

// Sinks that few scores exceed, and sinks that leave the outputs tiny.
TEST(AttentionSinksTest, AreRightWhereTheyExceedTheScores) {
  for (const float sink : {4.0f, 20.0f, 60.0f}) {
    AttentionCase c = GptOss(Type::kBf16, 128);
    c.sinks.assign(c.heads, sink);
    const AttentionWorld world(c);
    std::printf("sinks of %g: worst row error %.3g\n", sink, ExpectRight(world, MixedRows(c)));
    ExpectRight(world, DecodeRows(c));
  }
}

}  // namespace
}  // namespace millrace::kernels
