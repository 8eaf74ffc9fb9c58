// Tests of masks, which hold a row to some tokens: against the reference, and that no other row
// changes by a bit.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/graph_test_util.h"
#include "kernels/sampling/sample.h"
#include "kernels/sampling/sample_reference.h"
#include "kernels/sampling/sample_test_util.h"

namespace millrace::kernels {
namespace {

constexpr int kNumFilters = std::size(kFilters);

int Words(int vocab_size) { return (vocab_size + 31) / 32; }

// Masks that are as grammars make them: a token or a few, half of all, one stretch, all but the
// likeliest. Bits past the vocabulary are set, and mean nothing.
enum MaskKind { kOne, kFew, kHalf, kStretch, kUnlikely, kAll, kNumMaskKinds };

std::vector<uint32_t> MaskOf(MaskKind kind, const std::vector<int>& order, uint32_t seed) {
  const int size = static_cast<int>(order.size());
  std::mt19937 random(seed);
  std::vector<uint32_t> mask(Words(size), kind == kUnlikely || kind == kAll ? ~0u : 0);
  if (size % 32 != 0) mask.back() |= ~0u << (size % 32);
  const auto allow = [&](int token) { mask[token / 32] |= 1u << (token % 32); };
  const int few = std::min(size, 5);
  switch (kind) {
    case kOne:
      allow(static_cast<int>(random() % size));
      break;
    case kFew:
      for (int i = 0; i < few; ++i) allow(static_cast<int>(random() % size));
      break;
    case kHalf:
      for (int i = 0; i < size; ++i) {
        if (random() % 2 == 0) allow(i);
      }
      if (size > 0) allow(size - 1);
      break;
    case kStretch:
      for (int i = size / 3; i < std::min(size, size / 3 + 300); ++i) allow(i);
      break;
    case kUnlikely:
      for (int i = 0; i < few && i + 1 < size; ++i) mask[order[i] / 32] &= ~(1u << order[i] % 32);
      break;
    default:
      break;
  }
  return mask;
}

bool Allows(const std::vector<uint32_t>& mask, int token) {
  return (mask[token / 32] >> (token % 32) & 1) != 0;
}

std::vector<float> Masked(std::vector<float> logits, const std::vector<uint32_t>& mask) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!Allows(mask, static_cast<int>(i))) logits[i] = -kInfinity;
  }
  return logits;
}

std::vector<uint32_t> Joined(const std::vector<std::vector<uint32_t>>& masks) {
  std::vector<uint32_t> all;
  for (const std::vector<uint32_t>& mask : masks) all.insert(all.end(), mask.begin(), mask.end());
  return all;
}

// Runs every filter under every kind of mask, each row with a mask of another row of `masks`.
void CheckAgainstReference(int vocab_size, Kind kind) {
  SCOPED_TRACE(testing::Message() << kKindNames[kind] << ", " << vocab_size << " tokens");
  constexpr int kRows = kNumFilters * kNumMaskKinds;
  const std::vector<float> logits = Logits(kind, vocab_size, kind + 1);
  const SamplingReference raw(logits);
  std::vector<std::vector<uint32_t>> masks;
  std::vector<SamplingReference> references;
  for (int m = 0; m < kNumMaskKinds; ++m) {
    masks.push_back(MaskOf(static_cast<MaskKind>(m), raw.order(), vocab_size));
    references.emplace_back(Masked(logits, masks.back()));
  }
  std::vector<SlotSampling> slots;
  std::vector<SampleRow> rows;
  for (int f = 0; f < kNumFilters; ++f) {
    slots.push_back(With(kFilters[f], 1000 * f + kind));
    slots.back().top_logprobs = f % 3 == 0 ? 4 : f % 3 - 2;
    for (int m = 0; m < kNumMaskKinds; ++m) {
      rows.push_back({.slot = f, .position = m, .target = -1, .mask = m});
    }
  }
  Device device(vocab_size, kRows, kNumFilters);
  device.SetLogits(Strided(std::vector<std::vector<float>>(kRows, logits)));
  device.SetRows(rows);
  device.SetSlots(slots);
  device.SetMasks(Joined(masks));
  const Outputs out = device.Run();
  for (int i = 0; i < kRows; ++i) {
    const SlotSampling& slot = slots[rows[i].slot];
    const SampleResult& result = out.results[i];
    SCOPED_TRACE(testing::Message() << "filter " << rows[i].slot << ", mask " << rows[i].mask);
    ASSERT_EQ(result.ok, 1);
    ASSERT_TRUE(result.token >= 0 && result.token < vocab_size) << result.token;
    ASSERT_TRUE(Allows(masks[rows[i].mask], result.token)) << result.token;
    const double uniform = ReferenceUniform(slot.seed, slot.sample_index, rows[i].position);
    ASSERT_TRUE(references[rows[i].mask].Accepts(slot, uniform, result.token)) << result.token;
    if (slot.top_logprobs < 0) continue;
    ASSERT_EQ(result.rank, raw.Rank(result.token));
    const double slack = 2e-6 * std::abs(raw.Logprob(result.token)) + 4e-6;
    ASSERT_NEAR(result.logprob, raw.Logprob(result.token), slack);
    for (int n = 0; n < std::min(slot.top_logprobs, vocab_size); ++n) {
      ASSERT_EQ(out.Top(i)[n].token, raw.order()[n]) << n;
    }
  }
}

