#include "loadtest/html_report.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/sha256.h"
#include "base/strings.h"
#include "loadtest/compare.h"
#include "loadtest/histogram.h"
#include "loadtest/html.h"
#include "loadtest/plot.h"
#include "loadtest/summary.h"
#include "loadtest/text_report.h"
#include "loadtest/turns.h"

namespace millrace {
namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --faint: #d8dee4; --soft: #57606a;
  --c0: #0b62c4; --c1: #c2410c; --c2: #15803d; --c3: #7e22ce; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --faint: #30363d;
  --soft: #9aa4ae; --c0: #6cb6ff; --c1: #f0883e; --c2: #57ab5a; --c3: #c297ff; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1180px; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 1.6rem 0 .5rem; }
p.sub { color: var(--soft); margin: .2rem 0 1rem; overflow-wrap: anywhere; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 1rem; }
figure { margin: 0; } figcaption { font-weight: 600; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: var(--soft); }
.grid { stroke: var(--faint); stroke-width: 1; } .dashed { stroke-dasharray: 5 4; }
.line-0, .line-1, .line-2, .line-3 { fill: none; stroke-width: 2; }
.line-0 { stroke: var(--c0); } .line-1 { stroke: var(--c1); } .line-2 { stroke: var(--c2); } .line-3 { stroke: var(--c3); }
.mark-0 { fill: var(--c0); } .mark-1 { fill: var(--c1); } .mark-2 { fill: var(--c2); } .mark-3 { fill: var(--c3); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--faint); }
th:first-child, td:first-child { text-align: left; }
tr.best td { font-weight: 700; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--faint); padding: .6rem; margin: .4rem 0; }
.warning { border-left: 4px solid var(--c1); padding: .2rem .8rem; }
.summary { border-left: 4px solid var(--c0); padding: .2rem .8rem; } .summary p { margin: .2rem 0; }
td:not(:first-child) { overflow-wrap: anywhere; }
)";

using Row = std::vector<std::string>;

std::string Page(const std::string& title, const std::string& body) {
  const std::string hash = absl::Base64Escape(AbslView(AsBytes(Sha256Of(kStyle))));
  return StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'sha256-",
      hash,
      "'; base-uri 'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"referrer\" content=\"no-referrer\">\n<title>",
      EscapeHtml(title), "</title>\n<style>", kStyle, "</style>\n</head>\n<body>\n<main>\n", body,
      "</main>\n</body>\n</html>\n");
}

// Returns a table whose cells are texts, which are escaped. `best`: the row to stress.
std::string Table(const Row& head, const std::vector<Row>& rows, int best = -1) {
  std::string html = "<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>";
  for (const std::string& cell : head)
    html += StrCat("<th scope=\"col\">", EscapeHtml(cell), "</th>");
  html += "</tr></thead>\n<tbody>\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    html += static_cast<int>(i) == best ? "<tr class=\"best\">" : "<tr>";
    for (const std::string& cell : rows[i]) html += StrCat("<td>", EscapeHtml(cell), "</td>");
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string Heading(const std::string& title, const std::vector<std::string>& facts) {
  std::string sub;
  for (const std::string& fact : facts) {
    if (!fact.empty()) sub += StrCat(sub.empty() ? "" : " · ", fact);
  }
  return StrCat("<h1>", EscapeHtml(title), "</h1>\n<p class=\"sub\">", EscapeHtml(sub), "</p>\n");
}

const std::string& TimeOf(const Result& result) {
  return result.time.empty() ? result.date : result.time;
}

std::string SummaryOf(const std::vector<std::string>& sentences) {
  std::string html = "<div class=\"summary\">\n";
  for (const std::string& sentence : sentences) {
    html += StrCat("<p>", EscapeHtml(sentence), "</p>\n");
  }
  return html + "</div>\n";
}

// Returns what is known of both sides of the runs, a column each.
std::string Setup(const Row& names, const std::vector<const Result*>& results) {
  std::vector<Row> rows;
  const auto add = [&](const std::string& side, const Facts Result::*facts) {
    for (size_t column = 0; column < results.size(); ++column) {
      for (const auto& [name, value] : results[column]->*facts) {
        const std::string title = StrCat(side, ": ", name);
        auto row =
            std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r[0] == title; });
        if (row == rows.end()) {
          row = rows.insert(row, Row(results.size() + 1));
          row->front() = title;
        }
        (*row)[column + 1] = value;
      }
    }
  };
  add("server", &Result::server_facts);
  add("load generator", &Result::generator_facts);
  return rows.empty() ? "" : "<h2>Setup</h2>\n" + Table(names, rows);
}

PlotLine Curve(const std::string& name, const Distribution& of, int color) {
  PlotLine line{.name = name, .color = color};
  for (size_t i = 0; i < of.curve.size(); ++i) {
    line.points.emplace_back(of.curve[i], PlotShares()[i] * 100);
  }
  return line;
}

