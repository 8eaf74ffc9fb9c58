#include "kernels/recurrent/delta_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/graph_test_util.h"
#include "kernels/launch.cuh"
#include "kernels/recurrent/delta_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

// Operands of `tokens` tokens on the host, with keys and queries of about the length that the
// layer's have.
struct HostOperands {
  HostOperands(const DeltaHeads& heads, int tokens, uint32_t seed)
      : keys_queries(
            RandomNormal(int64_t{tokens} * heads.key_heads * 2 * kDeltaHeadSize, seed, 0.09f)),
        values(RandomNormal(tokens * heads.value_width(), seed + 1)),
        gates(int64_t{tokens} * heads.key_heads) {
    const std::vector<float> draws = RandomNormal(gates.size() * 9, seed + 2);
    const auto sigmoid = [](float x) { return 1 / (1 + std::exp(-x)); };
    for (size_t i = 0; i < gates.size(); ++i) {
      std::memset(&gates[i], 0xff, sizeof(DeltaGates));  // what is not used is NaN
      for (int g = 0; g < heads.group(); ++g) {
        gates[i].decay[g] = sigmoid(3 + draws[9 * i + g]);
        gates[i].beta[g] = sigmoid(draws[9 * i + 4 + g]);
      }
      gates[i].query_key = 0.3f * draws[9 * i + 8];
    }
  }

  void Upload(const TestOperands& to, int64_t first, int tokens, const DeltaHeads& heads) const {
    const auto part = [&](const auto& all, int64_t row) {
      return std::vector(all.begin() + first * row, all.begin() + (first + tokens) * row);
    };
    const auto upload = [](auto& buffer, const auto& host) {
      CheckCuda(cudaMemcpy(buffer.get(), host.data(), host.size() * sizeof(host[0]),
                           cudaMemcpyHostToDevice),
                "operands");
    };
    upload(to.keys_queries, part(keys_queries, int64_t{heads.key_heads} * 2 * kDeltaHeadSize));
    upload(to.values, part(values, heads.value_width()));
    upload(to.gates, part(gates, heads.key_heads));
  }

  std::vector<float> keys_queries, values;
  std::vector<DeltaGates> gates;
};

// Runs rows on the host: T is float for the kernel's bits, double for a reference. `state` is the
// memory of all slots.
template <typename T>
std::vector<T> RunOnHost(const DeltaHeads& heads, const HostOperands& operands,
                         const std::vector<TestRow>& rows, int64_t slot_stride,
                         std::vector<T>& state) {
  int tokens = 0;
  for (const TestRow& row : rows) tokens += row.tokens;
  std::vector<T> out(tokens * heads.value_width());
  int first = 0;
  for (const TestRow& row : rows) {
    for (int key_head = 0; key_head < heads.key_heads; ++key_head) {
      for (int g = 0; g < heads.group(); ++g) {
        const int head = heads.ValueHead(key_head, g);
        for (int column = 0; column < kDeltaHeadSize; ++column) {
          T* const own = &state[row.slot * slot_stride + ConvolutionFloats(heads) +
                                (int64_t{head} * kDeltaHeadSize + column) * kDeltaHeadSize];
          if (row.start == 0 && row.tokens > 0) std::fill_n(own, kDeltaHeadSize, T{0});
          for (int t = first; t < first + row.tokens; ++t) {
            const int64_t pair = int64_t{t} * heads.key_heads + key_head;
            const float* const key = &operands.keys_queries[pair * 2 * kDeltaHeadSize];
            const int64_t at = t * heads.value_width() + head * kDeltaHeadSize + column;
            const DeltaGates& gates = operands.gates[pair];
            out[at] = AdvanceColumn<T>(key, key + kDeltaHeadSize, operands.values[at],
                                       gates.decay[g], gates.beta[g], gates.query_key, own);
          }
        }
      }
    }
    first += row.tokens;
  }
  return out;
}

