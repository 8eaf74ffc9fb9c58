#include "scheduler/cost_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace millrace {
namespace {

constexpr double kForget = 0.99;  // about the last 100 steps count
constexpr double kPairs = 1024;   // scales contexts and pairs to numbers like the others

// Pulls each coefficient to its last value, as a share of its own sum of squares.
constexpr double kKeep = 1e-4;

// Bounds one step's influence: others may have taken the processor for a while.
constexpr double kMostOverPrediction = 3;

// Prompts without decoding rows are cheaper by the token: once steps with both are known, they
// hardly count.
constexpr int64_t kEnoughMixed = 16;
constexpr double kPromptOnlyWeight = 0.1;

}  // namespace

void StepWork::AddPrompt(int32_t tokens, int32_t start) {
  prompt_tokens += tokens;
  prompt_pairs += static_cast<double>(tokens) * (start + (tokens + 1) / 2.0);
}

StepCostModel::Features StepCostModel::FeaturesOf(const StepWork& work) {
  return {1.0, static_cast<double>(work.decode_rows), static_cast<double>(work.prompt_tokens),
          static_cast<double>(work.decode_context) / kPairs, work.prompt_pairs / kPairs};
}

void StepCostModel::Observe(const StepWork& work, double milliseconds) {
  if (!(milliseconds > 0) || !std::isfinite(milliseconds)) return;
  const bool mixed = work.decode_rows > 0 && work.prompt_tokens > 0;
  const bool known = (work.decode_rows == 0 || knows_decode_) &&
                     (work.prompt_tokens == 0 || knows_prompt_) && num_mixed_ >= kEnoughMixed;
  if (known) milliseconds = std::min(milliseconds, kMostOverPrediction * Milliseconds(work));
  if (!(milliseconds > 0)) return;

  double weight = 1 / (milliseconds * milliseconds);
  if (work.decode_rows == 0 && num_mixed_ >= kEnoughMixed) weight *= kPromptOnlyWeight;
  num_mixed_ += mixed ? 1 : 0;
  knows_decode_ |= work.decode_rows > 0;
  knows_prompt_ |= work.prompt_tokens > 0;

  const Features x = FeaturesOf(work);
  for (size_t i = 0; i < kFeatures; ++i) {
    for (size_t j = 0; j < kFeatures; ++j) {
      products_[i][j] = kForget * products_[i][j] + weight * x[i] * x[j];
    }
    targets_[i] = kForget * targets_[i] + weight * x[i] * milliseconds;
  }
  Refit();
}

// Solves the normal equations by Gaussian elimination (the matrix is positive definite by the pull
// to the last values); a coefficient that comes out negative is set to 0, and the others solved
// anew.
void StepCostModel::Refit() {
  std::array<bool, kFeatures> fixed{};
  for (size_t i = 0; i < kFeatures; ++i) fixed[i] = products_[i][i] <= 0;  // was never seen
  for (size_t round = 0; round < kFeatures; ++round) {
    std::array<Features, kFeatures> a = products_;
    Features b = targets_;
    for (size_t i = 0; i < kFeatures; ++i) {
      const double pull = kKeep * products_[i][i];
      a[i][i] += pull;
      b[i] += pull * coefficients_[i];
      if (!fixed[i]) continue;
      for (size_t j = 0; j < kFeatures; ++j) a[i][j] = a[j][i] = 0;
      a[i][i] = 1;
      b[i] = 0;
    }
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
    const auto least = std::min_element(b.begin(), b.end());
    if (*least >= 0 || round + 1 == kFeatures) {
      for (double& coefficient : b) coefficient = std::max(coefficient, 0.0);
      coefficients_ = b;
      return;
    }
    fixed[least - b.begin()] = true;
  }
}

double StepCostModel::Milliseconds(const StepWork& work) const {
  const Features x = FeaturesOf(work);
  double sum = 0;
  for (size_t i = 0; i < kFeatures; ++i) sum += coefficients_[i] * x[i];
  return sum;
}

// n tokens cost n·(token + start·pair) + n²/2·pair.
int32_t StepCostModel::PromptTokensWithin(double milliseconds, int32_t start,
                                          int32_t wanted) const {
  if (milliseconds <= 0) return 0;
  const double pair = coefficients_[4] / kPairs;
  const double token = coefficients_[2] + pair * (start + 0.5);
  const double half = token / 2;
  const double root = std::sqrt(half * half + pair / 2 * milliseconds);
  const double divisor = half + root;  // the stable form of the quadratic's positive root
  if (divisor <= 0 || milliseconds / divisor >= wanted) return wanted;
  return static_cast<int32_t>(milliseconds / divisor);
}

}  // namespace millrace
