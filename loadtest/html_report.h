// Reports as one HTML file, which asks for nothing else and runs no script.
#ifndef MILLRACE_LOADTEST_HTML_REPORT_H_
#define MILLRACE_LOADTEST_HTML_REPORT_H_

#include <string>
#include <vector>

#include "loadtest/result.h"

namespace millrace {

// Returns the report of one run: figures, plots, errors, a few answers.
std::string HtmlReport(const Result& result);

// Returns the report of several runs of growing load: the plots over the load, and the figures of
// each. `best`: of the run that is said to hold the goals, -1 if there is none.
std::string HtmlSweepReport(const std::vector<Result>& results, int best);

// Returns both runs' figures and plots beside each other.
std::string HtmlComparison(const Result& a, const Result& b);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_HTML_REPORT_H_
