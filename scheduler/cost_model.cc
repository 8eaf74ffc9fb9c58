#include "scheduler/cost_model.h"

#include <algorithm>
#include <cmath>

namespace millrace {
namespace {

constexpr double kPairs = 1024;     // scales contexts and pairs to numbers like the others
constexpr double kMoved = 1 << 20;  // likewise moved bytes

// Pulls each coefficient to its last value, as a share of its own sum of squares.
constexpr double kKeep = 1e-4;

// Relative errors below this weigh alike.
constexpr double kExact = 0.02;

// Each observation takes so many passes of reweighting; the weights go on from the last one's.
constexpr int kPasses = 2;

// See NeedsVariety: 3 of 48 steps have half of the tokens of the others.
constexpr double kLeastSpread = 0.01;

using Features = WindowFit::Features;
constexpr size_t kFeatures = WindowFit::kFeatures;
using Matrix = std::array<Features, kFeatures>;

// Solves a·x = b by Gaussian elimination; `a` is positive definite.
Features Solve(Matrix a, Features b) {
  for (size_t i = 0; i < kFeatures; ++i) {
    for (size_t k = i + 1; k < kFeatures; ++k) {
      const double factor = a[k][i] / a[i][i];
      for (size_t j = i; j < kFeatures; ++j) a[k][j] -= factor * a[i][j];
      b[k] -= factor * b[i];
    }
  }
  for (size_t i = kFeatures; i-- > 0;) {
    for (size_t j = i + 1; j < kFeatures; ++j) b[i] -= a[i][j] * b[j];
    b[i] /= a[i][i];
  }
  return b;
}

// Solves for coefficients of which none is negative: one that is, is set to 0, and the others are
// solved anew.
Features SolveNotNegative(const Matrix& products, const Features& targets) {
  std::array<bool, kFeatures> fixed{};
  for (size_t i = 0; i < kFeatures; ++i) fixed[i] = products[i][i] <= 0;  // was never seen
  for (size_t round = 0;; ++round) {
    Matrix a = products;
    Features b = targets;
    for (size_t i = 0; i < kFeatures; ++i) {
      if (!fixed[i]) continue;
      for (size_t j = 0; j < kFeatures; ++j) a[i][j] = a[j][i] = 0;
      a[i][i] = 1;
      b[i] = 0;
    }
    b = Solve(a, b);
    const auto least = std::min_element(b.begin(), b.end());
    if (*least >= 0 || round + 1 == kFeatures) {
      for (double& coefficient : b) coefficient = std::max(coefficient, 0.0);
      return b;
    }
    fixed[least - b.begin()] = true;
  }
}

}  // namespace

void StepWork::AddPrompt(int32_t tokens, int32_t start) {
  prompt_tokens += tokens;
  prompt_pairs += static_cast<double>(tokens) * (start + (tokens + 1) / 2.0);
}

void WindowFit::Observe(const Features& x, double time, const WindowFit* base,
                        const Features& base_x) {
  window_[num_observed_ % kWindow] = {x, time, base, base_x};
  ++num_observed_;
  if (num_observed_ > kWindow && num_observed_ % refit_every_ != 0) return;
  for (int pass = 0; pass < kPasses; ++pass) Refit();
}

void WindowFit::Refit() {
  Matrix products{};
  Features targets{};
  for (size_t n = 0; n < num_in_window(); ++n) {
    const Observation& seen = window_[n];
    const double part = seen.time - (seen.base == nullptr ? 0 : seen.base->Of(seen.base_x));
    const double error = std::abs(part - Of(seen.x)) / seen.time;
    const double weight = 1 / (seen.time * seen.time * std::max(error, kExact));
    for (size_t i = 0; i < kFeatures; ++i) {
      const double weighted = weight * seen.x[i];
      for (size_t j = i; j < kFeatures; ++j) products[i][j] += weighted * seen.x[j];
      targets[i] += weighted * part;
    }
  }
  for (size_t i = 0; i < kFeatures; ++i) {
    for (size_t j = 0; j < i; ++j) products[i][j] = products[j][i];
    const double pull = kKeep * products[i][i];
    products[i][i] += pull;
    targets[i] += pull * coefficients_[i];
  }
  coefficients_ = SolveNotNegative(products, targets);
}

double WindowFit::Of(const Features& x) const {
  double sum = 0;
  for (size_t i = 0; i < kFeatures; ++i) sum += coefficients_[i] * x[i];
  return sum;
}

double WindowFit::Spread(size_t feature) const {
  double sum = 0;
  double squares = 0;
  const size_t count = num_in_window();
  for (size_t n = 0; n < count; ++n) {
    sum += window_[n].x[feature];
    squares += window_[n].x[feature] * window_[n].x[feature];
  }
  return sum > 0 ? static_cast<double>(count) * squares / (sum * sum) - 1 : 0;
}

// A token reads experts_a_token of num_experts, which others read too. So of n tokens, the expected
// share of experts that none reads is (1 - experts_a_token / num_experts)^n.
Features StepCostModel::PromptFeatures(const StepWork& work) const {
  const int32_t tile = shape_.token_tile;
  const int32_t tokens = work.decode_rows + work.prompt_tokens;
  const int32_t tiles = (tokens + tile - 1) / tile;
  double experts = 0;
  if (shape_.num_experts > shape_.experts_a_token) {
    const double unread = std::log1p(-static_cast<double>(shape_.experts_a_token) /
                                     static_cast<double>(shape_.num_experts));
    experts = std::exp(unread * work.decode_rows) - std::exp(unread * tokens);
  }
  return {1.0, static_cast<double>(tiles), work.prompt_pairs / kPairs, experts,
          static_cast<double>(work.moved_bytes) / kMoved};
}

// A mixed step's moved bytes are among its prompt's features.
Features StepCostModel::DecodeFeatures(const StepWork& work) {
  if (work.decode_rows == 0) return {};
  return {1.0, static_cast<double>(work.decode_rows),
          static_cast<double>(work.decode_context) / kPairs,
          work.prompt_tokens == 0 ? static_cast<double>(work.moved_bytes) / kMoved : 0.0, 0.0};
}

void StepCostModel::Observe(const StepWork& work, double milliseconds) {
  if (!(milliseconds > 0) || !std::isfinite(milliseconds)) return;
  if (work.prompt_tokens == 0) {
    decode_.Observe(DecodeFeatures(work), milliseconds);
  } else if (work.decode_rows == 0) {
    prompt_.Observe(PromptFeatures(work), milliseconds);
  } else {
    if (!mixed_.known()) mixed_.BeginWith(prompt_);
    mixed_.Observe(PromptFeatures(work), milliseconds, &decode_, DecodeFeatures(work));
  }
}

bool StepCostModel::Knows(const StepWork& work) const {
  if (work.prompt_tokens == 0) return decode_.known();
  if (work.decode_rows == 0) return prompt_.known();
  return mixed_.known() || (decode_.known() && prompt_.known());
}

double StepCostModel::Milliseconds(const StepWork& work) const {
  const double decode = decode_.Of(DecodeFeatures(work));
  if (work.prompt_tokens == 0) return decode;
  const bool as_mixed = work.decode_rows > 0 && mixed_.known();
  return decode + (as_mixed ? mixed_ : prompt_).Of(PromptFeatures(work));
}

bool StepCostModel::NeedsVariety() const { return mixed_.Spread(1) < kLeastSpread; }

}  // namespace millrace
