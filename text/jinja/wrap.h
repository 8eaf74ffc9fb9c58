// Python's textwrap, as Jinja's wordwrap filter uses it.
#ifndef MILLRACE_TEXT_JINJA_WRAP_H_
#define MILLRACE_TEXT_JINJA_WRAP_H_

#include <cstddef>
#include <string_view>
#include <vector>

namespace millrace::jinja {

struct WrapOptions {
  size_t width = 79;             // In code points, at least 1.
  bool break_long_words = true;  // A word longer than a line is cut.
  bool break_on_hyphens = true;  // A line may end after a word's hyphen, and before a dash.
};

// Cuts a line into lines of at most `width` code points each, which point into it: textwrap.wrap()
// with expand_tabs and replace_whitespace off. An empty line gives none. In linear time.
std::vector<std::string_view> WrapLine(std::string_view line, const WrapOptions& options);

}  // namespace millrace::jinja

#endif  // MILLRACE_TEXT_JINJA_WRAP_H_
