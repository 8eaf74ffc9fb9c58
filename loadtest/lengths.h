// Distributions of whole numbers: prompt lengths, answer lengths, turns of a session.
#ifndef MILLRACE_LOADTEST_LENGTHS_H_
#define MILLRACE_LOADTEST_LENGTHS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "loadtest/random.h"

namespace millrace {

class Lengths {
 public:
  Lengths() = default;
  explicit Lengths(int64_t fixed) : low_(fixed), high_(fixed) {}

  // Parses "128" or "fixed:128", "uniform:LOW:HIGH", "normal:MEAN:DEVIATION" and
  // "lognormal:MEDIAN:SIGMA", where sigma is the deviation of the natural logarithm. Draws below 1
  // become 1, and those above 1,000,000 that. An error says what is allowed, and names no flag.
  static absl::StatusOr<Lengths> Parse(std::string_view text);

  int64_t Draw(Random& random) const;
  int64_t most() const;
  // Returns the text that Parse reads.
  std::string ToString() const;

 private:
  enum class Kind { kUniform, kNormal, kLogNormal };

  Kind kind_ = Kind::kUniform;
  int64_t low_ = 1;
  int64_t high_ = 1;
  double middle_ = 1;
  double spread_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_LENGTHS_H_
