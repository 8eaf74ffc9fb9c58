#include "formats/model/rope_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace millrace {
namespace {

// The factor of a pair whose angle is kept by this share, in [0, 1], and else divided by `factor`.
float PartlyKept(double kept, double factor) {
  return static_cast<float>(1 / ((1 - kept) / factor + kept));
}

}  // namespace

RopeConfig Served(const RopeConfig& rope, int max_model_len) {
  const int dimensions = rope.dimensions;
  RopeConfig served{.dimensions = dimensions,
                    .interleaved = rope.interleaved,
                    .theta = rope.theta,
                    .factors = rope.factors,
                    .magnitude = rope.magnitude,
                    .long_factors = {}};
  if (rope.trained == 0 || max_model_len <= rope.trained) return served;
  if (!rope.long_factors.empty()) served.factors = rope.long_factors;
  if (rope.dynamic_factor != 0) {
    const double stretch =
        rope.dynamic_factor * max_model_len / rope.trained - (rope.dynamic_factor - 1);
    served.theta *= std::pow(stretch, dimensions / (dimensions - 2.0));
  }
  return served;
}

std::vector<float> LinearFactors(double factor, int dimensions) {
  return std::vector<float>(dimensions / 2, static_cast<float>(factor));
}

std::vector<float> Llama3Factors(const Llama3Stretch& stretch, double theta, int dimensions) {
  std::vector<float> factors;
  for (int i = 0; i < dimensions / 2; ++i) {
    const double wave = 2 * std::numbers::pi * std::pow(theta, 2.0 * i / dimensions);
    const double turns = stretch.trained / wave;
    const double kept = std::clamp((turns - stretch.low) / (stretch.high - stretch.low), 0.0, 1.0);
    factors.push_back(PartlyKept(kept, stretch.factor));
  }
  return factors;
}

std::vector<float> YarnFactors(const YarnStretch& stretch, double theta, int dimensions) {
  // The number, not a whole one, of the pair that turns so often within the trained positions.
  const auto pair = [&](double turns) {
    return dimensions * std::log(stretch.trained / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  double first = pair(stretch.fast);
  double last = pair(stretch.slow);
  if (stretch.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, dimensions - 1.0);
  const double width = std::max(last - first, 0.001);
  std::vector<float> factors;
  for (int i = 0; i < dimensions / 2; ++i) {
    const double kept = 1 - std::clamp((i - first) / width, 0.0, 1.0);
    factors.push_back(PartlyKept(kept, stretch.factor));
  }
  return factors;
}

double YarnMagnitude(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

double LongRopeMagnitude(double factor, int trained) {
  return factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(trained));
}

}  // namespace millrace
