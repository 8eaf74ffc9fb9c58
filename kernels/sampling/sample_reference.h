// The sampler's reference for tests: the semantics of sample.h in doubles. Logits are adjusted in
// floats, as in the kernels, so that both order the same numbers.
#ifndef MILLRACE_KERNELS_SAMPLING_SAMPLE_REFERENCE_H_
#define MILLRACE_KERNELS_SAMPLING_SAMPLE_REFERENCE_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "kernels/sampling/sample.h"

namespace millrace::kernels {

// Returns a number in [0, 1), as executors/host/sampler.h defines it.
inline double ReferenceUniform(uint64_t seed, uint32_t sample_index, int32_t position) {
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(position), sample_index, 0, 0};
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9, k1 += 0xBB67AE85) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(a)};
  }
  return static_cast<double>((uint64_t{c[0]} << 32 | c[1]) >> 11) * 0x1p-53;
}

// Applies bans, biases and penalties.
inline std::vector<float> ReferenceAdjust(std::vector<float> logits, const SampleRow& row,
                                          const SlotSampling& slot,
                                          const std::vector<TokenBias>& biases,
                                          const std::vector<int32_t>& history) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  for (int i = 0; i < slot.num_biases; ++i) {
    logits[biases[slot.num_banned + i].token] += biases[slot.num_banned + i].bias;
  }
  for (int i = 0; i < slot.num_banned && row.position < slot.banned_before; ++i) {
    logits[biases[i].token] = kLowest;
  }
  std::map<int32_t, int> generated;  // generated occurrences of each token of the history
  for (int32_t i = 0; i < std::min<int32_t>(row.position, history.size()); ++i) {
    generated[history[i]] += i >= slot.prompt_length;
  }
  for (const auto& [token, count] : generated) {
    volatile float x = logits[token];  // one rounding per operation
    x = x > 0 ? x / slot.repetition_penalty : x * slot.repetition_penalty;
    const volatile float frequency = slot.frequency_penalty * static_cast<float>(count);
    x = x - frequency;
    if (count > 0) x = x - slot.presence_penalty;
    logits[token] = x;
  }
  return logits;
}

// One row's logits and their order.
class SamplingReference {
 public:
  explicit SamplingReference(std::vector<float> logits) : logits_(std::move(logits)) {
    order_.resize(logits_.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](int a, int b) { return logits_[a] > logits_[b]; });
    const double largest = logits_[order_[0]];
    double sum = 0;
    for (const float x : logits_) sum += std::exp(x - largest);
    log_sum_ = largest + std::log(sum);
  }

  // Returns token ids, the likeliest first.
  const std::vector<int>& order() const { return order_; }
  double Logprob(int token) const { return logits_[token] - log_sum_; }
  int Rank(int token) const {
    const auto larger = [&](int a, float x) { return logits_[a] > x; };
    const auto first = std::lower_bound(order_.begin(), order_.end(), logits_[token], larger);
    return 1 + static_cast<int>(first - order_.begin());
  }

  // Returns whether the kernels may draw `token` for this uniform number: the reference draws it,
  // or would if a sum that it compares were off by one part in 250,000 (the kernels' exponentials
  // are floats).
  bool Accepts(const SlotSampling& slot, double uniform, int token) const {
    constexpr double kSlack = 4e-6;
    if (slot.temperature <= 0 || slot.top_k == 1) return token == order_[0];
    const size_t size = order_.size();
    const double temperature = slot.temperature;
    const double largest = logits_[order_[0]];
    std::vector<double> p(size);
    for (size_t i = 0; i < size; ++i) p[i] = std::exp((logits_[i] - largest) / temperature);
    size_t least = slot.top_k > 0 ? std::min<size_t>(slot.top_k, size) : size;
    size_t most = least;  // number of kept entries of `order_`
    while (least > 1 && p[order_[least - 1]] < slot.min_p * (1 + kSlack)) --least;
    while (most > 1 && p[order_[most - 1]] < slot.min_p * (1 - kSlack)) --most;
    if (slot.top_p < 1) {
      double all = 0;
      for (size_t i = 0; i < most; ++i) all += p[order_[i]];
      const size_t before = most;
      double sum = 0;
      size_t kept = 0;
      least = 0;
      most = 0;
      for (; kept < before; sum += p[order_[kept++]]) {
        if (least == 0 && sum >= (slot.top_p - kSlack) * all) least = kept;
        if (sum >= (slot.top_p + kSlack) * all) break;
      }
      most = kept;
      least = std::max<size_t>(1, std::min(least == 0 ? most : least, most));
    }
    std::vector<bool> in(size);
    double total = 0;
    for (size_t i = 0; i < most; ++i) {
      in[order_[i]] = true;
      total += p[order_[i]];
    }
    if (!in[token]) return false;
    for (size_t kept = most;; --kept) {
      const bool accepted = slot.typical_p < 1
                                ? AcceptsTypical(p, in, slot.typical_p, uniform, token, kSlack)
                                : InInterval(p, in, token, uniform * total, kSlack * total);
      if (in[token] && accepted) return true;
      if (kept <= least) return false;
      in[order_[kept - 1]] = false;
      total -= p[order_[kept - 1]];
    }
  }

  // Returns each token's probability.
  std::vector<double> Distribution(float temperature) const {
    std::vector<double> p(order_.size());
    double total = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      p[i] = std::exp((double{logits_[i]} - logits_[order_[0]]) / temperature);
      total += p[i];
    }
    for (double& x : p) x /= total;
    return p;
  }

 private:
  // Returns the probabilities after typical_p, applied to the tokens that are `in`.
  static bool AcceptsTypical(const std::vector<double>& p, std::vector<bool> in, double typical_p,
                             double uniform, int token, double slack) {
    double total = 0, mean = 0;
    std::vector<int> order;
    for (size_t i = 0; i < p.size(); ++i) {
      if (!in[i] || p[i] == 0) continue;
      order.push_back(static_cast<int>(i));
      total += p[i];
      mean += p[i] * std::log(p[i]);
    }
    mean /= total;
    std::vector<double> off(p.size());
    for (const int i : order) off[i] = std::abs(std::log(p[i]) - mean);
    std::sort(order.begin(), order.end(), [&](int a, int b) {
      return off[a] != off[b] ? off[a] < off[b] : p[a] != p[b] ? p[a] > p[b] : a < b;
    });
    std::fill(in.begin(), in.end(), false);
    double sum = 0;
    for (const int next : order) {  // the token that reaches the cut is kept
      if (sum >= (typical_p + slack) * total) return false;
      in[next] = true;
      sum += p[next];
      if (sum >= (typical_p - slack) * total && in[token] &&
          InInterval(p, in, token, uniform * sum, slack * total)) {
        return true;
      }
    }
    return false;
  }

  static bool InInterval(const std::vector<double>& p, const std::vector<bool>& in, int token,
                         double target, double slack) {
    double before = 0;
    for (int i = 0; i < token; ++i) before += in[i] ? p[i] : 0;
    return before - slack <= target && target <= before + p[token] + slack;
  }

  std::vector<float> logits_;
  std::vector<int> order_;
  double log_sum_;
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_SAMPLING_SAMPLE_REFERENCE_H_