TEST(SampleMaskTest, SmallVocabulariesMatchTheReference) {
  for (const int vocab_size : {1, 2, 31, 33, 255, 257, 1000, 4097}) {
    for (int kind = 0; kind < kNumKinds; ++kind) {
      CheckAgainstReference(vocab_size, static_cast<Kind>(kind));
    }
  }
}

TEST(SampleMaskTest, LargeVocabulariesMatchTheReference) {
  for (const int vocab_size : {32003, 49152, 128256, 151936, 262143}) {
    for (const Kind kind : {kPeaked, kQuantized}) CheckAgainstReference(vocab_size, kind);
  }
}

TEST(SampleMaskTest, BansBiasesAndPenaltiesComeFirst) {
  constexpr int kVocab = 50001, kPosition = 600, kRows = 24;
  std::mt19937 random(4);
  const std::vector<float> logits = Logits(kPeaked, kVocab, 6);
  const SamplingReference raw(logits);
  std::vector<std::vector<uint32_t>> masks;
  for (int m = 0; m < kNumMaskKinds; ++m) {
    masks.push_back(MaskOf(static_cast<MaskKind>(m), raw.order(), 9));
    for (int i = 20; i < 26; ++i) masks[m][raw.order()[i] / 32] |= 1u << raw.order()[i] % 32;
  }
  std::vector<SlotSampling> slots;
  std::vector<SampleRow> rows;
  std::vector<std::vector<TokenBias>> biases(kRows);
  std::vector<std::vector<int32_t>> histories(kRows);
  for (int s = 0; s < kRows; ++s) {
    SlotSampling slot = With({.temperature = s % 2 ? 0.9f : 0, .top_p = s % 4 == 3 ? 0.9f : 1}, s);
    slot.prompt_length = 250;
    slot.top_logprobs = 3;
    if (s % 3 == 0) slot.repetition_penalty = 1.3f;
    if (s % 3 == 1) slot.frequency_penalty = 0.7f, slot.presence_penalty = -0.4f;
    slot.num_banned = s % 4;
    slot.banned_before = s % 8 < 4 ? kPosition + 3 : kPosition - 1;
    slot.num_biases = s % 3 * 20;
    slots.push_back(slot);
    for (int i = 0; i < slot.num_banned; ++i) biases[s].push_back({raw.order()[20 + i], NAN});
    for (int i = 0; i < slot.num_biases; ++i) {
      biases[s].push_back({raw.order()[10 + i], static_cast<float>(random() % 100) / 10 - 5});
    }
    histories[s].resize(kPosition);
    for (int32_t& token : histories[s]) token = raw.order()[random() % 40];
    rows.push_back({s, kPosition, -1, s % kNumMaskKinds});
  }
  Device device(kVocab, kRows, kRows);
  device.SetLogits(Strided(std::vector<std::vector<float>>(kRows, logits)));
  device.SetSlots(slots);
  device.SetRows(rows);
  device.SetMasks(Joined(masks));
  for (int s = 0; s < kRows; ++s) {
    if (!biases[s].empty()) device.SetBiases(s, biases[s]);
    device.SetHistory(s, histories[s]);
  }
  const Outputs out = device.Run();
  for (int s = 0; s < kRows; ++s) {
    const std::vector<uint32_t>& mask = masks[rows[s].mask];
    const SamplingReference adjusted(
        Masked(ReferenceAdjust(logits, rows[s], slots[s], biases[s], histories[s]), mask));
    const int token = out.results[s].token;
    ASSERT_EQ(out.results[s].ok, 1) << s;
    EXPECT_TRUE(Allows(mask, token)) << s;
    EXPECT_TRUE(adjusted.Accepts(slots[s], ReferenceUniform(slots[s].seed, 0, kPosition), token))
        << "slot " << s << ", token " << token;
    EXPECT_EQ(out.results[s].rank, raw.Rank(token));
    EXPECT_NEAR(out.results[s].logprob, raw.Logprob(token), 2e-5);
    EXPECT_EQ(out.last_tokens[s], token);
  }
}