std::string CurvePlot(const std::string& title, std::vector<PlotLine> lines) {
  // A value of 0 has no place on a logarithmic axis; then the axis is linear.
  bool has_zero = false;
  for (const PlotLine& line : lines) {
    for (const auto& [x, y] : line.points) has_zero |= x <= 0;
  }
  return PlotSvg({.title = title,
                  .x_name = has_zero ? "milliseconds" : "milliseconds, logarithmic",
                  .y_name = "% at most",
                  .is_log_x = !has_zero,
                  .lines = std::move(lines)});
}

using Member = std::function<std::pair<bool, double>(const TimelinePoint&)>;

PlotLine OverTime(const Result& result, const std::string& name, int color, const Member& member) {
  PlotLine line{.name = name, .color = color};
  for (const TimelinePoint& point : result.timeline) {
    const auto [has_value, value] = member(point);
    if (has_value) line.points.emplace_back(point.time, value);
  }
  return line;
}

PlotLine Dashed(PlotLine line) {
  line.is_dashed = true;
  return line;
}

std::pair<bool, double> TtftMedian(const TimelinePoint& p) { return {p.has_ttft, p.ttft_median}; }
std::pair<bool, double> TtftTail(const TimelinePoint& p) { return {p.has_ttft, p.ttft_p99}; }
std::pair<bool, double> ItlMedian(const TimelinePoint& p) { return {p.has_itl, p.itl_median}; }
std::pair<bool, double> ItlTail(const TimelinePoint& p) { return {p.has_itl, p.itl_p99}; }
std::pair<bool, double> Tokens(const TimelinePoint& p) { return {true, p.tokens_per_second}; }

std::string TimePlot(const std::string& title, const std::string& unit,
                     std::vector<PlotLine> lines) {
  return PlotSvg({.title = title, .x_name = "seconds", .y_name = unit, .lines = std::move(lines)});
}

std::string Figures(const Result& result) {
  std::vector<Row> rows = {
      {"Requests completed", StrCat(result.completed)},
      {"failed", StrCat(result.failed)},
      {"cancelled by the client", StrCat(result.cancelled)},
      {"past their deadline", StrCat(result.past_deadline)},
      {"unfinished", StrCat(result.unfinished)},
      {"Duration, s", Figure(result.duration)},
      {"Requests a second", Figure(result.request_throughput)},
      {"Output tokens a second", Figure(result.output_throughput)},
      {"in the best second", Figure(result.peak_output_throughput)},
      {"Input tokens; of them cached", StrCat(result.input_tokens, "; ", result.cached_tokens)},
      {"Output tokens", StrCat(result.output_tokens)},
      {"Most requests at once", StrCat(result.peak_concurrency)}};
  if (result.goodput) {
    rows.push_back(
        {StrCat("Good requests a second (", result.goals, ")"), Figure(*result.goodput)});
    rows.push_back({"share of good requests",
                    absl::StrFormat("%.1f %%", result.attainment.value_or(0) * 100)});
  }
  return Table({"", "value"}, rows);
}

std::string Latencies(const Result& result) {
  Row head = {"milliseconds", "mean", "deviation"};
  for (const auto& [percent, value] : result.ttft.percentiles) {
    head.push_back(absl::StrFormat("p%g", percent));
  }
  std::vector<Row> rows;
  for (const auto& [name, of] : {std::pair{"Time to first token", &result.ttft},
                                 std::pair{"Time per output token", &result.tpot},
                                 std::pair{"Inter-token latency", &result.itl},
                                 std::pair{"Pause between arrivals", &result.pause},
                                 std::pair{"End-to-end latency", &result.e2el},
                                 std::pair{"Wait before sending", &result.queue}}) {
    Row& row = rows.emplace_back(Row{name, Figure(of->mean), Figure(of->deviation)});
    for (const auto& [percent, value] : of->percentiles) row.push_back(Figure(value));
  }
  return Table(head, rows);
}