// A step on the device: what it leaves in `out` (with the spare tokens) and in the slots.
struct Step {
  Step(const DeltaHeads& heads, const HostOperands& operands, int64_t first_operand,
       const std::vector<TestRow>& of_step, const TestState& state, const DeltaBlock& block,
       bool in_place = false)
      : rows(of_step),
        on_device(heads, rows.tokens() + TestRows::kSpareTokens),
        out((rows.tokens() + TestRows::kSpareTokens) * heads.value_width()) {
    operands.Upload(on_device, first_operand, rows.tokens(), heads);
    args = {.heads = heads,
            .rows = rows.view(),
            .operands = on_device.view(),
            .state = state.view(),
            .out = in_place ? on_device.values.get() : out.get(),
            .block = block};
    result = LaunchDeltaRule(args, nullptr);
  }
  std::vector<float> Out() const {
    return args.out == out.get() ? out.Download() : on_device.values.Download();
  }

  TestRows rows;
  TestOperands on_device;
  DeviceBuffer<float> out;
  DeltaRuleArgs args;
  cudaError_t result;
};

std::string Name(const DeltaBlock& block) {
  return "block " + std::to_string(block.columns) + " of " + std::to_string(block.lane_columns);
}

int Tokens(const std::vector<TestRow>& rows) {
  int tokens = 0;
  for (const TestRow& row : rows) tokens += row.tokens;
  return tokens;
}

// Rows without tokens, of one, and around the multiples of a stage; slots out of order.
const std::vector<TestRow> kRows = {{1, 5, 4},   {7, 0, 0},  {0, 3, 1},  {8, 11, 8}, {9, 0, 2},
                                    {17, 64, 9}, {24, 1, 3}, {33, 0, 7}, {2, 130, 6}};
constexpr int kSlots = 10;  // slot 5 has no row

TEST(DeltaRule, GivesTheBitsOfTheStatedOrder) {
  for (const DeltaHeads& heads : kTestHeads) {
    const HostOperands operands(heads, Tokens(kRows), 1);
    TestState state(heads, kSlots);
    state.FillRandom(4);
    const std::vector<float> before = state.memory.Download();
    std::vector<float> expected_state = before;
    std::vector<double> state_in_double(before.begin(), before.end());
    const std::vector<float> expected =
        RunOnHost(heads, operands, kRows, state.stride, expected_state);
    const std::vector<double> in_double =
        RunOnHost(heads, operands, kRows, state.stride, state_in_double);
    EXPECT_LT(RowError(expected.data(), in_double.data(), expected.size()), 1e-12);
    EXPECT_LT(RowError(expected_state.data(), state_in_double.data(), before.size()), 1e-12);
    for (const DeltaBlock& block : kDeltaBlocks) {
      if (!IsBlockFor(block, heads)) continue;
      for (const bool in_place : {false, true}) {
        SCOPED_TRACE(Name(heads) + " " + Name(block) + (in_place ? " in place" : ""));
        state.memory.Upload(before);
        const Step step(heads, operands, 0, kRows, state, block, in_place);
        ASSERT_EQ(step.result, cudaSuccess);
        const std::vector<float> out = step.Out();
        const std::vector<float> after = state.memory.Download();
        const int64_t size = static_cast<int64_t>(expected.size());
        ASSERT_EQ(Bits(out, 0, size), Bits(expected, 0, size));
        ASSERT_EQ(Bits(after, 0, after.size()), Bits(expected_state, 0, after.size()));
        for (size_t i = size; i < out.size(); ++i) ASSERT_TRUE(std::isnan(out[i])) << "spare " << i;
        EXPECT_TRUE(step.out.GuardsIntact());
        EXPECT_TRUE(step.on_device.GuardsIntact());
        EXPECT_TRUE(state.memory.GuardsIntact());
      }
    }
  }
}

