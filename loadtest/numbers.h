// Numbers and times as users write them.
#ifndef MILLRACE_LOADTEST_NUMBERS_H_
#define MILLRACE_LOADTEST_NUMBERS_H_

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

namespace millrace {

// Parses all of `text` as a finite decimal number.
inline std::optional<double> ParseDecimal(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) {
    return std::nullopt;
  }
  return number;
}

// Parses a time that is not negative: "30", "2.5s", "500ms", "10m", "1h". Returns seconds.
inline std::optional<double> ParseSeconds(std::string_view text) {
  double unit = 1;
  if (text.ends_with("ms")) {
    unit = 1e-3;
    text.remove_suffix(2);
  } else if (!text.empty() && (text.back() == 's' || text.back() == 'm' || text.back() == 'h')) {
    unit = text.back() == 's' ? 1 : text.back() == 'm' ? 60 : 3600;
    text.remove_suffix(1);
  }
  const std::optional<double> number = ParseDecimal(text);
  if (!number || *number < 0 || *number * unit > 1e7) return std::nullopt;
  return *number * unit;
}

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_NUMBERS_H_
