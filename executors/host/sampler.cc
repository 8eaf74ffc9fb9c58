#include "executors/host/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace millrace {
namespace {

constexpr int kRun = 1024;  // tokens per partial sum
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// First threshold of the search for candidates, relative to the likeliest token, and the factor for
// the next ones.
constexpr float kFirstThreshold = 0x1p-8f;
constexpr float kNextThreshold = 0x1p-8f;
constexpr float kLastThreshold = 0x1p-100f;  // below it every token with any mass is a candidate
constexpr float kLeastMass = std::numeric_limits<float>::min();

}  // namespace

std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

double UniformRandom(uint64_t seed, uint32_t sample_index, int32_t position) {
  const auto words = Philox({static_cast<uint32_t>(position), sample_index, 0, 0},
                            {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<double>((uint64_t{words[0]} << 32 | words[1]) >> 11) * 0x1p-53;
}

void Sampler::Sample(const SamplingKernels& kernels, absl::Span<float> logits,
                     const SampleRequest& request, Sampled* result) {
  const int vocab_size = static_cast<int>(logits.size());
  float largest;
  int best;
  kernels.maximum(logits.data(), vocab_size, &largest, &best, &result->ok);
  result->top.clear();
  result->logprob.reset();
  result->rank = 0;
  if (!result->ok) return;
  p_.resize(logits.size());
  candidates_.resize(logits.size());

  const std::optional<int32_t> num_top = request.params->top_logprobs;
  float log_sum = 0;
  if (num_top.has_value()) {
    log_sum = static_cast<float>(
        largest + std::log(kernels.exp_sum(logits.data(), vocab_size, largest, 1.0f, p_.data())));
    Top(kernels, logits, largest, *num_top, log_sum, &result->top);
  }
  result->ok = Choose(kernels, logits, request, largest, best, &result->token);
  if (num_top.has_value() && result->ok) {
    const float logit = logits[result->token];
    result->logprob = logit - log_sum;
    result->rank = 1 + kernels.count_above(logits.data(), vocab_size, logit);
  }
}

// Finds the likeliest tokens by lowering a threshold until enough tokens exceed it.
void Sampler::Top(const SamplingKernels& kernels, absl::Span<const float> logits, float largest,
                  int num_top, float log_sum, std::vector<TokenLogprob>* top) {
  const int vocab_size = static_cast<int>(logits.size());
  const int wanted = std::min(num_top, vocab_size);
  int found = 0;
  for (float below = 4; wanted > 0 && found < wanted; below *= 4) {
    found =
        kernels.select(logits.data(), vocab_size, largest - below, candidates_.data(), vocab_size);
  }
  std::partial_sort(candidates_.begin(), candidates_.begin() + wanted, candidates_.begin() + found,
                    [logits](int32_t a, int32_t b) {
                      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                    });
  for (int i = 0; i < wanted; ++i)
    top->push_back({candidates_[i], logits[candidates_[i]] - log_sum});
}

// Chooses a token. Returns false if all tokens are banned. Restores the logits.
bool Sampler::Choose(const SamplingKernels& kernels, absl::Span<float> logits,
                     const SampleRequest& request, float largest, int best, Token* token) {
  const SamplingParams& params = *request.params;
  *token = request.target.value_or(best);
  if (request.target.has_value()) return true;
  replaced_.clear();
  Adjust(logits, request);
  const absl::Span<float> allowed = request.mask == nullptr ? logits : Mask(logits, *request.mask);
  if (!replaced_.empty() || request.mask != nullptr) {
    bool finite;
    kernels.maximum(allowed.data(), static_cast<int>(allowed.size()), &largest, &best, &finite);
    *token = best;
  }
  const bool any = largest > kLowest;
  if (any && params.temperature > 0 && params.top_k != 1) {
    *token = Draw(kernels, allowed, largest, params, request.position);
  }
  // In reverse order, since a token may have been changed more than once.
  for (size_t i = replaced_.size(); i-- > 0;) logits[replaced_[i].first] = replaced_[i].second;
  return any;
}

// Returns a copy of the logits in which those of tokens that are not allowed are -inf.
absl::Span<float> Sampler::Mask(absl::Span<const float> logits, const SampleMask& mask) {
  masked_.assign(logits.size(), kLowest);
  for (size_t word = 0; word < mask.size(); ++word) {
    for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      const size_t token = word * 32 + std::countr_zero(bits);
      if (token < logits.size()) masked_[token] = logits[token];
    }
  }
  return absl::MakeSpan(masked_);
}

void Sampler::Set(absl::Span<float> logits, Token token, float logit) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  replaced_.emplace_back(token, logits[token]);
  logits[token] = std::clamp(logit, -kLargest, kLargest);
}

