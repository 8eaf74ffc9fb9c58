// Tests that the sampler draws from the distribution that SamplingParams describes: chi-square
// tests, with fixed seeds, against a distribution computed in doubles from the definition. The
// tests' power is tested too: each case's draws are also compared with a slightly wrong
// distribution, which must fail.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "executors/host/sampler.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr int kVocab = 700;
constexpr int kDraws = 40000;

// The history of a sequence.
struct History {
  std::vector<Token> prompt;
  std::vector<Token> generated;
};

std::vector<double> Adjusted(const std::vector<float>& logits, const SamplingParams& params,
                             const History& history, int32_t position) {
  std::vector<double> x(logits.begin(), logits.end());
  for (const LogitBias& biased : params.logit_bias) x[biased.token] += biased.bias;
  std::vector<int> generated(x.size());
  std::vector<bool> seen(x.size());
  for (const Token token : history.prompt) seen[token] = true;
  for (const Token token : history.generated) {
    seen[token] = true;
    ++generated[token];
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const double r = params.repetition_penalty;
    if (seen[i]) x[i] = x[i] > 0 ? x[i] / r : x[i] * r;
    x[i] -= double{params.frequency_penalty} * generated[i];
    if (generated[i] > 0) x[i] -= double{params.presence_penalty};
  }
  if (position < params.banned_before) {
    for (const Token token : params.banned_tokens) {
      x[token] = -std::numeric_limits<double>::infinity();
    }
  }
  return x;
}

void Normalize(std::vector<double>& p) {
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= total;
}

// Keeps the first tokens of `order` whose probability reaches `mass`.
void KeepMass(std::vector<double>& p, const std::vector<int>& order, double mass) {
  double kept = 0;
  for (const int token : order) {
    const double mine = p[token];
    if (kept >= mass) p[token] = 0;
    kept += mine;
  }
  Normalize(p);
}

std::vector<double> Distribution(const std::vector<float>& logits, const SamplingParams& params,
                                 const History& history) {
  std::vector<double> p = Adjusted(logits, params, history, 0);
  const double largest = *std::max_element(p.begin(), p.end());
  for (double& x : p) x = std::exp((x - largest) / double{params.temperature});
  for (double& x : p) x = x < double{params.min_p} ? 0 : x;
  std::vector<int> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return p[a] > p[b]; });
  if (params.top_k > 0) {
    for (size_t i = params.top_k; i < order.size(); ++i) p[order[i]] = 0;
  }
  Normalize(p);
  KeepMass(p, order, double{params.top_p});
  if (params.typical_p < 1) {
    double entropy = 0;
    for (const double x : p) entropy -= x > 0 ? x * std::log(x) : 0;
    const auto off = [&](int token) { return std::abs(-std::log(p[token]) - entropy); };
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return off(a) < off(b); });
    KeepMass(p, order, double{params.typical_p});
  }
  return p;
}

std::vector<int> Draw(const std::vector<float>& logits, const SamplingParams& params,
                      const History& history) {
  TokenCounts counts;
  std::vector<Token> all = history.prompt;
  all.insert(all.end(), history.generated.begin(), history.generated.end());
  counts.Reset(all, static_cast<int32_t>(history.prompt.size()));
  Sampler sampler;
  Sampled result;
  std::vector<float> scratch = logits;
  std::vector<int> drawn(logits.size());
  for (int position = 0; position < kDraws; ++position) {
    sampler.Sample(BestSamplingKernels(), absl::MakeSpan(scratch),
                   {.params = &params, .position = position, .target = {}, .counts = &counts},
                   &result);
    EXPECT_TRUE(result.ok);
    ++drawn[result.token];
  }
  EXPECT_EQ(scratch, logits);  // all changes are undone
  return drawn;
}

// Returns Pearson's statistic as a standard normal deviate (Wilson and Hilferty, 1931): about 0 +-
// 1 for draws from `p`. Tokens expected less than eight times share one cell. Returns infinity if
// an impossible token was drawn.
double Deviate(const std::vector<int>& drawn, const std::vector<double>& p) {
  double statistic = 0, rare = 0, rare_drawn = 0;
  int cells = 0;
  const auto add = [&](double expected, double seen) {
    statistic += (seen - expected) * (seen - expected) / expected;
    ++cells;
  };
  for (size_t i = 0; i < p.size(); ++i) {
    if (drawn[i] > 0 && p[i] == 0) return std::numeric_limits<double>::infinity();
    const double expected = p[i] * kDraws;
    if (expected >= 8) {
      add(expected, drawn[i]);
    } else {
      rare += expected;
      rare_drawn += drawn[i];
    }
  }
  if (rare >= 1) add(rare, rare_drawn);
  if (cells < 2) return 0;
  const double freedom = cells - 1;
  const double spread = 2 / (9 * freedom);
  return (std::cbrt(statistic / freedom) - (1 - spread)) / std::sqrt(spread);
}

constexpr double kAgrees = 4;     // exceeded by chance once in 30,000 cases
constexpr double kDisagrees = 8;  // never exceeded by chance

struct Case {
  std::string name;
  float spread = 2;  // of the logits
  SamplingParams params;
  SamplingParams wrong;  // must not pass for `params`
};

std::vector<LogitBias> Biases(float scale) {
  std::vector<LogitBias> biases;
  for (int i = 0; i < 60; ++i) biases.push_back({i * 7, scale * static_cast<float>(i % 9 - 4)});
  return biases;
}