// Returns the sums by turn, with a plot; "" of a run without sessions.
std::string Turns(const Result& result) {
  const TurnTable& table = result.turns;
  if (table.rows.empty()) return "";
  std::vector<Row> rows;
  PlotLine median{.name = "median", .color = 0, .has_marks = true};
  PlotLine tail{.name = "p99", .color = 1, .has_marks = true};
  for (size_t row = 0; row < table.rows.size(); ++row) {
    rows.push_back(TurnCells(table, row));
    if (table.rows[row].completed == 0) continue;
    median.points.emplace_back(row + 1, table.rows[row].ttft_median);
    tail.points.emplace_back(row + 1, table.rows[row].ttft_p99);
  }
  rows.push_back(TurnCells(table, table.rows.size()));
  std::string html = StrCat(
      "<h2>Turns</h2>\n", Table(TurnTitles(table), rows, static_cast<int>(table.rows.size())),
      "<p class=\"sub\">Times in milliseconds; tokens of prompts and answers. Sessions: ",
      result.sessions.completed, " of ", result.sessions.begun, " completed, ",
      result.sessions.failed, " failed.</p>\n");
  rows.clear();
  for (const auto& [source, tokens] : result.prompt_sources) {
    rows.push_back({source, absl::StrFormat("%.0f", tokens)});
  }
  if (!rows.empty()) html += Table({"prompt tokens by the server's metrics", "tokens"}, rows);
  return html + "<div class=\"plots\">\n" +
         PlotSvg({.title = "Time to first token by turn",
                  .x_name = "turn",
                  .y_name = "milliseconds",
                  .lines = {median, tail}}) +
         "</div>\n";
}

std::string Texts(const Result& result) {
  std::string html;
  for (const std::string& warning : result.warnings) {
    html += StrCat("<p class=\"warning\">", EscapeHtml(warning), "</p>\n");
  }
  if (!result.errors.empty()) {
    std::vector<Row> rows;
    for (const auto& [message, count] : result.errors) rows.push_back({message, StrCat(count)});
    html += "<h2>Errors</h2>\n" + Table({"message", "requests"}, rows);
  }
  if (!result.samples.empty()) html += "<h2>Answers, their beginnings</h2>\n";
  for (const std::string& sample : result.samples) {
    html += StrCat("<pre>", EscapeHtml(sample), "</pre>\n");
  }
  return html;
}

std::string Generator(const Result& result) {
  const double us =
      result.events > 0 ? result.cpu_seconds / static_cast<double>(result.events) * 1e6 : 0;
  return StrCat("<h2>The load generator</h2>\n",
                Table({"", "value"}, {{"Threads", StrCat(result.threads)},
                                      {"Its CPU time, s", Figure(result.cpu_seconds)},
                                      {"Events of streams", StrCat(result.events)},
                                      {"CPU time an event, µs", Figure(us)},
                                      {"Sent late by itself, p99, ms", Figure(result.lag_p99)}}));
}

// The load of a sweep's run, as the axis has it.
double LoadOf(const Result& result) {
  return result.rate ? *result.rate : static_cast<double>(result.concurrency.value_or(0));
}

PlotLine OverLoad(const std::vector<Result>& results, const std::string& name, int color,
                  const std::function<double(const Result&)>& value) {
  PlotLine line{.name = name, .color = color, .has_marks = true};
  for (const Result& result : results) line.points.emplace_back(LoadOf(result), value(result));
  std::sort(line.points.begin(), line.points.end());
  return line;
}

double Tail(const Distribution& of) {
  return of.percentiles.empty() ? 0 : of.percentiles.back().second;
}

}  // namespace

std::string HtmlReport(const Result& result) {
  const std::string title =
      result.label.empty() ? StrCat("Load test of ", result.model) : result.label;
  std::string body =
      Heading(title, {result.model, result.protocol, result.url, result.load, TimeOf(result)});
  body += SummaryOf(Summary(result));
  body += Texts({.warnings = result.warnings});
  body += "<h2>Figures</h2>\n" + Figures(result);
  body += "<h2>Latencies</h2>\n" + Latencies(result);
  body += Turns(result);
  body += "<h2>Plots</h2>\n<div class=\"plots\">\n";
  body += CurvePlot("Time to first token", {Curve("TTFT", result.ttft, 0)});
  body += CurvePlot("Time between tokens", {Curve("inter-token", result.itl, 0),
                                            Dashed(Curve("pauses", result.pause, 1))});
  body +=
      TimePlot("Time to first token over time", "milliseconds",
               {OverTime(result, "median", 0, TtftMedian), OverTime(result, "p99", 1, TtftTail)});
  body += TimePlot("Time between tokens over time", "milliseconds",
                   {OverTime(result, "median", 0, ItlMedian), OverTime(result, "p99", 1, ItlTail)});
  body +=
      TimePlot("Output over time", "tokens a second", {OverTime(result, "tokens/s", 0, Tokens)});
  body += CurvePlot("End-to-end latency", {Curve("latency", result.e2el, 0)});
  body += "</div>\n";
  body += Texts({.errors = result.errors, .samples = result.samples});
  body += Setup({"", "value"}, {&result});
  return Page(title, body + Generator(result));
}

