#include "loadtest/html_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "loadtest/histogram.h"
#include "loadtest/html.h"
#include "loadtest/plot.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::string_view kHostile =
    "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\"'><a "
    "href=\"javascript:alert(3)\">"
    "<style>*{}</style></title>\xff\xfe\x00\x1b[2J\xe2\x80\xae";

Result HostileResult() {
  const std::string hostile(kHostile);
  Result result{.label = hostile,
                .date = hostile,
                .model = hostile,
                .protocol = hostile,
                .url = hostile,
                .load = hostile,
                .rate = 1,
                .goals = hostile};
  result.goodput = 1;
  result.errors = {{hostile, 3}};
  result.samples = {hostile};
  result.warnings = {hostile};
  for (size_t i = 0; i < PlotShares().size(); ++i) {
    result.ttft.curve.push_back(static_cast<double>(i) + 1);
    result.itl.curve.push_back(static_cast<double>(i));
  }
  result.ttft.percentiles = {{50, 5}, {99, NAN}};
  result.time = hostile;
  result.server_facts = {{"version", hostile}, {hostile, "x"}};
  result.generator_facts = {{"flags", hostile}};
  result.timeline = {{.time = 0, .tokens_per_second = 5},
                     {.time = 1, .tokens_per_second = INFINITY}};
  return result;
}

// Checks that a page holds no element that asks for something or runs, and nothing of the hostile
// text but as text.
void ExpectHarmless(const std::string& page) {
  EXPECT_THAT(page, HasSubstr("default-src 'none'; style-src 'sha256-"));
  EXPECT_EQ(page.find("<script"), page.npos);
  EXPECT_EQ(page.find("<img"), page.npos);
  EXPECT_EQ(page.find("<a "), page.npos);
  EXPECT_EQ(page.find("href"), page.find("href=&quot;"));
  EXPECT_EQ(page.find("src=\""), page.npos);
  EXPECT_EQ(page.find("url("), page.npos);
  EXPECT_EQ(page.find("http://"), page.npos);
  EXPECT_EQ(page.find("style=\""), page.npos);
  EXPECT_EQ(page.find('\x1b'), page.npos);
  EXPECT_EQ(page.find("\xe2\x80\xae"), page.npos);
  EXPECT_EQ(page.find("nan"), page.npos);
  EXPECT_EQ(page.find("<style>"), page.rfind("<style>"));
  const std::string head = page.substr(0, page.find("</head>"));
  EXPECT_EQ(head.find("</title>"), head.rfind("</title>"));
  EXPECT_EQ(std::count(page.begin(), page.end(), '<'), std::count(page.begin(), page.end(), '>'));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(1)&lt;/script&gt;"));
}

TEST(HtmlReportTest, HostileTextsStayTexts) {
  const Result result = HostileResult();
  ExpectHarmless(HtmlReport(result));
  ExpectHarmless(HtmlSweepReport({result, result}, 1));
  ExpectHarmless(HtmlComparison(result, result));
}

TEST(HtmlReportTest, ShowsWhatItIsFor) {
  const std::string page = HtmlReport(HostileResult());
  for (const char* title :
       {"Time to first token", "Time between tokens", "Time to first token over time",
        "Time between tokens over time", "Output over time", "End-to-end latency"}) {
    EXPECT_THAT(page, HasSubstr("<figcaption>" + std::string(title) + "</figcaption>"));
  }
  const std::string sweep = HtmlSweepReport({HostileResult()}, 0);
  EXPECT_THAT(sweep, HasSubstr("Throughput against rate"));
  EXPECT_THAT(sweep, HasSubstr("<figcaption>Goodput ("));
  EXPECT_THAT(sweep, HasSubstr("<tr class=\"best\">"));
}

TEST(HtmlReportTest, SaysFirstWhatCameOut) {
  Result result{.date = "20261130-100512", .time = "2026-11-30 10:05:12 +01:00", .concurrency = 4};
  result.duration = 2;
  result.completed = 8;
  result.failed = 2;
  result.request_throughput = 4;
  result.output_throughput = 40;
  const std::string page = HtmlReport(result);
  const std::string sentence =
      "8 of 10 requests were completed in 2.00 s: 4.00 requests and 40.00 output tokens a second.";
  EXPECT_LT(page.find(sentence), page.find("<h2>"));
  EXPECT_THAT(page, HasSubstr("2026-11-30 10:05:12 +01:00"));
  EXPECT_THAT(HtmlSweepReport({result, result}, -1), HasSubstr("came at 4 requests at once"));
}

