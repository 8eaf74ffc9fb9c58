#include "kernels/recurrent/mamba2_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/recurrent/mamba2_reference_test_util.h"
#include "kernels/recurrent/mamba2_test_util.h"
#include "kernels/recurrent/rows_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

// The operands of `tokens` tokens, and the layer's constants.
struct Scan {
  Scan(const Mamba2Heads& heads, int tokens)
      : heads(heads),
        tokens(tokens),
        x(RandomNormal(int64_t{tokens} * heads.inner(), 1)),
        bc(RandomNormal(int64_t{tokens} * 2 * heads.state_width(), 2)),
        skip(RandomNormal(heads.heads, 3)),
        device(heads, tokens),
        device_skip(skip) {
    const std::vector<float> drawn = RandomNormal(int64_t{tokens} * heads.heads, 4);
    for (const float value : drawn) {
      const float step = std::exp(value);
      gates.push_back({step, std::exp(-0.1f * step)});
    }
    Upload();
  }

  void Upload() {
    device.x.Upload(x);
    device.bc.Upload(bc);
    device.gates.Upload(gates);
  }

  // The operands of tokens [first, first + rows' tokens).
  Mamba2ScanArgs Args(const TestRows& rows, int first, const TestSlots& state, float* out) const {
    return {.heads = heads,
            .rows = rows.view(),
            .operands = device.view(first),
            .skip = device_skip.get(),
            .state = state.view(),
            .out = out};
  }

  Mamba2Token Token(int token, int head) const {
    const float* const b = &bc[int64_t{token} * 2 * heads.state_width()] +
                           int64_t{head / (heads.heads / heads.groups)} * heads.state_size;
    return {.x = &x[int64_t{token} * heads.inner() + int64_t{head} * heads.head_size],
            .b = b,
            .c = b + heads.state_width(),
            .gates = gates[int64_t{token} * heads.heads + head]};
  }

  // Computes a row on the host in the kernel's order of arithmetic. `slot` is its slot.
  std::vector<float> Row(const TestRow& row, int first, float* slot) const {
    std::vector<float> out(int64_t{row.tokens} * heads.inner());
    float* const states = slot + Mamba2HeadsAt(heads);
    const int64_t size = int64_t{heads.head_size} * heads.state_size;
    if (row.start == 0 && row.tokens > 0) std::fill_n(states, heads.heads * size, 0.0f);
    for (int t = 0; t < row.tokens; ++t) {
      for (int head = 0; head < heads.heads; ++head) {
        const std::vector<float> values =
            AdvanceInOrder(heads, Token(first + t, head), skip[head], states + head * size);
        std::copy(values.begin(), values.end(),
                  out.begin() + int64_t{t} * heads.inner() + int64_t{head} * heads.head_size);
      }
    }
    return out;
  }

  Mamba2Heads heads;
  int tokens;
  std::vector<float> x, bc, skip;
  std::vector<Mamba2Gates> gates;
  TestMamba2Operands device;
  DeviceBuffer<float> device_skip;
};

// Rows around the sizes of stages and of scattered sums; slots out of order.
const std::vector<TestRow> kRows = {{1, 5, 4},  {2, 0, 0}, {0, 3, 1},  {3, 11, 8}, {4, 0, 2},
                                    {8, 64, 9}, {9, 1, 3}, {40, 0, 7}, {1, 0, 6},  {27, 2, 10}};
const std::vector<TestRow> kDecodeRows = {{1, 5, 2}, {0, 3, 1}, {1, 0, 3}, {1, 9, 0}};
constexpr int kSlots = 12;  // slots 5 and 11 have no row

TEST(Mamba2Scan, HasTheBitsOfTheHost) {
  for (const Mamba2Heads& heads : kTestMamba2Heads) {
    for (const std::vector<TestRow>& of : {kRows, kDecodeRows}) {
      const TestRows rows(of);
      const Scan scan(heads, rows.tokens() + TestRows::kSpareTokens);
      TestSlots state(Mamba2Floats(heads), kSlots);
      state.FillRandom(5);
      const std::vector<float> before = state.memory.Download();
      std::vector<float> left = before, expected;
      for (size_t r = 0; r < of.size(); ++r) {
        const std::vector<float> out =
            scan.Row(of[r], rows.first(static_cast<int>(r)), &left[of[r].slot * state.stride]);
        expected.insert(expected.end(), out.begin(), out.end());
      }
      for (const int values : kMamba2BlockValues) {
        if (!IsBlockFor(values, heads)) continue;
        SCOPED_TRACE(Name(heads) + ", blocks of " + std::to_string(values) + ", rows " +
                     std::to_string(of.size()));
        state.memory.Upload(before);
        const DeviceBuffer<float> out(scan.x.size());
        Mamba2ScanArgs args = scan.Args(rows, 0, state, out.get());
        args.block_values = values;
        ASSERT_EQ(LaunchMamba2Scan(args, nullptr), cudaSuccess);
        const std::vector<float> got = out.Download();
        EXPECT_EQ(Bits(got, 0, expected.size()), Bits(expected, 0, expected.size()));
        for (size_t i = expected.size(); i < got.size(); ++i) ASSERT_TRUE(std::isnan(got[i])) << i;
        EXPECT_EQ(Bits(state.memory.Download(), 0, left.size()), Bits(left, 0, left.size()));
        EXPECT_TRUE(out.GuardsIntact() && state.memory.GuardsIntact());
      }
    }
  }
}