std::string HtmlSweepReport(const std::vector<Result>& results, int best) {
  const Result& first = results.front();
  const std::string title = first.label.empty() ? StrCat("Sweep of ", first.model) : first.label;
  std::string body =
      Heading(title, {first.model, first.protocol, first.url, first.goals, TimeOf(first)});
  body += SummaryOf(SweepSummary(results, best));
  std::vector<Row> rows;
  for (const Result& result : results) {
    rows.push_back(
        {Figure(LoadOf(result)), Figure(result.request_throughput),
         Figure(result.output_throughput), Figure(result.ttft.median), Figure(Tail(result.ttft)),
         Figure(result.tpot.median), Figure(Tail(result.tpot)), StrCat(result.failed),
         result.attainment ? absl::StrFormat("%.1f %%", *result.attainment * 100) : "-"});
  }
  const std::string load = first.rate ? "requests a second" : "requests at once";
  const std::string tail = first.ttft.percentiles.empty()
                               ? std::string("tail")
                               : absl::StrFormat("p%g", first.ttft.percentiles.back().first);
  body += Table({load, "req/s", "tok/s", "TTFT p50, ms", StrCat("TTFT ", tail), "TPOT p50, ms",
                 StrCat("TPOT ", tail), "failed", "good"},
                rows, best);
  const auto plot = [&](const std::string& name, const std::string& unit,
                        std::vector<PlotLine> lines) {
    return PlotSvg({.title = name, .x_name = load, .y_name = unit, .lines = std::move(lines)});
  };
  body += "<div class=\"plots\">\n";
  body +=
      plot(StrCat("Throughput against ", first.rate ? "rate" : "concurrency"), "tokens a second",
           {OverLoad(results, "tokens/s", 0, [](const Result& r) { return r.output_throughput; })});
  if (first.goodput) {
    body +=
        plot(StrCat("Goodput (", first.goals, ")"), "requests a second",
             {OverLoad(results, "good", 2, [](const Result& r) { return r.goodput.value_or(0); }),
              Dashed(OverLoad(results, "completed", 0,
                              [](const Result& r) { return r.request_throughput; }))});
  }
  body += plot("Time to first token", "milliseconds",
               {OverLoad(results, "median", 0, [](const Result& r) { return r.ttft.median; }),
                OverLoad(results, tail, 1, [](const Result& r) { return Tail(r.ttft); })});
  body += plot("Time per output token", "milliseconds",
               {OverLoad(results, "median", 0, [](const Result& r) { return r.tpot.median; }),
                OverLoad(results, tail, 1, [](const Result& r) { return Tail(r.tpot); })});
  body += "</div>\n";
  for (const Result& result : results) {
    if (result.errors.empty() && result.warnings.empty()) continue;
    body += StrCat("<h2>At ", Figure(LoadOf(result)), " ", load, "</h2>\n",
                   Texts({.errors = result.errors, .warnings = result.warnings}));
  }
  body += Setup({"", "value"}, {&first});
  return Page(title, body);
}

std::string HtmlComparison(const Result& a, const Result& b) {
  const auto name = [](const Result& result, std::string_view otherwise) {
    return result.label.empty() ? std::string(otherwise) : result.label;
  };
  const std::string name_a = name(a, "A");
  const std::string name_b = name(b, "B");
  std::string body = Heading(StrCat(name_a, " and ", name_b), {});
  std::vector<std::string> sentences = ComparisonSummary(a, b, name_b);
  for (const std::string& line : Differences(a, b)) sentences.push_back(line + ".");
  body += SummaryOf(sentences);
  body += Table(
      {"", "model", "server", "load", "time"},
      {{name_a, a.model, a.url, a.load, TimeOf(a)}, {name_b, b.model, b.url, b.load, TimeOf(b)}});
  std::vector<Row> rows;
  for (const ComparedFigure& figure : Compare(a, b)) {
    rows.push_back(
        {figure.name, Figure(figure.a), Figure(figure.b), figure.Change(), figure.Verdict()});
  }
  body += "<h2>Figures</h2>\n" + Table({"", name_a, name_b, "B against A", ""}, rows);
  const auto over_time = [&](const std::string& title, const std::string& unit,
                             const Member& member) {
    return TimePlot(title, unit, {OverTime(a, name_a, 0, member), OverTime(b, name_b, 1, member)});
  };
  body += "<h2>Plots</h2>\n<div class=\"plots\">\n";
  body += CurvePlot("Time to first token", {Curve(name_a, a.ttft, 0), Curve(name_b, b.ttft, 1)});
  body += CurvePlot("Time between tokens", {Curve(name_a, a.itl, 0), Curve(name_b, b.itl, 1)});
  body += over_time("Time to first token over time, median", "milliseconds", TtftMedian);
  body += over_time("Time between tokens over time, median", "milliseconds", ItlMedian);
  body += over_time("Output over time", "tokens a second", Tokens);
  body += CurvePlot("End-to-end latency", {Curve(name_a, a.e2el, 0), Curve(name_b, b.e2el, 1)});
  body += "</div>\n";
  body += Setup({"", name_a, name_b}, {&a, &b});
  return Page(StrCat(name_a, " and ", name_b), body);
}

}  // namespace millrace