// Applies bans, biases and penalties. The cost is proportional to the tokens concerned, and zero if
// there are none.
void Sampler::Adjust(absl::Span<float> logits, const SampleRequest& request) {
  const SamplingParams& params = *request.params;
  for (const LogitBias& biased : params.logit_bias) {
    Set(logits, biased.token, logits[biased.token] + biased.bias);
  }
  if (params.penalizes()) {
    const auto penalize = [&](Token token, int32_t generated) {
      float logit = logits[token];
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
      logit -= params.frequency_penalty * static_cast<float>(generated);
      Set(logits, token, generated > 0 ? logit - params.presence_penalty : logit);
    };
    const auto drafted = [&](Token token) {
      return static_cast<int32_t>(
          std::count(request.drafted.begin(), request.drafted.end(), token));
    };
    const auto& counted = request.counts->generated();
    for (const auto& [token, generated] : counted) penalize(token, generated + drafted(token));
    for (size_t i = 0; i < request.drafted.size(); ++i) {
      const Token token = request.drafted[i];
      const auto before = request.drafted.first(i);
      if (counted.contains(token) || std::find(before.begin(), before.end(), token) != before.end())
        continue;
      penalize(token, drafted(token));
    }
  }
  if (request.position >= params.banned_before) return;
  for (const Token banned : params.banned_tokens) {
    replaced_.emplace_back(banned, logits[banned]);
    logits[banned] = kLowest;
  }
}

Token Sampler::Draw(const SamplingKernels& kernels, absl::Span<const float> logits, float largest,
                    const SamplingParams& params, int32_t position) {
  // Bounded, so that 0 * factor stays 0 for the likeliest token.
  const float factor = std::min(1.0f / params.temperature, 1e30f);
  const int vocab_size = static_cast<int>(logits.size());
  run_sums_.clear();
  double total = 0;
  for (int begin = 0; begin < vocab_size; begin += kRun) {
    const int count = std::min(kRun, vocab_size - begin);
    run_sums_.push_back(kernels.exp_sum(&logits[begin], count, largest, factor, &p_[begin]));
    total += run_sums_.back();
  }
  const double u = UniformRandom(params.seed, params.sample_index, position);
  if (params.top_k == 0 && params.top_p >= 1 && params.min_p <= 0 && params.typical_p >= 1) {
    return Walk(u * total);
  }

  SelectCandidates(kernels, params, total);
  double mass = total;
  if (params.top_k > 0) KeepLikeliest(params.top_k);
  if (params.top_k > 0 || params.min_p > 0) mass = Mass(candidates_);
  if (params.top_p < 1) {
    KeepMass(params.top_p * mass, [this](int32_t a, int32_t b) { return Likelier(a, b); });
    mass = Mass(candidates_);
  }
  if (params.typical_p < 1) {
    KeepTypical(logits, largest, factor, params.typical_p, mass);
    mass = Mass(candidates_);
  }
  double left = u * mass;
  for (const int32_t token : candidates_) {
    left -= p_[token];
    if (left < 0) return token;
  }
  return candidates_.back();  // rounding lost the last bit of u
}

