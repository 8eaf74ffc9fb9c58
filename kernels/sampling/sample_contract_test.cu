// Tests of properties of every launch: rows fail alone, bits depend on nothing else, graphs work,
// and invalid arguments are refused.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/graph_test_util.h"
#include "kernels/sampling/sample.h"
#include "kernels/sampling/sample_test_util.h"

namespace millrace::kernels {
namespace {

TEST(SampleContractTest, ARowThatIsNotFiniteFailsAlone) {
  constexpr int kVocab = 9001;
  const std::vector<float> good = Logits(kNormal, kVocab, 2);
  std::vector<std::vector<float>> rows_logits(12, good);
  int at = 0;
  for (const float bad : {NAN, kInfinity, -kInfinity}) {
    rows_logits[4 * (at % 3)][0] = bad;
    rows_logits[4 * (at % 3) + 1][kVocab - 1] = bad;
    rows_logits[4 * (at % 3) + 2][4321] = bad;
    ++at;
  }
  Device device(kVocab, 12, 13);
  std::vector<SlotSampling> slots;
  std::vector<SampleRow> rows;
  for (int i = 0; i < 12; ++i) {
    slots.push_back(With(kFilters[i], 3));
    slots.back().top_logprobs = 2;
    rows.push_back({i, i, i % 5 == 4 ? 100 : -1});
  }
  device.SetSlots(slots);
  device.SetRows(rows);
  for (const float soft_cap : {0.0f, 30.0f}) {
    device.SetLogitSpec(1, soft_cap);
    device.SetLogits(Strided(rows_logits));
    const Outputs mixed = device.Run();
    device.SetLogits(Strided(std::vector<std::vector<float>>(12, good)));
    const Outputs all_good = device.Run();
    for (int i = 0; i < 12; ++i) {
      EXPECT_EQ(mixed.results[i].ok, i % 4 == 3) << i;
      EXPECT_EQ(all_good.results[i].ok, 1) << i;
      if (i % 4 == 3) {
        EXPECT_EQ(mixed.Row(i, 2), all_good.Row(i, 2)) << i;
      } else {
        EXPECT_EQ(mixed.results[i].token, 0) << i;
      }
    }
  }
}

// The logits that a factor and a cap make of products are right, and all that is made of them is
// what they give without either.
TEST(SampleContractTest, AFactorAndACapComeFirst) {
  constexpr int kVocab = 9001, kRows = 12;
  std::vector<std::vector<float>> products;
  std::vector<SlotSampling> slots;
  std::vector<SampleRow> rows;
  for (int i = 0; i < kRows; ++i) {
    products.push_back(Logits(static_cast<Kind>(i % kNumKinds), kVocab, i));
    slots.push_back(With(kFilters[2 * i], i));
    slots.back().top_logprobs = i % 3 == 0 ? -1 : 3;
    slots.back().frequency_penalty = i % 4 == 1 ? 0.5f : 0;
    if (i + 1 < kRows) rows.push_back({i, 3, i % 5 == 4 ? 100 : -1});
  }
  for (const auto& [factor, soft_cap] : {std::pair(0.125f, 0.0f), {1.0f, 20.0f}, {-0.3f, 5.0f}}) {
    Device from_products(kVocab, kRows, kRows), from_logits(kVocab, kRows, kRows);
    for (Device* device : {&from_products, &from_logits}) {
      device->SetSlots(slots);
      device->SetRows(rows);
      for (int i = 0; i < kRows; ++i) device->SetHistory(i, {5, 5, 7});
    }
    from_products.SetLogitSpec(factor, soft_cap);
    from_products.SetLogits(Strided(products));
    const Outputs found = from_products.Run();
    const std::vector<float> logits = from_products.DownloadLogits();
    for (int i = 0; i < kRows; ++i) {
      for (int token = 0; token < kVocab; ++token) {
        const double product = products[i][token];
        double expected = i + 1 < kRows ? factor * product : product;
        if (soft_cap != 0 && i + 1 < kRows) expected = soft_cap * std::tanh(expected / soft_cap);
        ASSERT_NEAR(logits[i * Stride(kVocab) + token], expected, 2e-6 * std::abs(expected))
            << i << " " << token;
      }
    }
    from_logits.SetLogits(logits);
    const Outputs expected = from_logits.Run();
    for (int i = 0; i + 1 < kRows; ++i) {
      EXPECT_EQ(found.results[i].ok, 1) << i;
      EXPECT_EQ(found.Row(i, 3), expected.Row(i, 3)) << i;
    }
    EXPECT_EQ(found.last_tokens, expected.last_tokens);
  }
}

TEST(SampleContractTest, ARowWithAllTokensBannedFails) {
  std::vector<TokenBias> bans;
  for (int i = 0; i < 5; ++i) bans.push_back({i, 0});
  for (const float temperature : {0.0f, 1.0f}) {
    Device device(5, 2, 2);
    SlotSampling slot = With({.temperature = temperature, .top_p = 0.5f});
    slot.num_banned = 5;
    slot.banned_before = 10;
    device.SetSlots({slot, slot});
    device.SetBiases(0, bans);
    device.SetBiases(1, bans);
    device.SetRows({{0, 9, -1}, {1, 10, -1}});
    device.SetLogits(Strided({{1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}}));
    const Outputs out = device.Run();
    EXPECT_EQ(out.results[0].ok, 0);
    EXPECT_EQ(out.results[1].ok, 1);
  }
}

// Rows of all kinds in one launch give the same bits again, and alone.
TEST(SampleContractTest, ARowDependsOnItselfAlone) {
  constexpr int kVocab = 128256;
  constexpr int kRows = std::size(kFilters) * 2;
  std::vector<std::vector<float>> logits;
  std::vector<SlotSampling> slots;
  std::vector<SampleRow> rows;
  for (int i = 0; i < kRows; ++i) {
    logits.push_back(Logits(static_cast<Kind>(i % kNumKinds), kVocab, i));
    slots.push_back(With(kFilters[i / 2], i));
    slots.back().top_logprobs = i % 2 == 0 ? 20 : -1;
    rows.push_back({i, 3 * i, -1});
  }
  Device device(kVocab, kRows, kRows);
  device.SetSlots(slots);
  device.SetRows(rows);
  device.SetLogits(Strided(logits));
  const Outputs together = device.Run();
  const Outputs again = device.Run();
  Device one(kVocab, 1, kRows);
  one.SetSlots(slots);
  for (int i = 0; i < kRows; ++i) {
    const int num_top = i % 2 == 0 ? 20 : 0;
    EXPECT_EQ(together.Row(i, num_top), again.Row(i, num_top)) << i;
    one.SetRows({rows[i]});
    one.SetLogits(Strided({logits[i]}));
    EXPECT_EQ(together.Row(i, num_top), one.Run().Row(0, num_top)) << i;
  }
}

// Replays one captured graph with other logits, rows, parameters and numbers of rows.
TEST(SampleContractTest, AGraphReplaysWithWhatTheArraysHold) {
  constexpr int kVocab = 32003, kRows = 8;
  Device device(kVocab, kRows, kRows), direct(kVocab, kRows, kRows);
  device.SetRows({{0, 0, -1}});
  device.SetSlots({kGreedy});
  device.SetLogits(Strided({Logits(kFlat, kVocab, 1)}));
  cudaStream_t stream;
  CheckCuda(cudaStreamCreate(&stream), "stream");
  CheckCuda(LaunchSample(device.args(), stream), "launch");
  CheckCuda(cudaStreamSynchronize(stream), "warm-up");
  CapturedGraph graph(stream, [&](cudaStream_t captured) {
    CheckCuda(LaunchSample(device.args(), captured), "launch");
  });
  for (int step = 0; step < 100; ++step) {
    std::vector<SampleRow> rows;
    std::vector<SlotSampling> slots;
    std::vector<std::vector<float>> logits;
    for (int i = 0; i < kRows; ++i) {
      slots.push_back(With(kFilters[(step + i) % std::size(kFilters)], step));
      slots.back().top_logprobs = i - 2;
      if (i <= step % kRows) rows.push_back({(i * 3 + step) % kRows, step, -1});
      logits.push_back(Logits(static_cast<Kind>((step / 4 + i) % kNumKinds), kVocab, i));
    }
    Outputs outputs[2];
    for (Device* each : {&device, &direct}) {
      each->SetLogits(Strided(logits));
      each->SetSlots(slots);
      each->SetRows(rows);
      each->PoisonOutputs();
    }
    graph.Replay(stream);
    CheckCuda(cudaStreamSynchronize(stream), "replay");
    outputs[0] = device.Read();
    outputs[1] = direct.Run();
    for (int i = 0; i < kRows; ++i) {  // rows past the last hold poison in both
      ASSERT_EQ(outputs[0].Row(i, kMaxSampledTop), outputs[1].Row(i, kMaxSampledTop)) << step;
      const SampleResult& result = outputs[0].results[i];
      ASSERT_EQ(result.ok, i < static_cast<int>(rows.size()) ? 1 : -1) << step;
    }
    ASSERT_EQ(outputs[0].last_tokens, outputs[1].last_tokens) << step;
  }
  CheckCuda(cudaStreamDestroy(stream), "stream");
}

TEST(SampleContractTest, RefusesBadArguments) {
  Device device(100, 2, 1);
  const auto refused = [&](auto change) {
    SampleArgs args = device.args();
    change(args);
    return LaunchSample(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](SampleArgs& args) { args.vocab_size = 0; }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.vocab_size = kMaxSampledVocab + 1; }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.logits_stride = 96; }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.logits_stride = 102; }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.max_rows = 0; }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.max_rows = 65536; }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.logits += 1; }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.logit_soft_cap = -1; }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.rows = nullptr; }));
  EXPECT_TRUE(refused([](SampleArgs& args) {
    args.rows = reinterpret_cast<const SampleRow*>(reinterpret_cast<uintptr_t>(args.rows) + 8);
  }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.workspace = nullptr; }));
  EXPECT_TRUE(refused([](SampleArgs& args) { args.results = nullptr; }));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace millrace::kernels