// Any block may go on with what another one left. The first row finds poison at its slot.
TEST(DeltaRule, CutsChangeNoBit) {
  constexpr int kTokens = 150;
  for (const DeltaHeads& heads : {DeltaHeads{2, 6}, DeltaHeads{1, 2}}) {
    const HostOperands operands(heads, kTokens, 11);
    TestState state(heads, kSlots);
    state.memory.Poison();
    const Step whole(heads, operands, 0, {{kTokens, 0, 5}}, state, {16, 1});
    ASSERT_EQ(whole.result, cudaSuccess);
    const std::vector<float> expected = whole.Out(), left = state.memory.Download();
    const int64_t heads_begin = 5 * state.stride + ConvolutionFloats(heads);
    const int64_t heads_size = heads.value_width() * kDeltaHeadSize;
    for (const int cut : {1, 2, 3, 7, 8, 9, 16, 63, 64, 65, 149}) {
      for (const DeltaBlock& block : kDeltaBlocks) {
        if (!IsBlockFor(block, heads)) continue;
        SCOPED_TRACE(Name(heads) + " steps of " + std::to_string(cut) + " " + Name(block));
        state.memory.Poison();
        for (int first = 0; first < kTokens; first += cut) {
          const int tokens = std::min(cut, kTokens - first);
          const Step step(heads, operands, first, {{tokens, first, 5}}, state, block);
          ASSERT_EQ(step.result, cudaSuccess);
          const int64_t size = tokens * heads.value_width();
          ASSERT_EQ(Bits(step.Out(), 0, size), Bits(expected, first * heads.value_width(), size));
        }
        ASSERT_EQ(Bits(state.memory.Download(), heads_begin, heads_size),
                  Bits(left, heads_begin, heads_size));
      }
    }
  }
}

TEST(DeltaRule, ANanStaysInItsSequence) {
  const DeltaHeads heads{2, 6};
  const std::vector<TestRow> rows = {{9, 4, 0}, {9, 4, 1}, {9, 0, 2}};
  const HostOperands operands(heads, Tokens(rows), 21);
  TestState state(heads, 3);
  state.FillRandom(22);
  std::vector<float> before = state.memory.Download();
  const Step clean(heads, operands, 0, rows, state, {16, 1});
  const std::vector<float> expected = clean.Out();
  // Slot 1 is NaN, and so is slot 2, where a sequence begins.
  for (size_t i = state.stride; i < before.size(); ++i) {
    before[i] = std::numeric_limits<float>::quiet_NaN();
  }
  state.memory.Upload(before);
  const Step step(heads, operands, 0, rows, state, {16, 1});
  const std::vector<float> out = step.Out();
  const int64_t size = 9 * heads.value_width();
  EXPECT_EQ(Bits(out, 0, size), Bits(expected, 0, size));
  EXPECT_EQ(Bits(out, 2 * size, size), Bits(expected, 2 * size, size));
  for (int64_t i = size; i < 2 * size; ++i) ASSERT_TRUE(std::isnan(out[i]));
}

