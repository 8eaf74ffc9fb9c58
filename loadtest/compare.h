// Two results beside each other.
#ifndef MILLRACE_LOADTEST_COMPARE_H_
#define MILLRACE_LOADTEST_COMPARE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "loadtest/options.h"
#include "loadtest/result.h"

namespace millrace {

inline constexpr double kNoise = 0.02;  // changes below it get no verdict

struct ComparedFigure {
  std::string name;
  double a = 0;
  double b = 0;
  bool more_is_better = false;

  // Returns "+3.2 %", "-" if there is nothing to compare with.
  std::string Change() const;
  // Returns "better" or "worse" of a change of more than 2 %, else "".
  std::string Verdict() const;
};

std::vector<ComparedFigure> Compare(const Result& a, const Result& b);

// Returns a line for each way in which the runs are unlike, so that their figures may be.
std::vector<std::string> Differences(const Result& a, const Result& b);

// Returns the figures as a table of plain text, after what makes the two runs unlike.
std::string ComparisonText(const Result& a, const Result& b);

// Runs `compare`: reads both files, prints, and writes --html and --json.
absl::Status RunCompare(const Options& options);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_COMPARE_H_
