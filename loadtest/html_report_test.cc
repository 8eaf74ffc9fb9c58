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