// A row's bits are the same with masked rows beside it and without any, whether it has a mask
// itself or not, and a mask that allows everything changes none of them.
TEST(SampleMaskTest, ARowDependsOnItselfAlone) {
  constexpr int kVocab = 128256, kMost = 256;
  std::vector<std::vector<float>> kinds;
  std::vector<std::vector<uint32_t>> masks;
  for (int i = 0; i < kNumKinds; ++i) kinds.push_back(Logits(static_cast<Kind>(i), kVocab, i));
  const SamplingReference reference(kinds[kNormal]);
  for (int m = 0; m < kNumMaskKinds; ++m) {
    masks.push_back(MaskOf(static_cast<MaskKind>(m), reference.order(), 3));
  }
  std::vector<SlotSampling> slots;
  std::vector<SampleRow> masked, unmasked, all_allowed;
  std::vector<std::vector<float>> logits;
  for (int i = 0; i < kMost; ++i) {
    logits.push_back(kinds[i % kNumKinds]);
    slots.push_back(With(kFilters[i % kNumFilters], i));
    slots.back().top_logprobs = i % 3 == 0 ? 5 : -1;
    const bool scored = i % 7 == 6;
    const int target = scored ? 11 * i : -1;
    masked.push_back({i, 3 * i, target, scored || i % 2 == 0 ? -1 : i / 2 % kNumMaskKinds});
    unmasked.push_back({i, 3 * i, target});
    all_allowed.push_back({i, 3 * i, target, scored ? -1 : kAll});
  }
  Device device(kVocab, kMost, kMost);
  device.SetSlots(slots);
  device.SetMasks(Joined(masks));
  device.SetLogits(Strided(logits));
  device.SetRows(unmasked);
  const Outputs plain = device.Run();
  device.SetRows(all_allowed);
  const Outputs allowed = device.Run();
  device.SetRows(masked);
  const Outputs mixed = device.Run();
  for (int i = 0; i < kMost; ++i) {
    const int top = i % 3 == 0 ? 5 : 0;
    EXPECT_EQ(allowed.Row(i, top), plain.Row(i, top)) << i;
    if (masked[i].mask < 0) EXPECT_EQ(mixed.Row(i, top), plain.Row(i, top)) << i;
  }
  for (const int count : {1, 2, 7, 64, 255}) {
    device.SetRows({masked.begin(), masked.begin() + count});
    const Outputs fewer = device.Run();
    for (int i = 0; i < count; ++i) EXPECT_EQ(fewer.Row(i, 0), mixed.Row(i, 0)) << i;
  }
}

