// Random numbers that are the same on every machine: the distributions of the standard library are
// not, and a run is reproducible only if its draws are.
#ifndef MILLRACE_LOADTEST_RANDOM_H_
#define MILLRACE_LOADTEST_RANDOM_H_

#include <cmath>
#include <cstdint>

namespace millrace {

// A generator of one stream of numbers (splitmix64: Steele, Lea and Flood, 2014). Streams of the
// same seed are independent, so that a request's draws do not depend on which thread makes them.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : state_(Mix(seed) ^ Mix(~stream)) {}

  uint64_t Next() { return Mix(state_ += 0x9e3779b97f4a7c15); }

  // Returns a number in [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  // Returns a whole number in [low, high].
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Uniform() * static_cast<double>(high - low + 1));
  }

  // Returns a draw with mean 1.
  double Exponential() { return -std::log1p(-Uniform()); }

  // Returns a draw with mean 0 and standard deviation 1 (Box and Muller).
  double Normal() {
    const double radius = std::sqrt(2 * Exponential());
    return radius * std::cos(2 * 3.14159265358979323846 * Uniform());
  }

  // Returns a draw of the gamma distribution with mean `shape` (Marsaglia and Tsang, 2000).
  double Gamma(double shape) {
    if (shape < 1) return Gamma(shape + 1) * std::pow(1 - Uniform(), 1 / shape);
    const double d = shape - 1.0 / 3;
    const double c = 1 / std::sqrt(9 * d);
    while (true) {
      const double x = Normal();
      const double v = std::pow(1 + c * x, 3);
      if (v > 0 && -Exponential() < x * x / 2 + d - d * v + d * std::log(v)) return d * v;
    }
  }

 private:
  static uint64_t Mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  uint64_t state_;
};

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_RANDOM_H_