// Returns the token at which the cumulative sum of p exceeds `target`.
Token Sampler::Walk(double target) const {
  size_t run = 0;
  while (run + 1 < run_sums_.size() && target >= run_sums_[run]) target -= run_sums_[run++];
  Token last = 0;  // the last token with mass, in case rounding passes the end
  const size_t end = std::min(p_.size(), (run + 1) * kRun);
  for (size_t i = run * kRun; i < end; ++i) {
    if (p_[i] <= 0) continue;
    last = static_cast<Token>(i);
    target -= p_[i];
    if (target < 0) break;
  }
  return last;
}

// Selects tokens that pass min_p and include all that top_k and top_p may keep; if all three are
// off, all tokens with mass. Tokens without mass are never selected, even if top_k asks for more: a
// banned token's logit is -inf, and typical_p's mean would be NaN.
void Sampler::SelectCandidates(const SamplingKernels& kernels, const SamplingParams& params,
                               double total) {
  const int vocab_size = static_cast<int>(p_.size());
  candidates_.resize(p_.size());
  const bool all = params.top_k == 0 && params.top_p >= 1 && params.min_p <= 0;
  float threshold = params.min_p > 0 ? params.min_p : all ? kLeastMass : kFirstThreshold;
  for (;;) {
    const int found =
        kernels.select(p_.data(), vocab_size, threshold, candidates_.data(), vocab_size);
    const auto kept = absl::MakeConstSpan(candidates_).first(found);
    if (params.min_p > 0 || threshold == kLeastMass || found == vocab_size ||
        (params.top_k > 0 ? found >= params.top_k : Mass(kept) >= params.top_p * total)) {
      candidates_.resize(found);
      return;
    }
    threshold = threshold > kLastThreshold ? threshold * kNextThreshold : kLeastMass;
  }
}

bool Sampler::Likelier(int32_t a, int32_t b) const {
  return p_[a] != p_[b] ? p_[a] > p_[b] : a < b;
}

double Sampler::Mass(absl::Span<const int32_t> tokens) const {
  double mass = 0;
  for (const int32_t token : tokens) mass += p_[token];
  return mass;
}

template <typename Before>
void Sampler::KeepUpTo(int32_t last, Before before) {
  std::erase_if(candidates_, [before, last](int32_t token) { return before(last, token); });
}

void Sampler::KeepLikeliest(size_t count) {
  if (count >= candidates_.size()) return;
  order_ = candidates_;
  const auto last = order_.begin() + static_cast<ptrdiff_t>(count) - 1;
  const auto likelier = [this](int32_t a, int32_t b) { return Likelier(a, b); };
  std::nth_element(order_.begin(), last, order_.end(), likelier);
  KeepUpTo(*last, likelier);
}

// A token with probability p = exp(y) / sum has -log(p) = log(sum) - y. The entropy, its mean, is
// log(sum) - mean(y). So the distance between the two is the distance of y from its mean.
void Sampler::KeepTypical(absl::Span<const float> logits, float largest, double factor,
                          double typical_p, double mass) {
  untypical_.resize(p_.size());
  double mean = 0;
  for (const int32_t token : candidates_) {
    untypical_[token] = (double{logits[token]} - largest) * factor;
    mean += p_[token] * untypical_[token];
  }
  mean /= mass;
  for (const int32_t token : candidates_) untypical_[token] = std::abs(untypical_[token] - mean);
  KeepMass(typical_p * mass, [this](int32_t a, int32_t b) {
    return untypical_[a] != untypical_[b] ? untypical_[a] < untypical_[b] : Likelier(a, b);
  });
}

// A quickselect by weight instead of count.
template <typename Before>
void Sampler::KeepMass(double mass, Before before) {
  order_ = candidates_;
  auto begin = order_.begin();
  auto end = order_.end();
  while (end - begin > 32) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, before);
    const double half = Mass(absl::MakeConstSpan(&*begin, middle - begin));
    if (half >= mass) {
      end = middle;
    } else {
      mass -= half;
      begin = middle;
    }
  }
  std::sort(begin, end, before);
  auto last = begin;
  for (mass -= p_[*last]; mass > 0 && last + 1 != end; mass -= p_[*last]) ++last;
  KeepUpTo(*last, before);
}

}  // namespace millrace