TEST(SampleMaskTest, ARowWithoutAnAllowedTokenFailsAlone) {
  constexpr int kVocab = 70;
  std::vector<uint32_t> none(3), one(3);
  none[2] = ~0u << 6;  // past the vocabulary
  one[1] = 1u << 9;    // token 41
  std::vector<float> bad = Logits(kNormal, kVocab, 2);
  const std::vector<float> good = bad;
  bad[5] = NAN;  // which the mask forbids
  for (const float temperature : {0.0f, 1.0f}) {
    Device device(kVocab, 5, 5);
    SlotSampling slot = With({.temperature = temperature, .top_p = 0.5f});
    SlotSampling banned = slot;
    banned.num_banned = 1;
    banned.banned_before = 10;
    device.SetSlots({slot, slot, slot, banned, banned});
    device.SetBiases(3, {{41, 0}});
    device.SetBiases(4, {{40, 0}});
    device.SetMasks(Joined({none, one}));
    device.SetRows({{0, 9, -1, 0}, {1, 9, -1, 1}, {2, 9, -1, 1}, {3, 9, -1, 1}, {4, 9, -1, 1}});
    device.SetLogits(Strided({good, good, bad, good, good}));
    const Outputs out = device.Run();
    const int ok[] = {0, 1, 0, 0, 1};
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(out.results[i].ok, ok[i]) << i;
      EXPECT_EQ(out.results[i].token, ok[i] ? 41 : 0) << i;
    }
  }
}

// One captured graph serves steps with any number of masked rows.
TEST(SampleMaskTest, AGraphReplaysWithWhatTheArraysHold) {
  constexpr int kVocab = 32003, kRows = 8;
  Device device(kVocab, kRows, kRows), direct(kVocab, kRows, kRows);
  device.SetRows({{0, 0, -1}});
  device.SetSlots({kGreedy});
  device.SetMasks(std::vector<uint32_t>(kRows * Words(kVocab)));
  device.SetLogits(Strided({Logits(kFlat, kVocab, 1)}));
  cudaStream_t stream;
  CheckCuda(cudaStreamCreate(&stream), "stream");
  CheckCuda(LaunchSample(device.args(), stream), "launch");
  CheckCuda(cudaStreamSynchronize(stream), "warm-up");
  CapturedGraph graph(stream, [&](cudaStream_t captured) {
    CheckCuda(LaunchSample(device.args(), captured), "launch");
  });
  std::vector<int> order(kVocab);
  for (int i = 0; i < kVocab; ++i) order[i] = i;
  for (int step = 0; step < 24; ++step) {
    std::vector<SampleRow> rows;
    std::vector<SlotSampling> slots;
    std::vector<std::vector<float>> logits;
    std::vector<std::vector<uint32_t>> masks;
    for (int i = 0; i < kRows; ++i) {
      slots.push_back(With(kFilters[(5 * step + i) % kNumFilters], step));
      masks.push_back(MaskOf(static_cast<MaskKind>((step + i) % kNumMaskKinds), order, step));
      rows.push_back({i, step, -1, (i + step) % 3 == 0 ? -1 : (i + 3) % kRows});
      logits.push_back(Logits(static_cast<Kind>((step + i) % kNumKinds), kVocab, i));
    }
    for (Device* each : {&device, &direct}) {
      each->SetLogits(Strided(logits));
      each->SetSlots(slots);
      each->SetRows(rows);
      each->SetMasks(Joined(masks));
      each->PoisonOutputs();
    }
    graph.Replay(stream);
    CheckCuda(cudaStreamSynchronize(stream), "replay");
    const Outputs replayed = device.Read();
    const Outputs launched = direct.Run();
    for (int i = 0; i < kRows; ++i) {
      ASSERT_EQ(replayed.Row(i, 0), launched.Row(i, 0)) << step;
      if (rows[i].mask >= 0) {
        ASSERT_TRUE(Allows(masks[rows[i].mask], replayed.results[i].token)) << step;
      }
    }
  }
  CheckCuda(cudaStreamDestroy(stream), "stream");
}

TEST(SampleMaskTest, RefusesAStrideBelowTheVocabulary) {
  Device device(100, 2, 1);
  SampleArgs args = device.args();
  args.masks_stride = 3;
  EXPECT_EQ(LaunchSample(args, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace millrace::kernels
