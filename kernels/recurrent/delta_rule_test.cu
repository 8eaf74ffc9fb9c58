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

// Runs rows on the host, in the kernels' order of arithmetic. `state` is the memory of all slots.
std::vector<float> RunOnHost(const DeltaHeads& heads, const HostOperands& operands,
                             const std::vector<TestRow>& rows, int64_t slot_stride,
                             std::vector<float>& state) {
  std::vector<float> out;
  int64_t token = 0;
  for (const TestRow& row : rows) {
    for (int t = 0; t < row.tokens; ++t, ++token) {
      out.resize((token + 1) * heads.value_width());
      for (int key_head = 0; key_head < heads.key_heads; ++key_head) {
        const int64_t pair = token * heads.key_heads + key_head;
        const float* const key = &operands.keys_queries[pair * 2 * kDeltaHeadSize];
        const DeltaGates& gates = operands.gates[pair];
        for (int g = 0; g < heads.group(); ++g) {
          const int64_t at =
              token * heads.value_width() + heads.ValueHead(key_head, g) * kDeltaHeadSize;
          const auto of_head = AdvanceByBlocks(heads, key_head, g, row.start + t,
                                               {.key = key,
                                                .query = key + kDeltaHeadSize,
                                                .values = &operands.values[at],
                                                .decay = gates.decay[g],
                                                .beta = gates.beta[g],
                                                .query_key = gates.query_key},
                                               &state[row.slot * slot_stride]);
          std::copy(of_head.begin(), of_head.end(), out.begin() + at);
        }
      }
    }
  }
  return out;
}

// Returns the elements of the rule's workspace, and one where it needs none.
int64_t WeightsOf(const RecurrentRows& rows, const DeltaHeads& heads) {
  return std::max(int64_t{DeltaWindows(rows)} * heads.value_heads, int64_t{1});
}

// A step on the device: what it leaves in `out` (with the spare tokens) and in the slots.
struct Step {
  Step(const DeltaHeads& heads, const HostOperands& operands, int64_t first_operand,
       const std::vector<TestRow>& of_step, const TestState& state, const DeltaBlock& block,
       bool in_place = false)
      : rows(of_step),
        on_device(heads, rows.tokens() + TestRows::kSpareTokens),
        out((rows.tokens() + TestRows::kSpareTokens) * heads.value_width()),
        weights(WeightsOf(rows.view(), heads)) {
    operands.Upload(on_device, first_operand, rows.tokens(), heads);
    args = {.heads = heads,
            .rows = rows.view(),
            .operands = on_device.view(),
            .state = state.view(),
            .out = in_place ? on_device.values.get() : out.get(),
            .weights = weights.get(),
            .block = block};
    result = LaunchDeltaRule(args, nullptr);
  }
  std::vector<float> Out() const {
    return args.out == out.get() ? out.Download() : on_device.values.Download();
  }

