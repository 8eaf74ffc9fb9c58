#include "kernels/attention/paged_attention.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include "kernels/attention/attention_cases.h"
#include "kernels/attention/attention_test_util.h"

namespace millrace::kernels {
namespace {

// FP8 codes are exact in BF16, so FP8 pages are held to BF16's bound.
TEST(PagedAttentionTest, IsRightForEveryShape) {
  double worst = 0;
  for (const Type type : {Type::kBf16, Type::kFp8}) {
    for (const int head_size : {64, 96, 128, 256}) {
      for (const int group : {1, 3, 4, 6, 7, 8, 16}) {
        const int block_size = 16 << (group % 4);
        const AttentionCase c = {.heads = 2 * group,
                                 .kv_heads = 2,
                                 .head_size = head_size,
                                 .block_size = block_size,
                                 .type = type,
                                 .lengths = kLengths};
        AttentionWorld world(c);
        worst = std::max(worst, ExpectRight(world, MixedRows(c)));
      }
    }
  }
  RecordProperty("worst_row_error", std::to_string(worst));
  std::printf("worst row error %.3g\n", worst);
}

TEST(PagedAttentionTest, IsRightWithWindowsAndSoftCaps) {
  double worst = 0;
  for (const int window : {0, 1, 64, 100, 300}) {
    for (const float cap : {0.0f, 5.0f}) {
      for (const Type type : {Type::kBf16, Type::kFp8}) {
        const AttentionCase c = {.head_size = 64,
                                 .type = type,
                                 .window = window,
                                 .soft_cap = cap,
                                 .lengths = kLengths,
                                 .sharpness = cap > 0 ? 4.0f : 1.0f};
        AttentionWorld world(c);
        worst = std::max(worst, ExpectRight(world, MixedRows(c)));
      }
    }
  }
  std::printf("worst row error %.3g\n", worst);
}

TEST(PagedAttentionTest, IsRightOnSharpAndFlatScores) {
  for (const float sharpness : {0.01f, 3.0f, 10.0f}) {
    const AttentionCase c = {.lengths = kLengths, .sharpness = sharpness};
    AttentionWorld world(c);
    std::printf("sharpness %g: worst row error %.3g\n", sharpness,
                ExpectRight(world, MixedRows(c)));
  }
}

TEST(PagedAttentionTest, IsRightOnLongSequences) {
  const AttentionCase c = {
      .heads = 8, .kv_heads = 2, .head_size = 128, .block_size = 64, .lengths = {100000, 20011, 1}};
  AttentionWorld world(c);
  std::printf("worst row error %.3g\n",
              ExpectRight(world, {{0, 99999, 1}, {1, 20010, 1}, {2, 0, 1}, {1, 12000, 20}}));
}

TEST(PagedAttentionTest, ReadsAPromptOfThousandsOfTokens) {
  const AttentionCase c = {.heads = 4, .kv_heads = 1, .head_size = 128, .lengths = {2000, 255, 48}};
  AttentionWorld world(c);
  std::printf("worst row error %.3g\n",
              ExpectRight(world, {{0, 0, 2000}, {1, 0, 255}, {2, 0, 48}}));
}

// A prompt gives the same bits when it is read at once, in chunks of any size, or token by token.
TEST(PagedAttentionTest, ChunkingChangesNoBit) {
  for (const Type type : {Type::kBf16, Type::kFp8}) {
    for (const int window : {0, 90}) {
      for (const int head_size : {64, 96, 128, 256}) {
        const int length = 700;
        const AttentionCase c = {.head_size = head_size,
                                 .type = type,
                                 .window = window,
                                 .soft_cap = head_size == 256 ? 20.0f : 0.0f,
                                 .lengths = {length}};
        AttentionWorld world(c);
        const std::vector<Bf16> whole = RunStep(world, {{0, 0, length}});
        for (const int chunk : {1, 3, 4, 5, 64, 100, 512}) {
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

// Blocks that lie wholly before the window of a row's first token may belong to others, and their
// places in the table may hold anything: prefill and decode look up neither.
TEST(PagedAttentionTest, LooksUpNoBlockBeforeTheWindow) {
  for (const Type type : {Type::kBf16, Type::kFp8}) {
    for (const int head_size : {64, 96, 128, 256}) {
      for (const int block_size : {16, 64}) {
        for (const int window : {1, 16, 90, 300}) {
          const AttentionCase c = {.head_size = head_size,
                                   .block_size = block_size,
                                   .type = type,
                                   .window = window,
                                   .lengths = {700, 700, 700, 700}};
          const std::vector<StepRow> rows = {
              {0, 699, 1}, {1, 416, 3}, {2, 330, 370}, {3, 512, 100}};
          AttentionWorld world(c);
          const std::vector<Bf16> kept = RunStep(world, rows);
          for (const StepRow& row : rows) {
            world.Release(row.sequence, std::max(0, row.start - window + 1) / block_size);
          }
          const std::vector<Bf16> released = RunStep(world, rows);
          int different = 0;
          for (int token = 0; token < Tokens(rows); ++token) {
            different += Bits(world, released, token) != Bits(world, kept, token);
          }
          EXPECT_EQ(different, 0) << "of " << Tokens(rows) << " tokens, " << c.Name();
        }
      }
    }
  }
}

// The sm_90a kernels give the bits of the portable ones.
TEST(PagedAttentionTest, PortableKernelsGiveTheSameBits) {
  for (const int head_size : {64, 96, 128, 256}) {
    for (const float sharpness : {1.0f, 8.0f}) {
      const AttentionCase c = {.head_size = head_size, .lengths = kLengths, .sharpness = sharpness};
      AttentionWorld world(c);
      const std::vector<StepRow> rows = {{9, 0, 700}, {10, 15, 500}, {5, 0, 200}, {11, 400, 113}};
      AttentionRunner runner(world, rows.size(), Tokens(rows), LongestRow(rows));
      const std::vector<Bf16> chosen = RunStep(runner, rows);
      runner.Upload(rows);
      EXPECT_EQ(runner.Launch(nullptr, true), cudaSuccess);
      const std::vector<Bf16> portable = runner.Result();
      int different = 0;
      for (int token = 0; token < Tokens(rows); ++token) {
        different += Bits(world, chosen, token) != Bits(world, portable, token);
      }
      EXPECT_EQ(different, 0) << "of " << Tokens(rows) << " tokens, " << c.Name();
    }
  }
}

// FP8 outputs have the bits of a separate quantization of the BF16 outputs.
TEST(PagedAttentionTest, Fp8OutputsAreTheBf16OnesQuantized) {
  constexpr float kScale = 0.0043f;
  const DeviceBuffer<float> scale(std::vector<float>{kScale});
  // One token per row, with a long row divided among many CTAs; and with prompts.
  const std::vector<std::vector<StepRow>> steps = {{{9, 699, 1}, {10, 20, 1}, {11, 512, 1}},
                                                   {{9, 0, 700}, {10, 14, 1}, {11, 400, 113}}};
  for (const int head_size : {64, 96, 128, 256}) {
    const AttentionCase c = {.head_size = head_size, .lengths = kLengths};
    const AttentionWorld world(c);
    for (const std::vector<StepRow>& rows : steps) {
      AttentionRunner runner(world, rows.size(), Tokens(rows), LongestRow(rows));
      const std::vector<Bf16> plain = RunStep(runner, rows);
      for (const bool portable : {false, true}) {
        DeviceBuffer<uint8_t> codes(plain.size());
        codes.Poison();
        AttentionArgs args = runner.Args();
        args.out = {codes.get(), Type::kFp8, Scaling::kTensor, c.Stride(), scale.get()};
        args.portable = portable;
        ASSERT_EQ(LaunchPlanAttention(args.step, nullptr), cudaSuccess);
        ASSERT_EQ(LaunchPagedAttention(args, nullptr), cudaSuccess);
        const std::vector<uint8_t> found = codes.Download();
        int different = 0;
        for (size_t i = 0; i < plain.size(); ++i) {
          different += found[i] != ToFp8(__bfloat162float(plain[i]) * (1.0f / kScale));
        }
        EXPECT_EQ(different, 0) << "of " << plain.size() << ", " << c.Name() << " portable "
                                << portable;
        EXPECT_TRUE(codes.GuardsIntact());
      }
    }
  }
}

TEST(PagedAttentionTest, NeighboursChangeNoBit) {
  std::mt19937 random(1);
  std::vector<int> lengths(200);
  for (int& length : lengths) length = 1 + random() % 1500;
  const AttentionCase c = {.heads = 8, .kv_heads = 2, .lengths = lengths};
  AttentionWorld world(c);
  std::vector<StepRow> rows;
  for (int s = 0; s < 200; ++s) {
    const int tokens = s % 10 == 0 ? std::min(lengths[s], 140) : 1;
    rows.push_back({s, lengths[s] - tokens, tokens});
  }
  const std::vector<Bf16> together = RunStep(world, rows);
  EXPECT_EQ(std::memcmp(together.data(), RunStep(world, rows).data(), together.size() * 2), 0)
      << "two runs differ";
  int token = 0;
  for (int s = 0; s < 200; ++s) {
    const std::vector<Bf16> alone = RunStep(world, {rows[s]});
    for (int i = 0; i < rows[s].tokens; ++i) {
      EXPECT_EQ(Bits(world, alone, i), Bits(world, together, token + i)) << "row " << s;
    }
    token += rows[s].tokens;
  }
}

// With more chunks than kPartials, the remaining rows run on one CTA per head.
TEST(PagedAttentionTest, ManyLongRowsGiveTheBitsOfOne) {
  const int rows = 300;
  const int length = 4000;
  const AttentionCase c = {
      .heads = 2, .kv_heads = 1, .head_size = 64, .block_size = 128, .lengths = {length}};
  AttentionWorld world(c);
  const std::vector<Bf16> one = RunStep(world, {{0, length - 1, 1}});
  const std::vector<Bf16> many = RunStep(world, std::vector<StepRow>(rows, {0, length - 1, 1}));
  for (int r = 0; r < rows; ++r) {
    ASSERT_EQ(Bits(world, many, r), Bits(world, one, 0)) << "row " << r;
  }
}

TEST(PagedAttentionTest, SharedBlocksGiveTheBitsOfOwnOnes) {
  const AttentionCase c = {.lengths = {600, 600}};
  AttentionWorld world(c);
  const std::vector<Bf16> own = RunStep(world, {{0, 500, 100}});
  world.Share(0, 1);
  const std::vector<Bf16> both = RunStep(world, {{1, 500, 100}, {0, 599, 1}, {1, 599, 1}});
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Bits(world, both, i), Bits(world, own, i));
  EXPECT_EQ(Bits(world, both, 100), Bits(world, own, 99));
  EXPECT_EQ(Bits(world, both, 101), Bits(world, own, 99));
}

TEST(PagedAttentionTest, AGraphIsReplayedWithChangingRows) {
  std::vector<int> lengths(24);
  std::iota(lengths.begin(), lengths.end(), 1200);
  const AttentionCase c = {.lengths = lengths};
  AttentionWorld world(c);
  std::mt19937 random(2);
  for (const int row_tokens : {1, 40}) {
    AttentionRunner runner(world, 24, 24 * row_tokens, row_tokens);
    runner.Upload({{0, 0, 1}});
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CheckCuda(cudaStreamCreate(&stream), "stream");
    EXPECT_EQ(runner.Launch(stream), cudaSuccess);
    CheckCuda(cudaStreamSynchronize(stream), "warm-up");
    CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    EXPECT_EQ(runner.Launch(stream), cudaSuccess);
    CheckCuda(cudaStreamEndCapture(stream, &graph), "capture");
    CheckCuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    for (int replay = 0; replay < 100; ++replay) {
      std::vector<StepRow> rows(1 + random() % 24);
      for (size_t r = 0; r < rows.size(); ++r) {
        const int tokens = random() % 4 == 0 ? 1 + random() % row_tokens : 1;
        rows[r] = {static_cast<int>(r), static_cast<int>(random() % 1100), tokens};
      }
      runner.Upload(rows);
      CheckCuda(cudaGraphLaunch(executable, stream), "replay");
      CheckCuda(cudaStreamSynchronize(stream), "replay");
      const std::vector<Bf16> out = runner.Result();
      ASSERT_TRUE(runner.Intact());
      ASSERT_EQ(std::memcmp(out.data(), RunStep(world, rows).data(), out.size() * 2), 0)
          << "replay " << replay;
    }
    CheckCuda(cudaGraphExecDestroy(executable), "graph");
    CheckCuda(cudaGraphDestroy(graph), "graph");
    CheckCuda(cudaStreamDestroy(stream), "stream");
  }
}

TEST(PagedAttentionTest, RefusesWhatItsHeaderDoesNotAllow) {
  const AttentionCase c = {.lengths = {10}};
  AttentionWorld world(c);
  AttentionRunner runner(world, 1, 1, 1);
  runner.Upload({{0, 9, 1}});
  const auto refuses = [&](void (*spoil)(AttentionArgs&)) {
    AttentionArgs args = runner.Args();
    spoil(args);
    return LaunchPagedAttention(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.pages.head_size = 80; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.pages.block_size = 48; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.pages.block_stride -= 8; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.pages.kv_heads = 4; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.pages.type = Type::kF32; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.step.heads = 7; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.step.heads = 34; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.step.window = -1; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.step.rows = 0; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.step.row_slot = nullptr; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.q += 1; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.q_stride -= 8; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.out.stride = 1024 + 4; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.out.type = Type::kFp8; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.out.scaling = Scaling::kToken; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.scale = 0; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.soft_cap = -1; }));
  EXPECT_TRUE(refuses([](AttentionArgs& a) { a.scratch = nullptr; }));
  EXPECT_EQ(LaunchPlanAttention(runner.Args().step, nullptr), cudaSuccess);
  EXPECT_EQ(LaunchPagedAttention(runner.Args(), nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace millrace::kernels
