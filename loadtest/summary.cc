#include "loadtest/summary.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "base/strings.h"
#include "loadtest/compare.h"
#include "loadtest/text_report.h"
#include "loadtest/turns.h"

namespace millrace {
namespace {

// "84 ms in the median and 301 ms at p99"
std::string Middle(const Distribution& of) {
  std::string text = StrCat(Figure(of.median), " ms in the median");
  if (!of.percentiles.empty()) {
    const auto& [percent, value] = of.percentiles.back();
    text += absl::StrFormat(" and %s ms at p%g", Figure(value), percent);
  }
  return text;
}

std::string LoadText(const Result& result) {
  return result.rate ? StrCat(Figure(*result.rate), " requests a second")
                     : StrCat(result.concurrency.value_or(0), " requests at once");
}

std::string Joined(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += StrCat(i == 0 ? "" : i + 1 == names.size() ? " and " : ", ", names[i]);
  }
  return text;
}

}  // namespace

std::vector<std::string> Summary(const Result& result) {
  std::vector<std::string> sentences;
  const int64_t all = result.completed + result.failed + result.cancelled + result.past_deadline +
                      result.unfinished;
  sentences.push_back(StrCat(result.completed, " of ", all, " requests were completed in ",
                             Figure(result.duration), " s: ", Figure(result.request_throughput),
                             " requests and ", Figure(result.output_throughput),
                             " output tokens a second."));
  if (result.completed > 0 && !result.ttft.curve.empty()) {
    sentences.push_back(StrCat("The time to first token was ", Middle(result.ttft), "."));
  }
  if (result.completed > 0 && !result.itl.curve.empty()) {
    sentences.push_back(StrCat("The time between tokens was ", Middle(result.itl), "."));
  }
  if (!result.turns.rows.empty() && result.turns.all.prompt_tokens > 0) {
    const TurnSums& all = result.turns.all;
    sentences.push_back(absl::StrFormat(
        "Of %d prompt tokens %.1f %% were cached; %d were computed.", all.prompt_tokens,
        static_cast<double>(all.cached_tokens) / static_cast<double>(all.prompt_tokens) * 100,
        all.computed_tokens()));
  }
  if (result.goodput) {
    sentences.push_back(absl::StrFormat("%.1f %% of the requests kept the goals (%s).",
                                        result.attainment.value_or(0) * 100, result.goals));
  }
  return sentences;
}

std::vector<std::string> SweepSummary(const std::vector<Result>& results, int best) {
  std::vector<std::string> sentences;
  if (best >= 0) {
    const Result& result = results[static_cast<size_t>(best)];
    sentences.push_back(StrCat("The highest of ", results.size(), " loads that holds the goals (",
                               result.goals, ") is ", LoadText(result), ", with ",
                               Figure(result.output_throughput), " output tokens a second."));
  } else if (!results.front().goals.empty()) {
    sentences.push_back(StrCat("None of ", results.size(), " loads holds the goals (",
                               results.front().goals, ")."));
  }
  const Result& most = *std::max_element(
      results.begin(), results.end(),
      [](const Result& a, const Result& b) { return a.output_throughput < b.output_throughput; });
  if (most.completed == 0) return sentences;
  sentences.push_back(StrCat("The most output tokens a second, ", Figure(most.output_throughput),
                             ", came at ", LoadText(most), ", with a time to first token of ",
                             Middle(most.ttft), "."));
  return sentences;
}

std::vector<std::string> ComparisonSummary(const Result& a, const Result& b,
                                           const std::string& name) {
  std::vector<std::string> better, worse;
  for (const ComparedFigure& figure : Compare(a, b)) {
    const std::string verdict = figure.Verdict();
    if (verdict.empty()) continue;
    (verdict == "better" ? better : worse)
        .push_back(StrCat(figure.name, " (", figure.Change(), ")"));
  }
  std::vector<std::string> sentences;
  if (!better.empty()) sentences.push_back(StrCat(name, " is better in: ", Joined(better), "."));
  if (!worse.empty()) sentences.push_back(StrCat(name, " is worse in: ", Joined(worse), "."));
  if (better.empty() && worse.empty()) {
    sentences.push_back(absl::StrFormat("No figure differs by more than %.0f %%.", kNoise * 100));
  }
  return sentences;
}

}  // namespace millrace