TEST(HtmlReportTest, ShowsTheSetupOfBothSides) {
  Result a{.label = "old"};
  a.server_facts = {{"version", "0.1.0"}, {"gpu", "H200"}};
  a.generator_facts = {{"flags", "--rate 5"}};
  EXPECT_THAT(HtmlReport(a), HasSubstr("<td>server: gpu</td><td>H200</td>"));
  EXPECT_THAT(HtmlReport(a), HasSubstr("<td>load generator: flags</td><td>--rate 5</td>"));
  EXPECT_THAT(HtmlReport({}), Not(HasSubstr("Setup")));
  Result b{.label = "new"};
  b.server_facts = {{"version", "0.2.0"}, {"max_model_len", "4096"}};
  const std::string page = HtmlComparison(a, b);
  EXPECT_THAT(page, HasSubstr("<td>server: version</td><td>0.1.0</td><td>0.2.0</td>"));
  EXPECT_THAT(page, HasSubstr("<td>server: gpu</td><td>H200</td><td></td>"));
  EXPECT_THAT(page, HasSubstr("<td>server: max_model_len</td><td></td><td>4096</td>"));
}

TEST(EscapeHtmlTest, KeepsTextAndReplacesTheRest) {
  EXPECT_EQ(EscapeHtml("a\n\t\xc3\xa4\xe4\xb8\xad\xf0\x9f\x98\x80"),
            "a\n\t\xc3\xa4\xe4\xb8\xad\xf0\x9f\x98\x80");
  EXPECT_EQ(EscapeHtml("<>&\"'"), "&lt;&gt;&amp;&quot;&#39;");
  const std::string lost = "\xef\xbf\xbd";
  EXPECT_EQ(EscapeHtml("\xc3"), lost);
  EXPECT_EQ(EscapeHtml("\xc0\xaf"), lost + lost);             // an overlong slash
  EXPECT_EQ(EscapeHtml("\xed\xa0\x80"), lost + lost + lost);  // half of a pair
  EXPECT_EQ(EscapeHtml("\xf5"), lost);
  EXPECT_EQ(EscapeHtml(std::string_view("\0\x7f\x01", 3)), lost + lost + lost);
  EXPECT_EQ(EscapeHtml("\xe2\x80\xae"), "[U+202E]");
}

TEST(PlotTest, TicksAreRound) {
  EXPECT_THAT(Ticks(0, 10, 5), testing::ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(Ticks(0, 0.35, 5), testing::SizeIs(testing::Le(6)));
  EXPECT_THAT(Ticks(5, 5, 5), testing::ElementsAre(5));
  EXPECT_THAT(Ticks(0, INFINITY, 5), testing::ElementsAre(0));
}

// Returns how many texts a logarithmic axis from `low` to `high` has, without its name and the four
// or more of the other axis.
int LabelsOfLogAxis(double low, double high) {
  const auto texts = [](bool is_log, double from, double to) {
    const std::string svg =
        PlotSvg({.is_log_x = is_log, .lines = {{.points = {{from, 1}, {to, 1}}}}});
    int count = 0;
    for (size_t at = svg.find("<text"); at != svg.npos; at = svg.find("<text", at + 1)) ++count;
    return count;
  };
  // A linear axis from 0 to 0 has the labels 0 to 1.
  return texts(true, low, high) - texts(false, 0, 0) + static_cast<int>(Ticks(0, 1, 7).size());
}

TEST(PlotTest, ALogarithmicAxisHasLabelsHoweverNarrowItIs) {
  for (const double low : {0.0123, 0.9, 1.0, 1.01, 20.1, 37.0, 600.0}) {
    for (const double ratio : {1.02, 1.5, 2.0, 4.9, 5.0, 7.0, 100.0, 1000.0, 1e6}) {
      EXPECT_GE(LabelsOfLogAxis(low, low * ratio), 2) << low << " to " << low * ratio;
      EXPECT_LE(LabelsOfLogAxis(low, low * ratio), 12) << low << " to " << low * ratio;
    }
  }
}

TEST(PlotTest, TakesAnyPoints) {
  PlotSpec spec{.title = "t", .x_name = "x", .y_name = "y", .is_log_x = true};
  EXPECT_THAT(PlotSvg(spec), HasSubstr("<svg"));
  spec.lines.push_back({.name = "<a>", .points = {{0, 1}, {-1, 1}, {NAN, 1}, {1, NAN}}});
  EXPECT_THAT(PlotSvg(spec), Not(HasSubstr("nan")));
  spec.lines.push_back(
      {.name = "b", .points = {{1, 1e300}, {1e-300, 5}, {1e300, 0}}, .has_marks = true});
  const std::string svg = PlotSvg(spec);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  EXPECT_THAT(svg, HasSubstr("&lt;a&gt;"));
}

}  // namespace
}  // namespace millrace
