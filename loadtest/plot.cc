#include "loadtest/plot.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "base/strings.h"
#include "loadtest/html.h"

namespace millrace {
namespace {

constexpr double kWidth = 560;
constexpr double kHeight = 300;
constexpr double kLeft = 58;
constexpr double kRight = 12;
constexpr double kTop = 28;
constexpr double kBottom = 44;
constexpr size_t kMostMarks = 100;  // of a line

struct Axis {
  double low = 0;
  double high = 1;
  bool is_log = false;

  double Share(double value) const {
    if (is_log) return (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
    return (value - low) / (high - low);
  }
  bool Shows(double value) const { return std::isfinite(value) && (!is_log || value > 0); }
};

struct Frame {
  Axis x;
  Axis y;

  double X(double value) const { return kLeft + x.Share(value) * (kWidth - kLeft - kRight); }
  double Y(double value) const {
    return kHeight - kBottom - y.Share(value) * (kHeight - kTop - kBottom);
  }
};

Frame FrameOf(const PlotSpec& spec) {
  Frame frame;
  frame.x.is_log = spec.is_log_x;
  double low = INFINITY;
  double high = -INFINITY;
  double top = 0;
  for (const PlotLine& line : spec.lines) {
    for (const auto& [x, y] : line.points) {
      if (!frame.x.Shows(x) || !std::isfinite(y)) continue;
      low = std::min(low, x);
      high = std::max(high, x);
      top = std::max(top, y);
    }
  }
  if (!(low <= high)) low = high = spec.is_log_x ? 1 : 0;
  if (!spec.is_log_x) low = std::min(low, 0.0);
  // No ticks can be counted between ends that are almost equal.
  if (spec.is_log_x ? high <= low * (1 + 1e-6) : high <= low) {
    high = spec.is_log_x ? low * 10 : low + 1;
  }
  frame.x.low = low;
  frame.x.high = high;
  frame.y.high = top > 0 ? top * 1.05 : 1;
  return frame;
}

std::string Number(double value) {
  const double size = std::abs(value);
  if (size >= 1e6) return absl::StrFormat("%gM", value / 1e6);
  if (size >= 1e4) return absl::StrFormat("%gk", value / 1e3);
  return absl::StrFormat("%g", value);
}

// Round numbers between both ends: two at least, so that any axis can be read.
std::vector<double> LogTicks(double low, double high) {
  if (high / low < 5) return Ticks(low, high, 5);
  std::vector<double> ticks;
  const bool is_wide = high / low > 1000;
  for (double decade = std::pow(10, std::floor(std::log10(low))); decade <= high; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      const double tick = decade * step;
      if (tick >= low && tick <= high && (!is_wide || step == 1)) ticks.push_back(tick);
    }
  }
  return ticks;
}

std::string Text(double x, double y, std::string_view anchor, std::string_view text,
                 std::string_view more = "") {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>%s</text>\n", x, y,
                         AbslView(anchor), AbslView(more), EscapeHtml(text));
}

std::string GridLine(double x1, double y1, double x2, double y2) {
  return absl::StrFormat("<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                         x1, y1, x2, y2);
}

std::string Axes(const PlotSpec& spec, const Frame& frame) {
  std::string svg;
  const double bottom = kHeight - kBottom;
  for (const double tick :
       spec.is_log_x ? LogTicks(frame.x.low, frame.x.high) : Ticks(frame.x.low, frame.x.high, 7)) {
    svg += GridLine(frame.X(tick), kTop, frame.X(tick), bottom);
    svg += Text(frame.X(tick), bottom + 15, "middle", Number(tick));
  }
  for (const double tick : Ticks(frame.y.low, frame.y.high, 5)) {
    svg += GridLine(kLeft, frame.Y(tick), kWidth - kRight, frame.Y(tick));
    svg += Text(kLeft - 6, frame.Y(tick) + 4, "end", Number(tick));
  }
  svg += Text((kLeft + kWidth - kRight) / 2, kHeight - 8, "middle", spec.x_name);
  const double middle = (kTop + bottom) / 2;
  svg += Text(13, middle, "middle", spec.y_name,
              absl::StrFormat(" transform=\"rotate(-90 13 %.1f)\"", middle));
  return svg;
}

std::string LineSvg(const PlotLine& line, const Frame& frame) {
  std::string path;
  std::string marks;
  for (const auto& [x, y] : line.points) {
    if (!frame.x.Shows(x) || !std::isfinite(y)) continue;
    path += absl::StrFormat("%s%.1f %.1f", path.empty() ? "M" : "L", frame.X(x), frame.Y(y));
    if (!line.has_marks || line.points.size() > kMostMarks) continue;
    marks += absl::StrFormat(
        "<circle class=\"mark-%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>%s: %g, %g</title>"
        "</circle>\n",
        line.color, frame.X(x), frame.Y(y), EscapeHtml(line.name), x, y);
  }
  if (path.empty()) return "";
  return absl::StrFormat("<path class=\"line-%d%s\" d=\"%s\"/>\n%s", line.color,
                         line.is_dashed ? " dashed" : "", path, marks);
}

// Names the lines above the plot, from the right.
std::string Legend(const PlotSpec& spec) {
  if (spec.lines.size() < 2) return "";
  std::string svg;
  double right = kWidth - kRight;
  for (auto line = spec.lines.rbegin(); line != spec.lines.rend(); ++line) {
    const std::string name = line->name.size() > 24 ? line->name.substr(0, 21) + "..." : line->name;
    svg += Text(right, kTop - 8, "end", name);
    right -= 6.5 * static_cast<double>(name.size()) + 6;
    svg += absl::StrFormat("<path class=\"line-%d%s\" d=\"M%.1f %.1fh16\"/>\n", line->color,
                           line->is_dashed ? " dashed" : "", right - 16, kTop - 12);
    right -= 28;
  }
  return svg;
}

}  // namespace

std::vector<double> Ticks(double low, double high, int count) {
  const double raw = (high - low) / count;
  if (!(raw > 0) || !std::isfinite(raw)) return {low};
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = power * 10;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (power * factor >= raw) step = power * factor;
  }
  std::vector<double> ticks;
  for (double index = std::ceil(low / step); index * step <= high * (1 + 1e-9); ++index) {
    ticks.push_back(index * step);
  }
  return ticks;
}

std::string PlotSvg(const PlotSpec& spec) {
  const Frame frame = FrameOf(spec);
  std::string svg = absl::StrFormat(
      "<figure><figcaption>%s</figcaption>\n<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
      "aria-label=\"%s\">\n",
      EscapeHtml(spec.title), kWidth, kHeight, EscapeHtml(spec.title));
  svg += Axes(spec, frame);
  for (const PlotLine& line : spec.lines) svg += LineSvg(line, frame);
  return svg + Legend(spec) + "</svg></figure>\n";
}

}  // namespace millrace