  TestRows rows;
  TestOperands on_device;
  DeviceBuffer<float> out;
  DeviceBuffer<DeltaWeights> weights;
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

// Rows without tokens, of one, and around the multiples of a block, from each place in one; slots
// out of order.
const std::vector<TestRow> kRows = {{1, 5, 4},   {7, 0, 0},   {0, 3, 1},   {8, 11, 8},
                                    {9, 0, 2},   {17, 64, 9}, {24, 1, 3},  {33, 0, 7},
                                    {2, 130, 6}, {1, 15, 10}, {16, 8, 11}, {13, 22, 12}};
// One token at each place in a block, in the first block and in others.
const std::vector<TestRow> kDecodeRows = {{1, 0, 3},  {1, 1, 0},  {1, 10, 6}, {1, 3, 4},
                                          {1, 20, 1}, {1, 5, 9},  {1, 14, 8}, {1, 7, 2},
                                          {1, 15, 7}, {0, 9, 11}, {1, 64, 10}};
constexpr int kSlots = 13;  // slot 5 has no row

// Expects what has a meaning in the rows' slots to be `expected`'s, and all that no row has tokens
// for to be as before.
void ExpectStates(const TestState& state, const std::vector<TestRow>& rows,
                  const std::vector<float>& before, const std::vector<float>& expected) {
  const std::vector<float> after = state.memory.Download();
  const int64_t used = StateFloats(state.heads);
  for (int slot = 0; slot < kSlots; ++slot) {
    SCOPED_TRACE("slot " + std::to_string(slot));
    const auto row = std::find_if(rows.begin(), rows.end(), [slot](const TestRow& of) {
      return of.slot == slot && of.tokens > 0;
    });
    const int64_t at = slot * state.stride;
    if (row == rows.end()) {
      EXPECT_EQ(Bits(after, at, state.stride), Bits(before, at, state.stride));
      continue;
    }
    const int64_t position = row->start + row->tokens;
    EXPECT_EQ(MeantBits(state.heads, &after[at], position),
              MeantBits(state.heads, &expected[at], position));
    EXPECT_EQ(Bits(after, at + used, state.stride - used),
              Bits(before, at + used, state.stride - used));
  }
}

TEST(DeltaRule, GivesTheBitsOfTheStatedOrder) {
  for (const DeltaHeads& heads : kTestHeads) {
    for (const auto* rows : {&kRows, &kDecodeRows}) {
      const HostOperands operands(heads, Tokens(*rows), 1);
      TestState state(heads, kSlots);
      state.FillRandom(4);
      const std::vector<float> before = state.memory.Download();
      std::vector<float> expected_state = before;
      const std::vector<float> expected =
          RunOnHost(heads, operands, *rows, state.stride, expected_state);
      for (const DeltaBlock& block : kDeltaBlocks) {
        if (!IsBlockFor(block, heads)) continue;
        for (const bool in_place : {false, true}) {
          SCOPED_TRACE(Name(heads) + " " + Name(block) + (in_place ? " in place" : "") +
                       (rows == &kRows ? " prompts" : " decode"));
          state.memory.Upload(before);
          const Step step(heads, operands, 0, *rows, state, block, in_place);
          ASSERT_EQ(step.result, cudaSuccess);
          const std::vector<float> out = step.Out();
          const int64_t size = static_cast<int64_t>(expected.size());
          ASSERT_EQ(Bits(out, 0, size), Bits(expected, 0, size));
          for (size_t i = size; i < out.size(); ++i) {
            ASSERT_TRUE(std::isnan(out[i])) << "spare " << i;
          }
          ExpectStates(state, *rows, before, expected_state);
          EXPECT_TRUE(step.out.GuardsIntact());
          EXPECT_TRUE(step.weights.GuardsIntact());
          EXPECT_TRUE(step.on_device.GuardsIntact());
          EXPECT_TRUE(state.memory.GuardsIntact());
        }
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
    const std::vector<float> expected = whole.Out();
    const auto left = [&] {
      const std::vector<float> slots = state.memory.Download();
      return MeantBits(heads, &slots[5 * state.stride], kTokens);
    };
    const std::vector<uint32_t> expected_state = left();
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
        ASSERT_EQ(left(), expected_state);
      }
    }
  }
}

TEST(DeltaRule, ANanStaysInItsSequence) {
  const DeltaHeads heads{2, 6};
  const std::vector<TestRow> rows = {{9, 12, 0}, {9, 12, 1}, {9, 0, 2}};
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

TEST(DeltaRule, ANanReachesNoTokenBeforeIt) {
  const DeltaHeads heads{1, 3};
  constexpr int kTokens = 16, kNan = 13;
  const HostOperands finite(heads, kTokens, 51);
  TestState state(heads, 1);
  const auto out = [&](const HostOperands& operands) {
    return Step(heads, operands, 0, {{kTokens, 0, 0}}, state, {16, 1}).Out();
  };
  const std::vector<float> expected = out(finite);
  const int64_t before = kNan * heads.value_width();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const auto expect_after = [&](const char* where, auto spoil) {
    HostOperands operands = finite;
    spoil(operands);
    const std::vector<float> spoiled = out(operands);
    EXPECT_EQ(Bits(spoiled, 0, before), Bits(expected, 0, before)) << where;
    EXPECT_TRUE(std::isnan(spoiled[before])) << where;
  };
  expect_after("values", [&](HostOperands& operands) {
    std::fill_n(operands.values.begin() + before, heads.value_width(), kNaN);
  });
  expect_after("keys and queries", [&](HostOperands& operands) {
    std::fill_n(operands.keys_queries.begin() + kNan * 2 * kDeltaHeadSize, 2 * kDeltaHeadSize,
                kNaN);
  });
  expect_after("gates", [&](HostOperands& operands) {
    DeltaGates& gates = operands.gates[kNan];
    for (int g = 0; g < heads.group(); ++g) gates.decay[g] = gates.beta[g] = kNaN;
  });
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
  RunOnHost(heads, operands, replayed, state.stride, expected_state);

  const TestRows rows(captured), other(replayed);
  const TestOperands on_device(heads, rows.tokens());
  operands.Upload(on_device, 0, rows.tokens(), heads);
  DeviceBuffer<float> out(rows.tokens() * heads.value_width());
  RecurrentRows view = rows.view();
  view.max_row_tokens = view.max_tokens;
  DeviceBuffer<DeltaWeights> weights(WeightsOf(view, heads));
  const DeltaRuleArgs args = {.heads = heads,
                              .rows = view,
                              .operands = on_device.view(),
                              .state = state.view(),
                              .out = out.get(),
                              .weights = weights.get()};
  ASSERT_EQ(LaunchDeltaRule(args, nullptr), cudaSuccess);  // loads the kernel
  cudaStream_t stream;
  CheckCuda(cudaStreamCreate(&stream), "stream");
  CapturedGraph graph(stream, [&](cudaStream_t capturing) {
    CheckCuda(LaunchDeltaRule(args, capturing), "launch");
    CheckCuda(LaunchDeltaRule(args, capturing), "launch");
  });
  // Only the rule of prompts does not start early.
  if (KernelsAwait()) {
    EXPECT_EQ(graph.CountEdges().programmatic, graph.CountEdges().all - 2);
  }
  const auto copy = [](const int32_t* to, const int32_t* from, size_t count) {
    CheckCuda(cudaMemcpy(const_cast<int32_t*>(to), from, count * sizeof(int32_t),
                         cudaMemcpyDeviceToDevice),
              "rows");
  };
  copy(view.row_first, other.view().row_first, 4);
  copy(view.row_start, other.view().row_start, 3);
  copy(view.row_slot, other.view().row_slot, 3);
  copy(view.positions, other.view().positions, other.tokens());
  copy(view.slots, other.view().slots, other.tokens());
  state.memory.Upload(before);
  // The second launch goes on from the state that the first one leaves.
  std::vector<float> second_state = expected_state;
  const std::vector<float> second =
      RunOnHost(heads, operands, replayed, state.stride, second_state);
  graph.Replay(stream);
  CheckCuda(cudaStreamSynchronize(stream), "replay");
  const std::vector<float> after = state.memory.Download(), got = out.Download();
  for (const TestRow& row : replayed) {
    if (row.tokens == 0) continue;
    const int64_t at = row.slot * state.stride, position = row.start + row.tokens;
    EXPECT_EQ(MeantBits(heads, &after[at], position),
              MeantBits(heads, &second_state[at], position));
  }
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
  EXPECT_TRUE(refuses([](DeltaRuleArgs& a) {
    a.rows.max_row_tokens = kDeltaBlockTokens;
    a.weights = nullptr;
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
