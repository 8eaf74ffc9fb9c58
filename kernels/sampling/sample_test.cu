// Tests sampling and scoring against a reference in doubles.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/sampling/sample.h"
#include "kernels/sampling/sample_reference.h"
#include "kernels/sampling/sample_test_util.h"

namespace millrace::kernels {
namespace {

// Runs every filter on every kind of logits. The drawn token matches the reference's inversion, and
// the best token and the list of the likeliest are exact.
void CheckAgainstReference(int vocab_size, int draws) {
  constexpr int kNumFilters = std::size(kFilters);
  Device device(vocab_size, kNumFilters * draws, kNumFilters);
  for (int kind = 0; kind < kNumKinds; ++kind) {
    SCOPED_TRACE(testing::Message() << kKindNames[kind] << ", " << vocab_size << " tokens");
    const std::vector<float> logits = Logits(static_cast<Kind>(kind), vocab_size, kind + 1);
    const SamplingReference reference(logits);
    std::vector<SlotSampling> slots;
    std::vector<SampleRow> rows;
    for (int f = 0; f < kNumFilters; ++f) {
      slots.push_back(With(kFilters[f], 1000 * f + kind));
      slots.back().top_logprobs = f % 3 == 0 ? kMaxSampledTop : f % 3 - 2;
      for (int i = 0; i < draws; ++i) rows.push_back({.slot = f, .position = i, .target = -1});
    }
    device.SetLogits(Strided(std::vector<std::vector<float>>(rows.size(), logits)));
    device.SetRows(rows);
    device.SetSlots(slots);
    const Outputs out = device.Run();
    for (size_t i = 0; i < rows.size(); ++i) {
      const SlotSampling& slot = slots[rows[i].slot];
      const SampleResult& result = out.results[i];
      SCOPED_TRACE(testing::Message()
                   << "filter " << rows[i].slot << ", draw " << rows[i].position);
      ASSERT_EQ(result.ok, 1);
      const double uniform = ReferenceUniform(slot.seed, slot.sample_index, rows[i].position);
      ASSERT_TRUE(result.token >= 0 && result.token < vocab_size) << result.token;
      ASSERT_TRUE(reference.Accepts(slot, uniform, result.token)) << result.token;
      if (slot.top_logprobs < 0) continue;
      ASSERT_EQ(result.rank, reference.Rank(result.token));
      const double slack = 2e-6 * std::abs(reference.Logprob(result.token)) + 4e-6;
      ASSERT_NEAR(result.logprob, reference.Logprob(result.token), slack);
      for (int n = 0; n < std::min(slot.top_logprobs, vocab_size); ++n) {
        ASSERT_EQ(out.Top(i)[n].token, reference.order()[n]) << n;
        const double logprob = reference.Logprob(reference.order()[n]);
        ASSERT_NEAR(out.Top(i)[n].logprob, logprob, 2e-6 * std::abs(logprob) + 4e-6) << n;
      }
    }
    for (int f = 0; f < kNumFilters; ++f) EXPECT_GE(out.last_tokens[f], 0);
  }
}

TEST(SampleTest, SmallVocabulariesMatchTheReference) {
  for (const int vocab_size : {1, 2, 3, 255, 256, 257, 1000, 4095, 4097}) {
    CheckAgainstReference(vocab_size, 8);
  }
}

TEST(SampleTest, LargeVocabulariesMatchTheReference) {
  for (const int vocab_size : {32001, 49152, 128256, 151935, 262144}) {
    CheckAgainstReference(vocab_size, 2);
  }
}

// Rows in which most tiles compete for top_p's cut: some where a sample tells about where it lies,
// and some where the sampled pieces (the first of each 64th of a row) are not representative.
TEST(SampleTest, WideCutsMatchTheReference) {
  constexpr int kVocab = 128256, kPiece = 128, kDraws = 3;
  constexpr float kTopP[] = {0.05f, 0.3f, 0.7f, 0.9f, 0.95f, 0.99f, 0.99999f};
  constexpr int kRows = std::size(kTopP) * kDraws;
  Device device(kVocab, kRows, std::size(kTopP));
  std::vector<SampleRow> rows;
  std::vector<SlotSampling> slots;
  for (const float top_p : kTopP) {
    for (int i = 0; i < kDraws; ++i) rows.push_back({static_cast<int32_t>(slots.size()), i, -1});
    slots.push_back(With({.temperature = 0.8f, .top_p = top_p}, slots.size()));
  }
  device.SetRows(rows);
  device.SetSlots(slots);
  for (const float deviation : {0.01f, 0.3f, 1.0f, 1.7f, 2.5f, 4.0f}) {
    for (const float shift : {0.0f, -2.0f, 2.0f}) {
      SCOPED_TRACE(testing::Message() << deviation << " and " << shift);
      std::vector<float> logits = RandomNormal(kVocab, 5, deviation);
      for (int i = 0; i < 64; ++i) {
        const int begin = i * (kVocab / kPiece) / 64 * kPiece;
        for (int token = begin; token < begin + kPiece; ++token) logits[token] += shift;
      }
      const SamplingReference reference(logits);
      device.SetLogits(Strided(std::vector<std::vector<float>>(kRows, logits)));
      const Outputs out = device.Run();
      for (int i = 0; i < kRows; ++i) {
        const SlotSampling& slot = slots[rows[i].slot];
        const double uniform = ReferenceUniform(slot.seed, slot.sample_index, rows[i].position);
        ASSERT_EQ(out.results[i].ok, 1);
        EXPECT_TRUE(reference.Accepts(slot, uniform, out.results[i].token)) << slot.top_p;
      }
    }
  }
}

TEST(SampleTest, TypicalTokensAreNeitherTheLikeliestNorTheRarest) {
  constexpr int kVocab = 3000, kRows = 4000;
  // One token of 1/2 (1 bit), 32 of 1/128 (7 bits) and 1,024 of 1/4096 (12 bits). The entropy is
  // 0.5 + 1.75 + 3 = 5.25 bits, from which they differ by 4.25, 1.75 and 6.75.
  std::vector<float> logits(kVocab, -100.0f);
  std::vector<int> kind(kVocab, 3);
  const auto set = [&](int first, int count, float bits, int what) {
    for (int i = 0; i < count; ++i) {
      const int token = (first + i) * 7 % kVocab;
      logits[token] = -bits * 0.693147f;
      kind[token] = what;
    }
  };
  set(0, 1, 1, 0);
  set(100, 32, 7, 1);
  set(500, 1024, 12, 2);
  Device device(kVocab, kRows, 1);
  device.SetLogits(Strided(std::vector<std::vector<float>>(kRows, logits)));
  std::vector<SampleRow> rows;
  for (int i = 0; i < kRows; ++i) rows.push_back({0, i, -1});
  device.SetRows(rows);
  const struct {
    float typical_p;
    double shares[3];  // of the three kinds of tokens
  } kCases[] = {{0.2f, {0, 1, 0}}, {0.7f, {2.0 / 3, 1.0 / 3, 0}}, {0.8f, {0.625, 0.3125, 0.0625}}};
  for (const auto& test : kCases) {
    device.SetSlots({With({.typical_p = test.typical_p})});
    int counts[4] = {};
    for (const SampleResult& result : device.Run().results) ++counts[kind[result.token]];
    for (int i = 0; i < 3; ++i) {
      const double share = test.shares[i];
      EXPECT_NEAR(counts[i], kRows * share, 5 * std::sqrt(kRows * share * (1 - share))) << i;
    }
    EXPECT_EQ(counts[3], 0);
  }
}

TEST(SampleTest, HundredThousandDrawsFollowTheDistribution) {
  constexpr int kVocab = 700, kRows = 4000, kRounds = 25;
  const std::vector<float> logits = RandomNormal(kVocab, 3, 1.5f);
  const std::vector<double> p = SamplingReference(logits).Distribution(0.9f);
  Device device(kVocab, kRows, 1);
  device.SetLogits(Strided(std::vector<std::vector<float>>(kRows, logits)));
  device.SetSlots({With({.temperature = 0.9f}, 77)});
  std::vector<double> drawn(kVocab);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<SampleRow> rows;
    for (int i = 0; i < kRows; ++i) rows.push_back({0, round * kRows + i, -1});
    device.SetRows(rows);
    for (const SampleResult& result : device.Run().results) ++drawn[result.token];
  }
  double chi_square = 0;
  for (int i = 0; i < kVocab; ++i) {
    const double expected = p[i] * kRows * kRounds;
    chi_square += (drawn[i] - expected) * (drawn[i] - expected) / expected;
  }
  // Mean kVocab - 1, standard deviation sqrt(2 (kVocab - 1)).
  EXPECT_NEAR(chi_square, kVocab - 1, 5 * std::sqrt(2.0 * (kVocab - 1)));
}

// Ties at the edge of a filter go to the lower ids, and every kept token can be drawn.
TEST(SampleTest, KeptSetsAreExactWithTies) {
  constexpr int kVocab = 5000, kRows = 3000;
  Device device(kVocab, kRows, 1);
  std::vector<SampleRow> rows;
  for (int i = 0; i < kRows; ++i) rows.push_back({0, i, -1});
  device.SetRows(rows);
  std::vector<float> logits(kVocab, 0.0f);
  for (int i = 0; i < kVocab; i += 100) logits[i] = 3;  // 50 tokens
  device.SetLogits(Strided(std::vector<std::vector<float>>(kRows, logits)));
  const struct {
    Filters filters;
    int kept;  // number of the likeliest tokens kept
  } kCases[] = {
      {{.top_k = 20}, 20},
      {{.top_k = 60}, 60},
      {{.min_p = 0.9f}, 50},
      // 50 e^3 of 50 e^3 + 4950 is 0.1687
      {{.top_p = 0.1f}, 30},
      {{.top_k = 60, .top_p = 0.5f}, 26},
  };
  for (const auto& [filters, kept] : kCases) {
    device.SetSlots({With(filters)});
    const Outputs out = device.Run();
    const SamplingReference reference(logits);
    std::vector<int> counts(kVocab);
    for (const SampleResult& result : out.results) ++counts[result.token];
    for (int i = 0; i < kVocab; ++i) {
      const int token = reference.order()[i];
      // The unlikeliest kept token has e^-3 of 1/50 of the mass, which is too rare to require.
      if (i < std::min(kept, 50)) {
        EXPECT_GT(counts[token], 0) << kept << ": " << token;
      } else if (i >= kept) {
        EXPECT_EQ(counts[token], 0) << kept << ": " << token;
      }
    }
  }
}

TEST(SampleTest, ScoresTargets) {
  constexpr int kVocab = 128257;
  for (const Kind kind : {kNormal, kQuantized, kFalling}) {
    const std::vector<float> logits = Logits(kind, kVocab, 8);
    const SamplingReference reference(logits);
    std::vector<SampleRow> rows;
    for (int i = 0; i < 24; ++i) {
      rows.push_back({0, i, i < 12 ? reference.order()[i * i * 800] : kVocab - 1 - i});
    }
    Device device(kVocab, 24, 2);
    device.SetLogits(Strided(std::vector<std::vector<float>>(24, logits)));
    SlotSampling slot = With({.temperature = 0.5f, .top_k = 3});  // without effect on scoring
    slot.top_logprobs = 5;
    slot.repetition_penalty = 2;
    device.SetSlots({slot, slot});
    device.SetRows(rows);
    const Outputs out = device.Run();
    for (int i = 0; i < 24; ++i) {
      const int target = rows[i].target;
      EXPECT_EQ(out.results[i].ok, 1);
      EXPECT_EQ(out.results[i].token, target);
      EXPECT_EQ(out.results[i].rank, reference.Rank(target));
      EXPECT_NEAR(out.results[i].logprob, reference.Logprob(target), 2e-5);
      for (int n = 0; n < 5; ++n) EXPECT_EQ(out.Top(i)[n].token, reference.order()[n]);
    }
    EXPECT_EQ(out.last_tokens[0], -1);  // still poison: a scored token is not the next input
  }
}

TEST(SampleTest, BansBiasesAndPenaltiesComeBeforeTheTemperature) {
  constexpr int kVocab = 50001, kPosition = 600, kDraws = 6;
  std::mt19937 random(4);
  std::vector<SlotSampling> slots;
  std::vector<std::vector<TokenBias>> biases;
  std::vector<std::vector<int32_t>> histories;
  const std::vector<float> logits = Logits(kPeaked, kVocab, 6);
  const SamplingReference raw(logits);
  for (int s = 0; s < 12; ++s) {
    SlotSampling slot = With({.temperature = s % 2 ? 0.9f : 0, .top_p = s % 4 == 3 ? 0.9f : 1}, s);
    slot.top_logprobs = 3;
    slot.prompt_length = 250;
    if (s % 3 == 0) slot.repetition_penalty = 1.3f;
    if (s % 3 == 1) slot.frequency_penalty = 0.7f, slot.presence_penalty = -0.4f;
    if (s == 11) slot.repetition_penalty = 0.5f, slot.frequency_penalty = 0.1f;
    slot.num_banned = s % 5;
    slot.banned_before = s % 2 ? kPosition + 3 : kPosition - 1;
    slot.num_biases = s % 4 * 100;
    slots.push_back(slot);
    std::vector<TokenBias> list;
    for (int i = 0; i < slot.num_banned; ++i) list.push_back({raw.order()[i / 2], NAN});
    for (int i = 0; i < slot.num_biases; ++i) {
      list.push_back({raw.order()[i * 3], static_cast<float>(random() % 100) / 10 - 5});
    }
    biases.push_back(list);
    std::vector<int32_t> history(kPosition + kDraws);
    for (int32_t& token : history) token = raw.order()[random() % (random() % 2 ? 20 : kVocab)];
    histories.push_back(history);
  }
  Device device(kVocab, static_cast<int>(slots.size()), static_cast<int>(slots.size()));
  device.SetLogits(Strided(std::vector<std::vector<float>>(slots.size(), logits)));
  device.SetSlots(slots);
  for (size_t s = 0; s < slots.size(); ++s) {
    if (!biases[s].empty()) device.SetBiases(s, biases[s]);
    device.SetHistory(s, histories[s]);
  }
  for (int draw = 0; draw < kDraws; ++draw) {  // each draw sees the previous one's history
    std::vector<SampleRow> rows;
    for (size_t s = 0; s < slots.size(); ++s) {
      rows.push_back({static_cast<int32_t>(s), kPosition + draw, -1});
    }
    device.SetRows(rows);
    const Outputs out = device.Run();
    for (size_t s = 0; s < slots.size(); ++s) {
      const SamplingReference adjusted(
          ReferenceAdjust(logits, rows[s], slots[s], biases[s], histories[s]));
      const int token = out.results[s].token;
      ASSERT_EQ(out.results[s].ok, 1);
      EXPECT_TRUE(
          adjusted.Accepts(slots[s], ReferenceUniform(slots[s].seed, 0, kPosition + draw), token))
          << "slot " << s << ", draw " << draw << ", token " << token;
      EXPECT_EQ(out.results[s].rank, raw.Rank(token));
      EXPECT_NEAR(out.results[s].logprob, raw.Logprob(token), 2e-5);
      EXPECT_EQ(out.Top(s)[0].token, raw.order()[0]);
      EXPECT_EQ(out.last_tokens[s], token);
      EXPECT_EQ(out.history[s * Device::kHistory + kPosition + draw], token);
      histories[s][kPosition + draw] = token;
    }
  }
}

}  // namespace
}  // namespace millrace::kernels
