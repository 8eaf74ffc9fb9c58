#include "executors/host/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> RandomLogits(int count, float spread, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, spread);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = draw(random);
  return logits;
}

Sampled Sample(std::vector<float> logits, const SamplingParams& params, int32_t position = 5,
               std::optional<Token> target = std::nullopt, const TokenCounts* counts = nullptr) {
  Sampler sampler;
  Sampled result;
  const std::vector<float> before = logits;
  sampler.Sample(BestSamplingKernels(), absl::MakeSpan(logits), {&params, position, target, counts},
                 &result);
  EXPECT_TRUE(logits == before || !result.ok);  // all changes are undone
  return result;
}

TEST(SamplerTest, PhiloxGivesThePublishedAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(Philox({ones, ones, ones, ones}, {ones, ones}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(SamplerTest, RandomNumbersDependOnEachArgument) {
  EXPECT_EQ(UniformRandom(1, 2, 3), UniformRandom(1, 2, 3));
  EXPECT_NE(UniformRandom(1, 2, 3), UniformRandom(2, 2, 3));
  EXPECT_NE(UniformRandom(1, 2, 3), UniformRandom(1 + (uint64_t{1} << 32), 2, 3));
  EXPECT_NE(UniformRandom(1, 2, 3), UniformRandom(1, 3, 3));
  EXPECT_NE(UniformRandom(1, 2, 3), UniformRandom(1, 2, 4));
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const double u = UniformRandom(9, 0, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
}

TEST(SamplerTest, GreedyTakesTheLowestOfEqualOnes) {
  std::vector<float> logits = RandomLogits(3000, 1, 1);
  logits[17] = logits[2017] = 50;
  EXPECT_EQ(Sample(logits, {.temperature = 0}).token, 17);
  EXPECT_EQ(Sample(logits, {.temperature = 2, .top_k = 1}).token, 17);
  EXPECT_EQ(Sample(logits, {.temperature = 0, .banned_tokens = {17, 17}, .banned_before = 6}).token,
            2017);
  EXPECT_EQ(Sample(logits, {.temperature = 0, .banned_tokens = {17}, .banned_before = 5}).token,
            17);
}

TEST(SamplerTest, LogprobsAreOfTheRawLogits) {
  const std::vector<float> logits = RandomLogits(5000, 4, 2);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  const SamplingParams params{.temperature = 0.3f,
                              .top_k = 2,
                              .top_logprobs = 20,
                              .banned_tokens = {order[0]},
                              .banned_before = 100};
  for (const std::optional<Token> target :
       {std::optional<Token>(), std::optional<Token>(order[700])}) {
    const Sampled result = Sample(logits, params, 5, target);
    ASSERT_TRUE(result.ok);
    if (target.has_value()) {
      EXPECT_EQ(result.token, *target);
    } else {
      EXPECT_NE(result.token, order[0]);
    }
    EXPECT_NEAR(*result.logprob, logits[result.token] - std::log(sum), 1e-5);
    EXPECT_EQ(order[result.rank - 1], result.token);
    ASSERT_EQ(result.top.size(), 20);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(result.top[i].token, order[i]);
      EXPECT_NEAR(result.top[i].logprob, logits[order[i]] - std::log(sum), 1e-5);
    }
  }
  const Sampled alone = Sample(logits, {.temperature = 0, .top_logprobs = 0});
  EXPECT_TRUE(alone.logprob.has_value());
  EXPECT_TRUE(alone.top.empty());
  EXPECT_FALSE(Sample(logits, {.temperature = 0}).logprob.has_value());
}

TEST(SamplerTest, TopOrdersEqualOnesByIdAndEndsWithTheVocabulary) {
  const std::vector<float> logits(7, 1.5f);
  const Sampled result = Sample(logits, {.temperature = 0, .top_logprobs = 20});
  ASSERT_EQ(result.top.size(), 7);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(result.top[i].token, i);
    EXPECT_NEAR(result.top[i].logprob, -std::log(7.0), 1e-6);
  }
  EXPECT_EQ(result.rank, 1);
}

TEST(SamplerTest, LogitsThatAreNotFiniteFail) {
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> logits = RandomLogits(100, 1, 3);
    logits[77] = bad;
    EXPECT_FALSE(Sample(logits, {.temperature = 1, .top_logprobs = 3}).ok) << bad;
    EXPECT_FALSE(Sample(logits, {.temperature = 0}, 5, 3).ok) << bad;
  }
}

TEST(SamplerTest, BanningEveryTokenFails) {
  EXPECT_FALSE(
      Sample({1, 2}, {.temperature = 1, .banned_tokens = {0, 1}, .banned_before = 100}).ok);
}

TEST(SamplerTest, PenaltiesAndBiasesMoveTheLargest) {
  const std::vector<float> logits = {2, 1.5f, -1, -1.2f};
  TokenCounts counts;
  const std::vector<Token> history = {0, 2, 1, 1, 0};
  counts.Reset(history, 2);  // prompt: 0 and 2; generated: 1 twice, 0 once
  const auto greedy = [&](SamplingParams params) {
    params.temperature = 0;
    return Sample(logits, params, 5, std::nullopt, &counts).token;
  };
  EXPECT_EQ(greedy({}), 0);
  EXPECT_EQ(greedy({.presence_penalty = 2}), 0);  // both were generated: 0, -0.5
  EXPECT_EQ(greedy({.frequency_penalty = -1}), 1);
  EXPECT_EQ(greedy({.frequency_penalty = -1, .presence_penalty = 2}), 1);
  EXPECT_EQ(greedy({.repetition_penalty = 100, .frequency_penalty = 1}), 0);
  EXPECT_EQ(greedy({.frequency_penalty = 2, .presence_penalty = 2}), 2);
  EXPECT_EQ(greedy({.repetition_penalty = 2, .frequency_penalty = 2, .presence_penalty = 1}), 3);
  EXPECT_EQ(greedy({.logit_bias = {{3, 3.3f}}}), 3);
  EXPECT_EQ(greedy({.logit_bias = {{0, -100}}}), 1);
  EXPECT_EQ(greedy({.logit_bias = {{1, 100}}, .banned_tokens = {1}, .banned_before = 6}), 0);
  // A scored token is not sampled, so nothing changes.
  EXPECT_EQ(Sample(logits, {.repetition_penalty = 2, .top_logprobs = 0}, 5, 1, &counts).rank, 2);
  // A logit that penalties move out of a float's range is still a number.
  EXPECT_TRUE(
      Sample({3e38f, -3e38f, 0, 1}, {.repetition_penalty = 0.01f}, 5, std::nullopt, &counts).ok);
}

TEST(SamplerTest, TinyTemperaturesAreGreedy) {
  const std::vector<float> logits = RandomLogits(1000, 1, 4);
  const Token best = Sample(logits, {.temperature = 0}).token;
  for (const float temperature : {1e-6f, 1e-38f, 1e-45f}) {
    EXPECT_EQ(Sample(logits, {.temperature = temperature}).token, best) << temperature;
    EXPECT_EQ(Sample(logits, {.temperature = temperature, .top_p = 0.9f}).token, best)
        << temperature;
  }
}

SampleMask MaskOf(int vocab, const std::vector<Token>& tokens) {
  SampleMask mask((vocab + 31) / 32);
  for (const Token token : tokens) mask[token / 32] |= 1U << (token % 32);
  return mask;
}

Sampled SampleMasked(std::vector<float> logits, const SamplingParams& params,
                     const SampleMask& mask, int32_t position) {
  Sampler sampler;
  Sampled result;
  const std::vector<float> before = logits;
  sampler.Sample(BestSamplingKernels(), absl::MakeSpan(logits),
                 {.params = &params, .position = position, .mask = &mask}, &result);
  EXPECT_EQ(logits, before);
  return result;
}

TEST(SamplerTest, OnlyTokensOfTheMaskAreSampled) {
  constexpr int kVocab = 1003;
  const std::vector<float> logits = RandomLogits(kVocab, 3, 1);
  const std::vector<Token> allowed = {0, 31, 32, 500, 1002};
  const SampleMask mask = MaskOf(kVocab, allowed);
  std::vector<int> drawn(kVocab);
  for (int position = 1; position < 400; ++position) {
    for (const float top_p : {1.0f, 0.9f}) {
      const Sampled one = SampleMasked(
          logits, {.temperature = 2, .top_p = top_p, .seed = 3, .top_logprobs = 1}, mask, position);
      ASSERT_TRUE(one.ok);
      ++drawn[one.token];
      // Log-probabilities are those of all tokens.
      const Sampled all = Sample(logits, {.temperature = 0, .top_logprobs = 1});
      EXPECT_EQ(one.top[0].token, all.token);
      EXPECT_EQ(one.top[0].logprob, all.logprob);
    }
  }
  for (Token token = 0; token < kVocab; ++token) {
    const bool may = std::find(allowed.begin(), allowed.end(), token) != allowed.end();
    EXPECT_TRUE(may || drawn[token] == 0) << token;
  }
  EXPECT_GT(std::count_if(drawn.begin(), drawn.end(), [](int n) { return n > 0; }), 1);
}

TEST(SamplerTest, AFullMaskChangesNothingAndAnEmptyOneAllowsNothing) {
  constexpr int kVocab = 517;
  const std::vector<float> logits = RandomLogits(kVocab, 2, 7);
  const SampleMask full((kVocab + 31) / 32, UINT32_MAX), empty((kVocab + 31) / 32);
  for (int position = 1; position < 100; ++position) {
    const SamplingParams params{.temperature = 1, .top_k = position % 7, .seed = 5};
    EXPECT_EQ(SampleMasked(logits, params, full, position).token,
              Sample(logits, params, position).token);
    EXPECT_FALSE(SampleMasked(logits, params, empty, position).ok);
  }
  const Token only = SampleMasked(logits, {.temperature = 0}, MaskOf(kVocab, {400}), 3).token;
  EXPECT_EQ(only, 400);
}

}  // namespace
}  // namespace millrace
