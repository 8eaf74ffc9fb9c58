// The beginning of a report: the result in a few sentences.
#ifndef MILLRACE_LOADTEST_SUMMARY_H_
#define MILLRACE_LOADTEST_SUMMARY_H_

#include <string>
#include <vector>

#include "loadtest/result.h"

namespace millrace {

// Each returns sentences. Texts of the server's are not among them.
std::vector<std::string> Summary(const Result& result);
// `best` as in HtmlSweepReport.
std::vector<std::string> SweepSummary(const std::vector<Result>& results, int best);
// Of `b`, which is called `name`, against `a`.
std::vector<std::string> ComparisonSummary(const Result& a, const Result& b,
                                           const std::string& name);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_SUMMARY_H_
