#include "loadtest/compare.h"

#include <cmath>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/strings.h"
#include "loadtest/files.h"
#include "loadtest/html_report.h"
#include "loadtest/text_report.h"

namespace millrace {
namespace {

void AddDistribution(const std::string& name, const Distribution& a, const Distribution& b,
                     std::vector<ComparedFigure>& figures) {
  figures.push_back({name + ", mean, ms", a.mean, b.mean});
  figures.push_back({name + ", median, ms", a.median, b.median});
  for (const auto& [percent, value] : a.percentiles) {
    if (percent == 50) continue;
    for (const auto& [other, other_value] : b.percentiles) {
      if (other == percent) {
        figures.push_back({absl::StrFormat("%s, p%g, ms", name, percent), value, other_value});
      }
    }
  }
}

absl::StatusOr<Result> Load(const std::string& file) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded()) {
    return absl::InvalidArgumentError(StrCat(Printable(file, 300), ": it is not JSON"));
  }
  absl::StatusOr<Result> result = FromJson(json);
  if (!result.ok()) return Annotate(result.status(), Printable(file, 300));
  if (result->label.empty()) result->label = file;
  return result;
}

}  // namespace

std::string ComparedFigure::Change() const {
  if (a == 0 || !std::isfinite(b / a)) return "-";
  return absl::StrFormat("%+.1f %%", (b / a - 1) * 100);
}

std::string ComparedFigure::Verdict() const {
  const bool differs = a == 0 ? b != 0 : std::abs(b / a - 1) > kNoise;
  if (!differs) return "";
  return (b > a) == more_is_better ? "better" : "worse";
}

std::vector<ComparedFigure> Compare(const Result& a, const Result& b) {
  std::vector<ComparedFigure> figures = {
      {"Requests completed", double(a.completed), double(b.completed), true},
      {"Requests failed", double(a.failed), double(b.failed)},
      {"Requests a second", a.request_throughput, b.request_throughput, true},
      {"Output tokens a second", a.output_throughput, b.output_throughput, true},
      {"Total tokens a second", a.total_throughput, b.total_throughput, true}};
  if (a.goodput && b.goodput) {
    figures.push_back({"Good requests a second", *a.goodput, *b.goodput, true});
  }
  if (a.cached_tokens > 0 || b.cached_tokens > 0) {
    figures.push_back({"Prompt tokens computed", double(a.input_tokens - a.cached_tokens),
                       double(b.input_tokens - b.cached_tokens)});
  }
  // Without a request that completed there are no times, and none is no good time.
  if (a.completed == 0 || b.completed == 0) return figures;
  AddDistribution("Time to first token", a.ttft, b.ttft, figures);
  AddDistribution("Time per output token", a.tpot, b.tpot, figures);
  AddDistribution("Inter-token latency", a.itl, b.itl, figures);
  AddDistribution("End-to-end latency", a.e2el, b.e2el, figures);
  return figures;
}

std::vector<std::string> Differences(const Result& a, const Result& b) {
  std::vector<std::string> lines;
  const auto differ = [&](std::string_view name, const std::string& left,
                          const std::string& right) {
    if (left == right) return;
    lines.push_back(StrCat("They differ in ", name, ": ", Printable(left, 200), " and ",
                           Printable(right, 200)));
  };
  differ("model", a.model, b.model);
  differ("load", a.load, b.load);
  differ("goals", a.goals, b.goals);
  const auto average = [](int64_t tokens, int64_t requests) {
    return static_cast<double>(tokens) / std::max(1.0, static_cast<double>(requests));
  };
  const auto apart = [](double x, double y) { return std::abs(x - y) > 0.05 * std::max(x, y); };
  if (apart(average(a.input_tokens, a.completed), average(b.input_tokens, b.completed)) ||
      apart(average(a.output_tokens, a.completed), average(b.output_tokens, b.completed))) {
    lines.push_back(absl::StrFormat(
        "They differ in tokens a request: %.1f in and %.1f out, and %.1f and %.1f",
        average(a.input_tokens, a.completed), average(a.output_tokens, a.completed),
        average(b.input_tokens, b.completed), average(b.output_tokens, b.completed)));
  }
  return lines;
}

std::string ComparisonText(const Result& a, const Result& b) {
  std::string text = StrCat("A: ", Printable(a.label, 300), "\nB: ", Printable(b.label, 300), "\n");
  for (const std::string& line : Differences(a, b)) text += line + "\n";
  text += absl::StrFormat("\n%-36s %12s %12s %10s\n", "", "A", "B", "change");
  for (const ComparedFigure& figure : Compare(a, b)) {
    std::string line = absl::StrFormat("%-36s %12s %12s %10s  %s", figure.name, Figure(figure.a),
                                       Figure(figure.b), figure.Change(), figure.Verdict());
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

absl::Status RunCompare(const Options& options) {
  MILLRACE_ASSIGN_OR_RETURN(const Result a, Load(options.files[0]));
  MILLRACE_ASSIGN_OR_RETURN(const Result b, Load(options.files[1]));
  std::fputs(ComparisonText(a, b).c_str(), stdout);
  if (!options.json_file.empty()) {
    nlohmann::ordered_json json = {{"a", options.files[0]}, {"b", options.files[1]}};
    for (const ComparedFigure& figure : Compare(a, b)) {
      json["figures"].push_back(
          {{"name", figure.name}, {"a", figure.a}, {"b", figure.b}, {"verdict", figure.Verdict()}});
    }
    MILLRACE_RETURN_IF_ERROR(WriteFile(options.json_file, Dump(json)));
  }
  if (options.html_file.empty()) return absl::OkStatus();
  return WriteFile(options.html_file, HtmlComparison(a, b));
}

}  // namespace millrace
