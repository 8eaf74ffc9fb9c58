// Results for the terminal.
#ifndef MILLRACE_LOADTEST_TEXT_REPORT_H_
#define MILLRACE_LOADTEST_TEXT_REPORT_H_

#include <string>
#include <string_view>
#include <vector>

#include "loadtest/result.h"

namespace millrace {

// Returns the figures of one run. Texts of the server are escaped, so that they cannot command the
// terminal.
std::string TextReport(const Result& result);

// Returns a line a run, for sweeps.
std::string SweepTable(const std::vector<Result>& results);

// Returns a number with as many digits as matter.
std::string Figure(double value);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_TEXT_REPORT_H_
