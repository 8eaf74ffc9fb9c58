#include "loadtest/text_report.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/strings.h"
#include "loadtest/turns.h"

namespace millrace {
namespace {

std::string Line(std::string_view name, std::string_view value) {
  return absl::StrFormat("%-36s %s\n", AbslView(name), AbslView(value));
}

std::string DistributionLine(std::string_view name, const Distribution& of) {
  std::string line = absl::StrFormat("%-28s %10s", AbslView(name), Figure(of.mean));
  for (const auto& [percent, value] : of.percentiles) {
    line += absl::StrFormat(" %10s", Figure(value));
  }
  return line + "\n";
}

std::string Header(const Result& result) {
  std::string line = absl::StrFormat("%-28s %10s", "milliseconds", "mean");
  for (const auto& [percent, value] : result.ttft.percentiles) {
    line += absl::StrFormat(" %10s", absl::StrFormat("p%g", percent));
  }
  return line + "\n";
}

// "240 completed, 3 failed": only what there is.
std::string Outcomes(const Result& result) {
  std::string text = StrCat(result.completed, " completed, ", result.failed, " failed");
  for (const auto& [count, name] : {std::pair{result.cancelled, " cancelled"},
                                    std::pair{result.past_deadline, " past their deadline"},
                                    std::pair{result.unfinished, " unfinished"}}) {
    if (count > 0) text += StrCat(", ", count, name);
  }
  return text;
}

// Returns the table of sums by turn, and what the server's metrics say of the prompts' tokens.
std::string TurnLines(const Result& result) {
  const TurnTable& table = result.turns;
  if (table.rows.empty()) return "";
  std::string text = "\n";
  std::vector<std::vector<std::string>> rows = {TurnTitles(table)};
  for (size_t row = 0; row <= table.rows.size(); ++row) rows.push_back(TurnCells(table, row));
  std::vector<size_t> widths(rows.front().size());
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += absl::StrFormat("%*s%s", static_cast<int>(widths[i]), row[i],
                              i + 1 == row.size() ? "\n" : "  ");
    }
  }
  if (const std::optional<double> ratio = table.ComputedPerNew()) {
    text += absl::StrFormat("Computed are %.2f times the new tokens of prompts.\n", *ratio);
  }
  for (const auto& [source, tokens] : result.prompt_sources) {
    text += Line(StrCat("Prompt tokens, ", source), absl::StrFormat("%.0f", tokens));
  }
  return text;
}

// "62 completed, 1 failed, 1 cut": of sessions, the last of which were cancelled or did not end.
std::string SessionOutcomes(const SessionCounts& sessions) {
  std::string text = StrCat(sessions.completed, " completed, ", sessions.failed, " failed");
  const int64_t cut = sessions.begun - sessions.completed - sessions.failed;
  if (cut > 0) text += StrCat(", ", cut, " cut");
  return text;
}

}  // namespace

std::string Figure(double value) {
  const double size = std::abs(value);
  if (!std::isfinite(value)) return "-";
  if (size >= 1000) return absl::StrFormat("%.0f", value);
  if (size >= 100) return absl::StrFormat("%.1f", value);
  if (size >= 1 || size == 0) return absl::StrFormat("%.2f", value);
  return absl::StrFormat("%.4f", value);
}

std::string TextReport(const Result& result) {
  std::string text = Line("Model", Printable(result.model));
  text += Line("Load", result.load);
  if (!result.turns.rows.empty()) text += Line("Sessions", SessionOutcomes(result.sessions));
  text += Line("Requests", Outcomes(result));
  text += Line("Duration (s)", Figure(result.duration));
  text +=
      Line("Input tokens; of them cached", StrCat(result.input_tokens, "; ", result.cached_tokens));
  text += Line("Output tokens", StrCat(result.output_tokens));
  text += Line("Request throughput (req/s)", Figure(result.request_throughput));
  if (result.goodput) {
    text += Line(StrCat("Goodput (req/s), ", result.goals),
                 absl::StrFormat("%s (%.1f %% of the requests)", Figure(*result.goodput),
                                 result.attainment.value_or(0) * 100));
  }
  text += Line("Output throughput, peak (tok/s)", StrCat(Figure(result.output_throughput), ", ",
                                                         Figure(result.peak_output_throughput)));
  text += Line("Total token throughput (tok/s)", Figure(result.total_throughput));
  text += Line("Peak of requests at once", StrCat(result.peak_concurrency));
  text += "\n" + Header(result);
  text += DistributionLine("Time to first token", result.ttft);
  text += DistributionLine("Time per output token", result.tpot);
  text += DistributionLine("Inter-token latency", result.itl);
  text += DistributionLine("Pause between arrivals", result.pause);
  text += DistributionLine("End-to-end latency", result.e2el);
  if (result.queue.mean > 0.05) text += DistributionLine("Wait before sending", result.queue);
  text += TurnLines(result);
  for (const auto& [message, count] : result.errors) {
    text += StrCat(text.ends_with("\n\n") ? "" : "\n", count, " x ", Printable(message, 300), "\n");
  }
  for (const std::string& warning : result.warnings) text += StrCat("\nWarning: ", warning, "\n");
  return text;
}

std::string SweepTable(const std::vector<Result>& results) {
  std::string text =
      absl::StrFormat("%10s %12s %10s %12s %10s %10s %10s %10s %8s\n", "rate", "concurrency",
                      "req/s", "tok/s", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "good");
  const auto percentile = [](const Distribution& of, double percent) {
    for (const auto& [at, value] : of.percentiles) {
      if (at == percent) return Figure(value);
    }
    return std::string("-");
  };
  for (const Result& result : results) {
    text += absl::StrFormat(
        "%10s %12s %10s %12s %10s %10s %10s %10s %8s\n", result.rate ? Figure(*result.rate) : "-",
        result.concurrency ? StrCat(*result.concurrency) : "-", Figure(result.request_throughput),
        Figure(result.output_throughput), percentile(result.ttft, 50), percentile(result.ttft, 99),
        percentile(result.tpot, 50), percentile(result.tpot, 99),
        result.attainment ? absl::StrFormat("%.1f%%", *result.attainment * 100) : "-");
  }
  return text;
}

}  // namespace millrace
