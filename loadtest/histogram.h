// Times in buckets whose width is a fixed share of their value (as HdrHistogram's).
#ifndef MILLRACE_LOADTEST_HISTOGRAM_H_
#define MILLRACE_LOADTEST_HISTOGRAM_H_

#include <cstdint>
#include <vector>

namespace millrace {

// Counts of seconds from 100 ns to about 4 days. A quantile is exact to 0.4 % of its value, and the
// mean and the deviation are exact. Samples have weights, which need not be whole.
class Histogram {
 public:
  void Add(double seconds, double weight = 1);
  void Merge(const Histogram& other);

  double weight() const { return weight_; }
  double Mean() const;
  double Deviation() const;
  double Max() const { return max_; }
  // Returns the value that this share of the weight does not exceed; 0 of no samples.
  double Quantile(double share) const;
  // Returns the values of many shares, which ascend.
  std::vector<double> Quantiles(const std::vector<double>& shares) const;

 private:
  std::vector<double> buckets_;  // grows with the largest value
  double weight_ = 0;
  double mean_ = 0;
  double squares_ = 0;  // sum of weight * (value - mean)^2
  double max_ = 0;
};

// Returns the value at a share of ascending values, between two of them linearly, as numpy's
// percentile does; 0 of none.
double SortedQuantile(const std::vector<double>& sorted, double share);

// Returns the shares at which reports keep distributions: percents, and finer towards the end.
const std::vector<double>& PlotShares();

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_HISTOGRAM_H_