// A graph that was captured for more rows and tokens serves fewer.
TEST(DeltaRule, AGraphFollowsTheArrays) {
  const DeltaHeads heads{2, 4};
  const std::vector<TestRow> captured = {{12, 0, 0}, {12, 0, 1}, {12, 0, 2}};
  const std::vector<TestRow> replayed = {{1, 7, 2}, {0, 0, 1}, {20, 3, 0}};
  const HostOperands operands(heads, Tokens(captured), 31);
  TestState state(heads, 3);
  state.FillRandom(32);
  const std::vector<float> before = state.memory.Download();
  std::vector<float> expected_state = before;
  const std::vector<float> expected =
      RunOnHost(heads, operands, replayed, state.stride, expected_state);

  const TestRows rows(captured), other(replayed);
  const TestOperands on_device(heads, rows.tokens());
  operands.Upload(on_device, 0, rows.tokens(), heads);
  DeviceBuffer<float> out(rows.tokens() * heads.value_width());
  RecurrentRows view = rows.view();
  view.max_row_tokens = view.max_tokens;
  const DeltaRuleArgs args = {.heads = heads,
                              .rows = view,
                              .operands = on_device.view(),
                              .state = state.view(),
                              .out = out.get()};
  ASSERT_EQ(LaunchDeltaRule(args, nullptr), cudaSuccess);  // loads the kernel
  cudaStream_t stream;
  CheckCuda(cudaStreamCreate(&stream), "stream");
  CapturedGraph graph(stream, [&](cudaStream_t capturing) {
    CheckCuda(LaunchDeltaRule(args, capturing), "launch");
    CheckCuda(LaunchDeltaRule(args, capturing), "launch");
  });
  if (KernelsAwait()) EXPECT_EQ(graph.CountEdges().programmatic, graph.CountEdges().all);
  const auto copy = [](const int32_t* to, const int32_t* from, size_t count) {
    CheckCuda(cudaMemcpy(const_cast<int32_t*>(to), from, count * sizeof(int32_t),
                         cudaMemcpyDeviceToDevice),
              "rows");
  };
  copy(view.row_first, other.view().row_first, 4);
  copy(view.row_start, other.view().row_start, 3);
  copy(view.row_slot, other.view().row_slot, 3);
  state.memory.Upload(before);
  // The second launch goes on from the state that the first one leaves.
  std::vector<float> second_state = expected_state;
  const std::vector<float> second =
      RunOnHost(heads, operands, replayed, state.stride, second_state);
  graph.Replay(stream);
  CheckCuda(cudaStreamSynchronize(stream), "replay");
  const std::vector<float> after = state.memory.Download(), got = out.Download();
  EXPECT_EQ(Bits(after, 0, after.size()), Bits(second_state, 0, after.size()));
  EXPECT_EQ(Bits(got, 0, second.size()), Bits(second, 0, second.size()));
  CheckCuda(cudaStreamDestroy(stream), "stream");
}

TEST(DeltaRule, RefusesWhatItCannotCompute) {
  const DeltaHeads heads{2, 4};
  const HostOperands operands(heads, 4, 41);
  TestState state(heads, 1);
  const Step step(heads, operands, 0, {{4, 0, 0}}, state, {16, 1});
  ASSERT_EQ(step.result, cudaSuccess);
  const auto refuses = [&](auto&& change) {
    DeltaRuleArgs args = step.args;
    change(args);
    return LaunchDeltaRule(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refuses([](DeltaRuleArgs& a) { a.heads.value_heads = 5; }));
  EXPECT_TRUE(refuses([](DeltaRuleArgs& a) { a.heads.value_heads = 10; }));
  EXPECT_TRUE(refuses([](DeltaRuleArgs& a) { a.heads.key_heads = 0; }));
  EXPECT_TRUE(refuses([](DeltaRuleArgs& a) { a.block = {16, 2}; }));
  EXPECT_TRUE(refuses([](DeltaRuleArgs& a) {
    a.heads = {1, 3};
    a.block = {32, 2};
  }));
  EXPECT_TRUE(refuses([](DeltaRuleArgs& a) { a.out = nullptr; }));
  EXPECT_TRUE(refuses([](DeltaRuleArgs& a) { ++a.out; }));
  EXPECT_TRUE(refuses([](DeltaRuleArgs& a) { a.operands.gates = nullptr; }));
  EXPECT_TRUE(refuses([](DeltaRuleArgs& a) { ++a.operands.keys_queries; }));
  EXPECT_TRUE(refuses([](DeltaRuleArgs& a) { a.state.slot_stride = StateFloats(a.heads) - 4; }));
  EXPECT_TRUE(refuses([](DeltaRuleArgs& a) { ++a.state.slot_stride; }));
  EXPECT_TRUE(refuses([](DeltaRuleArgs& a) { a.rows.rows = -1; }));
  EXPECT_TRUE(refuses([](DeltaRuleArgs& a) { a.rows.row_slot = nullptr; }));
  EXPECT_TRUE(refuses([](DeltaRuleArgs& a) { a.rows.max_row_tokens = a.rows.max_tokens + 1; }));
  DeltaRuleArgs none = step.args;
  none.rows.rows = 0;
  EXPECT_EQ(LaunchDeltaRule(none, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace millrace::kernels
