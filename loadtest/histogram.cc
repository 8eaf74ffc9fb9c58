#include "loadtest/histogram.h"

#include <algorithm>
#include <cmath>

namespace millrace {
namespace {

constexpr double kUnit = 1e-7;    // seconds
constexpr int kSubBuckets = 128;  // of each power of two
constexpr int kOctaves = 42;

size_t Bucket(double seconds) {
  const double units = seconds / kUnit;
  if (!(units >= 1)) return 0;
  int exponent = 0;
  const double mantissa = std::frexp(units, &exponent);  // [0.5, 1)
  if (exponent > kOctaves) return static_cast<size_t>(kOctaves) * kSubBuckets;
  const int sub = static_cast<int>((mantissa - 0.5) * 2 * kSubBuckets);
  return static_cast<size_t>(exponent - 1) * kSubBuckets + static_cast<size_t>(sub);
}

// Returns the middle of a bucket.
double Value(size_t bucket) {
  const int octave = static_cast<int>(bucket / kSubBuckets);
  const double mantissa = 0.5 + (static_cast<double>(bucket % kSubBuckets) + 0.5) / 2 / kSubBuckets;
  return std::ldexp(mantissa, octave + 1) * kUnit;
}

}  // namespace

void Histogram::Add(double seconds, double weight) {
  seconds = std::max(0.0, seconds);
  const size_t bucket = Bucket(seconds);
  if (bucket >= buckets_.size()) buckets_.resize(bucket + 1);
  buckets_[bucket] += weight;
  weight_ += weight;
  const double delta = seconds - mean_;
  mean_ += delta * weight / weight_;
  squares_ += weight * delta * (seconds - mean_);
  max_ = std::max(max_, seconds);
}

void Histogram::Merge(const Histogram& other) {
  if (other.weight_ == 0) return;
  buckets_.resize(std::max(buckets_.size(), other.buckets_.size()));
  for (size_t i = 0; i < other.buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
  const double delta = other.mean_ - mean_;
  const double total = weight_ + other.weight_;
  squares_ += other.squares_ + delta * delta * weight_ * other.weight_ / total;
  mean_ += delta * other.weight_ / total;
  weight_ = total;
  max_ = std::max(max_, other.max_);
}

double Histogram::Mean() const { return mean_; }

double Histogram::Deviation() const { return weight_ > 0 ? std::sqrt(squares_ / weight_) : 0; }

double Histogram::Quantile(double share) const { return Quantiles({share})[0]; }

std::vector<double> Histogram::Quantiles(const std::vector<double>& shares) const {
  std::vector<double> values;
  double below = 0;
  size_t bucket = 0;
  for (const double share : shares) {
    while (bucket < buckets_.size() && below + buckets_[bucket] < share * weight_ * (1 - 1e-12)) {
      below += buckets_[bucket++];
    }
    while (bucket < buckets_.size() && buckets_[bucket] == 0) ++bucket;
    const bool end = bucket >= buckets_.size() || share >= 1;
    values.push_back(weight_ == 0 ? 0 : end ? max_ : std::min(Value(bucket), max_));
  }
  return values;
}

double SortedQuantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const double at = std::clamp(share, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (at - static_cast<double>(below));
}

const std::vector<double>& PlotShares() {
  static const auto* const kShares = [] {
    auto* shares = new std::vector<double>;
    for (int percent = 0; percent < 99; ++percent) shares->push_back(percent / 100.0);
    for (int tenth = 0; tenth < 9; ++tenth) shares->push_back(0.99 + tenth / 1000.0);
    for (const double share : {0.999, 0.9995, 0.9999, 1.0}) shares->push_back(share);
    return shares;
  }();
  return *kShares;
}

}  // namespace millrace
