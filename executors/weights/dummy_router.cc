#include "executors/weights/dummy_router.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

namespace millrace {
namespace {

constexpr double kDeviation = 1;  // of the loads' logarithms
// A row's logit is positive for half of the tokens, whatever its factor.
constexpr double kMostLoad = 0.4;

// Returns the number that a normally distributed one is below with the probability p.
double NormalQuantile(double p) {
  double low = -10, high = 10;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < p ? low : high) = middle;
  }
  return low;
}

// Returns loads with the sum `chosen`: the distribution's quantiles times a factor, or kMostLoad.
std::vector<double> SkewedLoads(int experts, int chosen) {
  std::vector<double> loads(experts);
  for (int i = 0; i < experts; ++i) {
    loads[i] = std::exp(kDeviation * NormalQuantile((i + 0.5) / experts));
  }
  double low = 0, high = 1;
  const auto sum = [&](double factor) {
    double sum = 0;
    for (const double load : loads) sum += std::min(factor * load, kMostLoad);
    return sum;
  };
  while (sum(high) < chosen) high *= 2;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (sum(middle) < chosen ? low : high) = middle;
  }
  for (double& load : loads) load = std::min(high * load, kMostLoad);
  return loads;
}

}  // namespace

std::vector<float> SkewedRouterRows(int experts, int chosen, uint64_t seed) {
  if (chosen >= kMostLoad * experts) return std::vector<float>(experts, 1.0f);
  std::vector<double> loads = SkewedLoads(experts, chosen);
  // Not std::shuffle, whose order is the library's own.
  std::mt19937_64 random(seed);
  for (size_t i = loads.size() - 1; i > 0; --i) std::swap(loads[i], loads[random() % (i + 1)]);
  // A logit is normally distributed, as it is the sum of many products: with this factor it exceeds
  // one number, the same for all experts, with the probability of the load. About `chosen` do.
  std::vector<float> factors(experts);
  for (int i = 0; i < experts; ++i) {
    factors[i] = static_cast<float>(1 / NormalQuantile(1 - loads[i]));
  }
  return factors;
}

}  // namespace millrace