// A sequence between others, cut anywhere, gives the bits of one row, also in the operands' place.
TEST(Mamba2Scan, CutsAndNeighboursChangeNoBit) {
  constexpr int kTokens = 70;
  for (const Mamba2Heads& heads : {Mamba2Heads{4, 64, 2, 128}, Mamba2Heads{2, 96, 1, 256}}) {
    Scan scan(heads, kTokens);
    TestSlots state(Mamba2Floats(heads), 3);
    state.memory.Poison();
    const DeviceBuffer<float> whole(scan.x.size());
    const TestRows rows({{kTokens, 0, 1}});
    ASSERT_EQ(LaunchMamba2Scan(scan.Args(rows, 0, state, whole.get()), nullptr), cudaSuccess);
    const std::vector<float> expected = whole.Download(), left = state.memory.Download();
    for (const int cut : {1, 2, 3, 4, 5, 7, 8, 9, 35, 69}) {
      SCOPED_TRACE(Name(heads) + ", steps of " + std::to_string(cut));
      state.memory.Poison();
      for (int first = 0; first < kTokens; first += cut) {
        const int tokens = std::min(cut, kTokens - first);
        // Two neighbours take the tokens before it: one of them one, the other the rest.
        const int before = std::min(first, 5);
        const TestRows step(
            {{std::min(before, 1), 0, 0}, {std::max(before - 1, 0), 9, 2}, {tokens, first, 1}});
        scan.Upload();
        ASSERT_EQ(LaunchMamba2Scan(
                      scan.Args(step, first - before, state, scan.device.view(first - before).x),
                      nullptr),
                  cudaSuccess);
        const int64_t width = heads.inner();
        ASSERT_EQ(Bits(scan.device.x.Download(), first * width, tokens * width),
                  Bits(expected, first * width, tokens * width))
            << "token " << first;
      }
      const int64_t at = state.stride + Mamba2HeadsAt(heads);
      const int64_t size = Mamba2Floats(heads) - Mamba2HeadsAt(heads);
      EXPECT_EQ(Bits(state.memory.Download(), at, size), Bits(left, at, size));
    }
  }
}

TEST(Mamba2Scan, RefusesWhatItCannotCompute) {
  const Mamba2Heads heads = {2, 64, 1, 128};
  const Scan scan(heads, 9);
  const TestRows rows({{4, 0, 0}});
  const TestSlots state(Mamba2Floats(heads), 1);
  const DeviceBuffer<float> out(scan.x.size());
  const Mamba2ScanArgs valid = scan.Args(rows, 0, state, out.get());
  ASSERT_EQ(LaunchMamba2Scan(valid, nullptr), cudaSuccess);
  const auto refuses = [&](auto&& change) {
    Mamba2ScanArgs args = valid;
    change(args);
    return LaunchMamba2Scan(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refuses([](Mamba2ScanArgs& a) { a.heads.heads = 0; }));
  EXPECT_TRUE(refuses([](Mamba2ScanArgs& a) { a.heads.groups = 4; }));
  EXPECT_TRUE(refuses([](Mamba2ScanArgs& a) { a.heads.head_size = 48; }));
  EXPECT_TRUE(refuses([](Mamba2ScanArgs& a) { a.heads.state_size = 64; }));
  EXPECT_TRUE(refuses([](Mamba2ScanArgs& a) { ++a.operands.bc; }));
  EXPECT_TRUE(refuses([](Mamba2ScanArgs& a) { a.skip = nullptr; }));
  EXPECT_TRUE(refuses([](Mamba2ScanArgs& a) { a.state.slot_stride = Mamba2HeadsAt(a.heads); }));
  EXPECT_TRUE(refuses([](Mamba2ScanArgs& a) { ++a.out; }));
  EXPECT_TRUE(refuses([](Mamba2ScanArgs& a) { a.block_values = 16; }));
  EXPECT_TRUE(refuses([](Mamba2ScanArgs& a) { a.rows.row_slot = nullptr; }));
}

}  // namespace
}  // namespace millrace::kernels