std::vector<Case> Cases() {
  std::vector<Token> first_half(kVocab / 2);
  std::iota(first_half.begin(), first_half.end(), 0);
  const int32_t always = 1 << 30;
  return {
      {"temperature 1", 2, {}, {.temperature = 1.1f}},
      {"temperature 0.5", 3, {.temperature = 0.5f}, {.temperature = 0.53f}},
      {"temperature 2", 2, {.temperature = 2}, {.temperature = 1.8f}},
      {"top_k", 2, {.top_k = 40}, {.top_k = 39}},
      {"top_k of all", 2, {.top_k = 100000}, {.top_k = 40}},
      {"top_p", 2, {.top_p = 0.8f}, {.top_p = 0.78f}},
      {"top_p of flat logits", 0.1f, {.temperature = 2, .top_p = 0.9f}, {.top_p = 0.8f}},
      {"tiny top_p", 2, {.top_p = 1e-6f}, {.top_p = 0.5f}},
      {"min_p", 2, {.min_p = 0.05f}, {.min_p = 0.06f}},
      {"typical_p", 2, {.typical_p = 0.7f}, {.top_p = 0.7f}},
      {"small typical_p", 2, {.typical_p = 0.2f}, {.typical_p = 0.25f}},
      {"typical_p of peaked logits", 5, {.typical_p = 0.5f}, {.typical_p = 0.9f}},
      {"all filters",
       2,
       {.temperature = 0.8f, .top_k = 90, .top_p = 0.9f, .min_p = 0.02f, .typical_p = 0.8f},
       {.temperature = 0.8f, .top_k = 90, .top_p = 0.9f, .min_p = 0.02f}},
      {"repetition_penalty", 2, {.repetition_penalty = 1.3f}, {.repetition_penalty = 1.2f}},
      {"repetition_penalty below 1", 2, {.repetition_penalty = 0.8f}, {}},
      {"frequency_penalty", 2, {.frequency_penalty = 0.5f}, {.presence_penalty = 0.5f}},
      {"negative frequency_penalty", 2, {.frequency_penalty = -0.3f}, {.frequency_penalty = 0.3f}},
      {"presence_penalty", 2, {.presence_penalty = 0.7f}, {.repetition_penalty = 1.7f}},
      {"logit_bias", 2, {.logit_bias = Biases(1)}, {.logit_bias = Biases(0.9f)}},
      {"banned tokens",
       2,
       {.top_k = 30, .banned_tokens = first_half, .banned_before = always},
       {.top_k = 30}},
      {"typical_p of a top_k of all, some banned",
       2,
       {.top_k = 100000, .typical_p = 0.5f, .banned_tokens = {3, 5, 7}, .banned_before = always},
       {.top_k = 100000, .banned_tokens = {3, 5, 7}, .banned_before = always}},
      {"everything",
       2,
       {.temperature = 1.2f,
        .top_k = 200,
        .top_p = 0.95f,
        .typical_p = 0.9f,
        .repetition_penalty = 1.2f,
        .frequency_penalty = 0.4f,
        .presence_penalty = -0.5f,
        .logit_bias = Biases(0.5f),
        .banned_tokens = {3, 5, 7},
        .banned_before = always},
       {.temperature = 1.2f,
        .top_k = 200,
        .top_p = 0.95f,
        .typical_p = 0.9f,
        .repetition_penalty = 1.2f,
        .frequency_penalty = 0.4f,
        .logit_bias = Biases(0.5f),
        .banned_tokens = {3, 5, 7},
        .banned_before = always}},
  };
}

std::vector<float> Logits(float spread, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, spread);
  std::vector<float> logits(kVocab);
  for (float& logit : logits) logit = draw(random);
  return logits;
}

// A history that contains half of the likeliest tokens, some of them often.
History SomeHistory(const std::vector<float>& logits) {
  std::vector<Token> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  History history;
  for (int i = 0; i < 120; i += 3) history.prompt.push_back(order[i]);
  for (int i = 1; i < 120; i += 4)
    history.generated.insert(history.generated.end(), i % 5, order[i]);
  history.generated.push_back(history.prompt[0]);
  return history;
}

TEST(SamplerDistributionTest, DrawsPassAndAWrongDistributionFails) {
  uint64_t seed = 0;
  for (Case& test : Cases()) {
    SCOPED_TRACE(test.name);
    test.params.seed = ++seed;
    const std::vector<float> logits = Logits(test.spread, 5);
    const History history = SomeHistory(logits);
    const std::vector<int> drawn = Draw(logits, test.params, history);
    EXPECT_LT(Deviate(drawn, Distribution(logits, test.params, history)), kAgrees);
    EXPECT_GT(Deviate(drawn, Distribution(logits, test.wrong, history)), kDisagrees);
  }
}

// Draws over many seeds and sample indices follow the distribution too, as those over many
// positions of one seed do.
TEST(SamplerDistributionTest, SeedsAndChoicesDrawAlike) {
  const std::vector<float> logits = Logits(2, 6);
  const std::vector<double> expected = Distribution(logits, {.top_p = 0.9f}, {});
  for (const bool by_seed : {true, false}) {
    std::vector<int> drawn(kVocab);
    Sampler sampler;
    Sampled result;
    std::vector<float> scratch = logits;
    for (int i = 0; i < kDraws; ++i) {
      const SamplingParams params{.top_p = 0.9f,
                                  .seed = static_cast<uint64_t>(by_seed ? i : 0),
                                  .sample_index = static_cast<uint32_t>(by_seed ? 0 : i)};
      sampler.Sample(BestSamplingKernels(), absl::MakeSpan(scratch),
                     {.params = &params, .position = 9, .target = {}}, &result);
      ++drawn[result.token];
    }
    EXPECT_LT(Deviate(drawn, expected), kAgrees) << (by_seed ? "seeds" : "choices");
  }
}

}  // namespace
}  // namespace millrace
