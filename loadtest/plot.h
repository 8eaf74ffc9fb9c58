// Line plots as SVG.
#ifndef MILLRACE_LOADTEST_PLOT_H_
#define MILLRACE_LOADTEST_PLOT_H_

#include <string>
#include <utility>
#include <vector>

namespace millrace {

struct PlotLine {
  std::string name;
  std::vector<std::pair<double, double>> points;
  int color = 0;  // which of the page's colors
  bool is_dashed = false;
  bool has_marks = false;  // a mark at each point, with its numbers
};

struct PlotSpec {
  std::string title;
  std::string x_name;
  std::string y_name;
  bool is_log_x = false;
  std::vector<PlotLine> lines;
};

// Returns an <svg> element without styles or scripts of its own, which the classes of the page
// color: line-N, mark-N, grid, axis, dashed. Names are escaped. Points that are not finite, or are
// not positive on a logarithmic axis, are left out.
std::string PlotSvg(const PlotSpec& spec);

// Returns about `count` round numbers from `low` to `high`.
std::vector<double> Ticks(double low, double high, int count);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_PLOT_H_
